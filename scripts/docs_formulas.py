r"""Formulas of the documentation as MathML, made when the site is built.

Browsers draw MathML themselves, so the pages need no script and no network. Data flow: ``$…$`` in a page ->
``pymdownx.arithmatex`` marks it (``<span class="arithmatex">\(…\)</span>``) -> :func:`with_mathml` replaces the mark.
"""

from __future__ import annotations

import html
import re

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
# What the converter does not know it prints as text; such a word in the output is a mistake in the page.
_UNKNOWN = re.compile(r"\\[A-Za-z]*.?")


class FormulaError(ValueError):
    """A formula that could not be converted."""


def with_mathml(content: str) -> str:
    r"""Return the HTML of a page with every marked formula as MathML.

    Example:
        >>> with_mathml('<span class="arithmatex">\\(x^2\\)</span>')[:5]
        '<math'
    """
    content = _DISPLAY.sub(lambda found: to_mathml(html.unescape(found[1]), display=True), content)
    return _INLINE.sub(lambda found: to_mathml(html.unescape(found[1]), display=False), content)


def to_mathml(formula: str, *, display: bool) -> str:
    """Return one formula as a ``<math>`` element.

    Args:
        formula: LaTeX without its delimiters.
        display: Whether it stands on a line of its own.

    Raises:
        FormulaError: The converter refuses the formula, or leaves a command of it unconverted.
    """
    from latex2mathml.converter import convert

    bare = re.sub(r"\\[{}]", "", formula)
    if bare.count("{") != bare.count("}"):
        raise FormulaError(f"formula {formula.strip()!r}: braces do not match")
    try:
        mathml: str = convert(formula.strip(), display="block" if display else "inline")
    except Exception as error:  # the converter raises a dozen kinds of its own
        raise FormulaError(f"formula {formula.strip()!r}: {type(error).__name__} {error}") from error
    unknown = _UNKNOWN.search(mathml)
    if unknown:
        raise FormulaError(f"formula {formula.strip()!r}: the converter does not know {unknown[0]}")
    return mathml
