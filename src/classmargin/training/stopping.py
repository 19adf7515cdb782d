"""Ways a training ends early: a request to stop (Ctrl-C, SIGTERM), or a loss that is no longer a number."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Remembers the first signal; a second one ends the process the usual way."""

    def __init__(self) -> None:
        self.signal_number = 0

    def __bool__(self) -> bool:
        return self.signal_number != 0

    def pass_on(self) -> None:
        """Let a signal that came too late for the listener do what it does where nobody listens."""
        if self:
            signal.raise_signal(self.signal_number)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs, in the main thread; ignored signals stay ignored (background jobs of shells)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}

        def put_back() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def note(number: int, frame: FrameType | None) -> None:
            self.signal_number = number
            put_back()

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            put_back()


class DivergedError(RuntimeError):
    """The loss is no longer a number; the message names the batch and where the state was saved."""


class StoppedError(RuntimeError):
    """The run was asked to stop and has saved its state; ``exit_code`` is 128 + the number of the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
