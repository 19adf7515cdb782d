"""Feature spread, class means, neural-collapse diagnostics (Papyan, Han and Donoho 2020) and angles between the weights of the head."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from classmargin.evaluation.class_metrics import unit_scale
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray

MAX_GRAM_DIM = 4096  # above it the d x d Gram matrix (128 MB) is not kept and NC1 is not reported


@dataclass
class FeatureSums:
    """Running sums over the features of a test set."""

    norm_order: float  # p of the norm in norm_sums
    counts: FloatArray  # samples of each class [K]
    sums: FloatArray  # sum of the features of each class [K, d]
    square_sums: FloatArray  # sum of squared Euclidean norms [K]
    norm_sums: FloatArray  # sum of squared Lp norms [K]
    gram: FloatArray | None  # sum of outer products over all samples [d, d], or None for large d

    @classmethod
    def empty(cls, num_classes: int, feature_dim: int, norm_order: float) -> FeatureSums:
        """Return sums over no samples."""
        zeros = np.zeros(num_classes)
        gram = np.zeros((feature_dim, feature_dim)) if feature_dim <= MAX_GRAM_DIM else None
        return cls(norm_order, zeros, np.zeros((num_classes, feature_dim)), zeros.copy(), zeros.copy(), gram)

    def add(self, features: AnyArray, labels: IntArray) -> None:
        """Add one chunk of finite features ``[B, d]`` with their classes ``[B]``."""
        values = features.astype(np.float64)
        squares = np.einsum("ij,ij->i", values, values)
        order = np.argsort(labels, kind="stable")
        seen, starts = np.unique(labels[order], return_index=True)
        self.counts[seen] += np.diff(np.append(starts, len(order)))
        self.sums[seen] += np.add.reduceat(values[order], starts, axis=0)
        self.square_sums[seen] += np.add.reduceat(squares[order], starts)
        norms = _squared_norms(values, squares, self.norm_order)
        self.norm_sums[seen] += np.add.reduceat(norms[order], starts)
        if self.gram is not None:
            self.gram += values.T @ values

    def merge(self, other: FeatureSums) -> None:
        """Add the sums of another part of the same test set."""
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                array += getattr(other, name)

    def of_all_processes(self) -> FeatureSums:
        """Return the sums over all processes of ``torch.distributed``, which must all call this."""
        import torch
        import torch.distributed as dist

        from classmargin._distributed import all_reduce_sum

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        parts = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        added = {name: torch.from_numpy(array).to(device) for name, array in parts.items()}
        sums: dict[str, Any] = {name: all_reduce_sum(one).cpu().numpy() for name, one in added.items()}
        return replace(self, **sums)


class ClassGeometry(NamedTuple):
    """Class-wise feature statistics, NaN for a class without samples."""

    spread: FloatArray  # mean squared deviation from the class mean, |s_k|^2
    mean_norm: FloatArray  # length of the class mean |mu_k|
    sqnorm: FloatArray  # mean squared Lp norm r_k^2
    means: FloatArray  # class means [K, d]


def check_finite(name: str, rows: AnyArray, first_row: int = 0) -> None:
    """Refuse rows ``[B, d]`` that hold NaN or infinity."""
    # One pass without a temporary array: a sum is finite only if all terms are (float64: it cannot overflow).
    sums = rows.sum(axis=1, dtype=np.float64)
    if not np.isfinite(sums).all():
        row = first_row + int(np.flatnonzero(~np.isfinite(sums))[0])
        raise ValueError(f"{name} must be finite, got NaN or infinite values in row {row}")


def class_geometry(sums: FeatureSums) -> ClassGeometry:
    """Return spread, mean norm and squared norm of each class (Eq. 1 and 17 of the paper, population moments)."""
    counts = np.where(sums.counts > 0, sums.counts, np.nan)
    means = sums.sums / counts[:, None]
    mean_sqnorm = np.einsum("ij,ij->i", means, means)
    # Rounding may leave a tiny negative number where all features of a class are equal.
    spread = np.maximum(sums.square_sums / counts - mean_sqnorm, 0.0)
    return ClassGeometry(spread, np.sqrt(mean_sqnorm), sums.norm_sums / counts, means)


LAYOUT = ("equinorm_cv", "equiangularity", "max_angle_gap")
COLLAPSE_KEYS = (
    "nc1",
    "within_between_ratio",
    *(f"mean_{name}" for name in LAYOUT),
    "spread_to_mean_norm",
    "self_duality",
)
WEIGHT_KEYS = ("weight_norm_mean", "weight_norm_cv", *(f"weight_{name}" for name in LAYOUT))


def collapse_diagnostics(sums: FeatureSums | None, classifier_weight: AnyArray | None) -> dict[str, float | None]:
    """Return the neural-collapse diagnostics and those of the paper's MNIST table.

    ``nc1`` = tr(S_W pinv(S_B)) / K · ``within_between_ratio`` = tr(S_W) / tr(S_B) · ``mean_...`` see :func:`_layout` · ``self_duality`` =
    squared distance of normalised weights and means · ``spread_to_mean_norm`` = mean over classes of |s_k| / |mu_k|.
    """
    if sums is None:
        return dict.fromkeys(COLLAPSE_KEYS)
    present = sums.counts > 0
    geometry = class_geometry(sums)
    means, counts, spread = geometry.means[present], sums.counts[present], geometry.spread[present]
    # Papyan et al. centre by the mean of class means; what is said of lengths and angles below has no unit.
    centred = unit_scale(means - means.mean(axis=0))[0]
    share = counts / counts.sum()
    deviation = means - share @ means
    between = float(share @ np.einsum("ij,ij->i", deviation, deviation))
    within = float((spread * counts).sum() / counts.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float((np.sqrt(spread) / geometry.mean_norm[present]).mean())
    duality = None
    if classifier_weight is not None and classifier_weight.shape[1] == means.shape[1]:
        weight = unit_scale(np.asarray(classifier_weight, dtype=np.float64)[present])[0]
        lengths = [np.linalg.norm(each) for each in (weight, centred)]
        if all(lengths):
            duality = float(((weight / lengths[0] - centred / lengths[1]) ** 2).sum())
    nc1 = _nc1(sums, means, counts)
    return {
        "nc1": nc1 if math.isfinite(nc1) else None,
        "within_between_ratio": within / between if between > 0 else None,
        **_layout("mean", centred),
        "spread_to_mean_norm": ratio if math.isfinite(ratio) else None,
        "self_duality": duality,
    }


def weight_diagnostics(classifier_weight: AnyArray | None) -> dict[str, float | None]:
    """Return lengths and angles of the head's weights; ``None`` values without a head."""
    if classifier_weight is None:
        return dict.fromkeys(WEIGHT_KEYS)
    weight, exponent = unit_scale(np.asarray(classifier_weight, dtype=np.float64))
    norms = np.linalg.norm(weight, axis=1)
    return {
        "weight_norm_mean": float(np.ldexp(norms.mean(), exponent)),
        "weight_norm_cv": _variation(norms),
        **_layout("weight", unit_scale(weight - weight.mean(axis=0))[0]),
    }


