"""An audit as frames of other libraries: fairlearn's ``MetricFrame`` and polars (both imported late)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_choice, require_extra
from classmargin.evaluation.class_frame import accuracy

if TYPE_CHECKING:
    from classmargin.evaluation.audit import Audit

TABLES = ("by_class", "tiers", "correlations", "top_confusions")


def metric_frame(
    audit: Audit,
    metrics: Mapping[str, Callable[..., float]] | Callable[..., float] | None,
    sensitive_features: Any,
    control_features: Any,
) -> Any:
    """Return the audited predictions as a :class:`fairlearn.metrics.MetricFrame`; see :meth:`Audit.to_metric_frame`."""
    fairlearn = require_extra("fairlearn.metrics", "fairlearn", "Audit.to_metric_frame")
    names = np.asarray(audit.class_names, dtype=object)
    labels, predictions = names[audit.labels], names[audit.predictions]
    groups = {"class_name": labels} if sensitive_features is None else sensitive_features
    return fairlearn.MetricFrame(
        metrics={"accuracy": accuracy, "n": fairlearn.count} if metrics is None else metrics,
        y_true=labels,
        y_pred=predictions,
        sensitive_features=groups,
        control_features=control_features,
    )


def polars_frame(audit: Audit, table: str) -> Any:
    """Return a table of the audit as a ``polars.DataFrame``; see :meth:`Audit.to_polars`."""
    check_choice("table", table, TABLES)
    polars = require_extra("polars", "polars", "Audit.to_polars")
    frame = audit.top_confusions() if table == "top_confusions" else getattr(audit, table)
    # Column by column: polars takes whole pandas frames only with pyarrow installed.
    return polars.DataFrame({str(name): _column(frame[name].tolist()) for name in frame.columns})


def _column(values: list[Any]) -> list[Any]:
    """Return plain values; tuples (names of a tier's classes) become lists, NaN stays NaN as in pandas."""
    return [list(value) if isinstance(value, tuple) else value for value in values]
