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
    """Yield ``items`` and show how far it has come, where standard error is a terminal (``show`` forces the bar on or off)."""
    if not (sys.stderr.isatty() if show is None else show):
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=description, total=total, console=Console(stderr=True), transient=True)


def progress_if_long(pieces: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield ``pieces``, with a bar on a terminal if there are more than a few."""
    return progress(pieces, description, show=None if len(pieces) > FEW_PIECES else False)
