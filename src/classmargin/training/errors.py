"""Ways a training ends early that are nobody's bad input."""

from __future__ import annotations


class DivergedError(RuntimeError):
    """The loss is no longer a number; the message names the batch and where the state was saved."""


class StoppedError(RuntimeError):
    """The run was asked to stop and has saved its state.

    Attributes:
        exit_code: What schedulers expect: 128 + the number of the signal.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
