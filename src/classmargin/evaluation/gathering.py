"""Bringing the evidence of several processes together (``torch.distributed``); one process passes through.

Counts and sums are added and per-sample records are gathered, so the result is that of one process that saw all samples. With
``sample_id`` the records are put in the order of identities, which makes every number but the feature sums (whose additions happen
in another order) equal to the last bit.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from classmargin.evaluation.feature_geometry import FeatureSums
from classmargin.evaluation.inputs import AnyArray, IntArray
from classmargin.evaluation.sample_scores import SampleScores, no_scores

if TYPE_CHECKING:
    from classmargin.evaluation.streaming import AuditAccumulator, Evidence


def gather_evidence(accumulator: AuditAccumulator) -> Evidence:
    """Return the evidence of all processes; every process must call this."""
    from classmargin._distributed import is_distributed

    if not is_distributed():
        return accumulator.evidence()
    has_scores, has_features, has_id, width = _agree(accumulator)
    local = accumulator.evidence() if accumulator.num_samples else _nothing(accumulator, has_scores, has_id)
    labels, offset = _gather(local.labels)
    scores = None
    if has_scores and local.scores is not None:
        own = local.scores
        scores = SampleScores(**{f.name: _gather(getattr(own, f.name))[0] for f in fields(SampleScores)})
    merged = replace(
        local,
        labels=labels,
        predictions=_gather(local.predictions)[0],
        scores=scores,
        feature_sums=_add_sums(accumulator, width) if has_features else None,
        sample_id=_gather(_whole_numbers(local.sample_id))[0]
        if has_id and local.sample_id is not None
        else None,
        kept=_gather_kept(accumulator, width, offset) if has_features else None,
    )
    return _in_order_of_identity(merged)


def _agree(accumulator: AuditAccumulator) -> tuple[bool, bool, bool, int]:
    """Return which arrays the processes hold; a process without samples goes along with the others."""
    kind, width = (False, False, False), 0
    if accumulator.num_samples:
        kind = accumulator.kind()
        width = 0 if accumulator.feature_sums is None else accumulator.feature_sums.sums.shape[1]
    every = _gather(np.array([[accumulator.num_samples, *kind, width]], dtype=np.int64))[0]
    with_samples = every[every[:, 0] > 0, 1:]
    if not len(with_samples):
        raise ValueError("compute needs at least one sample, got none in any process (call update first)")
    if (with_samples != with_samples[0]).any():
        raise ValueError(
            "all processes must update with the same kinds of arrays (scores, features, sample_id)"
        )
    scores, features, ids, size = with_samples[0].tolist()
    return bool(scores), bool(features), bool(ids), int(size)


def _nothing(accumulator: AuditAccumulator, has_scores: bool, has_id: bool) -> Evidence:
    from classmargin.evaluation.streaming import Evidence

    none = np.zeros(0, dtype=np.int64)
    scores = no_scores(len(accumulator.class_names)) if has_scores else None
    return Evidence(none, none, scores, None, none if has_id else None, None)


def _gather(array: AnyArray) -> tuple[AnyArray, int]:
    import torch

    from classmargin._distributed import gather_rows

    rows, offset = gather_rows(torch.from_numpy(np.ascontiguousarray(array)).to(_device()))
    return rows.cpu().numpy(), offset


def _add(array: AnyArray) -> AnyArray:
    import torch

    from classmargin._distributed import all_reduce_sum

    return np.asarray(all_reduce_sum(torch.from_numpy(array).to(_device())).cpu().numpy())


def _device() -> str:
    import torch.distributed as dist

    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _add_sums(accumulator: AuditAccumulator, width: int) -> FeatureSums:
    own = accumulator.feature_sums
    if own is None:
        own = FeatureSums.empty(len(accumulator.class_names), width, accumulator.norm_order)
    return FeatureSums(
        own.norm_order,
        _add(own.counts),
        _add(own.sums),
        _add(own.square_sums),
        _add(own.norm_sums),
        None if own.gram is None else _add(own.gram),
    )


def _gather_kept(accumulator: AuditAccumulator, width: int, offset: int) -> tuple[AnyArray, IntArray] | None:
    own = accumulator.kept
    features = own.features if own.features is not None else np.zeros((0, width), dtype=np.float32)
    together = type(own)(own.limit, own.seed)
    rows, positions = _gather(features)[0], _gather(own.positions + offset)[0]
    together.keep(rows, positions, _gather(own.priorities.view(np.int64))[0].view(np.uint64))
    return together.rows()


def _whole_numbers(sample_id: AnyArray) -> AnyArray:
    if sample_id.dtype.kind not in "iu":
        raise TypeError(
            f"sample_id must hold integers when several processes take part, got dtype {sample_id.dtype}"
        )
    return sample_id.astype(np.int64)


def _in_order_of_identity(evidence: Evidence) -> Evidence:
    if evidence.sample_id is None:
        return evidence
    if len(np.unique(evidence.sample_id)) < len(evidence.sample_id):
        raise ValueError(
            "sample_id must name every sample once, got repeated values (a sampler that repeats samples?)"
        )
    order = np.argsort(evidence.sample_id, kind="stable")
    scores = evidence.scores
    if scores is not None:
        scores = SampleScores(**{f.name: getattr(scores, f.name)[order] for f in fields(SampleScores)})
    kept = evidence.kept
    if kept is not None:
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        by_place = np.argsort(place[kept[1]])
        kept = kept[0][by_place], place[kept[1]][by_place]
    return replace(
        evidence,
        labels=evidence.labels[order],
        predictions=evidence.predictions[order],
        scores=scores,
        sample_id=evidence.sample_id[order],
        kept=kept,
    )
