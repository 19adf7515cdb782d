"""One way to show progress: a rich bar on a terminal, silence everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

# Pieces of long work take a few tenths of a second each; with no more than this many the bar would only flicker
# (once per batch, in a training loop that feeds an accumulator).
FEW_PIECES = 4


def progress(
    items: Iterable[Item], description: str, *, total: int | None = None, show: bool | None = None
) -> Iterator[Item]:
    """Yield ``items`` and show how far it has come.

    Args:
        items: What is iterated.
        description: Words beside the bar.
        total: Number of items, where ``len(items)`` is not known.
        show: Force the bar on or off; by default it appears only where standard error is a terminal.

    Example:
        >>> list(progress([1, 2], "counting"))
        [1, 2]
    """
    visible = sys.stderr.isatty() if show is None else show
    if not visible:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(
        items, description=description, total=total, console=Console(stderr=True), transient=True
    )


def progress_if_long(pieces: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield ``pieces``, with a bar on a terminal if there are more than a few.

    Example:
        >>> list(progress_if_long([1, 2], "counting"))
        [1, 2]
    """
    return progress(pieces, description, show=None if len(pieces) > FEW_PIECES else False)
