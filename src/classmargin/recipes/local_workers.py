"""Worker processes of this machine, and which accelerators each of them gets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

PATIENCE_SECONDS = 60.0
# What a launcher or a scheduler says about *this* process; workers are processes of their own.
_OF_A_RANK = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_OF_LAUNCHERS = ("SLURM_", "TORCHELASTIC_")


class Worker(Protocol):
    """A process that trains one run after another; messages are JSON records in both directions."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand over a run, or the answer to an evaluation; raises OSError if it is gone."""

    def receive(self) -> list[dict[str, Any]]:
        """Return what it has said since the last call."""

    def exit_code(self) -> int | None:
        """Return how it ended; None while it lives."""

    def close(self, *, busy: bool) -> None:
        """Ask it to end (after saving, if it is busy) without waiting for it."""

    def wait(self) -> None:
        """Wait until it has ended; end it by force if it takes too long."""


def visible_accelerators() -> list[str]:
    """Return the accelerators that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def accelerator_shares(accelerators: Sequence[str], jobs: int) -> list[str]:
    """Return the accelerators of each of ``jobs`` workers: equal shares, and one for several where there are too few.

    Example:
        >>> accelerator_shares(["0", "1", "2", "3"], 2), accelerator_shares(["0", "1"], 3)
        (['0,1', '2,3'], ['0', '1', '0'])
    """
    if not accelerators:
        return []
    size = max(1, len(accelerators) // jobs)
    starts = [slot * size % len(accelerators) for slot in range(jobs)]
    return [",".join(accelerators[start : start + size]) for start in starts]


class LocalWorker:
    """A worker process of this machine.

    Args:
        environment: What differs from the environment of this process.
        folder: Where it runs; the present one by default.
    """

    def __init__(self, environment: Mapping[str, str], folder: str | None = None) -> None:
        command = [sys.executable, "-m", "classmargin.recipes.run_worker"]
        # A session of its own: Ctrl-C reaches the parent alone, which then asks the workers to save and end.
        self._process = subprocess.Popen(
            command,
            env={**_own_environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **environment},
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._said: list[dict[str, Any]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # the last line of a killed process may be cut
                    self._said.append(json.loads(line))

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return what was said since the last call."""
        count = len(self._said)
        taken, self._said[:count] = self._said[:count], []
        return taken

    def exit_code(self) -> int | None:
        """Return the exit code once everything that the process said can be received."""
        code = self._process.poll()
        if code is not None:
            self._listener.join(timeout=5.0)
        return code

    def close(self, *, busy: bool) -> None:
        """Close its input, and send SIGTERM to a busy one."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if busy:
            self._process.terminate()

    def wait(self) -> None:
        """Wait a minute, then kill."""
        try:
            self._process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _own_environment() -> dict[str, str]:
    """Return the environment without what a launcher says about this process."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_A_RANK and not name.startswith(_OF_LAUNCHERS)
    }
