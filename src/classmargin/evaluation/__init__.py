"""The audit: arrays in, numbers out. Which classes fail, how sure that is, why, and whether a new model is better.

Start with :func:`audit`, :func:`compare`, :func:`gate`; :class:`AuditAccumulator` is the same for batches, :func:`read_predictions` for
files.
"""

from classmargin.evaluation.audit_result import Audit, FeatureSample
from classmargin.evaluation.auditing import AuditAccumulator, audit
from classmargin.evaluation.class_metrics import ClassFrame, Metric, class_frame
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare, compare_many
from classmargin.evaluation.prediction_files import (
    Predictions,
    read_class_names,
    read_predictions,
    write_predictions,
)
from classmargin.evaluation.prediction_tables import PredictionFileError
from classmargin.evaluation.release_gate import GateResult, gate
from classmargin.evaluation.samples import flipped_samples
from classmargin.evaluation.selection import select
from classmargin.evaluation.slices import find_slices, group_accuracies

__all__ = [
    "Audit",
    "AuditAccumulator",
    "ClassFrame",
    "Comparison",
    "ComparisonSet",
    "FeatureSample",
    "GateResult",
    "Metric",
    "PredictionFileError",
    "Predictions",
    "audit",
    "class_frame",
    "compare",
    "compare_many",
    "find_slices",
    "flipped_samples",
    "gate",
    "group_accuracies",
    "read_class_names",
    "read_predictions",
    "select",
    "write_predictions",
]
