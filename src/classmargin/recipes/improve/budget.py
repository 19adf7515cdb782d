"""What may be spent, what was spent, and what was decided because of it: kept in a file, so that a resumed search decides alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from classmargin._files import read_json
from classmargin.training.run_folder import write_json

JOURNAL_FILE = "journal.json"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# The baseline, one remedy, and the baseline again for the noise of training.
FEWEST_RUNS = 3
# Of a time budget, what is planned with: the rest is for judging, testing and the page.
PLANNED_SHARE = 0.85


@dataclass(frozen=True)
class Budget:
    """A number of runs as long as one of the baseline, or a time."""

    runs: float | None = None
    seconds: float | None = None

    @staticmethod
    def parse(words: str) -> Budget:
        """Return the budget that words like ``30m``, ``2h`` or ``20 runs`` describe.

        Example:
            >>> Budget.parse("20 runs").runs, Budget.parse("1.5h").seconds
            (20.0, 5400.0)
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(words).lower())
        if match and match[2] in ("run", "runs"):
            if float(match[1]) < FEWEST_RUNS:
                raise ValueError(
                    f"budget must be at least {FEWEST_RUNS} runs (the baseline, a remedy, and the baseline again), got {words!r}"
                )
            return Budget(runs=float(match[1]))
        if match and match[2] in _SECONDS and float(match[1]) > 0:
            return Budget(seconds=float(match[1]) * _SECONDS[match[2]])
        raise ValueError(f"budget must be a time like 30m or 2h, or a number like '20 runs', got {words!r}")


class Journal:
    """What was spent and decided by a command, kept in its folder."""

    def __init__(self, folder: Path, budget: Budget, jobs: int, remedies: Sequence[str] = ()) -> None:
        self._file, self.budget, self._jobs = folder / JOURNAL_FILE, budget, jobs
        asked = {"runs": budget.runs, "seconds": budget.seconds, "remedies": list(remedies)}
        found: dict[str, Any] = {}
        if self._file.exists():
            found = read_json(self._file)
            if not isinstance(found, dict):
                raise ValueError(
                    f"{self._file} is damaged; delete it, and the same command resumes with the runs that are there"
                )
        if found.get("asked") != asked:  # runs stay, what was decided for another budget does not
            found = {"asked": asked, "elapsed": 0.0, "runs": found.get("runs", {}), "decisions": {}}
        self._state = found
        self._last = time.monotonic()
        self.spent = 0.0

    def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a decision that depends on the budget left: the one that was made first."""
        decisions = self._state["decisions"]
        if name not in decisions:
            decisions[name] = make()
            self._write()
        return decisions[name]

    def note_run(self, title: str, seconds: float, cost: float) -> None:
        """Remember how long a run took."""
        self._state["runs"][title] = [round(seconds, 2), cost]
        self._write()

    def _write(self) -> None:
        now = time.monotonic()
        self._state["elapsed"] += now - self._last
        self._last = now
        write_json(self._file, self._state, durable=True)

    @property
    def seconds_per_run(self) -> float | None:
        """Median time of a run of the baseline's length, as far as is known."""
        known = [seconds / cost for seconds, cost in self._state["runs"].values() if cost > 0]
        return median(known) if known else None

    @property
    def elapsed(self) -> float:
        """Seconds of all sessions."""
        return float(self._state["elapsed"]) + time.monotonic() - self._last

    @property
    def left(self) -> float:
        """How many runs of the baseline's length can still be made."""
        if self.budget.runs is not None:
            return self.budget.runs - self.spent
        assert self.budget.seconds is not None
        each = self.seconds_per_run
        if each is None:
            return float("inf")
        return (PLANNED_SHARE * self.budget.seconds - self.elapsed) * self._jobs / each

    @property
    def words(self) -> str:
        """What is left, for people."""
        if self.budget.runs is not None:
            return f"{max(self.left, 0):.0f} of {self.budget.runs:.0f} runs left"
        assert self.budget.seconds is not None
        return f"{max(self.budget.seconds - self.elapsed, 0) / 60:.0f} of {self.budget.seconds / 60:.0f} min left"
