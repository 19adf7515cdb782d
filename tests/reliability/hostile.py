"""What the fuzz tests share: the profile, the count of inputs, damage to good files, and what counts as harmless."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

# What a reader may raise: known errors that the command line turns into one line and exit code 2.
USER_ERRORS = (ValueError, TypeError, OSError, ImportError)
# Room that a reader may take for a file of some kilobytes, beyond what the process has already.
HEADROOM = 2 * 2**30

counted: Counter[str] = Counter()

QUICK = {  # added to the profile of tests/conftest.py
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
    "phases": [Phase.explicit, Phase.generate],  # no shrinking: a failing input is shown as it is, at once
}


def quick(examples: int) -> Any:
    """Settings of the default suite: few examples, with the profile of ``make test`` the same ones every time."""
    return settings(max_examples=examples, **QUICK)


def long(examples: int) -> Any:
    """Settings of ``make soak``: many examples, drawn by its seed; ``CLASSMARGIN_FUZZ_FACTOR`` asks for more."""
    factor = float(os.environ.get("CLASSMARGIN_FUZZ_FACTOR", "1"))
    return settings(max_examples=int(factor * examples), **QUICK, derandomize=False)


@contextlib.contextmanager
def harmless(reader: str, *allowed: type[BaseException]) -> Iterator[None]:
    """Count one input, and fail if reading it raises anything but a known error with words in it."""
    counted[reader] += 1
    try:
        yield
    except (*USER_ERRORS, *allowed) as error:
        if not str(error).strip():
            raise AssertionError(f"{type(error).__name__} without a message") from error


@contextlib.contextmanager
def little_memory(room: int = HEADROOM) -> Iterator[None]:
    """Let the process grow by ``room`` and no more: a reader that believes a liar gets a MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@st.composite
def damaged(draw: Callable[..., Any], good: bytes) -> bytes:
    """Bytes of a good file after some damage: cut, bytes changed, pieces repeated, removed or put in."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        kind = draw(st.sampled_from(("cut", "change", "number", "insert", "repeat", "remove")))
        if kind == "cut":
            del content[place:]
        elif kind == "change":
            content[place : place + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "number":  # the values at which sizes overflow
            wide = draw(st.sampled_from((1, 2, 4, 8)))
            value = draw(st.sampled_from((0, 1, 2**7, 2**8 - 1)))
            content[place : place + wide] = bytes([value]) * wide
        elif kind == "insert":
            content[place:place] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "repeat":
            content[place:place] = content[place : place + 64] * draw(st.integers(1, 8))
        else:
            del content[place : place + draw(st.integers(1, 64))]
    return bytes(content)


def hostile_bytes(good: bytes) -> st.SearchStrategy[bytes]:
    """Mostly damaged good files; now and then anything at all."""
    return st.one_of(damaged(good), damaged(good), damaged(good), st.binary(max_size=300))


def _tell() -> None:
    """Hand the counts to whoever sums them up (``make soak``)."""
    place = os.environ.get("CLASSMARGIN_FUZZ_COUNT")
    if place and counted:
        with Path(place).open("a", encoding="utf-8") as file:
            for reader, inputs in sorted(counted.items()):
                file.write(json.dumps({"reader": reader, "inputs": inputs}) + "\n")


atexit.register(_tell)
