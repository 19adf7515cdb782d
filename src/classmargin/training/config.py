"""What a run is made of, as typed, frozen records: the only way settings travel through the package.

Defaults < preset < file.toml < command line (``training.config_reader`` merges them). Everything but most of
``machine`` decides the result; its hash names the run folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from classmargin._checks import LARGEST_SIDE, check_choice, check_int, check_number

# Of the machine part, what changes the last bits and is kept when a run resumes.
NUMERICS = ("threads", "memory_format")
# Settings that came after runs had been named: a run that leaves them alone keeps its name.
LATER_DATA = ("spared_classes", "left_out", "fold")
# Larger numbers are typing errors that would otherwise surface after days, or inside a C library.
MOST_EPOCHS = 1_000_000
LARGEST_SEED = 2**63 - 1
LARGEST_COUNT = 2**31 - 1
# Processes and threads of one machine; thousands of them end in the C library, or with the machine.
MOST_PROCESSES = 1024


Precision = Literal["default", "auto", "32-true", "tf32", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"]


def _limited(default: Any, **limits: Any) -> Any:
    """Return a field whose value must lie within ``limits``, in the words of ``check_int`` and ``check_number``."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class _Part:
    """A table of settings: limits stand beside the defaults, choices in the types; None is always within limits."""

    def __post_init__(self) -> None:
        part, hints = type(self).__name__.removesuffix("Config").lower(), get_type_hints(type(self))
        for item in dataclasses.fields(self):
            name, value, hint = f"{part}.{item.name}", getattr(self, item.name), hints[item.name]
            if get_origin(hint) is Literal:
                check_choice(name, value, get_args(hint))
            elif item.metadata and value is not None:
                check: Callable[..., Any] = check_int if int in (hint, *get_args(hint)) else check_number
                check(name, value, **item.metadata)


@dataclass(frozen=True)
class DataConfig(_Part):
    """Which samples, and how they are shown to the network.

    Attributes:
        name: Name of the catalogue, or a path.
        root: Folder where the data sets of the catalogue lie.
        fraction: Share of the training samples that is used, drawn class by class.
        imbalance: Ratio of the largest to the smallest class (exponential long tail); 1 changes nothing.
        validation: Share of the training samples held out for selection; None takes the data set's own rule.
        seed: Decides subset and split; apart from ``loop.seed`` so that repeats see the same data.
        download: Allow a download where a licence-free source exists.
        skip_corrupt: Leave unreadable files out instead of stopping.
        image_size: Side length images are brought to; None takes the data set's own.
        augmentation: Training transform by name.
        crop_scale: Smallest and largest share of the area of a photograph that a random crop keeps.
        centre_share: Share of the shorter side that the centre cut of a photograph keeps in evaluation.
        interpolation: ``bilinear`` or ``bicubic``, whenever images change their size.
        flip: Whether images may be mirrored while training, if the data set allows it.
        mix: Mix the samples of a batch: ``mixup``, ``cutmix`` (images), ``both`` (either, per batch) or ``none``.
        mix_alpha: ``α`` of ``Beta(α, α)``, from which the shares are drawn.
        soft_labels: Prediction file (``classmargin predict RUN DATA --split train``) whose probabilities replace the
            classes of the training samples, for distillation.
        allow_absent: Train although some classes have no test sample, so that their accuracy stays unknown.
        spared_classes: Classes that are augmented less: not at all in place of ``standard``, by ``standard`` in place
            of a policy.
        left_out: CSV file with a column ``sample_id``: the indices of training samples that are not trained on.
        fold: ``(k, n)``: part ``k`` (from 0) of ``n`` equal parts of every training class takes the place of the
            validation samples.
    """

    name: str = "fashion-mnist-mini"
    root: str | None = None
    fraction: float = _limited(1.0, above=0.0, maximum=1.0)
    imbalance: float = _limited(1.0, minimum=1.0)
    validation: float | None = _limited(None, minimum=0.0, below=1.0)
    seed: int = _limited(0, minimum=0, maximum=LARGEST_SEED)
    download: bool = False
    skip_corrupt: bool = False
    image_size: int | None = _limited(None, minimum=1, maximum=LARGEST_SIDE)
    augmentation: str = "standard"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    centre_share: float = 0.875
    interpolation: str = "bilinear"
    flip: bool = True
    mix: Literal["none", "mixup", "cutmix", "both"] = "none"
    mix_alpha: float = _limited(1.0, above=0.0)
    soft_labels: str | None = None
    allow_absent: bool = False
    spared_classes: tuple[str, ...] = ()
    left_out: str | None = None
    fold: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold and not (len(self.fold) == 2 and 0 <= self.fold[0] < self.fold[1] > 1):
            raise ValueError(f"data.fold must be (k, n) with k from 0 to n - 1 and n of at least 2, got {self.fold}")


