"""Worker processes that train one run after another, on this machine or on a Ray cluster.

On Ray one actor per worker reserves the resources, starts the same program on its node and passes messages on; all nodes share the
file system of the run folders. A cluster is found through ``RAY_ADDRESS``; without it Ray runs on this machine alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from classmargin._checks import require_extra

PATIENCE_SECONDS = 60.0
# What a launcher or a scheduler says about *this* process, by beginning and end of names; workers are processes of their own.
_OF_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "MASTER_")
_OF_A_RANK = ("RANK", "WORLD_SIZE")
# Exit code of a worker whose node is gone; a node may be silent for as long as Ray allows, a dead actor is noticed at once.
_LOST = -9


@contextlib.contextmanager
def starting_workers(engine: str, jobs: int, devices: int) -> Iterator[Callable[[int], Worker]]:
    """Yield what starts the worker of a slot, with Ray running while the block does if the engine is ``ray``."""
    if engine == "ray":
        with _ray_workers(jobs, devices) as start_worker:
            yield start_worker
    else:
        shares = accelerator_shares(visible_accelerators(), jobs)
        yield lambda slot: LocalWorker({} if not shares else {"CUDA_VISIBLE_DEVICES": shares[slot]})


def visible_accelerators() -> list[str]:
    """Return the accelerators that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def accelerator_shares(accelerators: Sequence[str], jobs: int) -> list[str]:
    """Return the accelerators of each of ``jobs`` workers: equal shares, and one for several where there are too few."""
    if not accelerators:
        return []
    size = max(1, len(accelerators) // jobs)
    starts = [slot * size % len(accelerators) for slot in range(jobs)]
    return [",".join(accelerators[start : start + size]) for start in starts]


class LocalWorker:
    """A worker process of this machine with some other environment and ``folder``; messages are JSON records both ways."""

    def __init__(self, environment: Mapping[str, str], folder: str | None = None) -> None:
        own = [name for name in os.environ if not (name.endswith(_OF_A_RANK) or name.startswith(_OF_LAUNCHERS))]
        inherited = {name: os.environ[name] for name in own}
        # A session of its own: Ctrl-C reaches the parent alone, which then asks the workers to save and end.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "classmargin.recipes.run_worker"],
            env={**inherited, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **environment},
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
        """Hand over a run, or the answer to an evaluation; raises OSError if the process is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def poll(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return what it has said since the last call, and how it ended; None while it lives."""
        code = self._process.poll()  # asked first: what it said before it ended is then all there
        if code is not None:
            self._listener.join(timeout=5.0)
        count = len(self._said)
        said, self._said[:count] = self._said[:count], []
        return said, code

    def close(self, *, busy: bool) -> None:
        """Ask it to end (after saving, if it is busy: by SIGTERM) without waiting for it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if busy:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; kill it if it takes longer than a minute."""
        try:
            self._process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _ray_workers(jobs: int, devices: int) -> Iterator[Callable[[int], RayWorker]]:
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
    # Ray has no type for a cluster that does not answer or a node that does not start.
    except Exception as error:
        raise ValueError(f"--engine ray: Ray could not be started or reached ({error})") from error
    resources = {"num_cpus": devices}
    if ray.cluster_resources().get("GPU", 0) >= devices:
        resources["num_gpus"] = devices
    try:
        yield lambda slot: RayWorker(ray, resources)
    finally:
        ray.shutdown()


class RayWorker:
    """A :class:`LocalWorker` on some node of the cluster, which is asked without waiting for its answer."""

    def __init__(self, ray: Any, resources: Mapping[str, float]) -> None:
        self._ray = ray
        self._actor = ray.remote(LocalWorker).options(**resources).remote({}, os.getcwd())
        self._code: int | None = None
        self._question: Any = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Pass a message on; that it arrives shows in the exit code."""
        if self._code is not None:
            raise OSError("the worker has ended")
        self._actor.send.remote(dict(message))

    def poll(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return what has come since the last call, and how it ended as far as is known by now."""
        said: list[dict[str, Any]] = []
        if self._code is None:
            if self._question is None:
                self._question = self._actor.poll.remote()
            if self._ray.wait([self._question], timeout=0)[0]:
                try:
                    said, self._code = self._ray.get(self._question)
                except self._ray.exceptions.RayError:  # the actor or its node is gone, and its worker with it
                    self._code = _LOST
                self._question = None
        return said, self._code

    def close(self, *, busy: bool) -> None:
        """Ask the node to end the worker."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._actor.close.remote(busy=busy)

    def wait(self) -> None:
        """Wait until it has ended, or its node is gone."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait([self._actor.wait.remote()], timeout=PATIENCE_SECONDS)
        self._ray.kill(self._actor)


Worker = LocalWorker | RayWorker
