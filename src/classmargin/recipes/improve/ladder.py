"""The search: tune the baseline, screen the remedies, confirm the best over seeds, combine them, choose, and test once.

Everything up to the choice looks at validation samples alone. A run that is there is not made again, and what depends on the budget
is decided once (:class:`~classmargin.recipes.improve.budget.Journal`), so the same command resumes where it was.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classmargin.data import DataBundle
from classmargin.recipes.ensemble import teach
from classmargin.recipes.improve.budget import Journal
from classmargin.recipes.improve.candidates import (
    Candidate,
    averaged,
    digest,
    is_made,
    pool,
    pooled_file,
    read_scores,
    share_right,
    validation_file,
    without_doubt,
)
from classmargin.recipes.improve.judging import Aim, Row, better_without, changes
from classmargin.recipes.improve.remedies import FOLDS, REMEDIES, WEAKER, Remedy, lay, tuning_steps
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import Ending, PlannedRun
from classmargin.recipes.saved_model import load_model
from classmargin.recipes.train_run import VALIDATION_FILE
from classmargin.training.config import RunConfig, identity
from classmargin.training.evaluate import write_predictions
from classmargin.training.run_folder import RunFolder

# Share of the epochs in which remedies are screened, seeds of the finalists, finalists: the first that the budget allows.
PLANS = (
    (1.0, 5, 4),
    (1.0, 5, 3),
    (1.0, 3, 3),
    (1.0, 3, 2),
    (0.5, 3, 2),
    (0.25, 3, 2),
    (0.25, 3, 1),
    (0.25, 2, 1),
    (0.25, 1, 1),
)
# Of the budget, what tuning may take.
TUNING_SHARE = 0.25
TOO_SMALL = "the budget was too small"
# Kinds of remedies that runs are made for.
TRAINED = ("settings", "labels", "augmentation")
Needed = list[PlannedRun]
Stage = Generator[Needed, None, None]
Made = Generator[Needed, None, Candidate | str]
Found = Generator[Needed, None, list[Candidate]]


class Search:
    """A source of runs for the runner, from the configuration of the baseline to a choice: the results are attributes in the end.

    ``folds`` parts of the training samples take turns to be predicted where no validation samples are held out; else it is 0.
    """

    def __init__(
        self, config: RunConfig, bundle: DataBundle, remedies: Sequence[Remedy], aim: Aim, journal: Journal, folds: int
    ) -> None:
        self.bundle, self.aim, self.folder, self._journal = bundle, aim, journal.folder, journal
        self.folds = folds
        # What it takes to judge a run, in runs: itself, or one without each fold.
        self._unit = max(folds - 1, 1)
        self._epochs = config.loop.epochs
        self.given = self.tuned = Candidate("baseline", "Baseline as given", REMEDIES["tuning"], config, cost=1.0)
        self.baseline = self.given
        self.seeds, self.done = 1, 0
        self.choice: tuple[Candidate, Row] | None = None
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self._costs: dict[str, float] = {}
        self._planned: dict[Path, PlannedRun] = {}
        self._counted: set[str] = set()
        self._audits: dict[str, list[Any]] = {}
        self._steps: Iterator[Needed] = self._stages()
        self._queue: Needed = []
        self._under_way: dict[str, float] = {}
        cross_validated = [one for one in remedies if folds and one.kind in ("labels", "distillation")]
        for remedy in cross_validated:
            self._leave_out(remedy, "needs held-out validation samples, and these data are cross-validated")
        self._remedies = {one.name: one for one in remedies if one not in cross_validated}

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
        shown = "" if run.test else f": {100 * share_right(run.folder):.1f} % of validation samples right"
        return f"{run.title}{shown} ({self._journal.words})"

    # Runs

    def _run(self, candidate: Candidate, seed: int = 0, share: float = 1.0) -> PlannedRun:
        config = candidate.config
        epochs = max(1, round(share * config.loop.epochs))
        config = effective(lay(config, {"loop": {"seed": seed, "epochs": epochs}}))
        short = "" if share == 1.0 else f" ({epochs} epochs)"
        folder = RunFolder(self.folder / "runs" / f"{candidate.name}-seed{seed}-{identity(config)}")
        title = f"{candidate.title}{short}, seed {seed}"
        self._costs[title] = candidate.cost * share
        run = PlannedRun(title, config, folder, test=False, notices=not self._journal.spent, validation=True)
        self._planned[folder.path] = run
        return run

    def _without_folds(self, run: PlannedRun, folds: int) -> Needed:
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

    def _missing(self, runs: Needed) -> Needed:
        """Count runs as spent, each once, and return those that are still to be made."""
        new = [run for run in runs if run.title not in self._counted]
        self._counted |= {run.title for run in new}
        self._journal.spent += sum(self._costs[run.title] for run in new)
        return [run for run in runs if not is_made(run)]

    def _make(
        self, candidates: Sequence[Candidate], seeds: int = 1, share: float = 1.0
    ) -> Generator[Needed, None, list[Candidate | None]]:
        """Ask for the runs of candidates, or for those without each fold where folds take turns; return what :meth:`_made` does."""
        runs = [self._run(one, seed, share) for seed in range(seeds) for one in candidates]
        if not self.folds:
            yield self._missing(runs)
        else:
            parts = {run.folder: self._without_folds(run, self.folds) for run in runs}
            yield self._missing([part for group in parts.values() for part in group])
            for folder, group in parts.items():
                _pool_once(group, pooled_file(folder))
        return [self._made(one, seeds, share) for one in candidates]

    def _made(self, candidate: Candidate, seeds: int, share: float = 1.0) -> Candidate | None:
        """Return a candidate with its finished runs, or None if one of them failed."""
        runs = [self._run(candidate, seed, share) for seed in range(seeds)]
        if not all(map(is_made, runs)):
            return None
        return replace(candidate, members=tuple((run.folder,) for run in runs))

    def _judge(self, candidate: Candidate, baseline: Candidate, stage: str = "", candidates: int = 1) -> Row:
        """Compare on validation; intervals hold for so many candidates at once."""
        deltas, _ = changes(self.aim, self._audits_of(baseline), self._audits_of(candidate))
        runs, networks = len(candidate.members), len(candidate.members[0])
        row = Row(candidate.title, candidate.remedy.name, stage, runs, candidate.cost, networks)
        return row.judged(self.aim, deltas, candidates)

    def _gain(self, model: Candidate) -> float:
        return self._judge(model, self.baseline).deltas["objective"][0]

    def _audits_of(self, candidate: Candidate) -> list[Any]:
        key = f"{candidate.name} {[[run.path.name for run in group] for group in candidate.members]}"
        if key not in self._audits:
            samples, scores = candidate.samples("validation"), candidate.scores("validation", self.aim)
            self._audits[key] = [samples.lean_audit(one) for one in scores]
        return self._audits[key]

    def _leave_out(self, remedy: Remedy, why: str) -> None:
        self.rows.append(Row(remedy.title, remedy.name, "not tried", note=why))

    # Steps

    def _stages(self) -> Stage:
        """Yield the runs of one step after another."""
        (given,) = yield from self._make([self.given])
        if given is None:
            words = next(iter(self.failed.values()), "it is not there")
            raise ValueError(f"the baseline could not be trained: {words}")
        self.given = self.tuned = given
        left = self._journal.decide("left after the baseline", lambda: min(self._journal.left, 1e6))
        if left < self._unit:
            took = f"one run took {self._journal.seconds_per_run or 0:.0f} s"
            raise ValueError(f"the budget is too small: {took}; it is kept, give a larger --budget to go on")
        if "tuning" in self._remedies:
            yield from self._tune()
        finalists = yield from self._screen()
        models = yield from self._confirm(finalists)
        yield from self._combine(models)
        yield from self._test()

    def _tune(self) -> Stage:
        allowed = self._journal.decide(
            "tuning runs", lambda: int(TUNING_SHARE * min(self._journal.left / self._unit + 1, 1000))
        )
        tried = [self.given]
        for number in range(2):
            steps = tuning_steps(self.tuned.config)[number][: max(allowed, 0)]
            allowed -= sum(2 if "epochs" in title else 1 for title, _ in steps)
            made = yield from self._make([self._tuning_candidate(title, tables) for title, tables in steps])
            tried += [one for one in made if one is not None]
            # Of equals the first: the given settings.
            self.tuned = max(tried, key=lambda one: share_right(one.runs[0]))
        self.rows += [self._judge(one, self.tuned, "tuning") for one in tried if one.title != self.tuned.title]

    def _tuning_candidate(self, title: str, tables: Any) -> Candidate:
        base = self.tuned
        before = "" if base is self.given else base.title.removeprefix("Baseline, ") + ", "
        config = lay(base.config, tables)
        cost = config.loop.epochs / self._epochs
        return Candidate("baseline", f"Baseline, {before}{title}", base.remedy, config, cost)

    def _screen(self) -> Found:
        """Make one run of each remedy that suits, and return the best of those that keep the guard."""
        base, every = self.tuned, []
        for remedy in (one for one in self._remedies.values() if one.kind in TRAINED):
            why = remedy.unfit(base.config, self.bundle)
            if why:
                self._leave_out(remedy, why)
                continue
            config = lay(base.config, remedy.settings(base.config, self.bundle))
            cost = base.cost * (remedy.cost if remedy.kind == "settings" else 1.0)
            every.append(Candidate(remedy.name, remedy.title, remedy, config, cost))
        plan = self._journal.decide("plan", lambda: self._plan(every))
        share, self.seeds = float(plan["share"]), int(plan["seeds"])
        makers = {"labels": self._without_doubt, "augmentation": self._sparing}
        candidates = []
        for one in every:
            made: Candidate | str = one if one.name in plan["names"] else TOO_SMALL
            if made is one and one.remedy.kind in makers:
                made = yield from makers[one.remedy.kind](one, share)
            if isinstance(made, str):
                self._leave_out(one.remedy, made)
            else:
                candidates.append(made)
        baseline, *entries = yield from self._make([base, *candidates], share=share)
        pairs = zip(candidates, entries, strict=True)
        judged = [(one, self._judge(entry, baseline, "screened")) for one, entry in pairs if entry and baseline]
        judged.sort(key=lambda pair: (bool(pair[1].note), -pair[1].deltas["objective"][0]))
        most = min(int(plan["finalists"]), sum(not row.note for _, row in judged))
        self.rows += [row for _, row in judged[most:]]
        return [one for one, _ in judged[:most]]

    def _plan(self, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """Return how the budget is used: the first of the plans that it allows, and who is screened."""
        left, base, unit = self._journal.left, self.tuned.cost, self._unit
        # Settings that runs of their own come from; those on folds are made once for all that need them.
        before = {"labels": base * (FOLDS - 1), "augmentation": base}
        prices = [one.cost + before.pop(one.remedy.kind, 0.0) for one in candidates]
        kept = [one.name for one in candidates]
        for share, seeds, finalists in PLANS:
            again: float = finalists * (seeds - 1 if share == 1.0 else seeds) + seeds - 1
            again += "distillation" in self._remedies and seeds > 1
            again += 0.0 if share == 1.0 else share
            last = seeds * (finalists + 1) if self.folds else 0  # on all samples, for the test
            paid = base * (again * unit + last)
            plan = {"share": share, "seeds": seeds, "finalists": finalists, "names": kept}
            if paid + share * unit * sum(prices) <= left:
                return plan
        # Too little for all even so: the first of the ladder, as many as can be paid for.
        kept = []
        for one, price in zip(candidates, prices, strict=True):
            if paid + share * unit * price <= left or not kept:
                kept.append(one.name)
                paid += share * unit * price
        return {**plan, "names": kept}

    def _without_doubt(self, candidate: Candidate, share: float) -> Made:
        """Have networks predict training samples they have not seen; return settings that relabel or drop the doubted ones."""
        parts = self._without_folds(self._run(self.tuned, share=share), FOLDS)
        yield self._missing(parts)
        pooled = self.folder / f"folds-{digest(part.folder for part in parts)}.npz"
        if not _pool_once(parts, pooled):
            return "a run without a fold failed"
        count, data = without_doubt(self.bundle, pooled, relabel=candidate.name == "relabel")
        if not count:
            return "no label is doubted"
        return replace(candidate, title=f"{candidate.title} ({count})", config=lay(candidate.config, {"data": data}))

    def _sparing(self, candidate: Candidate, share: float) -> Made:
        """Compare the baseline with a run that is augmented less, and spare the classes that are better off there."""
        weaker = WEAKER[self.tuned.config.data.augmentation]
        config = lay(self.tuned.config, {"data": {"augmentation": weaker}})
        less = replace(self.tuned, name="less-augmentation", title=f"Augmentation {weaker}", config=config)
        both = [one for one in (yield from self._make([self.tuned, less], share=share)) if one is not None]
        if len(both) < 2:
            return "the run without the augmentation failed"
        (samples, kept), (_, dropped) = (read_scores(validation_file(one.runs[0])) for one in both)
        spared = tuple(samples.class_names[row] for row in better_without(samples.labels, kept, dropped))
        if not spared:
            return "no class is better off with less augmentation"
        config = lay(candidate.config, {"data": {"spared_classes": spared}})
        some = ", ".join(spared[:3]) + (f" and {len(spared) - 3} others" if len(spared) > 3 else "")
        return replace(candidate, title=f"{candidate.title}: not for {some}", config=config)

    def _confirm(self, finalists: Sequence[Candidate]) -> Found:
        """Repeat the baseline and the finalists with other seeds, and return the finalists that came through."""
        yield from self._make([self.tuned, *finalists], self.seeds)
        while (baseline := self._made(self.tuned, self.seeds)) is None and self.seeds > 1:
            self.seeds -= 1
        assert baseline is not None
        self.baseline = replace(baseline, title="Tuned baseline")
        made = [self._made(one, self.seeds) for one in finalists]
        return [one for one in made if one is not None]

    def _combine(self, models: list[Candidate]) -> Stage:
        """Add ensembles, the student of the best one, and offsets to the finalists; judge all of them and choose."""
        base, combined = self.baseline, []
        if "ensemble" in self._remedies and self.seeds > 1:
            combined = self._ensembles(models, self._remedies["ensemble"])
        student = self._remedies.get("distillation")
        if student and combined and not student.unfit(self.tuned.config, self.bundle):
            models = models + (yield from self._student(student, combined))
        models = [*models, *combined]
        if "offsets" in self._remedies:
            best, offsets = max(models, key=self._gain, default=base), self._remedies["offsets"]
            for one in {base.name: base, best.name: best}.values():
                name, title = f"offsets-{one.name}", f"{one.title}, class offsets"
                models.append(replace(one, name=name, title=title, remedy=offsets, offsets=True))
        stages = ["finalist" if model.remedy.kind in TRAINED else "combined" for model in models]
        rows = [self._judge(model, base, stage, len(models)) for model, stage in zip(models, stages, strict=True)]
        self.rows += rows
        able = [(model, row) for model, row in zip(models, rows, strict=True) if row.able]
        # A trade only where nothing else gains.
        self.choice = max(able, key=lambda pair: (not pair[0].offsets, pair[1].gain), default=None)

    def _ensembles(self, models: Sequence[Candidate], remedy: Remedy) -> list[Candidate]:
        found = []
        for model in (self.baseline, *models):
            title = f"{model.title}, ensemble of {len(model.members)}"
            found.append(averaged(f"ensemble-{model.name}", title, remedy, [model]))
        if len(models) > 1:
            title = f"All {len(models)} finalists, ensemble of {len(models) * self.seeds}"
            found.append(averaged("ensemble-finalists", title, remedy, models))
        return found

    def _student(self, remedy: Remedy, ensembles: Sequence[Candidate]) -> Found:
        """Train a network on the probabilities of the best ensemble; return it unless the budget or a run fails."""
        cost = self.tuned.cost
        seeds = self._journal.decide("students", lambda: int(min(self.seeds, self._journal.left / cost)))
        if seeds < 1:
            self._leave_out(remedy, TOO_SMALL)
            return []
        teacher = max(ensembles, key=self._gain)
        file = self.folder / f"teacher-{digest(teacher.runs)}.npz"
        if not file.exists():
            models = [load_model(run.path) for run in teacher.runs]
            write_predictions(file, teach(models, self.tuned.config, 1.0))
        config = lay(self.tuned.config, {"data": {"soft_labels": str(file)}})
        one = Candidate("distillation", f"{teacher.title}, distilled", remedy, config, cost)
        return [made for made in (yield from self._make([one], seeds)) if made is not None]

    def _test(self) -> Stage:
        """Let the test set be read, once, for the baseline and the choice alone."""
        chosen = [] if self.choice is None else self.choice[0].runs
        planned = []
        for path in {run.path: run for run in (*self.baseline.runs, *chosen)}:
            run = self._planned[path]
            title = f"test of {path.name}"
            self._costs[title] = self._costs[run.title] if self.folds else 0.0
            planned.append(replace(run, title=title, test=True, validation=False, notices=False))
        yield self._missing(planned)
        missing = [run.folder.path.name for run in planned if not run.folder.done]
        if missing:
            words = "; ".join(self.failed.values())
            raise ValueError(f"the test of {', '.join(missing)} failed ({words}); the same command tries again")


def _pool_once(parts: Sequence[PlannedRun], target: Path) -> bool:
    """Pool what runs without a fold predict for it, unless that is done; return whether it is there."""
    if not target.exists() and all(map(is_made, parts)):
        pool([part.folder.path / VALIDATION_FILE for part in parts], target)
    return target.exists()
