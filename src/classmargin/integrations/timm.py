"""MR² in timm's train script: a loss object with the signature that it expects, ``loss_fn(output, target)``.

In ``train.py`` of timm, after the model has been made, instead of ``train_loss_fn = nn.CrossEntropyLoss()``::

    from classmargin.integrations.timm import mr2_loss
    train_loss_fn = mr2_loss(model, smoothing=args.smoothing, accumulate=args.grad_accum_steps)

Targets may be classes ``[B]`` or, with mixup and cutmix, probabilities ``[B, K]``. The encoders of timm as backbones of this
package's own loop are ``create_backbone("timm:NAME", ...)``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from classmargin.integrations.capture import capture_features, unwrap
from classmargin.integrations.capture_loss import CapturedMR2Loss


def mr2_loss(
    model: nn.Module,
    *,
    smoothing: float = 0.0,
    preset: str = "recommended",
    accumulate: int = 1,
    **options: Any,
) -> CapturedMR2Loss:
    """Return the MR² loss of a timm model as ``loss_fn(output, target)``.

    Args:
        model: A model of timm (or any with timm's ``get_classifier()``), wrapped or not.
        smoothing: Label smoothing.
        preset: Named hyper-parameters, see :mod:`classmargin.mr2.presets`.
        accumulate: Micro-batches of an optimiser step (``--grad-accum-steps``).
        **options: Arguments of :class:`classmargin.MR2Loss` that win over the preset.

    Raises:
        TypeError: The model has no ``get_classifier()``, or several classifiers (distilled models).

    Example:
        >>> class Net(nn.Sequential):
        ...     def get_classifier(self):
        ...         return self[0]
        >>> mr2_loss(Net(nn.Linear(4, 3)), smoothing=0.1).loss.label_smoothing
        0.1
    """
    get_classifier = getattr(unwrap(model), "get_classifier", None)
    if get_classifier is None:
        raise TypeError(
            f"model must have timm's get_classifier(), got {type(model).__name__}; "
            "use classmargin.capture_features(model).criterion() instead"
        )
    classifier = get_classifier()
    if not isinstance(classifier, nn.Module):
        raise TypeError(
            f"model must have one classifier, got {type(classifier).__name__} from get_classifier()"
        )
    captured = capture_features(model, classifier)
    return captured.criterion(preset=preset, accumulate=accumulate, label_smoothing=smoothing, **options)
