"""Simulated test sets with known class accuracies, for the coverage of intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from classmargin.evaluation.class_metrics import tier_codes
from classmargin.evaluation.headline_intervals import AuditSettings, estimate_headlines
from classmargin.evaluation.headlines import (
    HEADLINES,
    OutcomeTable,
    TierRule,
    block_sizes,
    even_run_weights,
    headline_values,
)

Truth = tuple[np.ndarray, np.ndarray]
PATTERNS = np.array([[0.0], [1.0]])


def table_of(right: np.ndarray, n: np.ndarray) -> OutcomeTable:
    return OutcomeTable(np.stack([n - right, right], axis=1), np.broadcast_to(PATTERNS, (len(n), 2, 1)))


def procedure_mean(
    accuracy: np.ndarray, n: np.ndarray, rule: TierRule, rng: np.random.Generator, draws: int
) -> np.ndarray:
    """What the procedure gives on average over fresh test sets: the value that intervals promise to cover."""
    sizes = block_sizes(n, rule.blocks, rng)
    right = rng.binomial(sizes, accuracy[:, None], size=(draws, *sizes.shape))
    counts = np.stack([sizes - right, right], axis=-1)
    return headline_values(table_of(right[0].sum(axis=1), n), counts, even_run_weights((1,)), rule)[:, 0].mean(axis=0)


def coverage(
    scenario: Callable[[np.random.Generator], Truth],
    ranking: str,
    *,
    sets: int,
    truths: int,
    bootstrap: int = 1000,
) -> dict[str, float]:
    """Return how often each interval holds its value, over ``truths`` draws of true accuracies with ``sets`` test sets in all."""
    rng = np.random.default_rng(7)
    hits = []
    for _ in range(truths):
        accuracy, n = scenario(rng)
        reference = np.clip(accuracy + rng.normal(0, 0.05, len(n)), 0, 1) if ranking == "reference" else None
        rule = TierRule(ranking, None if reference is None else tier_codes(reference))
        expected = procedure_mean(accuracy, n, rule, rng, draws=2000)
        for _ in range(sets // truths):
            settings = AuditSettings(
                len(n),
                ranking=ranking,
                reference=reference,
                bootstrap=bootstrap,
                seed=int(rng.integers(2**31)),
            )
            found = estimate_headlines(table_of(rng.binomial(n, accuracy), n), settings).intervals
            limits = np.array([found[name] for name in HEADLINES])
            hits.append((limits[:, 0] <= expected + 1e-12) & (expected <= limits[:, 1] + 1e-12))
    return dict(zip(HEADLINES, np.mean(hits, axis=0).tolist(), strict=True))


def gaussian(mean: float, spread: float, num_classes: int, n: int) -> Callable[[np.random.Generator], Truth]:
    return lambda rng: (np.clip(rng.normal(mean, spread, num_classes), 0.02, 0.98), np.full(num_classes, n))


def beta(mean: float, spread: float, num_classes: int, n: int) -> Callable[[np.random.Generator], Truth]:
    strength = mean * (1 - mean) / spread**2 - 1
    return lambda rng: (
        rng.beta(mean * strength, (1 - mean) * strength, num_classes),
        np.full(num_classes, n),
    )


def predictions_with(accuracy: np.ndarray, n: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions of a model with the given true class accuracies."""
    labels = np.repeat(np.arange(len(accuracy)), n)
    right = rng.random(len(labels)) < accuracy[labels]
    return labels, np.where(right, labels, (labels + 1) % len(accuracy))
