"""The audit: arrays in, numbers out. Which classes fail, how sure that is, why, and whether a new model is better.

Start with :func:`audit`, :func:`compare`, :func:`gate`; :class:`AuditAccumulator` is the same for batches, :func:`read_predictions` for
files. Note that ``classmargin.evaluation.audit`` and ``.gate`` are the functions; their modules are imported by full path.
"""

from classmargin.evaluation.audit import Audit, FeatureSample, audit
from classmargin.evaluation.class_frame import ClassFrame, Metric, class_frame
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare, compare_many
from classmargin.evaluation.gate import GateResult, gate
from classmargin.evaluation.prediction_files import (
    PredictionFileError,
    Predictions,
    read_class_names,
    read_predictions,
    write_predictions,
)
from classmargin.evaluation.selection import select
from classmargin.evaluation.streaming import AuditAccumulator

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
    "gate",
    "read_class_names",
    "read_predictions",
    "select",
    "write_predictions",
]