def _layout(what: str, centred: FloatArray) -> dict[str, float | None]:
    """Return for centred vectors std / mean of lengths, standard deviation of cosines, and mean |cosine + 1/(K-1)| (0 = simplex)."""
    lengths = np.linalg.norm(centred, axis=1)
    unit = centred[lengths > 0] / lengths[lengths > 0][:, None]
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), k=1)]
    spread, gap = None, None
    if len(cosines):
        spread = float(cosines.std())
        gap = float(np.abs(cosines + 1.0 / (len(centred) - 1)).mean())
    return {f"{what}_{name}": value for name, value in zip(LAYOUT, (_variation(lengths), spread, gap), strict=True)}


def _variation(lengths: FloatArray) -> float | None:
    mean = float(lengths.mean())
    return float(lengths.std() / mean) if mean > 0 and len(lengths) > 1 else None


def _squared_norms(values: FloatArray, squares: FloatArray, order: float) -> FloatArray:
    if order == 2.0:
        return squares
    magnitudes = np.abs(values)
    if math.isinf(order):
        return np.asarray(magnitudes.max(axis=1) ** 2)
    top = magnitudes.max(axis=1, keepdims=True)
    scale = np.where(top > 0, top, 1.0)  # powers of large features would overflow
    return np.asarray((scale[:, 0] * ((magnitudes / scale) ** order).sum(axis=1) ** (1.0 / order)) ** 2)


def _nc1(sums: FeatureSums, means: FloatArray, counts: FloatArray) -> float:
    """Return tr(S_W pinv(S_B)) / K without inverting a d x d matrix.

    With ``S_B = M M^T`` and ``M^T M = V diag(e) V^T`` it is ``tr(V^T M^T S_W M V diag(e)^-2) / K``, a problem of size K.
    """
    if sums.gram is None or len(counts) < 2:
        return math.nan
    share = counts / counts.sum()
    root = np.sqrt(share)[:, None]
    weighted = root * means
    within = sums.gram / counts.sum() - weighted.T @ weighted
    between = root * (means - share @ means)
    eigenvalues, vectors = np.linalg.eigh(between @ between.T)
    keep = eigenvalues > eigenvalues[-1] * 1e-10
    if eigenvalues[-1] <= 0:
        return math.nan
    axes = between.T @ vectors[:, keep]
    inside = np.einsum("ij,ij->j", axes, within @ axes)
    return float((inside / eigenvalues[keep] ** 2).sum() / len(counts))


class WeightAngles(NamedTuple):
    """Angles between class weights."""

    norms: FloatArray  # length of each weight [K]
    nearest: IntArray  # class with the smallest angle to each class [K], -1 if there is none
    nearest_degrees: FloatArray  # that angle [K], NaN if there is none
    minimum_degrees: float  # classifier-level margin: the smallest angle of all pairs, NaN if there is no pair


def weight_angles(classifier_weight: AnyArray) -> WeightAngles:
    """Return lengths and nearest neighbours (by angle) of the class weights ``[K, d]``; a weight of length zero has no angle."""
    weight = np.asarray(classifier_weight, dtype=np.float64)
    norms = np.linalg.norm(weight, axis=1)
    usable = norms > 0
    unit = weight / np.where(usable, norms, 1.0)[:, None]
    cosine = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(cosine, -np.inf)
    cosine[~usable, :] = -np.inf
    cosine[:, ~usable] = -np.inf
    nearest = np.argmax(cosine, axis=1)
    best = cosine[np.arange(len(norms)), nearest]
    known = np.isfinite(best)
    degrees = np.degrees(np.arccos(np.where(known, best, 0.0)))
    degrees[~known] = np.nan
    minimum = float(np.nanmin(degrees)) if known.any() else float("nan")
    return WeightAngles(norms, np.where(known, nearest, -1), degrees, minimum)
