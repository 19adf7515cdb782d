"""One of two test processes on gloo: it joins the group, does its work and leaves without what can abort an interpreter."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


@contextlib.contextmanager
def one_of_two(rank: int, folder: str | Path) -> Iterator[None]:
    """Be one of two processes while the block runs, then end this process with code 0.

    The interpreter is not taken down: a thread of gloo that wants to run Python meanwhile would abort the process (SIGABRT),
    and whether one does is luck. A block that raises ends the usual way, with its traceback.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(minutes=10)
    )
    yield
    dist.barrier()  # whoever leaves first closes connections that the other may still read from
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
