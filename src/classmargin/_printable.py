"""Text of others on a terminal: class names and messages of libraries come from files that nobody has looked at."""

from __future__ import annotations

import unicodedata

_DIRECTION_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    r"""Return ``text`` on one line and without control characters.

    Class names come from files of others: an escape sequence in one must not reach the terminal, nor a line
    break a table row.

    Example:
        >>> ascii(printable("tab\there, bell\x07, red\x1b[31m"))
        "'tab here, bell\\ufffd, red\\ufffd[31m'"
    """
    return "".join(_printable_character(character) for character in text)


def _printable_character(character: str) -> str:
    if character in "\t\n\r":
        return " "
    # Cc: control; Cs: lone surrogates, which no encoding can write; overrides of the reading direction can
    # make one name look like another. Joiners (also Cf) stay: several scripts need them.
    hidden = unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTION_OVERRIDES
    return "\ufffd" if hidden else character
