"""Reading predictions from files, without ever unpickling anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from classmargin.evaluation.audit import Audit, audit
from classmargin.evaluation.inputs import AnyArray


class PredictionFileError(ValueError):
    """A prediction file cannot be used; the message says which file and why."""


@dataclass(frozen=True)
class Predictions:
    """Contents of a prediction file; what was not in it is ``None``.

    Attributes:
        source: The file that was read.
        labels: True classes ``[N]``.
        logits: ``[N, K]``.
        probabilities: ``[N, K]``.
        predictions: ``[N]``.
        features: ``[N, d]``.
        classifier_weight: ``[K, d]``.
        class_names: One name a class.
        sample_id: ``[N]``.
    """

    source: str
    labels: AnyArray
    logits: AnyArray | None = None
    probabilities: AnyArray | None = None
    predictions: AnyArray | None = None
    features: AnyArray | None = None
    classifier_weight: AnyArray | None = None
    class_names: tuple[str, ...] | None = None
    sample_id: AnyArray | None = None

    def audit(self, **options: Any) -> Audit:
        """Audit these predictions; ``options`` go to :func:`classmargin.evaluation.audit.audit`."""
        arrays = {name: value for name, value in vars(self).items() if name not in ("source", "labels")}
        return audit(self.labels, **{**arrays, **{k: v for k, v in options.items() if v is not None}})


def read_predictions(
    path: str | os.PathLike[str], *, class_names: Sequence[str] | None = None, max_bytes: int = 16 * 2**30
) -> Predictions:
    """Read ``.npz``, ``.parquet``, ``.csv`` or a run folder (which holds ``predictions.npz``)."""
    raise NotImplementedError


def read_class_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read class names from a text file (one a line) or a JSON list."""
    raise NotImplementedError
