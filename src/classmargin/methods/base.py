"""What a training method is: one required function, every other hook optional.

The loop calls the hooks in this order (``*`` = only where a method overrides it)::

    method = create(name, task, **hyperparameters)  # own modules and buffers are built here
    for stage in method.stages(epochs):             # * default: one stage with all epochs
        (fresh model and optimiser if stage.fresh_model)
        method.on_stage_start(context)              # *
        for epoch in stage:
            method.on_epoch_start(context)          # * confusion pass, centroid pass, weight switch
            for batch in loader:
                method.optimizer_step(closure, step, model)  # * default: closure(True), then step()
                    closure(update_state):          #   forward, method.loss(step, update_state), backward
                method.on_step_end(step)            # * no-grad updates after the optimiser step
            method.on_epoch_end(context)            # * full-pass updates
        method.on_stage_end(context)                # * build the error set, ...
    scores = method.predict(output)                 # * default: the logits

A method is an ``nn.Module``: its buffers and parameters move, save and resume with it.

State discipline: buffers change only inside ``loss(..., update_state=True)`` and the hooks, exactly once per optimiser
step. ``loss`` may run under autocast; what needs float32 is computed in it nevertheless.

Several processes: ``loss`` returns a value whose gradient, averaged over ranks, is that of the global batch (see
:mod:`classmargin._distributed`), as the loop averages those of a method's own parameters too. Methods reduce what they
keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from classmargin._checks import check_choice, check_int, check_number
from classmargin._types import ModelOutput

HeadKind = Literal["linear", "cosine", "gaussian"]
SamplerKind = Literal["plain", "class-balanced"]


@dataclass(frozen=True)
class Requirements:
    """What a method needs, declared before data and network are built; the loop provides only that.

    Attributes:
        features: Reads ``step.features``.
        sample_index: Keeps state per training sample, so it reads ``step.index``.
        views: Augmented views of each sample in a batch.
        class_counts: Reads ``task.class_counts``.
        sampler: How batches are drawn.
        head: Kind of classification head the network must have.
        head_options: Arguments of that head, e.g. a fixed scale.
        second_model: Calls ``task.new_model()``.
        training_pass: Calls ``context.training_pass()`` (a forward pass over the whole training set).
        soft_labels: Whether ``step.labels`` may be class probabilities ``[B, K]`` (mixed samples, distillation).
    """

    features: bool = False
    sample_index: bool = False
    views: int = 1
    class_counts: bool = False
    sampler: SamplerKind = "plain"
    head: HeadKind = "linear"
    head_options: Mapping[str, Any] = field(default_factory=dict)
    second_model: bool = False
    training_pass: bool = False
    soft_labels: bool = False


@dataclass(frozen=True)
class TaskInfo:
    """What a method may know of its task when it is built.

    Attributes:
        num_classes: ``K``.
        feature_dim: ``d``, size of the penultimate features.
        class_counts: Training samples of each class, int64 ``[K]``.
        labels: Label of every index of the full training set, int64 ``[N]``; -1 where the index is not in
            the training part. ``len(labels)`` is the size of buffers kept per sample.
        epochs: Epochs of the whole training.
        steps_per_epoch: Optimiser steps in one epoch.
        new_model: Makes a freshly initialised network like the one that is trained.
        frozen_features: Passes over the features and labels of the training samples, where no trained parameter
            comes before the features (a linear probe); None where features move.
        distinct_views: Whether two views of a sample differ (false without augmentation and for features).
    """

    num_classes: int
    feature_dim: int
    class_counts: Tensor
    labels: Tensor
    epochs: int = 1
    steps_per_epoch: int = 1
    new_model: Callable[[], nn.Module] | None = None
    frozen_features: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None
    distinct_views: bool = True


@dataclass(frozen=True)
class Stage:
    """One leg of a training: JTT and two-stage SupCon have two, DRO-LT three, all others one.

    Attributes:
        name: Shown in the progress bar and the records.
        epochs: Length; the learning-rate schedule of the stage spans exactly these epochs.
        fresh_model: Start from a newly initialised network and optimiser.
        train: Which parameters of the network move; ``"head"`` freezes the encoder in evaluation mode.
        sampler: Replaces the method's sampler during this stage.
        views: Replaces the method's number of views during this stage.
        learning_rate_scale: Factor on the learning rate during this stage.
    """

    name: str
    epochs: int
    fresh_model: bool = False
    train: Literal["all", "encoder", "head"] = "all"
    sampler: SamplerKind | None = None
    views: int | None = None
    learning_rate_scale: float = 1.0


@dataclass(frozen=True)
class Step:
    """One batch after the forward pass. With ``V`` views the rows are view after view, labels repeated.

    Attributes:
        logits: Output of the network's head ``[V*B, K]``.
        features: Penultimate features ``[V*B, d]``.
        labels: Classes ``[V*B]``, int64; class probabilities ``[B, K]`` only for methods that declare it.
        index: Stable index of each sample ``[V*B]``, int64.
        inputs: What went into the network ``[V*B, ...]`` (a twin network reads it).
        views: ``V``.
        model: The network that is trained.
        epoch: Epochs finished before this one, counted over all stages.
        global_step: Optimiser steps finished before this one.
        stage: Position of the running stage.
    """

    logits: Tensor
    features: Tensor
    labels: Tensor
    index: Tensor
    inputs: Tensor | None = None
    views: int = 1
    model: nn.Module | None = None
    epoch: int = 0
    global_step: int = 0
    stage: int = 0


class MethodLoss(NamedTuple):
    """The scalar to differentiate and its parts for the log (detached scalars by name)."""

    total: Tensor
    parts: dict[str, Tensor]


class LoopContext(Protocol):
    """What the epoch and stage hooks may see and use of the loop."""

    model: nn.Module
    epoch: int
    epochs: int
    stage: int
    global_step: int

    def training_pass(self) -> Iterator[Step]:
        """Forward this process's share of the training samples once: evaluation mode, no gradient, in index order."""
        ...


