"""Kills one of two processes of a run at a chosen optimiser step; the other ends by itself, and the resumed run ends
bit-identical.

::

    a step       before the first checkpoint, on one, between two, at the end of an epoch, before the last
    a moment     before the weights move (the other process waits for its partner) or after the whole step
    a process    rank 0, which writes, or rank 1
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from soak.budget import OutOfTimeError, no_more_alarms
from soak.children import fork_ranks, preload
from soak.same_run import BrokenPromise, check_same
from soak.tiny_task import train_words, write_features

STEPS = (2, 4, 6, 11, 30, 54)
MOMENTS = ("before the weights move", "after the step")
WISH = "SOAK_KILL_AT"
# A process whose partner is gone must notice within this time.
PATIENCE = 180.0


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Place every kill, resume each run and return the counts."""
    preload()
    _arm()
    data = write_features(folder / "features.npz")
    _train(data, folder / "straight", None)
    places = list(itertools.product(STEPS, MOMENTS, (0, 1)))
    random.Random(seed).shuffle(places)
    left = places[:3] if quick else places
    survived = 0
    try:
        while left:
            step, moment, rank = left[0]
            _kill_and_resume(data, folder, step, moment, rank)
            survived += 1
            left = left[1:]
    except OutOfTimeError:
        no_more_alarms()  # what was proved so far is
    return {
        "seed": seed,
        "kills": survived,
        "cut short": f"{len(left)} kills not tried" if left else "",
        "totals": {
            "kills survived, two processes by step": survived,
            "runs compared bit for bit": survived,
        },
    }


def _arm() -> None:
    """Let every process forked from here kill itself where the variable says so."""
    from classmargin.training.loop import Loop
    from classmargin.training.step import Stepper

    step, move = Loop._train_step, Stepper._apply
    done = [0]

    def train_step(self: Loop, batch: Any) -> None:
        done[0] = self.position.global_step + 1
        step(self, batch)
        _die_if_wished("after the step", done[0])

    def apply(self: Stepper) -> None:
        _die_if_wished("before the weights move", done[0])
        move(self)

    Loop._train_step, Stepper._apply = train_step, apply  # type: ignore[method-assign]


def _die_if_wished(moment: str, step: int) -> None:
    if os.environ.get(WISH) == f"{os.environ.get('RANK', '0')}:{step}:{moment}":
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_and_resume(data: Path, folder: Path, step: int, moment: str, rank: int) -> None:
    what = f"rank {rank} killed at step {step} {moment}"
    out = folder / f"killed-{rank}-{step}-{moment.split()[0]}"
    codes, words = _train(data, out, f"{rank}:{step}:{moment}")
    if codes[rank] != -signal.SIGKILL or codes[1 - rank] in (0, None):
        raise BrokenPromise(f"{what}: the processes ended with {codes}: {words}")
    codes, words = _train(data, out, None)
    if codes != [0, 0]:
        raise BrokenPromise(f"{what}: the resumed processes ended with {codes}: {words}")
    check_same(folder / "straight", out)


def _train(data: Path, out: Path, wish: str | None) -> tuple[list[int | None], str]:
    """Run two processes to their end and return their exit codes and last words; None for one that had to be ended."""
    words = train_words(data, "mr2", out, extra=("machine.devices=2",))
    os.environ.update({WISH: wish} if wish else {})
    log = out.with_name(f"{out.name}.{time.monotonic_ns()}.log")
    ranks = fork_ranks(words, log, 2)
    os.environ.pop(WISH, None)
    codes = [child.wait(PATIENCE) for child in ranks]
    for child in ranks:
        child.send(signal.SIGKILL)
        child.wait(10)
    return codes, "\n".join(child.said[-1500:] for child in ranks)
