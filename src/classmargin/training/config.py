"""What a run is made of, as typed, frozen records: the only way settings travel through the package.

::

    defaults  <  preset  <  file.toml  <  command line        (training.config_reader merges them)
        RunConfig(data, backbone, method, optimizer, schedule, loop, machine)
    everything but most of ``machine`` decides the result; its hash names the run folder

``batch_size`` is always the number of samples of one optimiser step, whatever the number of devices and
micro-batches, so that a configuration means the same training on a laptop and on a cluster.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from classmargin._checks import LARGEST_SIDE, check_choice, check_int, check_number

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "step", "constant")
MODES = ("scratch", "fine-tune", "probe")
SELECTIONS = ("last", "overall", "hard", "worst")
PRECISIONS = (
    "default",
    "auto",
    "32-true",
    "tf32",
    "bf16-mixed",
    "16-mixed",
    "bf16-true",
    "16-true",
    "64-true",
)
MIXES = ("none", "mixup", "cutmix", "both")
MEMORY_FORMATS = ("auto", "contiguous", "channels_last")
# Of the machine part, what changes the last bits and is kept when a run resumes.
NUMERICS = ("threads", "memory_format")
# Beyond these a number is a slip of the keyboard, and would be found out after days or in a C library.
MOST_EPOCHS = 1_000_000
LARGEST_BATCH = 2**31 - 1
LARGEST_SEED = 2**63 - 1
LARGEST_COUNT = 2**31 - 1
# Processes and threads of one machine; thousands of them end in the C library, or with the machine.
MOST_PROCESSES = 1024


@dataclass(frozen=True)
class DataConfig:
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
        mix: Mix the samples of a batch with one another: ``mixup``, ``cutmix`` (images only), ``both`` (either, per
            batch) or ``none``. For methods that take class probabilities as labels.
        mix_alpha: ``α`` of ``Beta(α, α)``, from which the shares are drawn.
        soft_labels: Prediction file (``classmargin predict RUN DATA --split train``) whose probabilities replace the
            classes of the training samples, for distillation.
        allow_absent: Train although some classes have no test sample, so that nothing can be said about them.
    """

    name: str = "fashion-mnist-mini"
    root: str | None = None
    fraction: float = 1.0
    imbalance: float = 1.0
    validation: float | None = None
    seed: int = 0
    download: bool = False
    skip_corrupt: bool = False
    image_size: int | None = None
    augmentation: str = "standard"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    centre_share: float = 0.875
    interpolation: str = "bilinear"
    flip: bool = True
    mix: Literal["none", "mixup", "cutmix", "both"] = "none"
    mix_alpha: float = 1.0
    soft_labels: str | None = None
    allow_absent: bool = False

    def __post_init__(self) -> None:
        check_int("data.seed", self.seed, minimum=0, maximum=LARGEST_SEED)
        check_number("data.fraction", self.fraction, above=0.0, maximum=1.0)
        check_number("data.imbalance", self.imbalance, minimum=1.0)
        check_choice("data.mix", self.mix, MIXES)
        check_number("data.mix_alpha", self.mix_alpha, above=0.0)
        if self.validation is not None:
            check_number("data.validation", self.validation, minimum=0.0, below=1.0)
        if self.image_size is not None:
            check_int("data.image_size", self.image_size, minimum=1, maximum=LARGEST_SIDE)