@dataclass(frozen=True)
class BackboneConfig(_Part):
    """Which network.

    Attributes:
        name: Registry name.
        mode: ``scratch``, ``fine-tune`` (all weights move) or ``probe`` (frozen encoder, features computed once).
        head: Kind of head; None takes the one the method asks for.
        pretrained: Start from the published weights that come with the network.
        checkpoint: File or folder with weights to start from.
        cache: Let a probe compute features once, without augmentation, and train on them.
        options: Further arguments of the network's builder.
    """

    name: str = "small-cnn"
    mode: Literal["scratch", "fine-tune", "probe"] = "scratch"
    head: str | None = None
    pretrained: bool = False
    checkpoint: str | None = None
    cache: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodConfig:
    """Which method; ``options`` are its hyper-parameters (checked by the method's registry)."""

    name: str = "erm"
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerConfig(_Part):
    """How weights move.

    Attributes:
        name: ``sgd`` or ``adamw``.
        learning_rate: Peak learning rate; see ``scale_batch``.
        momentum: Of SGD.
        nesterov: Of SGD.
        betas: Of AdamW.
        weight_decay: Decoupled for AdamW, L2 for SGD.
        decay_norms: Also decay biases and the weights of normalisation layers.
        layer_decay: Factor on the learning rate from each layer to the one below it (MAE); 1 switches it off.
        scale_batch: If given, ``learning_rate`` is meant for this many samples per step and grows with them.
        clip_norm: Largest norm of the gradient; None: no clipping.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = _limited(0.1, above=0.0)
    momentum: float = _limited(0.9, minimum=0.0, below=1.0)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = _limited(5e-4, minimum=0.0)
    decay_norms: bool = True
    layer_decay: float = _limited(1.0, above=0.0, maximum=1.0)
    scale_batch: int | None = _limited(None, minimum=1, maximum=LARGEST_COUNT)
    clip_norm: float | None = _limited(None, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("optimizer.nesterov needs optimizer.momentum > 0, got 0")


@dataclass(frozen=True)
class ScheduleConfig(_Part):
    """How the learning rate changes over a stage.

    Attributes:
        name: ``cosine``, ``step`` or ``constant``.
        warmup_epochs: Epochs of linear rise from ``warmup_start`` times the peak.
        warmup_steps: The same, counted in optimiser steps; at most one of the two is given.
        warmup_start: Factor at the first step of the warm-up.
        minimum: Learning rate at the end of the cosine.
        milestones: Epochs at which ``step`` multiplies by ``factor``.
        factor: Of ``step``.
    """

    name: Literal["cosine", "step", "constant"] = "cosine"
    warmup_epochs: float = _limited(0.0, minimum=0.0)
    warmup_steps: int = _limited(0, minimum=0, maximum=LARGEST_COUNT)
    warmup_start: float = _limited(0.0, minimum=0.0, maximum=1.0)
    minimum: float = _limited(0.0, minimum=0.0)
    milestones: tuple[int, ...] = ()
    factor: float = _limited(0.1, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs and self.warmup_steps:
            raise ValueError("give schedule.warmup_epochs or schedule.warmup_steps, not both")


@dataclass(frozen=True)
class LoopConfig(_Part):
    """Length, batches, precision and bookkeeping of the training.

    Attributes:
        epochs: Passes over the training set, over all stages of the method.
        batch_size: Samples of one optimiser step, over all devices and micro-batches.
        accumulate: Micro-batches that each device's share of a batch is cut into; a method's state follows the first of
            them.
        seed: Initial weights, order and augmentation of the samples, random numbers of the method.
        precision: As Lightning Fabric names it; ``tf32``: float32 whose products round their inputs to ten bits, on
            accelerators that have it; ``default``: ``tf32`` there and ``32-true`` elsewhere; ``auto``: bfloat16
            autocast where the device computes in it natively and ``32-true`` elsewhere, so that the result depends on
            the machine.
        compile: Compile the network with ``torch.compile``.
        ema_decay: Keep a moving average of the weights and evaluate that; None: off.
        swa_start: Share of the epochs after which the weights at the end of each epoch are averaged equally
            (stochastic weight averaging); their running statistics are those of one more pass. None: off.
        select: Which weights are kept: the ``last``, or those of the epoch with the best ``overall``,
            ``hard`` or ``worst`` accuracy **on validation**.
        evaluate_every: Epochs between evaluations on validation.
        checkpoint_steps: Optimiser steps between checkpoints within an epoch; 0 saves at epoch ends alone.
        checkpoint_seconds: Save when this much time has passed since the last checkpoint; 0 never.
    """

    epochs: int = _limited(30, minimum=1, maximum=MOST_EPOCHS)
    batch_size: int = _limited(128, minimum=1, maximum=LARGEST_COUNT)
    accumulate: int = _limited(1, minimum=1, maximum=LARGEST_COUNT)
    seed: int = _limited(0, minimum=0, maximum=LARGEST_SEED)
    precision: Precision = "default"
    compile: bool = False
    ema_decay: float | None = _limited(None, minimum=0.0, below=1.0)
    swa_start: float | None = _limited(None, minimum=0.0, below=1.0)
    select: Literal["last", "overall", "hard", "worst"] = "last"
    evaluate_every: int = _limited(1, minimum=1, maximum=LARGEST_COUNT)
    checkpoint_steps: int = _limited(0, minimum=0, maximum=LARGEST_COUNT)
    checkpoint_seconds: float = _limited(300.0, minimum=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema_decay is not None and self.swa_start is not None:
            raise ValueError("give loop.ema_decay or loop.swa_start, not both")


@dataclass(frozen=True)
class MachineConfig(_Part):
    """Where it runs; settings that change the rounding (``NUMERICS``) belong to the identity of a run.

    Attributes:
        devices: Processes on this machine.
        nodes: Machines.
        accelerator: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads of each process; 0: one on the CPU, beside an accelerator its share of the cores.
        workers: Worker processes that read and decode streamed samples; None takes one for each core.
        memory_format: Layout of image tensors; ``auto``: ``channels_last`` for networks of images.
        loggers: Besides the files of the run folder: ``tensorboard``, ``wandb``, ``mlflow``.
        report: Write ``report.html`` at the end.
    """

    devices: int = _limited(1, minimum=1, maximum=MOST_PROCESSES)
    nodes: int = _limited(1, minimum=1, maximum=LARGEST_COUNT)
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = _limited(0, minimum=0, maximum=MOST_PROCESSES)
    workers: int | None = _limited(None, minimum=0, maximum=MOST_PROCESSES)
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    loggers: tuple[str, ...] = ()
    report: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.loggers:
            check_choice("machine.loggers", name, ("tensorboard", "wandb", "mlflow"))


@dataclass(frozen=True)
class RunConfig:
    """One run, whole, e.g. ``RunConfig(method=MethodConfig("mr2"))``."""

    data: DataConfig = field(default_factory=DataConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    @property
    def learning_rate(self) -> float:
        """Peak learning rate at this batch size (scaled where ``optimizer.scale_batch`` asks for it)."""
        if self.optimizer.scale_batch is None:
            return self.optimizer.learning_rate
        return self.optimizer.learning_rate * self.loop.batch_size / self.optimizer.scale_batch

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain nested dictionaries; ``options`` are spread into their table as in a file."""
        tables = {}
        for item in dataclasses.fields(self):
            table = dict(vars(getattr(self, item.name)))
            options = table.pop("options", {})
            tables[item.name] = {**table, **options}
        return tables


def identity(config: RunConfig) -> str:
    """Return 12 hexadecimal digits that name what a settled configuration computes, to the last bit."""
    machine = config.machine
    numerics = {name: getattr(machine, name) for name in NUMERICS}
    parts = {**config.to_dict(), "machine": {**numerics, "processes": machine.devices * machine.nodes}}
    parts["data"] = {name: value for name, value in parts["data"].items() if name not in LATER_DATA or value}
    text = json.dumps(parts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
