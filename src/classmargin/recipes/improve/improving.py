"""``classmargin.improve``: from data and a baseline to an answer.

::

    data ──> baseline config ──> Search on the one runner ──> choice on validation ──> test, once ──> Improvement ──> OUT
    val.npz, test.npz ─────────> class offsets ─────────────> choice on validation ──> test, once ──> Improvement      (no training)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import require_extra
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.improve import judging
from classmargin.recipes.improve.improvement import GIVEN, Improvement, assemble
from classmargin.recipes.improve.improvement_page import write_improvement
from classmargin.recipes.improve.judging import Array, Row, Samples

if TYPE_CHECKING:
    from classmargin.data import DataBundle
    from classmargin.recipes.improve.budget import Budget
    from classmargin.recipes.improve.ladder import Search
    from classmargin.training.config import RunConfig

Tables = dict[str, dict[str, Any]]
# Validation samples of a class below which a fifth of the training samples is held out instead of a tenth. Where a fifth has fewer
# too, features are chosen on by cross-validation, unless the budget is a smaller number of runs.
FEW_VALIDATION = 20
LARGER_SHARE = 0.2
FOLDS = 5
RUNS_FOR_FOLDS = 40
# Where the data are features and nothing was asked for: a perceptron that is trained in seconds.
FEATURE_SETTINGS: Tables = {
    "backbone": {"name": "mlp"},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-2},
    "loop": {"epochs": 20, "batch_size": 128},
}


def improve(
    data: Any = None,
    *,
    baseline: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    objective: str = "hard",
    keep: str = "easy:0.5",
    budget: str = "30m",
    remedies: str | Sequence[str] = "default",
    backbone: str | None = None,
    embeddings: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str | None = None,
    config: RunConfig | None = None,
    jobs: int = 1,
    engine: str = "local",
    out: str | os.PathLike[str] = "runs/improve",
    show: bool | None = None,
) -> Improvement:
    """Find the remedy that lifts the weak classes without hurting the rest, and say how sure that is.

    The baseline is tuned, remedies are tried on it and chosen on validation under the guard ``keep``; the test set is read once, for
    the tuned baseline and the choice. The same call resumes where it was interrupted.

    Args:
        data: Name or path of a data set, or arrays: ``(X, y)`` or a mapping with ``x_train``, ``y_train`` and so on. None with a
            ``baseline`` of two prediction files: nothing is trained then.
        baseline: Your model: a run folder, predictions on the test set of ``data``, or predictions on validation and test.
        objective: What is to rise: ``hard``, ``worst``, ``overall``, or a CSV file of costs.
        keep: What must not fall by more than so many points beyond noise, as ``NAME:POINTS``.
        budget: A time (``30m``) or a number of runs (``20 runs``).
        remedies: ``default``, ``all``, or names.
        backbone: Network of the baseline.
        embeddings: The data are features: the baseline is a perceptron on them.
        settings: Further settings of the baseline, as tables.
        preset: Preset of the baseline.
        config: The whole configuration of the baseline, in place of backbone, settings and preset.
        jobs: Runs side by side.
        engine: ``local``, ``ray`` or ``inline``.
        out: Folder of all runs and results.
        show: Force progress bars on or off.

    Raises:
        ValueError: Bad names or values, a budget that is too small, a baseline on other samples, a folder with something else.
        StoppedError: A signal asked to stop; the same call resumes.

    Example:
        >>> from classmargin import improve
        >>> found = improve("embeddings.npz", budget="10m")  # doctest: +SKIP
        >>> print(found.verdict)  # doctest: +SKIP
    """
    files = _files(baseline)
    judging.make_aim(objective, keep)  # a slip must show before anything is read
    if len(files) > 2:
        raise ValueError(f"baseline must be one run or file, or predictions on validation and test, got {len(files)}")
    if len(files) == 2:
        if data is not None:
            raise ValueError(
                "data must be left out with a baseline of two prediction files: nothing is trained then; with data, give the "
                "predictions on the test set alone"
            )
        return _shifted(files[0], files[1], objective, keep, Path(out))
    # Asked for before anything is trained: the page comes last.
    for package in ("lightning", "plotly", "jinja2"):
        require_extra(package, "demo", "classmargin improve")
    from classmargin.recipes.improve.budget import Budget, Journal
    from classmargin.recipes.improve.ladder import Search
    from classmargin.recipes.improve.remedies import find_remedies
    from classmargin.recipes.out_folder import Question, claim_folder, removed_unless_begun
    from classmargin.recipes.run_parts import effective
    from classmargin.recipes.runner import run_from
    from classmargin.training.run_folder import hold_lock

    folder, model = Path(out), files[0] if files else None
    spend, wanted = Budget.parse(budget), find_remedies(remedies)
    tables = {part: dict(table) for part, table in (settings or {}).items()}
    with removed_unless_begun(folder):
        if data is not None and not isinstance(data, (str, os.PathLike)):
            data = _written(data, folder)
        config = _baseline_config(data, model, (backbone, embeddings, preset), tables, config)
        config, bundle, folds = _with_validation(config, spend)
        aim = judging.make_aim(objective, keep, bundle.class_names)
        if bundle.num_classes < 3 and aim.objective in ("easy", "medium", "hard"):
            few = f"needs at least three classes, got {bundle.num_classes}"
            raise ValueError(f"objective {aim.objective!r} {few}; use worst or overall")
        given = None if model is None else _given_scores(model, bundle)
        question = Question("improve", {"objective": objective, "keep": keep}, {"baseline": effective(config)})
        claim_folder(folder, question, [], results=("improvement.json",))
        with hold_lock(folder / ".lock"):
            journal = Journal(folder, spend, jobs, [remedy.name for remedy in wanted])
            search = Search(config, bundle, wanted, aim, journal, folds)
            run_from(search, engine=engine, jobs=jobs, devices=config.machine.devices, show=show)
            found = _outcome(search, given, {"keep": keep, "budget": budget})
            write_improvement(found, folder)
    return found


def _files(baseline: Any) -> list[Path]:
    if baseline is None:
        return []
    if isinstance(baseline, (str, os.PathLike)):
        words = str(baseline)
        return [Path(words)] if os.path.exists(words) else [Path(word) for word in words.split(",")]
    return [Path(one) for one in baseline]


# Before the search: settings, data, predictions of the user


def _baseline_config(
    data: Any, run: Path | None, asked: tuple[str | None, bool, str | None], flags: Tables, config: RunConfig | None
) -> RunConfig:
    """Return the settings of the baseline: those of a given run, or the defaults for the kind of data with what was asked for."""
    from classmargin.data import load_data
    from classmargin.recipes.run_options import gather_config
    from classmargin.training.config_reader import with_values
    from classmargin.training.run_folder import RunFolder

    if config is None and run is not None and run.is_dir():
        config = RunFolder(run).read_config()
    if config is None:
        if data is None:
            raise ValueError("data must be a data set, or baseline a run folder that names one; got neither")
        backbone, embeddings, preset = asked
        flags.setdefault("data", {})["name"] = str(data)
        if backbone is not None:
            flags.setdefault("backbone", {})["name"] = backbone
        network, place = flags.get("backbone", {}).get("name"), flags["data"].get("root")
        is_features = network in ("mlp", "linear")
        if embeddings or (network is None and preset is None):
            kind = load_data(str(data), root=None if place is None else Path(place)).kind
            if embeddings and kind != "features":
                raise ValueError(f"embeddings must be a matrix of features, got {kind} in {data}")
            is_features = is_features or kind == "features"
        base = gather_config(flags=FEATURE_SETTINGS) if is_features else None
        config = gather_config(flags=flags, preset=preset, base=base)
    elif data is not None:
        config = with_values(config, {"data": {"name": str(data)}})
    return with_values(config, {"machine": {"report": False, "loggers": ()}, "loop": {"seed": 0}})


def _written(data: Any, out: Path) -> Path:
    """Write arrays as a data set and return where it is."""
    from classmargin.recipes.out_folder import make_folder
    from classmargin.training.evaluate import write_predictions

    if isinstance(data, Mapping):
        arrays = {str(name): np.asarray(values) for name, values in data.items()}
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        arrays = {"inputs": np.asarray(data[0]), "labels": np.asarray(data[1])}
    else:
        raise TypeError(f"data must be a name, a path, (X, y) or a mapping of arrays, got {type(data).__name__}")
    for name, values in arrays.items():
        if values.dtype == object:
            raise ValueError(f"data must hold arrays of numbers, got objects in {name!r}")
        if values.dtype == np.float64:
            arrays[name] = values.astype(np.float32)
    file = out.with_name(f"{out.name}-data.npz")
    make_folder(out.parent)
    write_predictions(file, arrays)
    return file


def _with_validation(config: RunConfig, budget: Budget) -> tuple[RunConfig, DataBundle, int]:
    """Return settings, data, and the number of folds where these take turns in place of held-out validation samples.

    A fifth is held out where a tenth would be too few to choose by; folds take turns where a fifth would be too.
    """
    from classmargin.recipes.run_parts import load_bundle
    from classmargin.training.config_reader import with_values

    bundle, asked = load_bundle(config), config.data.validation
    held_out = not np.isin(bundle.validation.index.numpy(), bundle.train.index.numpy()).any()
    own = bundle.validation.full_size != bundle.train.full_size or not held_out
    if (asked is None and _has_few(bundle) and not own) or asked == 0.0:
        config = with_values(config, {"data": {"validation": LARGER_SHARE}})
        bundle = load_bundle(config)
        affordable = budget.runs is None or budget.runs >= RUNS_FOR_FOLDS
        enough = int(bundle.train.class_counts.min()) >= FOLDS
        suited = bundle.kind == "features" and config.loop.select == "last"
        if asked is None and _has_few(bundle) and affordable and enough and suited:
            config = with_values(config, {"data": {"validation": 0.0}})
            return config, load_bundle(config), FOLDS
    if len(bundle.validation) == 0:
        raise ValueError(f"improve chooses on validation samples, and {bundle.name} has none; set data.validation=0.2")
    return config, bundle, 0


def _has_few(bundle: DataBundle) -> bool:
    return float(bundle.validation.class_counts.float().median()) < FEW_VALIDATION


def _given_scores(baseline: Path, bundle: DataBundle) -> Array | None:
    """Return log-probabilities of the user's model in the order of the test set, certain ones where it only has predictions.

    None for a run folder that was never tested; predictions about other samples are refused.
    """
    if baseline.is_dir() and not (baseline / "predictions.npz").exists():
        return None
    found = read_predictions(baseline)
    labels, index, truth = np.asarray(found.labels), bundle.test.index.numpy(), bundle.test.labels.numpy()
    rows, same = np.arange(len(labels)), len(labels) == len(truth)
    if same and found.sample_id is not None:
        rows[np.argsort(index, kind="stable")] = np.argsort(found.sample_id, kind="stable")
        same = np.array_equal(found.sample_id[rows], index)
    if not (same and np.array_equal(labels[rows], truth)):
        raise ValueError(
            f"baseline {baseline} was not tested on the test samples of {bundle.name}: {len(labels)} labels there, {len(truth)} here, "
            "and they must be the same in the same order (or have the same sample_id)"
        )
    if found.class_names is not None and tuple(found.class_names) != tuple(bundle.class_names):
        raise ValueError(f"baseline {baseline} names its classes otherwise than {bundle.name}")
    if found.logits is not None or found.probabilities is not None:
        return judging.log_probabilities(found)[rows]
    predicted = np.asarray(found.predictions, dtype=np.int64)[rows]
    return np.log(np.maximum(np.eye(bundle.num_classes)[predicted], 1e-6))


# After the search


def _outcome(search: Search, given: Array | None, asked: Mapping[str, str]) -> Improvement:
    """Return what a search that has ended found."""
    from classmargin.recipes.train_run import pictures_of

    bundle, aim, base, tuned = search.bundle, search.aim, search.baseline, search.tuned
    choice, row = search.choice or (None, None)
    samples, winner = base.samples("test"), choice or base
    scores = {"baseline": base.scores("test", aim)}
    if choice is not None:
        scores["choice"] = choice.scores("test", aim)
    if given is not None:
        scores[GIVEN] = [given]
    parts = {name: len(bundle.split(name)) for name in ("train", "validation", "test")}
    size = {"samples": parts, "classes": bundle.num_classes, "seeds": search.seeds, "folds": search.folds}
    facts = {"data": bundle.name, "objective": aim.words, **asked, **size, "baseline": tuned.title}
    folds = f"cross-validated predictions of the training samples ({search.folds} folds)"
    where = folds if search.folds else "validation"
    sizes = f"{parts['train']:,} training, {parts['validation']:,} validation and {parts['test']:,} test samples"
    terms = f"the guard is {asked['keep']}, the budget was {asked['budget']}"
    notes = [
        f"{sizes} of {bundle.num_classes} classes; the split is stratified and the same for all runs.",
        f"Everything was chosen on {where}: the objective is the {aim.words}, {terms}; finalists and baseline have {search.seeds} seeds.",
        f"The tuned baseline: {tuned.title} ({tuned.config.method.name}).",
        *(f"Failed: {title} ({words})." for title, words in search.failed.items()),
    ]
    offsets = winner.fitted_offsets(aim)[0].tolist() if winner.offsets else ()
    images = pictures_of(bundle.test, np.asarray(samples.sample_id)) if bundle.kind == "images" else None
    runs = tuple(run.path for run in winner.members[0])
    return assemble(
        aim,
        samples,
        scores,
        search.rows,
        row,
        facts=facts,
        notes=notes,
        folder=search.folder,
        winner=runs,
        offsets=offsets,
        images=images,
    )


def _shifted(validation: Path, test: Path, objective: str, keep: str, out: Path) -> Improvement:
    """Fit class offsets on the predictions of any model on validation, and test them once: no training, no torch."""
    if os.path.lexists(out) and not os.path.isdir(out):
        raise ValueError(f"--out must be a folder, got the file {str(out)!r}")
    files = [read_predictions(validation), read_predictions(test)]
    there, scores = map(judging.log_probabilities, files)
    seen, samples = Samples.of(files[0], there), Samples.of(files[1], scores)
    if seen.class_names != samples.class_names:
        classes = f"got {there.shape[1]} and {scores.shape[1]}"
        raise ValueError(f"{validation} and {test} must have the same classes, {classes}")
    aim = judging.make_aim(objective, keep, seen.class_names)
    goals = ["cost"] if aim.objective == "cost" else ["hard", "worst"]
    rows = {}
    for goal in goals:
        after = judging.held_out_offsets(there, seen.labels, replace(aim, objective=goal))
        deltas, _ = judging.changes(aim, [seen.lean_audit(there)], [seen.lean_audit(after)])
        row = Row(f"Class offsets for {goal}", "offsets", "finalist", runs=1)
        rows[goal] = row.judged(aim, deltas, len(goals))
    able = [goal for goal in goals if rows[goal].able]
    best = max(able, key=lambda goal: rows[goal].gain, default=None)
    tested, offsets = {"baseline": [scores]}, np.zeros(0)
    if best is not None:
        offsets = judging.fit_offsets(there, seen.labels, replace(aim, objective=best))
        tested["choice"] = [scores + offsets]
    notes = [
        f"{len(seen.labels):,} validation and {len(samples.labels):,} test samples; nothing was trained.",
        "Offsets are chosen by what those fitted on one half of validation do on the other; those that are given are fitted on all of it.",
    ]
    facts = {"data": test.stem, "objective": aim.words, "keep": keep, "seeds": 1}
    found = assemble(
        aim,
        samples,
        tested,
        list(rows.values()),
        None if best is None else rows[best],
        facts=facts,
        notes=notes,
        folder=out,
        offsets=offsets.tolist(),
        tuned="the model as it is",
    )
    write_improvement(found, out)
    return found
