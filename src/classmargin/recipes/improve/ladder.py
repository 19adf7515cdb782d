"""The search: tune the baseline, screen the remedies, confirm the best over seeds, combine them, choose, and test once.

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
    averaged,
    digest,
    is_made,
    overall,
    pool,
    read_scores,
    validation_file,
)
from classmargin.recipes.improve.judging import Aim, Row, better_without
from classmargin.recipes.improve.new_labels import doubted_samples, write_left_out, write_relabelled
from classmargin.recipes.improve.remedies import FOLDS, REMEDIES, WEAKER, Remedy, lay, tuning_steps
from classmargin.recipes.improve.runs import Runs, Stage
from classmargin.recipes.runner import PlannedRun
from classmargin.recipes.train_run import VALIDATION_FILE
from classmargin.training.config import RunConfig

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
BASELINE = "Tuned baseline"
# Kinds of remedies that runs are made for.
TRAINED = ("settings", "labels", "augmentation")
Made = Generator[list[PlannedRun], None, Candidate | str]


class Search(Runs):
    """All steps from the configuration of the baseline to a choice; the results are attributes once :meth:`stages` has ended."""

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
        super().__init__(bundle, aim, journal, folder, folds)
        self._epochs = config.loop.epochs
        self.given = self.tuned = Candidate("baseline", "Baseline as given", REMEDIES["tuning"], config, cost=1.0)
        self.baseline: Candidate = self.given
        self.seeds = 1
        self.choice: Candidate | None = None
        self.choice_row: Row | None = None
        self.remedies = list(remedies)
        for remedy in remedies:
            if folds and remedy.kind in ("labels", "distillation"):
                self._leave_out(remedy, "needs held-out validation samples, and these data are cross-validated")
                self.remedies.remove(remedy)
        self._kinds = {remedy.kind: remedy for remedy in self.remedies}

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
        if "tuning" not in self._kinds:
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
            best = max(tried, key=self._accuracy)  # of equals the first: the given settings
        self.tuned = best
        made = [self._made(one) for one in (best, *tried)]
        for one in made[1:]:
            if one is not None and made[0] is not None and one.title != best.title:
                self.rows.append(self._judge(one, made[0], "tuning"))

    def _tuning_candidate(self, base: Candidate, title: str, tables: Any) -> Candidate:
        config = lay(base.config, tables)
        before = "" if base is self.given else base.title.removeprefix("Baseline, ") + ", "
        cost = config.loop.epochs / self._epochs
        return Candidate("baseline", f"Baseline, {before}{title}", base.remedy, config, cost)

    def _accuracy(self, candidate: Candidate) -> float:
        return overall(*read_scores(validation_file(self._run(candidate).folder)))

    # Screening

    def _screen(self) -> Stage:
        base, every = self.tuned, []
        for remedy in (one for one in self.remedies if one.kind in TRAINED):
            why = remedy.unfit(base.config, self._bundle)
            if why:
                self._leave_out(remedy, why)
                continue
            config = lay(base.config, remedy.settings(base.config, self._bundle))
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
        yield from self._ask([self._run(one, share=share) for one in (base, *candidates)])
        baseline = self._made(base, share=share)
        judged = []
        for one in candidates:
            entry = self._made(one, share=share)
            if entry is not None and baseline is not None:
                judged.append((one, self._judge(entry, baseline, "screened")))
        judged.sort(key=lambda pair: (pair[1].broken, -pair[1].deltas["objective"][0]))
        fit = sum(not row.broken for _, row in judged)
        most = min(int(plan["finalists"]), fit)
        self._finalists = [one for one, _ in judged[:most]]
        self.rows += [row for _, row in judged[most:]]

    def _plan(self, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """Return how the budget is used: the first of the plans that it allows, and who is screened."""
        left, base, unit = self._journal.left, self.tuned.cost, self._unit
        # Settings that runs of their own come from; those on folds are made once for all that need them.
        before = {"labels": base * (FOLDS - 1), "augmentation": base}
        prices = [one.cost + before.pop(one.remedy.kind, 0.0) for one in candidates]
        kept = [one.name for one in candidates]
        for share, seeds, finalists in PLANS:
            again: float = finalists * (seeds - 1 if share == 1.0 else seeds) + seeds - 1
            again += "distillation" in self._kinds and seeds > 1
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
        else:
            file = self._folder / f"left-out-{name}.csv"
            write_left_out(self._bundle, doubted, file)
        setting = "soft_labels" if candidate.name == "relabel" else "left_out"
        config = lay(candidate.config, {"data": {setting: str(file)}})
        return replace(candidate, title=f"{candidate.title} ({len(doubted)})", config=config)

    def _sparing(self, candidate: Candidate, share: float) -> Made:
        """Compare the baseline with a run that is augmented less, and spare the classes that are better off there."""
        weaker = WEAKER[self.tuned.config.data.augmentation]
        config = lay(self.tuned.config, {"data": {"augmentation": weaker}})
        less = replace(self.tuned, name="less-augmentation", title=f"Augmentation {weaker}", config=config)
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

    # The choice

    def _confirm(self) -> Stage:
        wanted = [self.tuned, *self._finalists]
        yield from self._ask([self._run(one, seed) for seed in range(self.seeds) for one in wanted])
        while (found := self._made(self.tuned, self.seeds)) is None and self.seeds > 1:
            self.seeds -= 1
        assert found is not None
        self.baseline = found
        made = [self._made(one, self.seeds) for one in self._finalists]
        self._models = [one for one in made if one is not None]

    def _combine(self) -> Stage:
        """Add ensembles, the student of the best one, and offsets to the finalists; judge all of them and choose."""
        base, combined = self.baseline, []
        if "ensemble" in self._kinds and self.seeds > 1:
            combined = self._ensembles(self._kinds["ensemble"])
        student = self._kinds.get("distillation")
        if student and combined and not student.unfit(self.tuned.config, self._bundle):
            found = yield from self._student(student, combined)
            self._models += [] if found is None else [found]
        models = [*self._models, *combined]
        if "offsets" in self._kinds:
            best = max(models, key=self._gain, default=base)
            models += [
                replace(
                    one,
                    name=f"offsets-{one.name}",
                    title=f"{self._title(one)}, class offsets",
                    remedy=self._kinds["offsets"],
                    offsets=True,
                )
                for one in {base.name: base, best.name: best}.values()
            ]
        rows = []
        for model in models:
            stage = "finalist" if model.remedy.kind in TRAINED else "combined"
            rows.append(self._judge(model, base, stage, len(models)))
        self.rows += rows
        pairs = zip(models, rows, strict=True)
        able = [(model, row) for model, row in pairs if not row.broken and row.gain > 0]
        if able:  # a trade only where nothing else gains
            self.choice, self.choice_row = max(able, key=lambda pair: (not pair[0].offsets, pair[1].gain))

    def _title(self, model: Candidate) -> str:
        return BASELINE if model.name == self.baseline.name else model.title

    def _gain(self, model: Candidate) -> float:
        return self._judge(model, self.baseline, "").deltas["objective"][0]

    def _ensembles(self, remedy: Remedy) -> list[Candidate]:
        found = []
        for model in (self.baseline, *self._models):
            title = f"{self._title(model)}, ensemble of {len(model.members)}"
            found.append(averaged(f"ensemble-{model.name}", title, remedy, [model]))
        if len(self._models) > 1:
            title = f"All {len(self._models)} finalists, ensemble of {len(self._models) * self.seeds}"
            found.append(averaged("ensemble-finalists", title, remedy, self._models))
        return found

    def _student(
        self, remedy: Remedy, ensembles: Sequence[Candidate]
    ) -> Generator[list[PlannedRun], None, Candidate | None]:
        cost = self.tuned.cost
        seeds = self._journal.decide("students", lambda: int(min(self.seeds, self._journal.left / cost)))
        if seeds < 1:
            self._leave_out(remedy, TOO_SMALL)
            return None
        teacher = max(ensembles, key=self._gain)
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
        return self._made(one, seeds)

    def _test(self) -> Stage:
        """Let the test set be read, once, for the baseline and the choice alone."""
        chosen = [] if self.choice is None else self.choice.runs
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
