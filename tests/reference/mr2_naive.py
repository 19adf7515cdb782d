"""MR² as plain loops over classes, samples and the whole history of batches: slow, and too simple to be wrong.

Everything is float64. Losses are torch scalars, so that autograd gives the gradient of the naive form too. Statistics are
recomputed from all batches so far, not updated: ``batches`` is always a list of ``(features [B, d], labels [B])``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Batches = Sequence[tuple[Tensor, Tensor]]


# --- class statistics ---------------------------------------------------------------------------------------------


def lp_norm(vector: Sequence[float], p: float) -> float:
    if math.isinf(p):
        return max(abs(x) for x in vector)
    return math.fsum(abs(x) ** p for x in vector) ** (1 / p)


def mean_vector(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [math.fsum(w * row[j] for w, row in zip(weights, rows, strict=True)) / total for j in range(len(rows[0]))]


def mean_square(rows, weights, p: float, centre: Sequence[float]) -> float:
    """Return the weighted mean of ‖row - centre‖_p²."""
    squares = [lp_norm([x - c for x, c in zip(row, centre, strict=True)], p) ** 2 for row in rows]
    return math.fsum(w * s for w, s in zip(weights, squares, strict=True)) / math.fsum(weights)


def describe(rows, weights, p: float) -> dict:
    """Return μ̂, ‖ŝ‖² (L2) and r²_p of weighted rows, and what the release has in their place."""
    mean, origin = mean_vector(rows, weights), [0.0] * len(rows[0])
    return {
        "mean": torch.tensor(mean, dtype=torch.float64),
        "mean_sqnorm": lp_norm(mean, 2) ** 2,
        "spread": mean_square(rows, weights, 2, mean),
        "sqnorm": mean_square(rows, weights, p, origin),
        "release_spread": mean_square(rows, weights, p, mean),
        "release_sqnorm": lp_norm(mean, p) ** 2 + mean_square(rows, weights, p, mean),
    }


def rows_of(batch: tuple[Tensor, Tensor], k: int) -> list[list[float]]:
    features, labels = batch
    return [row.double().tolist() for row, y in zip(features, labels.tolist(), strict=True) if y == k]


def moments_statistics(batches: Batches, num_classes: int, p: float = 2.0, decay: float = 0.9):
    """Return ``{class: statistics}`` of all rows, a row counting decay^(later batches that hold its class)."""
    out = {}
    for k in range(num_classes):
        rows, weights, age = [], [], 0
        for batch in reversed(batches):
            mine = rows_of(batch, k)
            rows += mine
            weights += [decay**age] * len(mine)
            age += bool(mine)
        if rows:
            out[k] = describe(rows, weights, p)
    return out


def batch_statistics(batches: Batches, num_classes: int, p: float = 2.0, decay: float = 0.9):
    """Return ``{class: statistics}``: moving averages of the scalars of each batch (the paper to the letter)."""
    out: dict[int, dict] = {}
    for batch in batches:
        for k in range(num_classes):
            mine = rows_of(batch, k)
            if not mine:
                continue
            new = describe(mine, [1.0] * len(mine), p)
            old = out.get(k, new)  # first sight assigns
            out[k] = {name: decay * old[name] + (1 - decay) * new[name] for name in new}
    return out


def standardized(features: Tensor) -> Tensor:
    """Return (φ - mean) / sqrt(total variance) of one batch, differentiable through both."""
    rows = list(features.double())
    mean = sum(rows) / len(rows)
    variance = sum(((row - mean) ** 2).sum() for row in rows) / len(rows)
    return torch.stack([(row - mean) / variance.sqrt() for row in rows])


def total_variance(features: Tensor) -> float:
    """Return the mean of ‖φ - mean φ‖² over one batch."""
    rows = features.double().tolist()
    return mean_square(rows, [1.0] * len(rows), 2, mean_vector(rows, [1.0] * len(rows)))


def mean_spread(statistics, name: str = "spread") -> float:
    return math.fsum(entry[name] for entry in statistics.values()) / len(statistics)


# --- margins (Eq. 1, 14, 17) --------------------------------------------------------------------------------------


def class_margins(statistic: dict[int, float], num_classes: int, mean_margin: float, power: float = 1 / 3):
    """Return γ; classes without statistic are left out of the sum and get c̄."""
    total = 0.0
    for value in statistic.values():
        total += value**power
    return [
        mean_margin * len(statistic) * statistic[k] ** power / total if k in statistic else mean_margin
        for k in range(num_classes)
    ]


# --- losses (Eq. 1-5) ---------------------------------------------------------------------------------------------


def logit_margin_losses(logits: Tensor, labels: Tensor, margins: Sequence[float], log_prior=None) -> Tensor:
    """Eq. 5: ln[1 + Σ_{y'≠y} exp((z_y' - z_y) / γ_y)], one entry per sample."""
    losses = []
    for z, y in zip(logits.double(), labels.tolist(), strict=True):
        terms = [z.new_zeros(())]
        for other in range(len(z)):
            if other != y:
                offset = 0.0 if log_prior is None else float(log_prior[other] - log_prior[y])
                terms.append((z[other] - z[y]) / margins[y] + offset)
        losses.append(torch.logsumexp(torch.stack(terms), 0))
    return torch.stack(losses)


def softmax_margin_losses(logits: Tensor, labels: Tensor, margins: Sequence[float]) -> Tensor:
    """Eq. 1: -ln softmax(z / γ_y)_y, one entry per sample."""
    losses = []
    for z, y in zip(logits.double(), labels.tolist(), strict=True):
        exponentials = [torch.exp(score / margins[y]) for score in z]
        losses.append(-torch.log(exponentials[y] / sum(exponentials)))
    return torch.stack(losses)


def pair_exponents(features: Tensor, labels: Tensor, i: int, spread: float, temperature: float) -> list[Tensor]:
    exponents = []
    for j in range(len(labels)):
        if j != i and labels[j] == labels[i]:
            distance = ((features[i] - features[j]) ** 2).sum()
            exponents.append((distance - 2 * spread) / temperature)
    return exponents


def log_one_plus_sum_exp(exponents: list[Tensor], like: Tensor) -> Tensor:
    zero = 0.0 * like.sum()  # a sample without classmate still belongs to the graph
    return torch.logsumexp(torch.stack([zero, *exponents]), 0)


def representation_margin_losses(features: Tensor, labels: Tensor, spread: float, temperature: float = 1.0) -> Tensor:
    """Eq. 2: ln[1 + Σ_{x⁺} exp((‖φ - φ⁺‖² - 2 s̄) / τ)], one entry per sample."""
    rows, losses = features.double(), []
    for i in range(len(labels)):
        losses.append(log_one_plus_sum_exp(pair_exponents(rows, labels, i, spread, temperature), rows))
    return torch.stack(losses)


def hard_representation_margin_losses(features: Tensor, labels: Tensor, spread: float) -> Tensor:
    """Eq. 3: max[0, max_{x⁺} (‖φ - φ⁺‖² - 2 s̄)], one entry per sample."""
    rows = features.double()
    return torch.stack(
        [
            torch.stack([rows.new_zeros(()), *pair_exponents(rows, labels, i, spread, 1.0)]).max()
            for i in range(len(labels))
        ]
    )


def moment_losses(features: Tensor, labels: Tensor, statistics: dict[int, dict], slack: float) -> Tensor:
    """Return ln[1 + exp(‖φ - μ̂_y‖² + ‖ŝ_y‖² - 2 s̄)], one entry per sample; ``slack`` is s̄."""
    losses = []
    for row, y in zip(features.double(), labels.tolist(), strict=True):
        distance = ((row - statistics[y]["mean"]) ** 2).sum() + statistics[y]["spread"]
        losses.append(log_one_plus_sum_exp([distance - 2 * slack], row))
    return torch.stack(losses)


def recommended_terms(
    history: Batches,
    logits: Tensor,
    num_classes: int,
    *,
    smoothing: float = 0.1,
    decay: float = 0.9,
    **margins,
) -> tuple[Tensor, Tensor]:
    """Return both terms of the recommended objective on the last batch of ``history``, after all of it.

    ``margins`` may give ``source`` ("spread" or "sqnorm"), ``power``, ``mean_margin``, ``norm_order``.
    """
    own = [(standardized(features.detach()), labels) for features, labels in history]
    statistics = moments_statistics(own, num_classes, margins.get("norm_order", 2.0), decay)
    gamma = [margins.get("mean_margin", 1.0)] * num_classes
    if "source" in margins:
        source = {k: entry[margins["source"]] for k, entry in statistics.items()}
        gamma = class_margins(source, num_classes, gamma[0], margins["power"])
    features, labels = history[-1]
    pulls = moment_losses(standardized(features), labels, statistics, mean_spread(statistics))
    logit, pull = [], []
    for i, y in enumerate(labels.tolist()):
        scores = logits[i].double() / gamma[y]
        surprise = torch.logsumexp(scores, 0) - scores  # -ln softmax
        logit.append((1 - smoothing) * surprise[y] + smoothing * sum(surprise) / num_classes)
        pull.append(pulls[i] * surprise[y].detach().neg().exp())
    return torch.stack(logit).mean(), torch.stack(pull).mean()


def release_representation_term(features: Tensor, labels: Tensor, spread: float, num_classes: int) -> Tensor:
    """Return (d / 10K) Σ_{classes with n >= 2} mean_i ln(1 + Σ_j exp((D_ij - 2 s̄) / 10d))."""
    d = features.shape[1]
    losses = representation_margin_losses(features, labels, spread, temperature=10.0 * d)
    total = losses.new_zeros(())
    for k in range(num_classes):
        mine = [losses[i] for i in range(len(labels)) if labels[i] == k]
        if len(mine) >= 2:
            total = total + torch.stack(mine).mean()
    return total * d / (10 * num_classes)