@dataclass(frozen=True)
class BackboneConfig:
    """Which network.

    Attributes:
        name: Registry name.
        mode: ``scratch``, ``fine-tune`` (all weights move) or ``probe`` (the encoder is frozen and its
            features are computed once).
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

    def __post_init__(self) -> None:
        check_choice("backbone.mode", self.mode, MODES)


@dataclass(frozen=True)
class MethodConfig:
    """Which method; ``options`` are its hyper-parameters (checked by the method's registry)."""

    name: str = "erm"
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerConfig:
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
        clip_norm: Largest norm of the gradient; None does not clip.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 5e-4
    decay_norms: bool = True
    layer_decay: float = 1.0
    scale_batch: int | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_number("optimizer.learning_rate", self.learning_rate, above=0.0)
        check_number("optimizer.momentum", self.momentum, minimum=0.0, below=1.0)
        check_number("optimizer.weight_decay", self.weight_decay, minimum=0.0)
        check_number("optimizer.layer_decay", self.layer_decay, above=0.0, maximum=1.0)
        if self.scale_batch is not None:
            check_int("optimizer.scale_batch", self.scale_batch, minimum=1, maximum=LARGEST_COUNT)
        if self.clip_norm is not None:
            check_number("optimizer.clip_norm", self.clip_norm, above=0.0)
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("optimizer.nesterov needs optimizer.momentum > 0, got 0")


@dataclass(frozen=True)
class ScheduleConfig:
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
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    warmup_start: float = 0.0
    minimum: float = 0.0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_choice("schedule.name", self.name, SCHEDULES)
        check_number("schedule.warmup_epochs", self.warmup_epochs, minimum=0.0)
        check_int("schedule.warmup_steps", self.warmup_steps, minimum=0, maximum=LARGEST_COUNT)
        check_number("schedule.warmup_start", self.warmup_start, minimum=0.0, maximum=1.0)
        check_number("schedule.minimum", self.minimum, minimum=0.0)
        check_number("schedule.factor", self.factor, above=0.0)
        if self.warmup_epochs and self.warmup_steps:
            raise ValueError("give schedule.warmup_epochs or schedule.warmup_steps, not both")


@dataclass(frozen=True)
class LoopConfig:
    """Length, batches, precision and bookkeeping of the training.

    Attributes:
        epochs: Passes over the training set, over all stages of the method.
        batch_size: Samples of one optimiser step, over all devices and micro-batches.
        accumulate: Micro-batches that each device's share of a batch is cut into. A method's state (class
            statistics, memory) follows the first of them only: it changes once per step, before it is used.
        seed: Initial weights, order and augmentation of the samples, random numbers of the method.
        precision: As Lightning Fabric names it; ``tf32``: float32 whose matrix products and convolutions round
            their inputs to ten bits, on accelerators that have it (``32-true`` never does); ``default``: ``tf32``
            there and ``32-true`` elsewhere; ``auto``: bfloat16 autocast where the device computes in it natively
            and ``32-true`` elsewhere, so that the result depends on the machine.
        compile: Compile the network with ``torch.compile``.
        ema_decay: Keep a moving average of the weights and evaluate that; None does not.
        swa_start: Share of the epochs after which the weights at the end of each epoch are averaged equally
            (stochastic weight averaging); their running statistics are those of one more pass. None does not.
        select: Which weights are kept: the ``last``, or those of the epoch with the best ``overall``,
            ``hard`` or ``worst`` accuracy **on validation**.
        evaluate_every: Epochs between evaluations on validation.
        checkpoint_steps: Optimiser steps between checkpoints within an epoch; 0 saves at epoch ends alone.
        checkpoint_seconds: Save when this much time has passed since the last checkpoint; 0 never.
    """

    epochs: int = 30
    batch_size: int = 128
    accumulate: int = 1
    seed: int = 0
    precision: str = "default"
    compile: bool = False
    ema_decay: float | None = None
    swa_start: float | None = None
    select: Literal["last", "overall", "hard", "worst"] = "last"
    evaluate_every: int = 1
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 300.0

    def __post_init__(self) -> None:
        check_int("loop.epochs", self.epochs, minimum=1, maximum=MOST_EPOCHS)
        check_int("loop.batch_size", self.batch_size, minimum=1, maximum=LARGEST_BATCH)
        check_int("loop.accumulate", self.accumulate, minimum=1, maximum=LARGEST_COUNT)
        check_int("loop.seed", self.seed, minimum=0, maximum=LARGEST_SEED)
        check_choice("loop.precision", self.precision, PRECISIONS)
        check_choice("loop.select", self.select, SELECTIONS)
        check_int("loop.evaluate_every", self.evaluate_every, minimum=1, maximum=LARGEST_COUNT)
        check_int("loop.checkpoint_steps", self.checkpoint_steps, minimum=0, maximum=LARGEST_COUNT)
        check_number("loop.checkpoint_seconds", self.checkpoint_seconds, minimum=0.0)
        if self.ema_decay is not None:
            check_number("loop.ema_decay", self.ema_decay, minimum=0.0, below=1.0)
        if self.swa_start is not None:
            check_number("loop.swa_start", self.swa_start, minimum=0.0, below=1.0)
            if self.ema_decay is not None:
                raise ValueError("give loop.ema_decay or loop.swa_start, not both")


@dataclass(frozen=True)
class MachineConfig:
    """Where it runs; nothing here changes what is computed beyond rounding.

    Rounding can still move a class by a sample or two, so what rounds otherwise (``NUMERICS``) belongs to the identity of a run.

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

    devices: int = 1
    nodes: int = 1
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    workers: int | None = None
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    loggers: tuple[str, ...] = ()
    report: bool = True

    def __post_init__(self) -> None:
        check_int("machine.devices", self.devices, minimum=1, maximum=MOST_PROCESSES)
        check_int("machine.nodes", self.nodes, minimum=1, maximum=LARGEST_COUNT)
        check_int("machine.threads", self.threads, minimum=0, maximum=MOST_PROCESSES)
        if self.workers is not None:
            check_int("machine.workers", self.workers, minimum=0, maximum=MOST_PROCESSES)
        check_choice("machine.accelerator", self.accelerator, ("auto", "cpu", "cuda"))
        check_choice("machine.memory_format", self.memory_format, MEMORY_FORMATS)
        for name in self.loggers:
            check_choice("machine.loggers", name, ("tensorboard", "wandb", "mlflow"))


@dataclass(frozen=True)
class RunConfig:
    """One run, whole.

    Example:
        >>> config = RunConfig(method=MethodConfig("mr2"))
        >>> config.loop.batch_size, config.method.name
        (128, 'mr2')
    """

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
        return {part.name: _plain_part(getattr(self, part.name)) for part in dataclasses.fields(self)}


def _plain_part(part: Any) -> dict[str, Any]:
    values = {item.name: getattr(part, item.name) for item in dataclasses.fields(part)}
    options = dict(values.pop("options", {}))
    return {**values, **options}


def identity(config: RunConfig) -> str:
    """Return 12 hexadecimal digits that name what a run computes, to the last bit.

    Of the machine part ``NUMERICS`` and the number of processes count: two runs that round differently are two runs. The
    configuration must be settled (:func:`classmargin.training.devices.settled`) for this to be true of it.

    Example:
        >>> identity(RunConfig()) == identity(RunConfig(machine=MachineConfig(report=False)))
        True
        >>> identity(RunConfig()) == identity(RunConfig(loop=LoopConfig(seed=1)))
        False
    """
    machine = config.machine
    numerics = {name: getattr(machine, name) for name in NUMERICS}
    parts = {**config.to_dict(), "machine": {**numerics, "processes": machine.devices * machine.nodes}}
    text = json.dumps(parts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
