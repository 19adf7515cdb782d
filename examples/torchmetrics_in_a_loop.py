"""Thirds, worst class and Gini index as torchmetrics: ``python examples/torchmetrics_in_a_loop.py``.

Needs ``pip install 'classmargin[torchmetrics]'``.
"""

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from classmargin.integrations.torchmetrics import ClassAccuracyGini, ClassTiers, WorstClassAccuracy

K = 10
metrics = MetricCollection(
    [
        MulticlassAccuracy(num_classes=K, average="micro"),
        ClassTiers(num_classes=K),
        WorstClassAccuracy(num_classes=K),
        ClassAccuracyGini(num_classes=K),
    ]
)

torch.manual_seed(0)
for _ in range(20):  # batches of a validation set; later classes are easier here
    labels = torch.randint(K, (64,))
    logits = torch.randn(64, K)
    logits[torch.arange(64), labels] += 0.4 * labels
    metrics.update(logits, labels)

for name, value in metrics.compute().items():
    print(f"{name:20} {value:.3f}")
