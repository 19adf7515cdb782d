"""MR² in skorch: ``python examples/skorch_net.py`` (needs the extra ``skorch``).

skorch hands a tuple that ``forward`` returns to ``get_loss``; so the network returns its logits and the features of its
head, and the criterion is ``MR2Loss`` itself. Predictions come from the first of the two.
"""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.utils import to_tensor
from torch import nn

from classmargin import MR2Loss


class Net(nn.Module):
    """One hidden layer; returns logits and features."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[B, 4]`` and features ``[B, 16]``."""
        features = self.encoder(X)
        return self.head(features), features


class MarginNet(NeuralNetClassifier):
    """A classifier of skorch whose loss also gets features."""

    def get_loss(self, y_pred, y_true, X=None, training=False):  # type: ignore[no-untyped-def]
        """Return MR² in training and the plain cross-entropy in validation."""
        logits, features = y_pred
        return self.criterion_(logits, to_tensor(y_true, device=self.device), features)


torch.manual_seed(0)
random = np.random.default_rng(0)
y = np.arange(400) % 4
X = (random.normal(size=(400, 8)) + 2.0 * np.eye(4, 8)[y]).astype(np.float32)
net = MarginNet(
    Net,
    criterion=MR2Loss,
    criterion__num_classes=4,
    predict_nonlinearity=lambda outputs: outputs[0].softmax(1) if isinstance(outputs, tuple) else outputs.softmax(1),
    optimizer=torch.optim.AdamW,
    lr=1e-2,
    max_epochs=5,
    verbose=0,
)
net.fit(X, y.astype(np.int64))
print(f"validation loss {net.history[-1, 'valid_loss']:.3f}, accuracy {net.score(X, y):.2f}")
