"""What may be spent, what was spent, and what was decided because of it: kept in a file, so that a resumed search decides alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    seconds: float = 0.0

    @staticmethod
    def parse(words: str) -> Budget:
        """Return the budget that words like ``30m``, ``2h`` or ``20 runs`` describe."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(words).lower())
        number, unit = (float(match[1]), match[2]) if match else (0.0, "")
        if unit in ("run", "runs"):
            if number < FEWEST_RUNS:
                what = "the baseline, a remedy, and the baseline again"
                raise ValueError(f"budget must be at least {FEWEST_RUNS} runs ({what}), got {words!r}")
            return Budget(runs=number)
        if unit in _SECONDS and number > 0:
            return Budget(seconds=number * _SECONDS[unit])
        raise ValueError(f"budget must be a time like 30m or 2h, or a number like '20 runs', got {words!r}")


class Journal:
    """What was spent and decided by a command, kept in its folder."""

    def __init__(self, folder: Path, budget: Budget, jobs: int, remedies: Sequence[str] = ()) -> None:
        self.folder, self.budget, self._jobs, self._file = folder, budget, jobs, folder / JOURNAL_FILE
        asked = {**asdict(budget), "remedies": list(remedies)}
        found = read_json(self._file) if self._file.exists() else {}
        if not isinstance(found, dict):
            raise ValueError(f"{self._file} is damaged; delete it, and the same command resumes with the runs there")
        if found.get("asked") != asked:  # runs stay, what was decided for another budget does not
            found = {"asked": asked, "elapsed": 0.0, "runs": found.get("runs", {}), "decisions": {}}
        self._state: dict[str, Any] = found
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
        self._state["elapsed"], self._last = self.elapsed, time.monotonic()
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
        seconds, each = PLANNED_SHARE * self.budget.seconds - self.elapsed, self.seconds_per_run
        return float("inf") if each is None else seconds * self._jobs / each

    @property
    def words(self) -> str:
        """What is left, for people."""
        if self.budget.runs is not None:
            return f"{max(self.left, 0):.0f} of {self.budget.runs:.0f} runs left"
        return f"{max(self.budget.seconds - self.elapsed, 0) / 60:.0f} of {self.budget.seconds / 60:.0f} min left"
