"""Thousands of optimiser steps of MR² with its memory bank in two processes, through the real loop: memory stays
flat, the processes stay equal bit for bit, and statistics stay finite whatever the batches do.

::

    steps    0 ..  500   ordinary batches
           500 .. 1500   one class is missing from every batch
          1500 .. 2000   it is back
    every 100 steps: memory of the process, number of Python objects, digest of network, method and optimiser
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from soak.children import fork_call, free_port, preload, rank_environment
from soak.tiny_task import CLASSES, write_features

STEPS, WARM_UP, EVERY = 2000, 400, 100
VANISHING, GONE, BACK = 1, 500, 1500
# What the allocator may move without anything growing, and what 1 600 steps of a leak would exceed: the state of
# one step (batch, graph, loss parts) is more than 16 kB.
MEMORY_SLACK = 4 * 2**20
OBJECT_SLACK = 200


class Grew(AssertionError):
    """Memory, objects or the distance between processes grew, or a statistic is not finite."""


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Run both processes, check what they wrote down and return the numbers."""
    preload()
    steps = 600 if quick else STEPS
    data = write_features(folder / "features.npz", each=160)
    port = free_port()
    ranks = [
        fork_call(
            partial(_train, rank, data, folder, seed, steps),
            folder / f"log{rank}",
            rank_environment(rank, 2, port),
        )
        for rank in (0, 1)
    ]
    codes = [child.wait(600) for child in ranks]
    if codes != [0, 0]:
        raise Grew(f"a process ended with {codes}: " + "\n".join(child.said[-2000:] for child in ranks))
    tracks = [
        [json.loads(line) for line in (folder / f"track{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)
    ]
    return check_tracks(tracks, steps)


def check_tracks(tracks: list[list[dict[str, Any]]], steps: int) -> dict[str, Any]:
    """Return the numbers of a run's records, or say what grew."""
    warm = min(WARM_UP, steps // 2)
    late = [[record for record in track if record["step"] >= warm] for track in tracks]
    for record, other in zip(*tracks, strict=True):
        if record["digest"] != other["digest"]:
            raise Grew(f"the processes differ at step {record['step']}")
        if not (record["finite"] and other["finite"]):
            raise Grew(f"a statistic is not finite at step {record['step']}")
    memory = [track[-1]["memory"] - track[0]["memory"] for track in late]
    objects = [track[-1]["objects"] - track[0]["objects"] for track in late]
    if max(memory) > MEMORY_SLACK or max(objects) > OBJECT_SLACK:
        raise Grew(f"from step {warm} to {steps} memory grew by {memory} bytes, objects by {objects}")
    return {
        "totals": {"steps soaked, two processes": steps},
        "steps": steps,
        "processes": 2,
        "memory growth after warm-up, bytes": memory,
        "memory of a process, bytes": tracks[0][-1]["memory"],
        "object growth after warm-up": objects,
        "comparisons of the processes": len(tracks[0]),
        "steps without one class": max(0, min(BACK, steps) - GONE),
        "samples of that class in its absence": sum(
            record["seen"] for track in tracks for record in track if GONE + EVERY <= record["step"] <= BACK
        ),
    }


def _train(rank: int, data: Path, folder: Path, seed: int, steps: int) -> None:
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.run_parts import build_run, effective
    from classmargin.training import devices
    from classmargin.training.loop import Loop
    from classmargin.training.recorder import Recorder
    from classmargin.training.run_folder import RunFolder
    from classmargin.training.run_progress import Watchers

    steps_per_epoch = 160 * CLASSES // 32
    config = effective(
        gather_config(
            flags={
                "data": {"name": str(data)},
                "backbone": {"name": "mlp", "hidden": 32, "batch_norm": True, "dropout": 0.1},
                "method": {"name": "mr2"},
                "loop": {
                    "epochs": steps // steps_per_epoch, "batch_size": 32, "seed": seed, "evaluate_every": 5,
                },
                "optimizer": {"learning_rate": 0.05},
                "machine": {"threads": 1, "accelerator": "cpu", "memory_format": "contiguous", "devices": 2},
            }
        )
    )  # fmt: skip
    fabric = devices.start(config)
    session = build_run(config)
    run_folder = RunFolder(folder / "run")
    run_folder.path.mkdir(exist_ok=True)
    recorder = Recorder(run_folder, config, tuple(session.bundle.class_names))
    loop = Loop(config, session.ingredients(), fabric, recorder, Watchers())
    with (folder / f"track{rank}.jsonl").open("w", encoding="utf-8") as track:
        _watch(loop, track)
        loop.run()


def _watch(loop: Any, track: Any) -> None:
    """Take a class out of the batches for a while and write down a record every so many steps."""
    plain_step = loop._train_step
    seen = [0]

    def train_step(batch: Any) -> None:
        if GONE <= loop.position.global_step < BACK:
            batch = without_class(batch, VANISHING)
        seen[0] += int((batch.labels == VANISHING).sum())
        plain_step(batch)
        if loop.position.global_step % EVERY == 0:
            track.write(json.dumps(_record(loop, seen[0])) + "\n")
            seen[0] = 0

    loop._train_step = train_step


def without_class(batch: Any, label: int) -> Any:
    """Return the batch with the rows of one class replaced by copies of other rows."""
    import dataclasses

    import torch

    others = torch.nonzero(batch.labels != label)[:, 0]
    rows = torch.where(
        batch.labels != label,
        torch.arange(len(batch.labels)),
        others[torch.arange(len(batch.labels)) % len(others)],
    )
    return dataclasses.replace(batch, inputs=batch.inputs[rows], labels=batch.labels[rows], index=batch.index[rows])


def _record(loop: Any, seen: int) -> dict[str, Any]:
    import torch

    state = {
        **{f"network.{name}": value for name, value in _trained(loop.network)},
        **{f"method.{name}": value for name, value in loop.method.state_dict().items()},
    }
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    finite = all(bool(torch.isfinite(v).all()) for v in state.values() if v.is_floating_point())
    del state
    gc.collect()
    return {
        "step": loop.position.global_step,
        "digest": digest.hexdigest(),
        "finite": finite,
        "memory": own_bytes(),
        "objects": len(gc.get_objects()),
        "seen": seen,
    }


def _trained(network: Any) -> Iterator[tuple[str, Any]]:
    """Yield what must be equal on all ranks within an epoch: weights, not the running statistics of a share."""
    yield from network.named_parameters()


def own_bytes() -> int:
    """Return the memory this process holds of its own, swapped out or not; files and libraries do not count."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (sizes["Anonymous"] + sizes["Swap"])
