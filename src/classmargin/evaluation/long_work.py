"""A progress bar for work that comes in many pieces, and none for work that is over at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from classmargin._progress import progress

Item = TypeVar("Item")

# Pieces take a few tenths of a second each at most; fewer of them are over within two seconds, and a bar would only flicker
# (once a batch, in a training loop that feeds an accumulator).
FEW_PIECES = 4


def watched(pieces: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield ``pieces``, with a bar on a terminal if there are more than a few.

    Example:
        >>> list(watched([1, 2], "counting"))
        [1, 2]
    """
    return progress(pieces, description, show=None if len(pieces) > FEW_PIECES else False)
