"""Named settings of the objective: ours, the paper's, and the released code's. Numbers only, never code.

* ``recommended``: what ``MR2Loss(num_classes)`` is. Chosen on validation samples (``docs/evidence.md``).
* ``paper``: the printed formulas and values: c̄ = 2, λ = 0.5, pairs of the batch, raw features. The exponent of Eq. 2 is a
  squared distance, so on features that no layer normalises λ = 0.5 can collapse them.
* ``release``: what the authors' code computes, see :mod:`classmargin.mr2.release`. (Its CIFAR variant sets s̄ = 0 and decay
  0.9: ``spread_slack=0.0, ema_decay=0.9``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

Representation = Literal["moments", "pairs"]
MarginSource = Literal["sqnorm", "spread", "uniform"]
REPRESENTATIONS, MARGIN_SOURCES = get_args(Representation), get_args(MarginSource)

_PRINTED = {
    "representation": "pairs",
    "margin_source": "sqnorm",
    "margin_power": 1 / 3,
    "label_smoothing": 0.0,
}
_PAPER = {"mean_margin": 2.0, "representation_weight": 0.5, "norm_order": 2.0, "ema_decay": 0.9}
_RELEASE = {"mean_margin": 1.0, "representation_weight": 0.1, "norm_order": 5.0, "ema_decay": 0.999}
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "recommended": MappingProxyType({}),  # the defaults of MR2Loss
        "paper": MappingProxyType({**_PRINTED, **_PAPER}),
        "release": MappingProxyType({**_PRINTED, **_RELEASE, "representation": "released"}),
    }
)
