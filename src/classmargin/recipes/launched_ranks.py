"""Commands that train many runs, started once per device by ``torchrun`` or ``srun``.

Rank 0 runs the command; the others wait in :func:`serve_if_helper` for the runs that it hands out. All runs share one group of
processes: a second one could not be formed at the same address.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from classmargin.recipes.train_run import is_helper_process
from classmargin.training.devices import launched_layout, launched_rank, leave_group, prepare_group
from classmargin.training.stopping import StoppedError

# The group for messages between the ranks of this command; it is kept for all its runs.
_groups: list[Any] = []


def are_launched() -> bool:
    """Whether a launcher has started this command as one of several processes."""
    layout = launched_layout()
    return layout is not None and layout[0] * layout[1] > 1


def serve_if_helper() -> None:
    """In a process that a launcher started as another rank: train what rank 0 hands out, then exit."""
    if not (are_launched() and is_helper_process()):
        return
    code = 0
    try:
        while (task := _share(None)) is not None:
            _train(task)
    except StoppedError as stopped:
        code = stopped.exit_code
    _leave()
    raise SystemExit(code)


def train_together(task: dict[str, Any]) -> dict[str, Any]:
    """As rank 0: train a run together with the other ranks, and return how it ended."""
    _share(task)
    return _train(task)


def _train(task: Mapping[str, Any]) -> dict[str, Any]:
    from classmargin.recipes.run_worker import train_task

    ending = train_task(task, lambda *_: True)
    endings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(endings, ending, group=join())
    return next((found for found in endings if found["kind"] != "finished"), ending)


def _share(task: dict[str, Any] | None) -> dict[str, Any] | None:
    shared = [task]
    dist.broadcast_object_list(shared, src=0, group=join())
    return shared[0]


def join() -> Any:
    """Join the group of all ranks, which each of them must do before anything is trained, and return it."""
    if not _groups:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        rank, processes = launched_rank()
        prepare_group()
        dist.init_process_group(backend, rank=rank, world_size=processes)
        _groups.append(dist.new_group(backend="gloo"))
        if not is_helper_process():
            atexit.register(_dismiss)
    return _groups[0]


def _dismiss() -> None:
    """When rank 0 has nothing more to train: let the other ranks exit."""
    with contextlib.suppress(RuntimeError):  # they are gone already
        _share(None)
        _leave()


def _leave() -> None:
    _groups.clear()
    leave_group()
