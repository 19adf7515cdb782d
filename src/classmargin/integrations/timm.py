"""MR² in timm's train script: a loss object with the signature that it expects, ``loss_fn(output, target)``.

In ``train.py`` of timm, instead of ``train_loss_fn = nn.CrossEntropyLoss()``, and after the task has been made from it (in releases
without tasks: after the optimiser has), so that the class statistics are in timm's checkpoints and come back with ``--resume``::

    from classmargin.integrations.timm import keep_statistics, mr2_loss
    train_loss_fn = mr2_loss(model, smoothing=args.smoothing, accumulate=args.grad_accum_steps)
    keep_statistics(train_loss_fn, task)

The weights that timm saves stay as they are: they load for inference without this package. Targets may be classes ``[B]`` or, with
mixup and cutmix, probabilities ``[B, K]``. timm's encoders as backbones of our own loop are ``create_backbone("timm:NAME", ...)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from classmargin.integrations.capture import CapturedMR2Loss, capture_features, unwrap
from classmargin.mr2 import MR2Loss


def mr2_loss(
    model: nn.Module, *, smoothing: float = 0.0, preset: str = "recommended", accumulate: int = 1, **options: Any
) -> CapturedMR2Loss:
    """Return the MR² loss of a timm model as ``loss_fn(output, target)``.

    Args:
        model: A model of timm (or any with timm's ``get_classifier()``), wrapped or not.
        smoothing: Label smoothing, of classes only: timm's mixup has smoothed the probabilities that it gives already.
        preset: Named hyper-parameters, see :meth:`classmargin.MR2Loss.preset`.
        accumulate: Micro-batches per optimiser step (``--grad-accum-steps``).
        **options: Arguments of :class:`classmargin.MR2Loss` that win over the preset.

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
        raise TypeError(f"model must have one classifier, got {type(classifier).__name__} from get_classifier()")
    captured = capture_features(model, classifier)
    loss_fn = captured.criterion(preset=preset, accumulate=accumulate, label_smoothing=smoothing, **options)
    loss_fn.smooth_probabilities = False
    return loss_fn


STATISTICS = "classmargin_statistics"  # under this name in a checkpoint


def keep_statistics(loss_fn: CapturedMR2Loss, keeper: Any) -> None:
    """Save the class statistics with ``keeper``, and load them when it is loaded or has been already.

    The keeper is a task of timm (``timm.task``), or any ``torch.optim.Optimizer`` whose state is saved with the
    model's: then they are an entry of its first parameter group, which optimisers leave alone.
    """
    if isinstance(keeper, torch.optim.Optimizer):
        _keep_in_optimizer(loss_fn.loss, keeper)
    elif hasattr(keeper, "get_task_state") and hasattr(keeper, "load_task_state"):
        _keep_in_task(loss_fn.loss, keeper)
    else:
        raise TypeError(f"keeper must be a task of timm or an optimizer, got {type(keeper).__name__}")


def _keep_in_optimizer(loss: MR2Loss, optimizer: torch.optim.Optimizer) -> None:
    def put(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0][STATISTICS] = dict(loss.state_dict())

    def take(optimizer: torch.optim.Optimizer) -> None:
        if STATISTICS in optimizer.param_groups[0]:
            loss.load_state_dict(optimizer.param_groups[0][STATISTICS])

    take(optimizer)  # a train script may have resumed before it makes its loss
    optimizer.register_state_dict_pre_hook(put)
    optimizer.register_load_state_dict_post_hook(take)


def _keep_in_task(loss: MR2Loss, task: Any) -> None:
    get, load = task.get_task_state, task.load_task_state

    def get_task_state(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**get(*args, **kwargs), STATISTICS: dict(loss.state_dict())}

    def load_task_state(state: Any, *args: Any, **kwargs: Any) -> None:
        rest = dict(state or {})
        statistics = rest.pop(STATISTICS, None)
        load(rest or None, *args, **kwargs)
        if statistics is not None and not kwargs.get("ema", False):  # averaged weights have none of their own
            loss.load_state_dict(statistics)

    task.get_task_state, task.load_task_state = get_task_state, load_task_state
