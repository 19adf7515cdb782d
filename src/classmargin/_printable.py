"""Text from elsewhere, made safe to show: class names and messages of libraries come from files that nobody has looked at."""

from __future__ import annotations

import unicodedata

_SPACES = str.maketrans("\t\n\r", "   ")
_DIRECTION_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    r"""Return ``text`` on one line and without control characters: no escape sequence for a terminal, no break in a table row.

    Example:
        >>> ascii(printable("tab\there, bell\x07, red\x1b[31m"))
        "'tab here, bell\\ufffd, red\\ufffd[31m'"
    """
    # Cc: control; Cs: lone surrogates, which no encoding can write; overrides of the reading direction can
    # make one name look like another. Joiners (also Cf) stay: several scripts need them.
    return "".join(
        "\ufffd" if unicodedata.category(letter) in ("Cc", "Cs") or letter in _DIRECTION_OVERRIDES else letter
        for letter in text.translate(_SPACES)
    )


def escape_markdown(text: str) -> str:
    r"""Return ``text`` on one line such that Markdown, and the HTML inside it, shows exactly its characters.

    Example:
        >>> escape_markdown("a|b <c>")
        'a\\|b &lt;c>'
    """
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    # No round brackets: renderers with formulas take an escaped one for the start of a formula.
    return "".join(f"\\{character}" if character in "\\`*_[]|~$#" else character for character in text)
