"""What can be wrong with a data set, each with its own name so that callers can tell the cases apart."""

from __future__ import annotations


class DataNotFoundError(FileNotFoundError, ValueError):
    """The data set is not on this machine; the message says where to get it and where to put it."""


class DataError(ValueError):
    """The files are there, but what they hold cannot be used."""


class CorruptImageError(DataError):
    """At least one image file cannot be decoded; the message names and counts them."""


class MixedSizeError(DataError):
    """The images differ in size and no ``image_size`` was given."""


def name_some(names: list[str], *, limit: int = 5) -> str:
    """Return the first few of ``names`` and how many more there are.

    Example:
        >>> name_some(["a", "b", "c"], limit=2)
        'a, b and 1 more'
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
