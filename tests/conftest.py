"""What every test shares: the same property tests each time, and waiting for events instead of for a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# two_ranks.py serves several folders.
sys.path.insert(0, str(Path(__file__).parent))

# A shell that is not interactive starts background jobs with Ctrl-C ignored, nohup with SIGHUP ignored, and children inherit
# that. What tests see must not depend on how they were started.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

# `make test` must not depend on luck: the same examples every time, however slow the machine. Looking for new ones is what
# `make test-slow` and `make soak` are for. The environments of single integrations come without hypothesis.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("same", derandomize=True, deadline=None, database=None)
    settings.register_profile("explore", derandomize=False, deadline=None, database=None, print_blob=True)
    settings.load_profile(os.environ.get("CLASSMARGIN_HYPOTHESIS", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Return a function that waits for an event; one that never comes is ended by the time limit of the whole test."""

    def wait(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
        while not condition():
            if process is not None and process.poll() is not None and not condition():
                raise AssertionError(f"it ended too early: {process.communicate()}")
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def family_of() -> Callable[[int], Callable[[], bool]]:
    """Return a function that remembers the children of a process and tells, once it is gone, whether they are gone too."""
    psutil = pytest.importorskip("psutil")

    def ended(process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def remember(pid: int) -> Callable[[], bool]:
        children = psutil.Process(pid).children(recursive=True)
        return lambda: all(ended(child) for child in children)

    return remember
