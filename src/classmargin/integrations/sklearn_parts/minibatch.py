"""Training in batches: the network with a hidden layer, and ``partial_fit`` of every kind.

With a hidden layer features move, so class statistics are moving averages (:class:`ClassStatistics`), the
representation margin applies, and all settings are the recommended ones; without one the caller hands over exact margins
and only the logit margin is left.
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
from classmargin.mr2 import PRESETS, ClassStatistics, class_margins, margin_cross_entropy
from classmargin.mr2.feature_scale import FeatureScale
from classmargin.mr2.logit_margin import confidences
from classmargin.mr2.positives import moment_losses

RECOMMENDED = PRESETS["recommended"]


class MovingMargins(nn.Module):
    """MR² with its recommended settings, for features that move and rows that have weights.

    With equal weights it is ``MR2Loss.preset("recommended", ...)``, which has no place for weights of single rows.

    Args:
        num_classes: ``K``.
        feature_dim: Size of the hidden layer.
        mean_margin: ``c̄``.
        norm_order: ``p`` of the ``r²`` that is shown; these margins come from the relative spread.
        representation_weight: ``λ``.
    """

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
        self.margin_power = float(RECOMMENDED["margin_power"])
        self.warmup_steps = int(RECOMMENDED["warmup_steps"])
        self.statistics = ClassStatistics(
            num_classes, feature_dim=feature_dim, norm_order=norm_order, track_separation=True
        )
        self.scale = FeatureScale("total-variance")

    @property
    def class_sums(self) -> NDArray[np.float64]:
        """Effective weights and sums of squared norms, as the exact statistics have them ``[2, K]``."""
        weight = self.statistics.class_weight.double()
        result: NDArray[np.float64] = (
            torch.stack((weight, weight * self.statistics.class_sqnorm)).cpu().numpy()
        )
        return result

    @property
    def warms_up(self) -> bool:
        """Whether margins still wait and ``λ`` still rises."""
        return int(self.statistics.updates) <= self.warmup_steps

    @property
    def margins(self) -> Tensor:
        """Current ``γ`` ``[K]``; ``c̄`` until the warm-up is over."""
        source = self.statistics.class_relative_spread
        power = 0.0 if self.warms_up else self.margin_power
        return class_margins(source, self.mean_margin, power=power, seen=source > 0, limits=MARGIN_LIMITS)

    def update(self, features: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Move the statistics by one batch; a row enters with its weight."""
        if bool((weight == 1.0).all()):
            self.statistics.update(features, labels)
        else:
            share = F.one_hot(labels, self.statistics.num_classes) * weight.unsqueeze(1)
            self.statistics.update(features, share.to(features.dtype))
        self.scale.follow(self.statistics)

    def losses(self, logits: Tensor, labels: Tensor, features: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return ``ℓ_γ γ_y / c̄`` and ``λ p_y ℓ_s̄`` of each row ``[B]`` (Eq. 1 and 2), with the statistics of now."""
        class_margin = self.margins.to(logits)
        own = class_margin.index_select(0, labels)
        losses = margin_cross_entropy(logits, labels, class_margin, reduction="none")
        losses = losses * (own / self.mean_margin)
        if self.representation_weight == 0.0:
            return losses, 0.0
        ramp = min(int(self.statistics.updates) / max(self.warmup_steps, 1), 1.0)
        mean_spread = self.statistics.mean_spread.to(features)
        temperature = float(self.scale.temperature_of(features.shape[1], on_host=True))
        pull = moment_losses(features, labels, self.statistics, mean_spread, temperature)
        confidence = confidences(logits.detach(), labels, own, None)
        return losses, (self.representation_weight * ramp) * confidence * pull


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

    @property
    def warms_up(self) -> bool:
        """Whether the loss is still on its way to what is minimised in the end."""
        return self.margins is not None and self.margins.warms_up

    def shorten_warm_up(self, most: int) -> None:
        """Let the warm-up end after ``most`` batches at the latest."""
        if self.margins is not None:
            self.margins.warmup_steps = min(self.margins.warmup_steps, most)

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
        """Go once through all rows in random order and return the mean loss, without the representation margin.

        The confidence in front of that margin rises as rows are fitted, and the margin with it: their sum says nothing
        about progress.

        Args:
            data: The rows.
            random: Source of the order.
            batch_size: Rows in a batch.
            fixed_margins: ``γ`` ``[K]`` where there is no hidden layer.
            rates: Factor on the learning rate for each batch; 1 by default.
        """
        order = torch.from_numpy(random.permutation(data.rows.shape[0]))
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
        pull: Tensor | float = 0.0
        if self.margins is None:
            assert fixed_margins is not None
            losses = margin_cross_entropy(logits, batch.labels, fixed_margins, reduction="none")
        else:
            self.margins.update(features.detach(), batch.labels, batch.weight)
            losses, pull = self.margins.losses(logits, batch.labels, features)
        loss = (losses * batch.weight).mean() + 0.5 * self.alpha * self.network.squared_weights()
        self.optimizer.zero_grad(set_to_none=True)
        (loss + (pull * batch.weight).mean()).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())
