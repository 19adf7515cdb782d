"""From a configuration to the parts of a run: data, network and method by name, and the loaders between them.

The order matters: the method's needs decide the head of the network and the views of the data, the network decides size and
normalisation of the images; only then is the task known for which the method is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_int
from classmargin._distributed import rank, world_size
from classmargin._files import read_json
from classmargin.backbones import Backbone, backbone_info, create_backbone, probe_head
from classmargin.backbones.feature_cache import encoder_fingerprint
from classmargin.data import BatchLoader, DataBundle, Framing, load_data, make_loader
from classmargin.data.catalog import find_info
from classmargin.data.formats.arrow_tables import HUB_PREFIX
from classmargin.data.pixels import pixels_in_units
from classmargin.data.raw import name_some
from classmargin.methods import Method, Requirements, TaskInfo, create, requirements_of
from classmargin.methods.base import SamplerKind
from classmargin.methods.method_registry import resolve_hyperparameters, settle_hyperparameters
from classmargin.recipes.probe import feature_bundle
from classmargin.recipes.training_samples import chosen_samples, spared_classes
from classmargin.training.config import DataConfig, RunConfig
from classmargin.training.config_reader import replace_machine
from classmargin.training.devices import launched_layout, settled, usable_cores
from classmargin.training.loop import Ingredients
from classmargin.training.process_state import seed_for, seed_process
from classmargin.training.run_folder import RunFolder, write_json
from classmargin.training.run_progress import say
from classmargin.training.soft_labels import read_teacher

FEATURE_BATCH = 1024
EVALUATION_BATCH = 256
# Every network here takes images of this side; whether it takes smaller ones is tried.
SMALL_SIDE = 64


def framing_of(data: DataConfig) -> Framing:
    """Return how the configured run cuts photographs."""
    return Framing(data.crop_scale, data.centre_share, data.interpolation, data.flip)


@dataclass(frozen=True)
class BundleLoaders:
    """Batches of a loaded data set, this process's share of them."""

    bundle: DataBundle
    needs: Requirements  # what the method asked for (views, sampler)
    batch_size: int  # samples of one optimiser step over all processes
    augmentation: str  # training transform by name
    seed: int  # of order and augmentation
    rank: int = 0
    world_size: int = 1
    workers: int = 0  # processes that read streamed data
    spared: tuple[int, ...] = ()  # classes that do without the last step of the augmentation

    def training(self, *, sampler: SamplerKind | None, views: int | None, multiplicity: Tensor | None) -> BatchLoader:
        """Return shuffled, augmented training batches; None takes what the method asked for."""
        return self._loader(
            "train",
            batch_size=self.batch_size,
            training=True,
            augmentation=self.augmentation if self.bundle.kind == "images" else "none",
            spared=self.spared,
            views=views if views is not None else self.needs.views,
            sampler=sampler if sampler is not None else self.needs.sampler,
            multiplicity=multiplicity,
            seed=self.seed,
        )

    def evaluation(self, split: str) -> BatchLoader | None:
        """Return a split in index order without augmentation, or None if it has no samples."""
        if len(self.bundle.split(split)) == 0:
            return None
        return self._loader(split, batch_size=EVALUATION_BATCH * self.world_size, training=False)

    def _loader(self, split: str, **options: Any) -> BatchLoader:
        place: dict[str, Any] = {"rank": self.rank, "world_size": self.world_size, "workers": self.workers}
        return make_loader(self.bundle, split, **options, **place)


# Indices of training samples beyond this are a damaged file, not a data set.
LARGEST_SET = 2**31
# Numbers in one input: colour images of 4 700 x 4 700 pixels. A network is built for it before weights are compared.
LARGEST_INPUT = 2**26


@dataclass(frozen=True)
class ModelRecord:
    """What must be known of the data to use a trained network without them: ``model.json`` of a run folder."""

    class_names: tuple[str, ...]  # in label order
    class_counts: tuple[int, ...]  # training samples of each class
    full_size: int  # of the training set that stable indices point into
    kind: str  # what goes into the network: images, features or text
    input_shape: tuple[int, ...]  # (C, H, W), (d,) or (T,)
    mean: tuple[float, ...]  # of each channel, subtracted from images in [0, 1]
    std: tuple[float, ...]  # of each channel, by which they are then divided
    encoder: str = ""  # fingerprint of a frozen encoder whose weights are not in the checkpoint
    steps_per_epoch: int = 1
    # Where training began with the head: random, prompts (class names) or checkpoint.
    head_start: str = "random"

    @property
    def num_classes(self) -> int:
        """``K``."""
        return len(self.class_names)