class Hyperparameter(NamedTuple):
    """The published default of a hyper-parameter, and the check that its values have to pass."""

    default: Any
    check: Callable[[str, Any], Any]

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as its type, or refuse it; None passes where it is the default."""
        return None if value is None and self.default is None else self.check(name, value)


def number(default: float | None, **limits: Any) -> Any:
    """Declare a number within ``limits``, in the words of ``check_number``."""
    return Hyperparameter(default, partial(check_number, **limits))


def whole_number(default: int, *, minimum: int) -> Any:
    """Declare a whole number."""
    return Hyperparameter(default, partial(check_int, minimum=minimum))


def choice(*options: str) -> Any:
    """Declare one of several words; the first is the default."""
    return Hyperparameter(options[0], partial(check_choice, choices=options))


def switch(default: bool) -> Any:
    """Declare something that is on or off."""
    return Hyperparameter(default, lambda name, value: bool(value))


class Method(nn.Module):
    """Base class of every method. Subclasses implement :meth:`loss`.

    Hyper-parameters are declared in the body of the class with default and limits
    (``rho: float = number(0.05, minimum=0.0)``) and become checked attributes. Keyword-only arguments of the
    constructor are hyper-parameters as well.
    """

    requirements: Requirements = Requirements()

    def __init__(self, task: TaskInfo, **hyperparameters: Any) -> None:
        super().__init__()
        self.task = task
        for name, declared in self._declared().items():
            setattr(self, name, declared.checked(name, hyperparameters.pop(name, declared.default)))
        if hyperparameters:
            raise TypeError(f"{type(self).__name__} has no hyper-parameter {', '.join(hyperparameters)}")
        self._build(task)

    def _build(self, task: TaskInfo) -> None:
        """Make own modules and buffers; the hyper-parameters are set."""

    @classmethod
    def _declared(cls) -> dict[str, Hyperparameter]:
        bodies = [vars(base).items() for base in reversed(cls.__mro__)]
        return {name: value for body in bodies for name, value in body if isinstance(value, Hyperparameter)}

    @classmethod
    def default_hyperparameters(cls) -> dict[str, Any]:
        """Return the hyper-parameters with their defaults."""
        parameters = inspect.signature(cls).parameters.values()
        of_constructor = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return {name: declared.default for name, declared in cls._declared().items()} | of_constructor

    @classmethod
    def needs(cls, **hyperparameters: Any) -> Requirements:
        """Return what a method with these hyper-parameters needs before its task exists."""
        return cls.requirements

    @staticmethod
    def settle(options: Mapping[str, Any], *, epochs: int, distinct_views: bool) -> dict[str, Any]:
        """Return the hyper-parameters with those that are left to the run (``"auto"``) written out."""
        return dict(options)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the loss of one batch; change own state only if ``update_state``."""
        raise NotImplementedError

    def stages(self, epochs: int) -> list[Stage]:
        """Split the epoch budget into stages."""
        return [Stage("train", epochs)]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the method's own parameters as optimiser groups, which may carry ``lr_scale`` and ``weight_decay``."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own}] if own else []

    def sample_multiplicity(self, stage: int) -> Tensor | None:
        """Return how often each index appears in an epoch, int64 ``[N]``, or None for once."""
        return None

    def on_stage_start(self, context: LoopContext) -> None:
        """Run before the first epoch of a stage."""

    def on_stage_end(self, context: LoopContext) -> None:
        """Run after the last epoch of a stage."""

    def on_epoch_start(self, context: LoopContext) -> None:
        """Run before the first batch of an epoch."""

    def on_epoch_end(self, context: LoopContext) -> None:
        """Run after the last batch of an epoch."""

    def on_step_end(self, step: Step) -> None:
        """Run after the optimiser step, without gradient; ``step`` holds detached tensors."""

    def optimizer_step(
        self, closure: Callable[[bool], MethodLoss], step: Callable[[], None], model: nn.Module
    ) -> MethodLoss:
        """Do one optimiser step.

        Args:
            closure: Clears the gradients, runs forward, loss and backward over the batch, and leaves the
                gradients in place. Its argument is ``update_state``.
            step: Clips the gradients if asked for and steps the optimiser.
            model: The network, for methods that move its weights between two closures.
        """
        result = closure(True)
        step()
        return result

    def predict(self, output: ModelOutput) -> Tensor:
        """Return class scores ``[B, K]`` at test time; never training-time scaled or shifted logits."""
        return output.logits


def evaluate_on_toy(method: Method, logits: Tensor, features: Tensor, labels: Tensor) -> MethodLoss:
    """Return the loss of ``method`` on plain tensors, for value tests and documentation."""
    step = Step(logits, features, labels, torch.arange(labels.shape[0]))
    return method.loss(step, update_state=True)
