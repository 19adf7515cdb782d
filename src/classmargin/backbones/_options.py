"""Named options are checked before they are used, so that a typing error is answered with the right name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from classmargin._checks import did_you_mean


def option_names(function: Callable[..., Any], *, skip: Iterable[str] = ()) -> list[str]:
    """Return the keyword names ``function`` accepts, without those in ``skip``.

    Example:
        >>> def build(width, *, dropout=0.0): ...
        >>> option_names(build, skip=["width"])
        ['dropout']
    """
    left_out = {"self", *skip}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in named and p.name not in left_out
    ]


def check_options(owner: str, options: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` naming the first option that ``owner`` does not know."""
    names = list(allowed)
    for option in options:
        if option not in names:
            known = f"its options are {', '.join(names)}" if names else "it has no options"
            raise ValueError(f"{owner} has no option {option!r}{did_you_mean(option, names)}; {known}")