def write_record(run: RunFolder, record: ModelRecord) -> None:
    """Keep the record in the run folder."""
    write_json(run.model_file, asdict(record), durable=True)


def read_record(run: RunFolder) -> ModelRecord:
    """Read the record of a run; a folder that is none, and a damaged record, are named."""
    path = run.model_file
    try:
        values = read_json(path)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        record = ModelRecord(**{**values, **lists})
        _check(record)
    except FileNotFoundError as error:
        raise ValueError(f"{run.path} is not a run folder with a trained network: no model.json") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return record


def _check(record: ModelRecord) -> None:
    """Refuse values of other types, and sizes that would ask for all memory."""
    kinds = {"class_names": str, "class_counts": int, "input_shape": int, "mean": int | float, "std": int | float}
    for name, kind in kinds.items():
        values = getattr(record, name)
        if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
            raise TypeError(f"{name} must be a list of {'text' if kind is str else 'numbers'}")
    if len(record.class_counts) != len(record.class_names):
        raise ValueError("class_counts and class_names must be of one length")
    for name in ("full_size", "steps_per_epoch"):
        check_int(name, getattr(record, name), minimum=0)
    if record.full_size > LARGEST_SET:
        raise ValueError(f"full_size must be at most {LARGEST_SET}, got {record.full_size}")
    if min(record.input_shape, default=1) < 1 or math.prod(record.input_shape) > LARGEST_INPUT:
        raise ValueError(f"input_shape must hold 1 to {LARGEST_INPUT} numbers, got {record.input_shape}")
    if not all(isinstance(text, str) for text in (record.kind, record.encoder, record.head_start)):
        raise TypeError("kind, encoder and head_start must be text")


@dataclass(frozen=True)
class RunParts:
    """Everything a run is made of."""

    config: RunConfig
    bundle: DataBundle  # as the network gets it (features for a cached probe)
    record: ModelRecord
    backbone: Backbone  # the whole network, from images to logits
    network: Backbone  # what is trained: the backbone, or its head alone for a cached probe
    method: Method
    loaders: BundleLoaders
    new_network: Callable[[], Backbone]  # builds another `network`

    def ingredients(self) -> Ingredients:
        """Return what the loop takes."""
        names, train, teacher = tuple(self.bundle.class_names), self.bundle.train, None
        if (file := self.config.data.soft_labels) is not None:
            samples = {"labels": train.labels, "index": train.index}
            teacher = read_teacher(file, **samples, full_size=train.full_size, class_names=names)
        return Ingredients(self.network, self.method, self.new_network, self.loaders, names, teacher)


def effective(config: RunConfig) -> RunConfig:
    """Return the configuration with every hyper-parameter of its method and everything that rounds written out."""
    layout = launched_layout()
    if layout is not None:  # a launcher decides how many processes there are, and that decides the last bits
        config = replace_machine(config, devices=layout[0], nodes=layout[1])
    config = settled(config, images=backbone_info(config.backbone.name).kind == "image")
    method = config.method
    options = resolve_hyperparameters(method.name, preset=method.preset, **method.options)
    options = settle_hyperparameters(
        method.name, options, epochs=config.loop.epochs, distinct_views=_views_differ(config)
    )
    return replace(config, method=replace(method, options=options))


def _views_differ(config: RunConfig) -> bool:
    """Whether two views of a sample differ: only images that are augmented while training do."""
    cached = config.backbone.mode == "probe" and config.backbone.cache
    images = backbone_info(config.backbone.name).kind == "image"
    return images and config.data.augmentation != "none" and not cached


def method_needs(config: RunConfig) -> Requirements:
    """Return what the configured method needs of data and network."""
    return requirements_of(config.method.name, preset=config.method.preset, **config.method.options)


