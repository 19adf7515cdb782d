"""The runner's workers on a Ray cluster: one actor per worker reserves the resources and passes messages on.

The actor starts the same worker program as the local engine does, on its node, so that a run computes, resumes, saves and
ends in the same way there. Run folders must lie on a file system that all nodes share. A cluster is found through
``RAY_ADDRESS``; without it Ray runs on this machine alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from classmargin._checks import require_extra
from classmargin.recipes.local_workers import PATIENCE_SECONDS, LocalWorker

# How long a node may be silent, as Ray sees it; a dead actor is noticed at once.
_LOST = -9


@contextlib.contextmanager
def ray_workers(jobs: int, devices: int = 1) -> Iterator[Callable[[int], RayWorker]]:
    """Yield what starts a worker, with Ray running while the block does.

    Args:
        jobs: Workers side by side.
        devices: Processors (and accelerators, where the cluster has some) of each worker.

    Raises:
        ImportError: Ray is not installed; the message names the extra.
        ValueError: There is no cluster at ``RAY_ADDRESS``, or Ray does not start on this machine.
    """
    # Before the import, because Ray reads it then: nothing is sent home.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # An actor without an accelerator keeps what its node shows it; a future default of Ray, which warns otherwise.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = require_extra("ray", "ray", "--engine ray")
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if "RAY_ADDRESS" not in os.environ:
        options["num_cpus"] = jobs * devices
    try:
        ray.init(ignore_reinit_error=True, **options)
    except (
        Exception
    ) as error:  # Ray has no type for it: a cluster that does not answer, a node that does not start
        raise ValueError(f"--engine ray: Ray could not be started or reached ({error})") from error
    resources = {"num_cpus": devices}
    if ray.cluster_resources().get("GPU", 0) >= devices:
        resources["num_gpus"] = devices
    try:
        yield lambda slot: RayWorker(ray, resources)
    finally:
        ray.shutdown()


class _Host:
    """What runs on the node: a worker process and its messages."""

    def __init__(self, folder: str) -> None:
        self._worker = LocalWorker({}, folder)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Return whether the worker is still there to take it."""
        try:
            self._worker.send(message)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return what was said, and the exit code of a worker that has ended."""
        code = self._worker.exit_code()
        return self._worker.receive(), code

    def close(self, busy: bool) -> None:
        """End the worker, with its state saved."""
        self._worker.close(busy=busy)
        self._worker.wait()


class RayWorker:
    """A worker on some node of the cluster, with the interface of :class:`~classmargin.recipes.local_workers.Worker`."""

    def __init__(self, ray: Any, resources: Mapping[str, float]) -> None:
        self._ray = ray
        self._actor = ray.remote(_Host).options(**resources).remote(os.getcwd())
        self._said: list[dict[str, Any]] = []
        self._code: int | None = None
        self._question: Any = None
        self._closing: Any = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Pass a message on; that it arrives shows in the exit code."""
        if self._code is not None:
            raise OSError("the worker has ended")
        self._actor.send.remote(dict(message))

    def receive(self) -> list[dict[str, Any]]:
        """Return what has come since the last call."""
        taken, self._said = self._said, []
        return taken

    def exit_code(self) -> int | None:
        """Ask the node without waiting for its answer, and return what is known by now."""
        if self._code is not None:
            return self._code
        if self._question is None:
            self._question = self._actor.receive.remote()
        ready, _ = self._ray.wait([self._question], timeout=0)
        if ready:
            try:
                said, self._code = self._ray.get(self._question)
                self._said += said
            except self._ray.exceptions.RayError:  # the actor or its node is gone, and its worker with it
                self._code = _LOST
            self._question = None
        return self._code

    def close(self, *, busy: bool) -> None:
        """Ask the node to end the worker."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._closing = self._actor.close.remote(busy)

    def wait(self) -> None:
        """Wait until it has ended, or its node is gone."""
        if self._closing is not None:
            end = time.monotonic() + PATIENCE_SECONDS
            self._ray.wait([self._closing], timeout=max(0.0, end - time.monotonic()))
            self._closing = None
        self._ray.kill(self._actor)
