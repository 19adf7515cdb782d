"""Training in batches: the network with a hidden layer and MR2Loss, and ``partial_fit`` of every kind."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from classmargin.integrations.sklearn_parts.rows import CHUNK_ROWS
from classmargin.mr2 import MR2Loss, margin_cross_entropy

# Rows shorter than this count as zero; a smaller value would turn their gradients into something enormous.
SMALLEST_NORM = 1e-4
START_SCALE = 16.0


class FeatureNetwork(nn.Module):
    """Features in, features of the head and logits out; with ``cosine`` the head compares directions, and ``scale`` None is learned."""

    shift: Tensor
    width: Tensor
    log_scale: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: int | None,
        cosine: bool,
        scale: float | None,
        intercept: bool,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.cosine = cosine
        self.register_buffer("shift", torch.zeros(in_features, dtype=dtype))
        self.register_buffer("width", torch.ones(in_features, dtype=dtype))
        size = in_features if hidden is None else hidden
        self.hidden = None if hidden is None else _linear(in_features, hidden, generator, dtype)
        self.head = _linear(size, num_classes, generator, dtype)
        self.head.bias.requires_grad_(intercept)
        if hidden is None and not cosine:  # convex: 0 is as good a start as any, and the same for every seed
            nn.init.zeros_(self.head.weight)
        log_scale = torch.tensor(float(np.log(START_SCALE if scale is None else scale)), dtype=dtype)
        if cosine and scale is None:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``[B, f]`` and logits ``[B, K]``."""
        features = (rows - self.shift) / self.width
        if self.hidden is not None:
            features = F.relu(self.hidden(features))
        if not self.cosine:
            return features, self.head(features)
        features = F.normalize(features, dim=1, eps=SMALLEST_NORM)
        return features, torch.addmm(self.head.bias, features, self.log_scale.exp() * self.directions().T)

    def directions(self) -> Tensor:
        """Return the class weights of length 1 that a cosine head compares with."""
        return F.normalize(self.head.weight, dim=1, eps=SMALLEST_NORM)

    @torch.no_grad()
    def standardize(self, rows: Tensor, weight: Tensor) -> None:
        """Take shift and width from the (weighted) mean and deviation of ``rows``; constant columns keep width 1."""
        share = weight.double() / weight.double().sum()
        parts = [slice(start, start + CHUNK_ROWS) for start in range(0, rows.shape[0], CHUNK_ROWS)]
        zeros = torch.zeros_like(rows[0], dtype=torch.float64)  # squares of large float32 features overflow
        moves = self.hidden is not None or self.head.bias.requires_grad  # a shift is an offset
        shift = sum((share[part] @ rows[part].double() for part in parts if moves), zeros)
        variance = sum((share[part] @ (rows[part].double() - shift).square() for part in parts), zeros)
        width = variance.sqrt()
        constant = width <= torch.finfo(rows.dtype).eps * shift.abs()  # up to rounding
        self.shift, self.width = shift.to(rows.dtype), width.masked_fill(constant, 1.0).to(rows.dtype)

    @torch.no_grad()
    def start_from(self, coef: NDArray[Any], intercept: NDArray[Any], scale: float | None) -> None:
        """Take over a head without hidden layer that was found elsewhere (the inverse of :func:`network_arrays`)."""
        weight = torch.tensor(coef).to(self.head.weight)
        if scale is not None:
            self.log_scale.fill_(float(np.log(scale)))
        self.head.weight.copy_(weight * self.width / (1.0 if scale is None else scale))
        self.head.bias.copy_(torch.tensor(intercept).to(self.head.bias) + weight @ self.shift)

    def squared_weights(self) -> Tensor:
        """Return what the penalty weighs: ``v ‖W‖²``, squared weights (hidden layer) or ``K · scale²`` (cosine)."""
        if self.cosine:
            penalty = self.head.weight.shape[0] * (2.0 * self.log_scale).exp()
        elif self.hidden is None:
            penalty = self.width.square().sum() * (self.head.weight / self.width).square().sum()
        else:
            penalty = self.head.weight.square().sum()
        return penalty if self.hidden is None else penalty + self.hidden.weight.square().sum()


def _linear(inputs: int, outputs: int, generator: torch.Generator, dtype: torch.dtype) -> nn.Linear:
    # Without torch's own start, which would draw from the caller's random state.
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=dtype)  # type: ignore[no-untyped-call]
    bound = (6.0 / max(inputs + outputs, 1)) ** 0.5
    # Drawn in float64 and then rounded, so that float32 and float64 data start from the same place.
    draw = torch.rand(outputs, inputs, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_((2.0 * draw - 1.0) * bound)
        layer.bias.zero_()
    return layer


def network_arrays(network: FeatureNetwork) -> dict[str, NDArray[Any]]:
    """Return ``coef``, ``intercept`` (``hidden_coef``, ``hidden_intercept``) for features as they come."""
    with torch.no_grad():
        first = network.head if network.hidden is None else network.hidden
        weight = first.weight / network.width
        bias = first.bias - first.weight @ (network.shift / network.width)
        layers = {"coef": weight, "intercept": bias}
        if network.hidden is not None:
            layers = {"hidden_coef": weight, "hidden_intercept": bias}
            layers |= {"coef": network.head.weight, "intercept": network.head.bias}
        if network.cosine:
            layers |= {"coef": network.log_scale.exp() * network.directions(), "intercept": network.head.bias}
    return {name: layer.detach().cpu().numpy().copy() for name, layer in layers.items()}


class EpochData(NamedTuple):
    """Rows ``[N, d]``, classes ``[N]`` and weights ``[N]`` above 0 of one training set, on the device that trains."""

    rows: Tensor
    labels: Tensor
    weight: Tensor


class MinibatchTrainer:
    """A network, its optimiser and its loss, which only a hidden layer has; else margins are handed over."""

    def __init__(self, network: FeatureNetwork, loss: MR2Loss | None, *, learning_rate: float, alpha: float) -> None:
        self.network, self.loss, self.learning_rate, self.alpha = network, loss, learning_rate, alpha
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)

    def to(self, device: torch.device) -> None:
        """Move everything; the state of the optimiser follows its parameters."""
        self.network.to(device)
        if self.loss is not None:
            self.loss.to(device)
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
        """Go once through all rows in random order; return the mean loss without the representation margin.

        That margin rises with the confidence in front of it and says nothing about progress. ``rates`` are factors on
        the learning rate, one per batch.
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
        penalty = 0.5 * self.alpha * self.network.squared_weights()
        if self.loss is None:
            assert fixed_margins is not None
            losses = margin_cross_entropy(logits, batch.labels, fixed_margins, reduction="none")
            total = progress = (losses * batch.weight).mean() + penalty
        else:
            terms = self.loss.terms(logits, batch.labels, features, sample_weight=batch.weight)
            # Means over weights become sums over rows, so that a heavy batch counts as such.
            share = batch.weight.mean()
            total, progress = terms.total * share + penalty, terms.logit_margin * share + penalty
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(progress.detach())