def load_bundle(config: RunConfig) -> DataBundle:
    """Load the data at the size that the network wants."""
    data, info = config.data, backbone_info(config.backbone.name)
    size = data.image_size
    if size is None and config.backbone.mode != "scratch" and info.kind == "image" and info.input_size:
        size = info.input_size[0]
    bundle = load_data(
        data.name,
        root=None if data.root is None else Path(data.root),
        fraction=data.fraction,
        imbalance=data.imbalance,
        validation=data.validation,
        seed=data.seed,
        download=data.download,
        skip_corrupt=data.skip_corrupt,
        image_size=size,
        framing=framing_of(data),
    )
    absent = [bundle.class_names[label] for label in (bundle.test.class_counts == 0).nonzero()]
    if absent and not data.allow_absent:
        raise ValueError(
            f"{bundle.name} has no test sample of {len(absent)} of {bundle.num_classes} classes: {name_some(absent)}; "
            "set data.allow_absent=true to train nevertheless"
        )
    return chosen_samples(bundle, data)


def download_data(config: RunConfig) -> None:
    """Fetch the data of a command that trains many runs, if they have a source; once, and as no part of the runs' settings."""
    info = find_info(config.data.name)
    if config.data.name.startswith(HUB_PREFIX) or (info is not None and info.downloads):
        load_bundle(replace(config, data=replace(config.data, download=True)))


def build_network(config: RunConfig, record: ModelRecord, needs: Requirements) -> Backbone:
    """Build the network for the data, with the head the method needs."""
    info = backbone_info(config.backbone.name)
    expected = {"image": "images"}.get(info.kind, info.kind)
    if record.kind != expected:
        raise ValueError(
            f"backbone {config.backbone.name} reads {expected}, but data {config.data.name} holds {record.kind}"
            + {"features": "; use linear or mlp", "text": "; use minilm or hf-text"}.get(record.kind, "")
        )
    images = record.kind == "images"
    options, head = dict(config.backbone.options), config.backbone.head
    if needs.head != "linear":  # where the method does with a linear one, any head will do
        if head not in (None, needs.head):
            raise ValueError(f"method {config.method.name} needs a {needs.head} head, not backbone.head={head!r}")
        head = needs.head
    if head == needs.head and needs.head_options:
        options["head_options"] = {**needs.head_options, **options.get("head_options", {})}
    arguments: dict[str, Any] = {
        "num_classes": record.num_classes,
        "in_channels": record.input_shape[0] if images else 1,
        "input_size": record.input_shape[1:] if images else record.input_shape,
        "head": head,
        "pretrained": config.backbone.pretrained,
        "checkpoint": config.backbone.checkpoint,
        **options,
    }
    backbone = _create(config.backbone.name, record.class_names, info.options, arguments)
    if config.backbone.mode == "probe":
        backbone.freeze_encoder()
    if images:
        _check_takes(backbone, record.input_shape)
    return backbone


def _check_takes(backbone: Backbone, shape: tuple[int, ...]) -> None:
    """Refuse images that are too small for the network, before it is trained on the first batch of them."""
    if min(shape[1:]) >= SMALL_SIDE:
        return
    was_training = backbone.training
    try:
        # Random numbers that a network draws even now must not change those of the training.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            backbone.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, LookupError, ArithmeticError) as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"backbone {backbone.name} does not take images of {shape[1]} x {shape[2]} pixels ({words}); use larger images, "
            "or another backbone"
        ) from error
    finally:
        backbone.train(was_training)


def _create(name: str, class_names: tuple[str, ...], known: list[str], arguments: dict[str, Any]) -> Backbone:
    """Build a network; one that can start its head from class names (CLIP) does so where it can."""
    if "class_names" not in known or "class_names" in arguments or arguments["checkpoint"] is None:
        return create_backbone(name, **arguments)
    try:
        return create_backbone(name, class_names=list(class_names), **arguments)
    except ValueError as error:
        takes_prompts = arguments["head"] in (None, "cosine")  # that of lgm, for one, holds means of features
        if takes_prompts and arguments.get("head_start") == "prompts":
            raise
        backbone = create_backbone(name, **{**arguments, "head_start": "auto"})
        say(f"the head of {name} starts at random: {error}")
        return backbone


