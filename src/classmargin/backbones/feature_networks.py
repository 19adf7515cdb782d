"""Networks for inputs that are features already: a linear classifier, and one with hidden layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from classmargin._checks import check_int, check_number
from classmargin.backbones.registry import register_backbone


class FeatureEncoder(nn.Module):
    """Features to features: nothing at all, or hidden layers with ReLU.

    Args:
        in_features: Size of the inputs; anything with more dimensions is flattened to it.
        hidden: Widths of the hidden layers, in order; none for the identity.
        batch_norm: Normalise before each ReLU.
        dropout: Share of activations dropped after each ReLU.

    Example:
        >>> import torch
        >>> FeatureEncoder(8, hidden=(16, 4))(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self, in_features: int, hidden: Sequence[int] = (), *, batch_norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_int("in_features", in_features, minimum=1)
        check_number("dropout", dropout, minimum=0.0, below=1.0)
        widths = [in_features, *(check_int("hidden", width, minimum=1) for width in hidden)]
        self.feature_dim = widths[-1]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers.append(nn.Linear(before, after, bias=not batch_norm))
            layers += [nn.BatchNorm1d(after)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            layers += [nn.Dropout(dropout)] if dropout > 0 else []
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        features: Tensor = self.layers(inputs)
        return features


def _only_number(name: str, input_size: tuple[int, ...] | None) -> int:
    if input_size is None:
        raise ValueError(f"backbone {name!r} needs input_size, the number of features of an input")
    return input_size[0]


@register_backbone("linear", title="Linear classifier on features", kind="features")
def build_linear(*, input_size: tuple[int, ...] | None) -> nn.Module:
    """Return the identity: the features are the inputs."""
    return FeatureEncoder(_only_number("linear", input_size))


@register_backbone("mlp", title="Perceptron with hidden layers on features", kind="features")
def build_mlp(
    *,
    input_size: tuple[int, ...] | None,
    hidden: Sequence[int] | int = (512,),
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Return hidden layers of the chosen widths."""
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not widths:
        raise ValueError("hidden must name at least one width; for none use the backbone 'linear'")
    return FeatureEncoder(_only_number("mlp", input_size), widths, batch_norm=batch_norm, dropout=dropout)
