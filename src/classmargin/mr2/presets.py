"""Named sets of hyper-parameters: the paper's, the released code's, and ours. Numbers only, never code.

What each does about scale: the exponent of Eq. 2 is a squared distance, so features of norm 30 make it dominate and
features of norm 0.1 make it vanish.

* ``paper``: the printed formulas and values (c̄ = 2, λ = 0.5, τ = 1). On un-normalised features λ = 0.5 can collapse them.
* ``release``: what the authors' code computes: Lp statistics with p = 5 as ``‖mean‖_p² + mean ‖φ - mean‖_p²``, τ = 10·d, the representation
  margin averaged inside each class, summed over classes and multiplied by ``d / (10 K)``, unseen classes counted as 0,
  λ = 0.1, decay 0.999, no c̄. (Its CIFAR variant sets s̄ = 0 and decay 0.9: ``spread_slack=0.0, ema_decay=0.9``.)
* ``plain``: the printed formulas on a scale of their own: unbiased moments, temperature relative to the largest total
  variance of the features so far (scale-free, and no pull that grows as features shrink), a small λ. The constructor's defaults.
* ``recommended``: chosen on validation samples (``docs/evidence.md``), and what methods and integrations take unless told
  otherwise. Beyond ``plain``: λ = 3, and the pull of a sample counts with the probability of its class, for a pull on what is
  not fitted yet is what made a larger λ fail; classmates in closed form (no pairs, no memory, and every sample has
  some); margins from the relative spread, and samples weighed by them, so that classes with too
  little room get more, trained to the end or not. Margins wait, and λ rises, for 200 steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": MappingProxyType(
            {
                "mean_margin": 2.0,
                "representation_weight": 0.5,
                "norm_order": 2.0,
                "ema_decay": 0.9,
                "estimator": "batch",
                "positives": "batch",
                "temperature": 1.0,
                "margin_source": "sqnorm",
                "margin_power": 1.0 / 3.0,
                "warmup_steps": 0,
                "margin_limits": (1e-3, 1e3),
                "weigh_by_margin": False,
                "weigh_by_confidence": False,
            }
        ),
        "release": MappingProxyType(
            {
                "mean_margin": 1.0,
                "representation_weight": 0.1,
                "norm_order": 5.0,
                "ema_decay": 0.999,
                "estimator": "batch",
                "positives": "batch",
                "temperature": "dimension",
                "temperature_factor": 10.0,
                "margin_source": "sqnorm",
                "margin_power": 1.0 / 3.0,
                "warmup_steps": 0,
                "margin_limits": (0.0, math.inf),
                "sqnorm_form": "mean_plus_deviation",
                "representation_reduction": "classes",
                "dimension_scale": 0.1,
                "unseen": "zero",
                "weigh_by_margin": False,
                "weigh_by_confidence": False,
            }
        ),
        "plain": MappingProxyType(
            {
                "representation_weight": 0.1,
                "positives": "batch",
                "margin_source": "sqnorm",
                "margin_power": 1.0 / 3.0,
                "weigh_by_margin": False,
                "weigh_by_confidence": False,
                "warmup_steps": 0,
            }
        ),
        "recommended": MappingProxyType(
            {
                "representation_weight": 3.0,
                "positives": "moments",
                "margin_source": "relative-spread",
                "margin_power": 0.1,
                "weigh_by_margin": True,
                "weigh_by_confidence": True,
                "warmup_steps": 200,
            }
        ),
    }
)
