"""A word about a method's warm-up that is too long for the training it is part of."""

from __future__ import annotations

from classmargin.recipes.session import Session, frozen_features
from classmargin.training.config import RunConfig

# A warm-up of less than this share of all steps is what it is meant to be.
LONG_SHARE = 0.5
# What is proposed instead: long enough for the class statistics, and most of the training comes after it.
PROPOSED_SHARE = 0.2


def warm_up_notice(session: Session) -> str | None:
    """Return what to tell about the warm-up of a run, or None.

    On frozen features the class statistics are whole before the first step, so there is no warm-up.
    """
    if frozen_features(session.bundle, session.network) is not None:
        return None
    epochs = sum(stage.epochs for stage in session.method.stages(session.config.loop.epochs))
    return long_warm_up(session.config, session.record.steps_per_epoch * epochs)


def long_warm_up(config: RunConfig, steps: int) -> str | None:
    """Return what a warm-up of at least half of the training means, or None where it is shorter or does nothing.

    Args:
        config: The run, its hyper-parameters written out.
        steps: Optimiser steps of the whole training.

    Example:
        >>> from classmargin.training.config import MethodConfig
        >>> margins = {"margin_source": "relative-spread", "margin_power": 0.1, "representation_weight": 3.0}
        >>> print(long_warm_up(RunConfig(method=MethodConfig("mr2", None, {"warmup_steps": 200, **margins})), 175))
        the 200 warm-up steps of mr2 take up all of this training (175 steps): class margins never act and λ reaches \
2.6 of 3; train longer or --set method.warmup_steps=35 (mr2.warmup_steps=35 where several methods run)
    """
    options, name = config.method.options, config.method.name
    warmup = int(options.get("warmup_steps", 0))
    margins = options.get("margin_source") != "uniform" and options.get("margin_power") != 0
    weight = float(options.get("representation_weight", 0.0))
    if warmup < max(1.0, LONG_SHARE * steps) or not (margins or weight):
        return None
    if warmup >= steps:
        share = "all of this training"
        effects = ["class margins never act"] * margins
        effects += [f"λ reaches {weight * steps / warmup:.2g} of {weight:g}"] * bool(weight)
    else:
        share = f"{100 * warmup / steps:.0f} % of this training"
        effects = ["class margins act"] * margins + [f"λ is at its {weight:g}"] * bool(weight)
        effects[-1] += f" in the last {steps - warmup} steps alone"
    shorter = f"warmup_steps={int(PROPOSED_SHARE * steps)}"
    return (
        f"the {warmup} warm-up steps of {name} take up {share} ({steps} steps): {' and '.join(effects)}; train longer "
        f"or --set method.{shorter} ({name}.{shorter} where several methods run)"
    )
