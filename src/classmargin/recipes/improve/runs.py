"""The runs of a search: each made once, judged on validation, counted against the budget, and handed to the one runner."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classmargin.data import DataBundle
from classmargin.recipes.improve.budget import Journal
from classmargin.recipes.improve.candidates import (
    Candidate,
    is_made,
    overall,
    pool,
    pooled_file,
    read_scores,
    validation_file,
)
from classmargin.recipes.improve.judging import Aim, Row, changes, judged
from classmargin.recipes.improve.remedies import Remedy, lay
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import Ending, PlannedRun
from classmargin.recipes.train_run import VALIDATION_FILE
from classmargin.training.config import identity
from classmargin.training.run_folder import RunFolder

Stage = Generator[list[PlannedRun], None, Any]


class Runs:
    """A source of runs for the runner: :meth:`stages` says what is needed next, and reads from the folders what came of it.

    ``folds`` parts of the training samples take turns to be predicted where no validation samples are held out; else it is 0.
    """

    def __init__(self, bundle: DataBundle, aim: Aim, journal: Journal, folder: Path, folds: int) -> None:
        self._bundle, self._aim, self._journal, self._folder = bundle, aim, journal, folder
        self.folds = folds
        # What it takes to judge a run, in runs: itself, or one without each fold.
        self._unit = max(folds - 1, 1)
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.done = 0
        self._costs: dict[str, float] = {}
        self._planned: dict[Path, PlannedRun] = {}
        self._counted: set[str] = set()
        self._audits: dict[str, list[Any]] = {}
        self._steps: Iterator[list[PlannedRun]] = self.stages()
        self._queue: list[PlannedRun] = []
        self._under_way: dict[str, float] = {}

    def stages(self) -> Stage:
        """Yield the runs of one step after another."""
        raise NotImplementedError

    # For the runner

    @property
    def total(self) -> int:
        """How many runs there will be, roughly: screening may take several short ones in place of a long one."""
        return max(int(self._journal.budget.runs or 20) + 20, self.done)

    def take(self) -> PlannedRun | None:
        """Return the next run; None while the runs of a step are under way, and at the end."""
        while not self._queue:
            found = None if self._under_way else next(self._steps, None)
            if found is None:
                return None
            self._queue = list(found)
        run = self._queue.pop(0)
        self._under_way[run.title] = time.monotonic()
        return run

    def may_go_on(self, run: PlannedRun, epoch: int, accuracies: Mapping[str, float]) -> bool:
        """Runs are compared when they have ended."""
        return True

    def end(self, run: PlannedRun, ending: Ending) -> str:
        """Take note of the end of a run and say it, with the budget that is left."""
        seconds = time.monotonic() - self._under_way.pop(run.title)
        self.done += 1
        if ending.kind == "unwritable":
            raise OSError(ending.words)
        if ending.kind != "finished":
            self.failed[run.title] = ending.words
            return f"{run.title} {ending.kind}: {ending.words}"
        self._journal.note_run(run.title, seconds, self._costs[run.title])
        shown = ""
        if not run.test:
            shown = f": {100 * overall(*read_scores(validation_file(run.folder))):.1f} % of validation samples right"
        return f"{run.title}{shown} ({self._journal.words})"

    # For the steps

    def _run(self, candidate: Candidate, seed: int = 0, share: float = 1.0) -> PlannedRun:
        config = candidate.config
        epochs = max(1, round(share * config.loop.epochs))
        config = effective(lay(config, {"loop": {"seed": seed, "epochs": epochs}}))
        short = "" if share == 1.0 else f" ({epochs} epochs)"
        folder = RunFolder(self._folder / "runs" / f"{candidate.name}-seed{seed}-{identity(config)}")
        title = f"{candidate.title}{short}, seed {seed}"
        self._costs[title] = candidate.cost * share
        quiet = bool(self._journal.spent)
        run = PlannedRun(title, config, folder, test=False, notices=not quiet, validation=True)
        self._planned[folder.path] = run
        return run

    def _without_folds(self, run: PlannedRun, folds: int) -> list[PlannedRun]:
        """Return a run for each fold, which is trained on the others."""
        parts = []
        for fold in range(folds):
            data = {"fold": (fold, folds), "allow_absent": True}
            config = lay(run.config, {"data": data, "loop": {"select": "last"}})
            folder = RunFolder(f"{run.folder.path}-fold{fold}-{identity(config)}")
            title = f"{run.title}, fold {fold + 1} of {folds}"
            self._costs[title] = self._costs[run.title] * (folds - 1) / folds
            parts.append(replace(run, title=title, config=config, folder=folder))
        return parts

    def _missing(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Count runs as spent, each once, and return those that are still to be made."""
        new = [run for run in runs if run.title not in self._counted]
        self._counted |= {run.title for run in new}
        self._journal.spent += sum(self._costs[run.title] for run in new)
        return [run for run in runs if not is_made(run)]

    def _ask(self, runs: Sequence[PlannedRun]) -> Stage:
        """Yield the runs that are missing; where folds take turns, those without each of them, and pool what they predict."""
        if not self.folds:
            yield self._missing(runs)
            return
        parts = {run.folder: self._without_folds(run, self.folds) for run in runs}
        yield self._missing([part for group in parts.values() for part in group])
        for folder, group in parts.items():
            if not pooled_file(folder).exists() and all(is_made(part) for part in group):
                pool([part.folder.path / VALIDATION_FILE for part in group], pooled_file(folder))

    def _made(self, candidate: Candidate, seeds: int = 1, share: float = 1.0) -> Candidate | None:
        """Return a candidate with its finished runs, or None if one of them failed."""
        runs = [self._run(candidate, seed, share) for seed in range(seeds)]
        if not all(is_made(run) for run in runs):
            return None
        return replace(candidate, members=tuple((run.folder,) for run in runs))

    def _judge(self, candidate: Candidate, baseline: Candidate, stage: str, candidates: int = 1) -> Row:
        """Compare on validation; intervals hold for so many candidates at once."""
        deltas, _ = changes(self._aim, self._audits_of(baseline), self._audits_of(candidate))
        runs, networks = len(candidate.members), len(candidate.members[0])
        row = Row(candidate.name, candidate.title, candidate.remedy.name, stage, runs, candidate.cost, networks)
        return judged(self._aim, row, deltas, candidates)

    def _audits_of(self, candidate: Candidate) -> list[Any]:
        key = f"{candidate.name} {[[run.path.name for run in group] for group in candidate.members]}"
        if key not in self._audits:
            samples, scores = candidate.samples("validation"), candidate.validation_scores(self._aim)
            self._audits[key] = [samples.lean_audit(one) for one in scores]
        return self._audits[key]

    def _leave_out(self, remedy: Remedy, why: str) -> None:
        self.rows.append(Row(remedy.name, remedy.title, remedy.name, "not tried", note=why))
