"""Hyper-parameters as declarations in the body of a method: default, type and limits stand in one line.

Example:
    >>> number(0.05, minimum=0.0).checked("rho", 1)
    1.0
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from classmargin._checks import check_choice, check_int, check_number


class Hyperparameter(NamedTuple):
    """The published default of a hyper-parameter, and the check that its values have to pass."""

    default: Any
    check: Callable[[str, Any], Any]

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as its type, or refuse it; None passes where it is the default."""
        return None if value is None and self.default is None else self.check(name, value)


def number(default: float | None, **limits: Any) -> Any:
    """Declare a number within ``limits``, in the words of ``check_number``."""
    return Hyperparameter(default, partial(check_number, **limits))


def whole_number(default: int, *, minimum: int) -> Any:
    """Declare a whole number."""
    return Hyperparameter(default, partial(check_int, minimum=minimum))


def choice(*options: str) -> Any:
    """Declare one of several words; the first is the default."""
    return Hyperparameter(options[0], partial(check_choice, choices=options))


def switch(default: bool) -> Any:
    """Declare something that is on or off."""
    return Hyperparameter(default, lambda name, value: bool(value))
