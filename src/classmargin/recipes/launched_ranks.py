"""Commands that train many runs, started once per device by ``torchrun`` or ``srun``.

Rank 0 runs the command; the others wait in :func:`serve_if_helper` for the runs that it hands out, train them together with
it, and exit when there are no more. All runs share one group of processes: a second one could not be formed at the same
address.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from classmargin.recipes.run_display import display
from classmargin.recipes.train_run import is_helper_process
from classmargin.training.devices import launched_layout, launched_rank, leave_group, prepare_group
from classmargin.training.stopping import StoppedError

if TYPE_CHECKING:
    from classmargin.recipes.runner import RunSource


def are_launched() -> bool:
    """Whether a launcher has started this command as one of several processes."""
    layout = launched_layout()
    return layout is not None and layout[0] * layout[1] > 1


def serve_if_helper() -> None:
    """In a process that a launcher started as another rank: train what rank 0 hands out, then exit."""
    if not (are_launched() and is_helper_process()):
        return
    code, messages = 0, _group()
    try:
        while (task := _share(None, messages)) is not None:
            _train(task, messages)
    except StoppedError as stopped:
        code = stopped.exit_code
    _leave()
    raise SystemExit(code)


def lead(source: RunSource, show: bool | None) -> None:
    """As rank 0: train what a source hands out together with the other ranks, one run after another."""
    from classmargin.recipes.runner import Ending

    messages = _group()
    with display(source.total, source.done, show) as shown:
        while (run := source.take()) is not None:
            shown.begin(run.title)
            task = _share(run.task(), messages)
            assert task is not None
            ending = Ending(**_train(task, messages))
            shown.end(run.title, source.end(run, ending), source.done)


def _train(task: Mapping[str, Any], messages: Any) -> dict[str, Any]:
    from classmargin.recipes.run_worker import train_task

    ending = train_task(task, lambda *_: True)
    endings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(endings, ending, group=messages)
    return next((found for found in endings if found["kind"] != "finished"), ending)


def _share(task: dict[str, Any] | None, messages: Any) -> dict[str, Any] | None:
    shared = [task]
    dist.broadcast_object_list(shared, src=0, group=messages)
    return shared[0]


_groups: list[Any] = []


def _group() -> Any:
    """Return a group for messages between the ranks of this command; it is kept for all runs of the command."""
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
        _share(None, _groups[0])
        _leave()


def _leave() -> None:
    _groups.clear()
    leave_group()
