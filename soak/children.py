"""Real training processes for the harness, started in milliseconds.

The harness imports the libraries once and forks: each child is a process of its own that runs the command line
(``classmargin train ...``) and is killed, or ends, like any other. A few children are started cold as well
(``python -m classmargin``), because that is what users do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.file_faults import Fault, install

_begun: list[Child] = []


@dataclass
class Child:
    """A process under test.

    Attributes:
        pid: Its number.
        log: What it prints.
        leads_group: Whether it and what it starts are a process group of its own.
    """

    pid: int
    log: Path
    leads_group: bool = False
    _code: int | None = None

    def __post_init__(self) -> None:
        _begun.append(self)

    def poll(self) -> int | None:
        """Return the exit code (minus the signal's number if one killed it), or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if it still runs after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.poll()

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


def preload() -> None:
    """Import what training imports, so that children need not."""
    import lightning.fabric.strategies.ddp  # noqa: F401
    import torch

    import classmargin.cli.main
    import classmargin.recipes.train_run  # noqa: F401

    torch.set_num_threads(1)


def fork_call(action: Callable[[], int | None], log: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Call ``action`` in a forked process; what it returns is the exit code (0 for None), 1 with a traceback if it raises.

    Args:
        action: What the process does.
        log: Gets standard output and error.
        environment: Variables to set.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, log)
    code = 1
    try:
        _redirect(log)
        os.environ.update(environment or {})
        code = action() or 0
    except KeyboardInterrupt:  # in the few lines around a command; an interpreter ends like this
        code = 130
    except BaseException:  # a child must never come back into the harness
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_command(
    words: Sequence[str],
    log: Path,
    *,
    environment: dict[str, str] | None = None,
    fault: tuple[Fault, Path, Path] | None = None,
) -> Child:
    """Run ``classmargin WORDS`` in a forked process.

    Args:
        words: After the program's name.
        log: Gets standard output and error.
        environment: Variables to set.
        fault: Fault, folder and journal of :func:`soak.file_faults.install`.
    """

    def command() -> int:
        from classmargin.cli.main import main

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["classmargin", *words]
        if fault is not None:
            install(*fault)
        return main(list(words))

    return fork_call(command, log, environment)


def _redirect(log: Path) -> None:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def start_command(words: Sequence[str], log: Path) -> Child:
    """Run ``python -m classmargin WORDS`` as users do, in a process group of its own."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "classmargin", *words], stdout=file, stderr=file, start_new_session=True
        )
    process.returncode = 0  # ours to wait for, by number
    return Child(process.pid, log, leads_group=True)


def end_all() -> None:
    """End every process that was begun and still runs; its helpers end with it, or notice that it is gone."""
    while _begun:
        child = _begun.pop()
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if child.leads_group else os.kill)(child.pid, signal.SIGKILL)
            child.wait(10)


def fork_ranks(
    words: Sequence[str], log: Path, processes: int, fault: tuple[Fault, Path, Path] | None = None
) -> list[Child]:
    """Run a command as several ranks, as ``torchrun`` would; the fault hits rank 0, which writes."""
    if processes == 1:
        return [fork_command(words, log, fault=fault)]
    port = free_port()
    return [
        fork_command(
            words,
            log.with_name(f"{log.name}.rank{rank}"),
            environment=rank_environment(rank, processes, port),
            fault=fault if rank == 0 else None,
        )
        for rank in range(processes)
    ]


def rank_environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return what ``torchrun`` says to a process of a run."""
    layout = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
    }
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "soak"}
    return {**{name: str(value) for name, value in layout.items()}, **address}


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def group_lives(leader: int) -> bool:
    """Whether a process of the group that ``leader`` began is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
