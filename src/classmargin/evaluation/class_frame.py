"""Any metric, overall, by class and by tier: one object for every "per group" question.

A metric is a function of (labels, predictions) and says whether higher is better, so "worst class" is defined once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.inputs import AnyArray, IntArray, check_inputs
from classmargin.evaluation.tiers import TIERS, tier_codes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Metric:
    """A number that tells how well predictions fit.

    Attributes:
        function: Takes labels ``[n]`` and predictions ``[n]`` of one group and returns a number.
        higher_is_better: Direction, which defines "worst".
    """

    function: Callable[[AnyArray, AnyArray], float]
    higher_is_better: bool = True


def accuracy(labels: AnyArray, predictions: AnyArray) -> float:
    """Return the share of equal entries."""
    return float(np.mean(labels == predictions))


@dataclass(frozen=True)
class ClassFrame:
    """Metrics of one model, split by true class and by tier.

    Attributes:
        metrics: The metrics by name.
        overall: Value of each metric on all samples (Series).
        by_class: One row a class (index: class name), one column a metric; NaN for a class without samples.
        by_tier: Rows easy, medium, hard: mean over the classes of the tier.
    """

    metrics: Mapping[str, Metric]
    overall: pd.Series
    by_class: pd.DataFrame
    by_tier: pd.DataFrame

    def worst(self) -> pd.Series:
        """Return the worst class value of each metric, in the direction the metric states."""
        return self._pick(best=False)

    def best(self) -> pd.Series:
        """Return the best class value of each metric."""
        return self._pick(best=True)

    def worst_class(self) -> pd.Series:
        """Return the name of the worst class for each metric."""
        import pandas as pd

        names = {
            name: self.by_class[name].idxmin() if metric.higher_is_better else self.by_class[name].idxmax()
            for name, metric in self.metrics.items()
        }
        return pd.Series(names)

    def difference(self) -> pd.Series:
        """Return largest minus smallest class value of each metric."""
        return self.by_class.max() - self.by_class.min()

    def ratio(self) -> pd.Series:
        """Return smallest over largest class value of each metric."""
        return self.by_class.min() / self.by_class.max()

    def tier_gap(self) -> pd.Series:
        """Return easy minus hard."""
        import pandas as pd

        easy, hard = (self.by_tier.to_numpy(dtype=np.float64)[TIERS.index(tier)] for tier in ("easy", "hard"))
        return pd.Series(easy - hard, index=self.by_tier.columns)

    def _pick(self, *, best: bool) -> pd.Series:
        import pandas as pd

        values = {
            name: self.by_class[name].max() if metric.higher_is_better == best else self.by_class[name].min()
            for name, metric in self.metrics.items()
        }
        return pd.Series(values)


def class_frame(
    labels: Any,
    predictions: Any,
    *,
    metrics: Mapping[str, Metric] | None = None,
    class_names: Any = None,
    num_classes: int | None = None,
    tiers: IntArray | None = None,
) -> ClassFrame:
    """Evaluate metrics overall, by class and by tier.

    Args:
        labels: True classes ``[N]``.
        predictions: Predicted classes ``[N]``.
        metrics: Name -> metric; accuracy by default.
        class_names: One name a class (or give ``num_classes``).
        num_classes: Number of classes.
        tiers: Tier of each class ``[K]`` (0 easy, 1 medium, 2 hard, -1 none); by own accuracy by default.

    Example:
        >>> frame = class_frame([0, 0, 1], [0, 1, 1], num_classes=2)
        >>> frame.by_class["accuracy"].tolist(), float(frame.worst()["accuracy"])
        ([0.5, 1.0], 0.5)
    """
    import pandas as pd

    inputs = check_inputs(labels, predictions=predictions, class_names=class_names, num_classes=num_classes)
    assert inputs.predictions is not None
    chosen = dict(metrics) if metrics is not None else {"accuracy": Metric(accuracy)}
    groups = [np.flatnonzero(inputs.labels == k) for k in range(inputs.num_classes)]
    columns = {
        name: [_value(metric, inputs.labels[rows], inputs.predictions[rows]) for rows in groups]
        for name, metric in chosen.items()
    }
    by_class = pd.DataFrame(columns, index=pd.Index(inputs.class_names, name="class_name"))
    own = np.array(
        [_value(Metric(accuracy), inputs.labels[rows], inputs.predictions[rows]) for rows in groups]
    )
    codes = tier_codes(own) if tiers is None else np.asarray(tiers)
    by_tier = pd.DataFrame({tier: by_class[codes == code].mean() for code, tier in enumerate(TIERS)}).T
    overall = {name: _value(metric, inputs.labels, inputs.predictions) for name, metric in chosen.items()}
    return ClassFrame(chosen, pd.Series(overall), by_class, by_tier)


def _value(metric: Metric, labels: AnyArray, predictions: AnyArray) -> float:
    return float(metric.function(labels, predictions)) if len(labels) else float("nan")
