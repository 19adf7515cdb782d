"""The audit: arrays in, numbers out. Which classes fail, how sure that is, why, and whether a new model is better.

Start with :func:`audit`, :func:`compare`, :func:`gate`; :class:`AuditAccumulator` is for batches, :func:`read_predictions` for files.
"""

from classmargin.evaluation.audit_result import Audit, FeatureSample
from classmargin.evaluation.auditing import AuditAccumulator, audit
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare, compare_many
from classmargin.evaluation.prediction_files import (
    Predictions,
    read_class_names,
    read_predictions,
    write_predictions,
)
from classmargin.evaluation.prediction_tables import PredictionFileError
from classmargin.evaluation.release_gate import GateResult, gate
from classmargin.evaluation.samples import find_slices, flipped_samples, group_accuracies

__all__ = [
    "Audit",
    "AuditAccumulator",
    "Comparison",
    "ComparisonSet",
    "FeatureSample",
    "GateResult",
    "PredictionFileError",
    "Predictions",
    "audit",
    "compare",
    "compare_many",
    "find_slices",
    "flipped_samples",
    "gate",
    "group_accuracies",
    "read_class_names",
    "read_predictions",
    "write_predictions",
]
