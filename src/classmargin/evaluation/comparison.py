"""Two or more models on the same test set: who gained, who lost, what is noise, and one sentence about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import MOST_RESAMPLES, check_choice, check_int
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.headline_intervals import headline_differences, notes_on_classes
from classmargin.evaluation.input_checks import check_fraction
from classmargin.evaluation.json_values import fields_to_plain
from classmargin.evaluation.paired_tests import ModelPair, benjamini_hochberg, paired_models

if TYPE_CHECKING:
    import pandas as pd

Delta = tuple[float, float, float]
COMPARISON_RANKINGS = ("crossfit", "pooled", "own", "baseline")


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline on the same samples.

    Attributes:
        baseline_name: What the baseline is called in sentences and tables.
        candidate_name: What the candidate is called.
        class_names: One name per class.
        num_samples: Number of shared samples.
        runs: Number of runs (seeds) of baseline and candidate.
        deltas: ``{"overall": (difference, low, high), ...}`` candidate minus baseline; read it with :meth:`delta`.
        summary: One row per headline number: ``metric``, ``baseline``, ``candidate``, ``difference``, ``low``, ``high``.
        by_class: One row per class: ``class_name``, ``n``, ``baseline``, ``candidate`` accuracy, ``difference``,
            ``gained_samples`` and ``lost_samples`` (only the candidate right / only the baseline right), ``p_value`` (exact McNemar),
            ``q_value`` (Benjamini-Hochberg), ``outcome`` "gained", "lost", "noise" or "absent".
        verdict: One sentence that can be quoted.
        gained: Names of classes that gained (q <= alpha).
        lost: Names of classes that lost (q <= alpha).
        noise: Names of the other classes.
        confidence: Level of the intervals.
        alpha: False discovery rate of ``gained`` and ``lost``.
        ranking: How the thirds were made: "crossfit", "pooled", "baseline" or "own".
        notes: Sentences a reader must know.
    """

    baseline_name: str
    candidate_name: str
    class_names: tuple[str, ...]
    num_samples: int
    runs: tuple[int, int]
    deltas: Mapping[str, Delta]
    summary: pd.DataFrame
    by_class: pd.DataFrame
    verdict: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    noise: tuple[str, ...]
    confidence: float
    alpha: float
    ranking: str
    notes: tuple[str, ...]

    def delta(self, name: str) -> Delta:
        """Return (difference, low, high) of overall, easy, medium, hard, worst or gap."""
        if name not in self.deltas:
            raise ValueError(f"name must be one of {', '.join(self.deltas)}; got {name!r}")
        return self.deltas[name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values that ``json.dumps`` takes (no NaN)."""
        return fields_to_plain(self)


@dataclass(frozen=True)
class ComparisonSet:
    """Several candidates against one baseline; class tests and intervals are controlled over all of them together.

    Attributes:
        names: Names of all models, the baseline first.
        comparisons: One :class:`Comparison` per candidate, in order.
        ranked: One row per candidate, largest overall gain first: ``model``, ``overall`` and ``hard`` (differences from the baseline) with
            ``_low`` and ``_high``, ``words`` (what to think of the overall difference).
        summary: Long form, one row per model and headline number: ``model``, ``metric``, ``value``, ``difference``,
            ``low``, ``high`` against the baseline (0 for the baseline itself; its values are those beside the first candidate).
        verdict: One sentence.
        notes: Sentences a reader must know.
    """

    names: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    ranked: pd.DataFrame
    summary: pd.DataFrame
    verdict: str
    notes: tuple[str, ...]


def compare(
    baseline: Audit | Sequence[Audit],
    candidate: Audit | Sequence[Audit],
    *,
    names: tuple[str, str] = ("baseline", "candidate"),
    ranking: str = "crossfit",
    confidence: float = 0.95,
    alpha: float = 0.05,
    bootstrap: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same samples; several runs (seeds) of a model may be given as a list of audits.

    Args:
        baseline: Audit of the model in use, or audits of its runs.
        candidate: Audit of the new model, or audits of its runs, on the same samples.
        names: What the two are called.
        ranking: How classes are ranked into thirds. "crossfit" (by the mean of both models on one half of the samples, measured
            on the other half) and "pooled" (by the mean of both) treat the models alike. "own" ranks each model by itself. "baseline"
            ranks by the baseline, which flatters the candidate.
        confidence: Level of the intervals.
        alpha: False discovery rate at which a class has "gained" or "lost".
        bootstrap: Resampled copies, at least 1.
        seed: Seed of all random draws.

    Raises:
        ValueError: Different samples, labels or classes.

    Example:
        >>> from classmargin.evaluation import audit
        >>> labels = [0, 1, 2] * 40
        >>> worse = audit(labels, predictions=[0, 1, 0] * 40, num_classes=3, bootstrap=0)
        >>> better = audit(labels, predictions=[0, 1, 2] * 40, num_classes=3, bootstrap=0)
        >>> result = compare(worse, better, bootstrap=200)
        >>> round(result.delta("overall")[0], 3), result.gained, result.lost
        (0.333, ('2',), ())
    """
    if isinstance(names, str) or len(names) != 2:
        raise ValueError(f"names must be those of the baseline and of the candidate, got {names!r}")
    return _compare(names, [baseline, candidate], ranking, confidence, alpha, bootstrap, seed)[0]


def compare_many(
    models: Mapping[str, Audit | Sequence[Audit]],
    *,
    ranking: str = "crossfit",
    confidence: float = 0.95,
    alpha: float = 0.05,
    bootstrap: int = 2000,
    seed: int = 0,
) -> ComparisonSet:
    """Compare every model with the first one; class tests and intervals are controlled over all comparisons together (Bonferroni).

    Args:
        models: Name -> audit (or audits of several runs); the first is the baseline.
        ranking: As in :func:`compare`.
        confidence: Level of the intervals.
        alpha: False discovery rate.
        bootstrap: Resampled copies.
        seed: Seed of all random draws.
    """
    if len(models) < 2:
        raise ValueError(f"models must hold a baseline and at least one candidate, got {len(models)}")
    names = tuple(models)
    comparisons = _compare(names, list(models.values()), ranking, confidence, alpha, bootstrap, seed)
    ranked, summary = _joint_frames(comparisons)
    # Notes of all comparisons, each once; one that does not hold for all says for whom it does.
    notes = []
    for note in dict.fromkeys(note for each in comparisons for note in each.notes):
        holds = [each.candidate_name for each in comparisons if note in each.notes]
        notes.append(note if len(holds) == len(comparisons) else f"{', '.join(holds)}: {note}")
    verdict = comparisons[0].verdict
    together = f"Every model is compared with {names[0]}; q-values control the false discovery rate over all together"
    if len(comparisons) > 1:
        verdict = set_verdict(names[0], {each.candidate_name: each.deltas for each in comparisons})
        together += f", and intervals hold for all {len(comparisons)} candidates at once"
    return ComparisonSet(names, comparisons, ranked, summary, verdict, (f"{together}.", *notes))


def _compare(
    names: tuple[str, ...],
    models: Sequence[Audit | Sequence[Audit]],
    ranking: str,
    confidence: float,
    alpha: float,
    bootstrap: int,
    seed: int,
) -> tuple[Comparison, ...]:
    check_choice("ranking", ranking, COMPARISON_RANKINGS)
    for argument, value in (("alpha", alpha), ("confidence", confidence)):
        check_fraction(argument, value)
    check_int("bootstrap", bootstrap, minimum=1, maximum=MOST_RESAMPLES)
    check_int("seed", seed, minimum=0)
    pairs = [paired_models(models[0], model) for model in models[1:]]
    q_values = benjamini_hochberg(np.stack([pair.differences["p_value"] for pair in pairs]))
    comparisons = []
    for name, pair, q_value in zip(names[1:], pairs, q_values, strict=True):
        summary = headline_differences(
            pair, ranking=ranking, confidence=confidence, bootstrap=bootstrap, seed=seed, candidates=len(pairs)
        )
        rows = summary[["metric", "difference", "low", "high"]].to_numpy().tolist()
        deltas = {metric: (difference, low, high) for metric, difference, low, high in rows}
        found = pair.differences
        clear, rises = (q_value <= alpha) & (found["difference"] != 0), found["difference"] > 0
        outcome = np.select([found["n"] == 0, ~clear, rises], ["absent", "noise", "gained"], "lost")
        by_class = found.rename(columns={"gained": "gained_samples", "lost": "lost_samples"})
        by_class = by_class.assign(q_value=q_value, outcome=outcome)
        by_class.insert(0, "class_name", pair.class_names)
        named = {key: tuple(by_class["class_name"][by_class["outcome"] == key]) for key in ("gained", "lost", "noise")}
        counts = {key: len(classes) for key, classes in named.items()}
        comparisons.append(
            Comparison(
                baseline_name=names[0],
                candidate_name=name,
                class_names=pair.class_names,
                num_samples=len(pair.labels),
                runs=pair.runs,
                deltas=deltas,
                summary=summary,
                by_class=by_class,
                verdict=pair_verdict((names[0], name), deltas, counts, confidence, alpha),
                **named,
                confidence=confidence,
                alpha=alpha,
                ranking=ranking,
                notes=_notes(pair, ranking),
            )
        )
    return tuple(comparisons)


def _joint_frames(comparisons: Sequence[Comparison]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames ``ranked`` and ``summary`` of :class:`ComparisonSet`."""
    import pandas as pd

    rows = [
        (each.candidate_name, *each.deltas["overall"], *each.deltas["hard"], judgement(each.deltas["overall"]))
        for each in comparisons
    ]
    columns = ["model", "overall", "overall_low", "overall_high", "hard", "hard_low", "hard_high", "words"]
    ranked = pd.DataFrame(rows, columns=columns)
    ranked = ranked.sort_values("overall", ascending=False, kind="stable", ignore_index=True)
    first = comparisons[0]
    itself = {"difference": 0.0, "low": 0.0, "high": 0.0}
    frames = [first.summary.assign(model=first.baseline_name, value=first.summary["baseline"], **itself)]
    frames += [each.summary.assign(model=each.candidate_name, value=each.summary["candidate"]) for each in comparisons]
    columns = ["model", "metric", "value", "difference", "low", "high"]
    return ranked, pd.concat(frames, ignore_index=True)[columns]


def _notes(pair: ModelPair, ranking: str) -> tuple[str, ...]:
    notes = [_RANKING_NOTES[ranking]]
    if pair.runs == (1, 1):
        notes.append("Class p-values: exact McNemar test on paired samples; q-values: Benjamini-Hochberg.")
        notes.append("One run of each model: intervals cover the choice of test samples, not the noise of training.")
    else:
        runs = f"{pair.runs[0]} and {pair.runs[1]} runs: runs and samples are resampled"
        notes.append(f"{runs}; class p-values are t-tests with both kinds of variance; q-values: Benjamini-Hochberg.")
        if min(pair.runs) == 1:
            notes.append("A model with one run shows no training noise: it is taken to vary as much as the other.")
    return (*notes, *notes_on_classes(pair.differences["n"].to_numpy(), ranking))


_RANKING_NOTES = {
    "crossfit": (
        "Thirds: classes ranked by the mean accuracy of both models on one half of the samples, measured on the other half, both "
        "ways, averaged over ten splits."
    ),
    "pooled": "Thirds: classes ranked by the mean accuracy of both models on all samples.",
    "own": "Thirds: each model ranks the classes by its own accuracies, so the thirds may hold different classes.",
    "baseline": (
        "Thirds: classes ranked by the baseline's accuracies on the same samples, which flatters the candidate on the hard third "
        "and the baseline on the easy one."
    ),
}


def pair_verdict(
    names: tuple[str, str], deltas: Mapping[str, Delta], counts: Mapping[str, int], confidence: float, alpha: float
) -> str:
    """Return one sentence: overall difference, hard third, and how many classes gained, lost, or are noise (``counts``)."""
    baseline, candidate = names
    overall, hard = deltas["overall"], deltas["hard"]
    total = sum(counts.values())
    return (
        f"{candidate} is {judgement(overall)} {baseline}: {points(overall[0])} points overall "
        f"({100 * confidence:g} % interval {points(overall[1])} to {points(overall[2])}){_hard_part(hard)}; "
        f"{counts['gained']} of {total} classes gained, {counts['lost']} lost, {counts['noise']} are within noise "
        f"(false discovery rate {100 * alpha:g} %)."
    )


def set_verdict(baseline: str, candidates: Mapping[str, Mapping[str, Delta]]) -> str:
    """Return one sentence over all candidates: the best on overall accuracy and on the hard third, of those better beyond the noise."""
    sentences = []
    for what, label in (("overall", "overall"), ("hard", "on the hard third")):
        known = [(deltas[what], name) for name, deltas in candidates.items() if not isnan(deltas[what][0])]
        # The largest difference may be an unsure one, and a smaller one clear.
        clear = [(delta, name) for delta, name in known if _strength(delta) > _BAND[1]]
        if clear:
            (value, low, high), name = max(clear, key=lambda entry: entry[0][0])
            words = "has the largest clear gain" if value < max(delta[0] for delta, _ in known) else "gains most"
            sentences.append(f"{name} {words} {label} ({points(value)} points, {points(low)} to {points(high)})")
        elif known:
            sentences.append(f"no model is clearly better than {baseline} {label}")
    return f"Against {baseline}: " + "; ".join(sentences) + "."


def points(share: float) -> str:
    """Return a difference of shares in points with its sign, e.g. ``+2.3``."""
    return f"{100 * share:+.1f}"


# A difference in units of its interval's half width. Around 1, where zero just leaves the interval, a rounding error or another seed of the
# bootstrap decides on which side it falls: there the words do not change.
_BAND = (0.8, 1.25)


def _strength(delta: Delta) -> float:
    value, low, high = delta
    reach = value - low if value > 0 else high - value
    return abs(value) / reach if reach > 0 else (float("inf") if value else 0.0)


def judgement(delta: Delta) -> str:
    """Return what to think of a difference: "better than", "worse than", possibly so, or "not clearly different from"."""
    strength = _strength(delta)
    if strength < _BAND[0]:
        return "not clearly different from"
    way = "better" if delta[0] > 0 else "worse"
    return f"{way} than" if strength > _BAND[1] else f"possibly {way} (near the noise) than"


def _hard_part(delta: Delta) -> str:
    if delta[0] != delta[0]:
        return ""
    limits, strength = f"({points(delta[1])} to {points(delta[2])})", _strength(delta)
    if strength > _BAND[1]:
        return f" and {points(delta[0])} on the hard third {limits}"
    if strength < _BAND[0]:
        return f", no clear difference on the hard third ({points(delta[0])}, {limits[1:]}"
    return f" and {points(delta[0])} on the hard third, near the noise {limits}"
