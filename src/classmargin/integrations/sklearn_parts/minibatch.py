"""Training in batches: the network with a hidden layer, and ``partial_fit`` of every kind.

With a hidden layer features move, so class statistics are moving averages (:class:`ClassStatistics`) and the
representation margin applies; without one the caller hands over exact margins and only the logit margin is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from classmargin.integrations.sklearn_parts.exact_statistics import MARGIN_LIMITS
from classmargin.integrations.sklearn_parts.network import FeatureNetwork
from classmargin.mr2 import ClassStatistics, class_margins, margin_cross_entropy, representation_margin


class MovingMargins(nn.Module):
    """Margins, mean spread and temperature of features that move; the loss of MR² with a weight for each row.

    With equal weights it is :class:`classmargin.MR2Loss` with its default estimator and temperature, which has no
    place for weights of single rows.

    Args:
        num_classes: ``K``.
        feature_dim: Size of the hidden layer.
        mean_margin: ``c̄``.
        norm_order: ``p``.
        representation_weight: ``λ``.
    """

    peak_variance: Tensor

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        mean_margin: float,
        norm_order: float,
        representation_weight: float,
    ) -> None:
        super().__init__()
        self.mean_margin, self.representation_weight = mean_margin, representation_weight
        self.statistics = ClassStatistics(num_classes, feature_dim=feature_dim, norm_order=norm_order)
        self.register_buffer("peak_variance", torch.zeros(()))

    @property
    def class_sums(self) -> NDArray[np.float64]:
        """Effective weights and sums of squared norms, as the exact statistics have them ``[2, K]``."""
        weight = self.statistics.class_weight.double()
        result: NDArray[np.float64] = (
            torch.stack((weight, weight * self.statistics.class_sqnorm)).cpu().numpy()
        )
        return result

    @property
    def margins(self) -> Tensor:
        """Current ``γ`` ``[K]``."""
        sqnorm, seen = self.statistics.class_sqnorm, self.statistics.seen
        return class_margins(sqnorm, self.mean_margin, seen=seen, limits=MARGIN_LIMITS)

    def update(self, features: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Move the statistics by one batch; a row enters with its weight."""
        if bool((weight == 1.0).all()):
            self.statistics.update(features, labels)
        else:
            share = F.one_hot(labels, self.statistics.num_classes) * weight.unsqueeze(1)
            self.statistics.update(features, share.to(features.dtype))
        self.peak_variance = torch.maximum(
            self.peak_variance.to(features), self.statistics.total_variance.to(features)
        )

    def representation_losses(self, features: Tensor, labels: Tensor) -> Tensor | float:
        """Return ``λ ℓ_s̄`` of each row ``[B]`` (Eq. 2), or 0 where it does not apply."""
        temperature = float(self.peak_variance)
        if self.representation_weight == 0.0 or not temperature > 0.0:
            return 0.0
        mean_spread = self.statistics.mean_spread.to(features)
        return self.representation_weight * representation_margin(
            features, labels, mean_spread, temperature=temperature, reduction="none"
        )


class EpochData(NamedTuple):
    """Rows of one training set on the device where training happens.

    Attributes:
        rows: ``[N, d]``.
        labels: Classes ``[N]``.
        weight: Weights ``[N]``, above 0.
    """

    rows: Tensor
    labels: Tensor
    weight: Tensor


class MinibatchTrainer:
    """A network, its optimiser and its margins: everything that goes from one batch to the next.

    Args:
        network: What is trained.
        margins: :class:`MovingMargins` with a hidden layer; None if margins are handed over.
        learning_rate: Of Adam.
        alpha: Penalty ``α/2 ‖W‖²`` on the weights of the layers.
    """

    def __init__(
        self, network: FeatureNetwork, margins: MovingMargins | None, *, learning_rate: float, alpha: float
    ) -> None:
        self.network, self.margins, self.alpha = network, margins, alpha
        self.learning_rate = learning_rate
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)

    def to(self, device: torch.device) -> None:
        """Move everything; the state of the optimiser follows its parameters."""
        self.network.to(device)
        if self.margins is not None:
            self.margins.to(device)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if name != "step":
                    state[name] = value.to(device)

    def epoch(
        self,
        data: EpochData,
        random: np.random.RandomState,
        *,
        batch_size: int,
        fixed_margins: Tensor | None,
        rates: NDArray[Any] | None = None,
    ) -> float:
        """Go once through all rows in random order and return the mean loss.

        Args:
            data: The rows.
            random: Source of the order.
            batch_size: Rows in a batch.
            fixed_margins: ``γ`` ``[K]`` where there is no hidden layer.
            rates: Factor on the learning rate for each batch; 1 by default.
        """
        order = torch.from_numpy(random.permutation(data.rows.shape[0]))
        data = data._replace(weight=data.weight / data.weight.mean())
        total = 0.0
        for number, index in enumerate(torch.split(order, batch_size)):
            rate = 1.0 if rates is None else float(rates[number])
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate * rate
            index = index.to(data.rows.device)
            batch = EpochData(*(part.index_select(0, index) for part in data))
            total += self._step(batch, fixed_margins) * len(index)
        return total / max(data.rows.shape[0], 1)

    def _step(self, batch: EpochData, fixed_margins: Tensor | None) -> float:
        features, logits = self.network(batch.rows)
        extra: Tensor | float = 0.0
        if self.margins is None:
            assert fixed_margins is not None
            margins = fixed_margins
        else:
            self.margins.update(features.detach(), batch.labels, batch.weight)
            margins = self.margins.margins.to(logits)
            extra = self.margins.representation_losses(features, batch.labels)
        losses = margin_cross_entropy(logits, batch.labels, margins, reduction="none") + extra
        loss = (losses * batch.weight).mean() + 0.5 * self.alpha * self.network.squared_weights()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())