def _check_inputs(config: RunConfig, bundle: DataBundle, backbone: Backbone) -> None:
    """Refuse tokens without an embedding, mixed texts, and numbers that are not pixels in [0, 1] where the network scales them."""
    if bundle.kind == "text" and config.data.mix != "none":
        raise ValueError(f"data.mix must be none for texts, got {config.data.mix!r}")
    encoder: Any = backbone.encoder
    for name in ("train", "validation", "test"):
        inputs = bundle.split(name).inputs
        if inputs is None or inputs.numel() == 0:
            continue
        low, high = inputs.min().item(), inputs.max().item()
        if bundle.kind == "text" and high >= encoder.vocabulary:
            raise ValueError(
                f"{config.backbone.name} knows {encoder.vocabulary} tokens, but the {name} part of {bundle.name} holds token "
                f"{high}; tokenize it with this network's tokenizer"
            )
        if backbone.input_mean is not None and not pixels_in_units(inputs):
            raise ValueError(
                f"{backbone.name} expects images as bytes or as numbers between 0 and 1, got numbers between {low:g} and "
                f"{high:g} in {bundle.name}"
            )


def build_run(config: RunConfig) -> RunParts:
    """Build data, network and method of a run; weights depend on ``loop.seed`` alone."""
    needs = method_needs(config)
    bundle = load_bundle(config)
    counts, shape = tuple(bundle.train.class_counts.tolist()), tuple(bundle.input_shape)
    size, scaling = bundle.train.full_size, (tuple(bundle.mean), tuple(bundle.std))
    record = ModelRecord(tuple(bundle.class_names), counts, size, bundle.kind, shape, *scaling)
    seed_process(config.loop.seed, "weights", 0)
    backbone = build_network(config, record, needs)
    _check_inputs(config, bundle, backbone)
    if backbone.input_mean is not None and backbone.input_std is not None:
        bundle = replace(bundle, mean=backbone.input_mean, std=backbone.input_std)
        record = replace(record, mean=backbone.input_mean, std=backbone.input_std)
    record = replace(record, head_start=backbone.head_start)
    network, cached = backbone, backbone.encoder_frozen and config.backbone.cache
    if cached:
        record = replace(record, encoder=encoder_fingerprint(backbone))
        device = "cuda" if config.machine.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        bundle = feature_bundle(bundle, backbone, workers=_workers(config, bundle), device=device)
        network = probe_head(backbone)

    def new_network() -> Backbone:
        fresh = build_network(config, record, needs)
        return probe_head(fresh) if cached else fresh

    place, spared = (rank(), world_size(), _workers(config, bundle)), spared_classes(bundle, config.data)
    seed, batch_size = seed_for(config.loop.seed, "data"), config.loop.batch_size
    loaders = BundleLoaders(bundle, needs, batch_size, config.data.augmentation, seed, *place, spared)
    steps = len(loaders.training(sampler=None, views=None, multiplicity=None))
    record = replace(record, steps_per_epoch=steps)
    labels = torch.full((bundle.train.full_size,), -1, dtype=torch.long)
    labels[bundle.train.index] = bundle.train.labels
    task = TaskInfo(
        num_classes=bundle.num_classes,
        feature_dim=network.feature_dim,
        class_counts=bundle.train.class_counts,
        labels=labels,
        epochs=config.loop.epochs,
        steps_per_epoch=steps,
        new_model=new_network,
        frozen_features=frozen_features(bundle, network),
        distinct_views=_views_differ(config),
    )
    seed_process(config.loop.seed, "method", 0)
    method = create(config.method.name, task, preset=config.method.preset, **config.method.options)
    for stage in method.stages(config.loop.epochs):
        # A batch size that a later stage cannot work with must show now, not after hours.
        loaders.training(sampler=stage.sampler, views=stage.views, multiplicity=None)
    return RunParts(config, bundle, record, backbone, network, method, loaders, new_network)


def _workers(config: RunConfig, bundle: DataBundle) -> int:
    if config.machine.workers is not None:
        return config.machine.workers
    return max(1, usable_cores() // world_size()) if bundle.streamed else 0


def frozen_features(bundle: DataBundle, network: Backbone) -> Callable[[], Iterator[tuple[Tensor, Tensor]]] | None:
    """Return what walks over the features of the training samples, if nothing that is trained makes them."""
    if bundle.kind != "features" or any(True for _ in network.encoder.parameters()):
        return None

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in make_loader(bundle, "train", batch_size=FEATURE_BATCH, training=False).epoch(0):
            with torch.no_grad():
                yield network(batch.inputs).features, batch.labels

    return batches
