"""The search: tune the baseline, screen the remedies, confirm the best over seeds, combine them, choose, and test once.

::

    stages()   yields the runs of each step; what they came to is read from their folders when it resumes
    Ladder     hands them to the one runner (local, ray, inline), which resumes, retries and stops

Everything up to the choice looks at validation samples alone. A run that is there is not made again, and what depends on the budget
is decided once (:class:`~classmargin.recipes.improve.budget.Journal`), so the same command resumes where it was.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classmargin.data import DataBundle
from classmargin.recipes.improve.budget import Journal
from classmargin.recipes.improve.candidates import (
    Candidate,
    Entry,
    averaged,
    digest,
    is_made,
    overall,
    pool,
    pooled_file,
    read_scores,
    validation_file,
)
from classmargin.recipes.improve.judging import (
    Aim,
    Row,
    better_without,
    broken_guard,
    changes,
    simultaneous,
    sure_gain,
)
from classmargin.recipes.improve.new_labels import doubted_samples, write_left_out, write_relabelled
from classmargin.recipes.improve.remedies import FOLDS, REMEDIES, WEAKER, Remedy, lay, tuning_steps
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import Ending, PlannedRun
from classmargin.recipes.train_run import VALIDATION_FILE
from classmargin.training.config import RunConfig, identity
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
# Remedies whose candidates are trained, and those of them that a step of their own makes settings of.
TRAINED = ("settings", "labels", "augmentation")
BASELINE = "Tuned baseline"
Stage = Generator[list[PlannedRun], None, Any]


class Search:
    """All steps from a configuration to a choice; its results are attributes once :meth:`stages` has ended.

    Args:
        config: The baseline.
        bundle: Its data.
        remedies: What is tried.
        aim: What is to rise.
        journal: The budget.
        folder: Where everything is written.
        folds: Parts of the training samples that take turns to be predicted, where no validation samples are held out; 0 where
            some are.
    """

    def __init__(
        self,
        config: RunConfig,
        bundle: DataBundle,
        remedies: Sequence[Remedy],
        aim: Aim,
        journal: Journal,
        folder: Path,
        folds: int = 0,
    ) -> None:
        self._bundle, self._aim, self._journal, self._folder = bundle, aim, journal, folder
        self.folds = folds
        # What it takes to judge a run, in runs: itself, or one on the rest of each fold.
        self._unit = max(folds - 1, 1)
        self._epochs = config.loop.epochs
        tuning = REMEDIES["tuning"]
        self.given = self.tuned = Candidate("baseline", "Baseline as given", tuning, config, 1.0)
        self.rows: list[Row] = []
        self.remedies = list(remedies)
        for remedy in remedies:
            if folds and remedy.kind in ("labels", "distillation"):
                self._leave_out(
                    remedy, "needs held-out validation samples, and these data are cross-validated"
                )
                self.remedies.remove(remedy)
        self.failed: dict[str, str] = {}
        self.seeds = 1
        self.baseline: Entry | None = None
        self.choice: Entry | None = None
        self.choice_row: Row | None = None
        self._costs: dict[str, float] = {}
        self._planned: dict[Path, PlannedRun] = {}
        self._counted: set[str] = set()
        self._audits: dict[str, Any] = {}

    @property
    def estimate(self) -> int:
        """How many runs there will be at most, roughly; for the display. Screening may take several short ones in place of a long one."""
        return int(self._journal.budget.runs or 20) + len(self.remedies) + 6

    # Runs

    def _run(self, candidate: Candidate, seed: int = 0, share: float = 1.0) -> PlannedRun:
        config = candidate.config
        epochs = max(1, round(share * config.loop.epochs))
        config = effective(lay(config, {"loop": {"seed": seed, "epochs": epochs}}))
        short = "" if share == 1.0 else f" ({epochs} epochs)"
        folder = RunFolder(self._folder / "runs" / f"{candidate.name}-seed{seed}-{identity(config)}")
        title = f"{candidate.title}{short}, seed {seed}"
        self._costs[title] = candidate.cost * share
        run = PlannedRun(title, config, folder, test=False, notices=not self._journal.spent, validation=True)
        self._planned[folder.path] = run
        return run

    def _parts(self, run: PlannedRun, folds: int) -> list[PlannedRun]:
        """Return a run for each fold, which is trained on the others."""
        parts = []
        for fold in range(folds):
            config = lay(run.config, {"data": {"fold": (fold, folds), "allow_absent": True}})
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
        """Yield the runs that are missing; where folds take turns, those on each of them, and pool what they predict."""
        if not self.folds:
            yield self._missing(runs)
            return
        parts = {run.folder: self._parts(run, self.folds) for run in runs}
        yield self._missing([part for group in parts.values() for part in group])
        for folder, group in parts.items():
            if not pooled_file(folder).exists() and all(is_made(part) for part in group):
                pool([part.folder.path / VALIDATION_FILE for part in group], pooled_file(folder))

    def end(self, run: PlannedRun, ending: Ending, seconds: float) -> str:
        """Take note of the end of a run and say it, with the budget that is left."""
        if ending.kind == "unwritable":
            raise OSError(ending.words)
        if ending.kind != "finished":
            self.failed[run.title] = ending.words
            return f"{run.title} {ending.kind}: {ending.words}"
        self._journal.note_run(run.title, seconds, self._costs.get(run.title, 0.0))
        shown = ""
        if not run.test:
            samples, scores = read_scores(validation_file(run.folder))
            shown = f": {100 * overall(samples, scores):.1f} % of validation samples right"
        return f"{run.title}{shown} ({self._journal.words})"

    def _made(self, candidate: Candidate, seeds: int = 1, share: float = 1.0) -> Entry | None:
        """Return the finished runs of a candidate as a model, or None if one of them failed."""
        runs = [self._run(candidate, seed, share) for seed in range(seeds)]
        if not all(is_made(run) for run in runs):
            return None
        return Entry(
            candidate.name,
            candidate.title,
            candidate.remedy,
            candidate.config,
            tuple((run.folder,) for run in runs),
            cost=candidate.cost,
        )

    def _judge(self, entry: Entry, baseline: Entry, stage: str, candidates: int = 1) -> Row:
        """Compare on validation; intervals hold for so many candidates at once."""
        deltas, _ = changes(self._aim, self._audits_of(baseline), self._audits_of(entry))
        lost = broken_guard(self._aim, deltas)
        return Row(
            entry.name,
            entry.title,
            entry.remedy.name,
            stage,
            len(entry.members),
            entry.cost,
            len(entry.members[0]),
            simultaneous(deltas, candidates),
            f"loses {lost}" if lost else "",
            bool(lost),
            sure_gain(deltas),
        )

    def _audits_of(self, entry: Entry) -> list[Any]:
        key = f"{entry.name} {[[run.path.name for run in group] for group in entry.members]}"
        if key not in self._audits:
            samples = entry.samples("validation")
            scores = entry.validation_scores(self._aim)
            self._audits[key] = [samples.lean_audit(one) for one in scores]
        return list(self._audits[key])

    # Steps

    def stages(self) -> Stage:
        """Yield the runs of one step after another."""
        yield from self._ask([self._run(self.given)])
        if not is_made(self._run(self.given)):
            words = next(iter(self.failed.values()), "it is not there")
            raise ValueError(f"the baseline could not be trained: {words}")
        left = self._journal.decide("left after the baseline", lambda: min(self._journal.left, 1e6))
        if left < self._unit:
            raise ValueError(
                f"the budget is too small: one run took {self._journal.seconds_per_run or 0:.0f} s; it is kept, give a larger --budget "
                "to go on"
            )
        yield from self._tune()
        yield from self._screen()
        yield from self._confirm()
        yield from self._combine()
        yield from self._test()

    def _tune(self) -> Stage:
        if all(remedy.kind != "tuning" for remedy in self.remedies):
            return
        allowed = self._journal.decide(
            "tuning runs", lambda: int(TUNING_SHARE * min(self._journal.left / self._unit + 1, 1000))
        )
        best, tried = self.given, [self.given]
        for number in range(2):
            steps = tuning_steps(best.config)[number][: max(allowed, 0)]
            allowed -= sum(2 if "epochs" in title else 1 for title, _ in steps)
            found = [self._tuning_candidate(best, title, tables) for title, tables in steps]
            yield from self._ask([self._run(one) for one in found])
            tried += [one for one in found if is_made(self._run(one))]
            best = max(tried, key=lambda one: self._accuracy(one))  # of equals the first: the given settings
        self.tuned = best
        as_given = self._made(self.given)
        for one in tried[1:]:
            entry = self._made(one)
            assert entry is not None
            assert as_given is not None
            if one is not best:
                self.rows.append(self._judge(entry, self._made(best) or as_given, "tuning"))
        if best is not self.given and as_given is not None:
            self.rows.insert(0, self._judge(as_given, self._made(best) or as_given, "tuning"))

    def _tuning_candidate(self, base: Candidate, title: str, tables: Any) -> Candidate:
        config = lay(base.config, tables)
        before = "" if base is self.given else base.title.removeprefix("Baseline, ") + ", "
        cost = config.loop.epochs / self._epochs
        return Candidate("baseline", f"Baseline, {before}{title}", base.remedy, config, cost)

    def _accuracy(self, candidate: Candidate) -> float:
        return overall(*read_scores(validation_file(self._run(candidate).folder)))

    def _candidates(self) -> list[Candidate]:
        """Return the candidates that are trained, and note those that do not suit."""
        found = []
        base = self.tuned
        for remedy in self.remedies:
            if remedy.kind not in TRAINED:
                continue
            why = remedy.unfit(base.config, self._bundle)
            if why:
                self._leave_out(remedy, why)
                continue
            config = lay(base.config, remedy.settings(base.config, self._bundle))
            cost = base.cost * (remedy.cost if remedy.kind == "settings" else 1.0)
            found.append(Candidate(remedy.name, remedy.title, remedy, config, cost))
        return found

    def _leave_out(self, remedy: Remedy, why: str) -> None:
        self.rows.append(Row(remedy.name, remedy.title, remedy.name, "not tried", note=why))

    def _plan(self, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """Return how the budget is used: the first of the plans that it allows, and who is screened."""
        left, base = self._journal.left, self.tuned.cost
        distil = any(remedy.kind == "distillation" for remedy in self.remedies)
        plan: dict[str, Any] = {}
        for share, seeds, finalists in PLANS:
            again = finalists * (seeds - 1 if share == 1.0 else seeds) + seeds - 1 + (distil and seeds > 1)
            last = seeds * (finalists + 1) if self.folds else 0  # on all samples, for the test
            reserve = base * (again * self._unit + last)
            short = 0.0 if share == 1.0 else base * share * self._unit
            costs = [share * self._unit * cost for cost in self._screening_costs(candidates)]
            plan = {"share": share, "seeds": seeds, "finalists": finalists}
            plan["names"] = [one.name for one in candidates]
            if reserve + short + sum(costs) <= left:
                return plan
        # Too little for all even so: the first of the ladder, as many as can be paid for.
        kept: list[str] = []
        paid = reserve + short
        for one, cost in zip(candidates, costs, strict=True):
            if paid + cost <= left or not kept:
                kept.append(one.name)
                paid += cost
        return {**plan, "names": kept}

    def _screening_costs(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return what each takes, with the runs that its settings come from; those on folds are made once for all that need them."""
        before = {"labels": self.tuned.cost * (FOLDS - 1), "augmentation": self.tuned.cost}
        return [one.cost + before.pop(one.remedy.kind, 0.0) for one in candidates]

    def _screen(self) -> Stage:
        every = self._candidates()
        plan = self._journal.decide("plan", lambda: self._plan(every))
        share, self.seeds = float(plan["share"]), int(plan["seeds"])
        for one in every:
            if one.name not in plan["names"]:
                self._leave_out(one.remedy, TOO_SMALL)
        makers = {"labels": self._without_doubt, "augmentation": self._sparing}
        candidates = []
        for one in every:
            if one.name not in plan["names"]:
                continue
            made = one if one.remedy.kind == "settings" else (yield from makers[one.remedy.kind](one, share))
            if isinstance(made, str):
                self._leave_out(one.remedy, made)
            else:
                candidates.append(made)
        yield from self._ask([self._run(one, share=share) for one in (self.tuned, *candidates)])
        baseline = self._made(self.tuned, share=share)
        screened = {one.name: self._made(one, share=share) for one in candidates}
        rows = {
            name: self._judge(entry, baseline, "screened")
            for name, entry in screened.items()
            if entry is not None and baseline is not None
        }
        fit = [one for one in candidates if one.name in rows and not rows[one.name].broken]
        fit.sort(key=lambda one: -rows[one.name].deltas["objective"][0])
        self._finalists = fit[: int(plan["finalists"])]
        chosen = {one.name for one in self._finalists}
        self.rows += [row for name, row in rows.items() if name not in chosen]

    def _without_doubt(
        self, candidate: Candidate, share: float
    ) -> Generator[list[PlannedRun], None, Candidate | str]:
        """Have networks predict training samples they have not seen; return settings that relabel or drop the doubted ones."""
        parts = self._parts(self._run(self.tuned, share=share), FOLDS)
        yield self._missing(parts)
        if not all(is_made(part) for part in parts):
            return "a run without a fold failed"
        name = digest(part.folder for part in parts)
        pooled = self._folder / f"folds-{name}.npz"
        if not pooled.exists():
            pool([part.folder.path / VALIDATION_FILE for part in parts], pooled)
        doubted, probabilities = doubted_samples(self._bundle, pooled)
        if not len(doubted):
            return "no label is doubted"
        if candidate.name == "relabel":
            file = self._folder / f"labels-{name}.npz"
            write_relabelled(self._bundle, doubted, probabilities, file)
            config = lay(candidate.config, {"data": {"soft_labels": str(file)}})
        else:
            file = self._folder / f"left-out-{name}.csv"
            write_left_out(self._bundle, doubted, file)
            config = lay(candidate.config, {"data": {"left_out": str(file)}})
        return replace(candidate, title=f"{candidate.title} ({len(doubted)})", config=config)

    def _sparing(
        self, candidate: Candidate, share: float
    ) -> Generator[list[PlannedRun], None, Candidate | str]:
        """Compare the baseline with a run that is augmented less, and spare the classes that are better off there."""
        weaker = WEAKER[self.tuned.config.data.augmentation]
        config = lay(self.tuned.config, {"data": {"augmentation": weaker}})
        less = Candidate(
            "less-augmentation", f"Augmentation {weaker}", candidate.remedy, config, self.tuned.cost
        )
        both = [self._run(one, share=share) for one in (self.tuned, less)]
        yield from self._ask(both)
        if not all(is_made(run) for run in both):
            return "the run without the augmentation failed"
        (samples, kept), (_, dropped) = (read_scores(validation_file(run.folder)) for run in both)
        spared = tuple(samples.class_names[row] for row in better_without(samples.labels, kept, dropped))
        if not spared:
            return "no class is better off with less augmentation"
        config = lay(candidate.config, {"data": {"spared_classes": spared}})
        some = ", ".join(spared[:3]) + (f" and {len(spared) - 3} others" if len(spared) > 3 else "")
        return replace(candidate, title=f"{candidate.title}: not for {some}", config=config)

    def _confirm(self) -> Stage:
        wanted = [self.tuned, *self._finalists]
        yield from self._ask([self._run(one, seed) for seed in range(self.seeds) for one in wanted])
        while self.seeds > 1 and self._made(self.tuned, self.seeds) is None:
            self.seeds -= 1
        self.baseline = self._made(self.tuned, self.seeds)
        assert self.baseline is not None
        found = [self._made(one, self.seeds) for one in self._finalists]
        self._entries = [entry for entry in found if entry is not None]

    def _combine(self) -> Stage:
        """Add ensembles, the student of the best one, and offsets to the finalists; judge all of them and choose."""
        kinds = {remedy.kind: remedy for remedy in self.remedies}
        base = self.baseline
        assert base is not None
        combined: list[Entry] = []
        if "ensemble" in kinds and self.seeds > 1:
            combined = self._ensembles(kinds["ensemble"])
        if (
            "distillation" in kinds
            and combined
            and not kinds["distillation"].unfit(self.tuned.config, self._bundle)
        ):
            student = yield from self._student(kinds["distillation"], combined)
            self._entries += [] if student is None else [student]
        entries = [*self._entries, *combined]
        if "offsets" in kinds:
            entries += self._with_offsets(kinds["offsets"], entries)
        count = max(len(entries), 1)
        rows = []
        for entry in entries:
            stage = "finalist" if entry.remedy.kind in TRAINED else "combined"
            rows.append(self._judge(entry, base, stage, count))
        self.rows += rows
        # A trade is chosen only where nothing else gains.
        for trades in (False, True):
            able = [
                (row.gain, entry, row)
                for entry, row in zip(entries, rows, strict=True)
                if not row.broken and entry.offsets is trades
            ]
            gains = [one for one in able if one[0] > 0]
            if gains and self.choice is None:
                _, self.choice, self.choice_row = max(gains, key=lambda one: one[0])

    def _ensembles(self, remedy: Remedy) -> list[Entry]:
        base = self.baseline
        assert base is not None
        found = []
        for entry in (base, *self._entries):
            title = f"{BASELINE if entry is base else entry.title}, ensemble of {len(entry.members)}"
            found.append(averaged(f"ensemble-{entry.name}", title, remedy, [entry]))
        if len(self._entries) > 1:
            title = f"All {len(self._entries)} finalists, ensemble of {len(self._entries) * self.seeds}"
            found.append(averaged("ensemble-finalists", title, remedy, self._entries))
        return found

    def _student(
        self, remedy: Remedy, ensembles: Sequence[Entry]
    ) -> Generator[list[PlannedRun], None, Entry | None]:
        base = self.baseline
        assert base is not None
        cost = self.tuned.cost
        seeds = self._journal.decide("students", lambda: int(min(self.seeds, self._journal.left / cost)))
        if seeds < 1:
            self._leave_out(remedy, TOO_SMALL)
            return None
        teacher = max(ensembles, key=lambda entry: self._judge(entry, base, "").deltas["objective"][0])
        file = self._folder / f"teacher-{digest(teacher.runs)}.npz"
        if not file.exists():
            from classmargin.recipes.ensemble import teach
            from classmargin.recipes.saved_model import load_model
            from classmargin.training.evaluate import write_predictions

            models = [load_model(run.path) for run in teacher.runs]
            write_predictions(file, teach(models, self.tuned.config, 1.0))
        config = lay(self.tuned.config, {"data": {"soft_labels": str(file)}})
        one = Candidate("distillation", f"{teacher.title}, distilled", remedy, config, cost)
        yield from self._ask([self._run(one, seed) for seed in range(seeds)])
        found = self._made(one, seeds)
        return found

    def _with_offsets(self, remedy: Remedy, entries: Sequence[Entry]) -> list[Entry]:
        base = self.baseline
        assert base is not None
        best = max(
            entries, key=lambda entry: self._judge(entry, base, "").deltas["objective"][0], default=base
        )
        return [
            Entry(
                f"offsets-{entry.name}",
                f"{BASELINE if entry is base else entry.title}, class offsets",
                remedy,
                entry.config,
                entry.members,
                offsets=True,
                cost=entry.cost,
            )
            for entry in {base.name: base, best.name: best}.values()
        ]

    def _test(self) -> Stage:
        """Let the test set be read, once, for the baseline and the choice alone."""
        assert self.baseline is not None
        chosen = [] if self.choice is None else self.choice.runs
        runs = {run.path: run for run in (*self.baseline.runs, *chosen)}
        planned = []
        for run in runs.values():
            like = self._planned[run.path]
            title = f"test of {run.path.name}"
            self._costs[title] = self._costs[like.title] if self.folds else 0.0
            planned.append(replace(like, title=title, test=True, validation=False, notices=False))
        yield self._missing(planned)
        missing = [run.path.name for run in runs.values() if not run.done]
        if missing:
            words = "; ".join(self.failed.values())
            raise ValueError(
                f"the test of {', '.join(missing)} failed ({words}); the same command tries again"
            )
