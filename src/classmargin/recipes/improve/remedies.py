"""The ladder of remedies, cheap ones first: what each changes, what it costs, what it risks, and for which data it is.

Most remedies are settings that are laid over those of the tuned baseline; the others say by their ``kind`` which step of the search
makes them. Adding one of settings is one entry in :data:`REMEDIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from classmargin._checks import check_choice
from classmargin.backbones import backbone_info, create_backbone
from classmargin.data import DataBundle
from classmargin.methods import requirements_of
from classmargin.training.config import MethodConfig, RunConfig
from classmargin.training.config_reader import with_values

Tables = Mapping[str, Mapping[str, Any]]
# Parts of the training samples that take turns to be predicted by a network that has not seen them.
FOLDS = 3
# What is left of an augmentation for the classes that ``data.spared_classes`` names.
WEAKER = {"standard": "none", "randaugment": "standard", "autoaugment": "standard"}
# Classes are unbalanced where the largest has so many times the samples of the smallest.
UNBALANCED = 1.5


@dataclass(frozen=True)
class Remedy:
    """One thing that may help."""

    name: str  # on the command line
    title: str  # in tables
    changes: str
    risk: str
    kind: Literal["settings", "tuning", "labels", "augmentation", "ensemble", "distillation", "offsets"] = "settings"
    cost: float = 1.0  # training time relative to a run of the baseline
    settings: Callable[[RunConfig, DataBundle], Tables] = lambda config, bundle: {}  # laid over the tuned baseline
    needs: tuple[Callable[[RunConfig, DataBundle], str], ...] = ()  # each says why the remedy is unfit, or nothing
    default: bool = True  # whether it is tried without being asked for

    def unfit(self, config: RunConfig, bundle: DataBundle) -> str:
        """Return why it cannot be used with a configuration and data; empty where it can."""
        return next(filter(None, (need(config, bundle) for need in self.needs)), "")


def find_remedies(words: str | Collection[str]) -> list[Remedy]:
    """Return the remedies of ``default``, ``all`` or a list of names, in the order of the ladder."""
    if words in ("default", "all"):
        return [remedy for remedy in REMEDIES.values() if remedy.default or words == "all"]
    names = words.split(",") if isinstance(words, str) else list(words)
    wanted = [name.strip() for name in names if name.strip()]
    for name in wanted:
        check_choice("remedies", name, ("default", "all", *REMEDIES))
    if not wanted:
        raise ValueError("remedies must name at least one remedy, got none")
    return [remedy for remedy in REMEDIES.values() if remedy.name in wanted]


def lay(config: RunConfig, tables: Tables) -> RunConfig:
    """Return a configuration with settings on top; hyper-parameters of another method do not carry over."""
    name = tables.get("method", {}).get("name", config.method.name)
    if name != config.method.name:
        config = replace(config, method=MethodConfig(name))
    return with_values(config, tables)


def tuning_steps(config: RunConfig) -> list[list[tuple[str, Tables]]]:
    """Return what is tried to tune the baseline: the steps one after another, the values of a step side by side."""
    rate, decay, more = config.optimizer.learning_rate, config.optimizer.weight_decay, 2 * config.loop.epochs
    rates = (rate * 3, rate / 3, rate * 10)
    decays = (decay / 10, decay * 10) if decay else (1e-4, 1e-2)
    return [
        [(f"learning rate {value:.2g}", {"optimizer": {"learning_rate": value}}) for value in rates],
        [
            *((f"weight decay {value:.2g}", {"optimizer": {"weight_decay": value}}) for value in decays),
            (f"{more} epochs", {"loop": {"epochs": more}}),
        ],
    ]


# What a remedy needs


def _images(config: RunConfig, bundle: DataBundle) -> str:
    cached = config.backbone.mode == "probe" and config.backbone.cache
    return "" if bundle.kind == "images" and not cached else "for images that a network is trained on"


def _soft_labels(config: RunConfig, bundle: DataBundle) -> str:
    soft = requirements_of(config.method.name).soft_labels
    return "" if soft else f"the method {config.method.name} needs one class per sample"


def _unbalanced(config: RunConfig, bundle: DataBundle) -> str:
    counts = bundle.train.class_counts
    return "" if int(counts.max()) >= UNBALANCED * max(int(counts.min()), 1) else "for unbalanced classes"


def _augmentation(config: RunConfig, bundle: DataBundle) -> str:
    return "" if config.data.augmentation in WEAKER else "the baseline augments nothing"


def _samples_for_folds(config: RunConfig, bundle: DataBundle) -> str:
    few = int(bundle.train.class_counts.min()) < 2 * FOLDS
    return f"needs {2 * FOLDS} samples per class" if few else ""


def _weights(config: RunConfig, bundle: DataBundle) -> str:
    network = config.backbone
    if bundle.kind != "images" or network.pretrained or network.checkpoint:
        return "for networks of images from scratch"
    channels, *sides = bundle.input_shape
    size = tuple(backbone_info(network.name).input_size or sides)
    shape: dict[str, Any] = {"num_classes": bundle.num_classes, "in_channels": channels, "input_size": size}
    try:
        create_backbone(network.name, **shape, pretrained=True, **dict(network.options))
    except (ValueError, TypeError, ImportError, OSError, RuntimeError):
        return f"no weights of {network.name} at hand"
    return ""


# What a remedy lays over the baseline


def _fixed(**tables: Mapping[str, Any]) -> Callable[[RunConfig, DataBundle], Tables]:
    return lambda config, bundle: tables


def _moving_average(config: RunConfig, bundle: DataBundle) -> Tables:
    """Average over the last twentieth of the steps, whatever their number."""
    steps = config.loop.epochs * len(bundle.train) / config.loop.batch_size
    return {"loop": {"ema_decay": round(min(max(1.0 - 20.0 / steps, 0.8), 0.9998), 5), "swa_start": None}}


def _late_average(config: RunConfig, bundle: DataBundle) -> Tables:
    """Average late epochs; the weights must still move then."""
    rate = {"minimum": config.optimizer.learning_rate / 10} if config.schedule.name == "cosine" else {}
    return {"loop": {"swa_start": 0.75, "ema_decay": None}, "schedule": rate}


def _published_weights(config: RunConfig, bundle: DataBundle) -> Tables:
    rate = config.optimizer.learning_rate / 10
    return {"backbone": {"pretrained": True, "mode": "fine-tune"}, "optimizer": {"learning_rate": rate}}


# A table, set by hand: name, title, changes, risk; then what is particular.
# fmt: off
_LADDER = (
    Remedy("tuning", "Tuned baseline", "learning rate, weight decay and epochs of the baseline",
           "none; every other remedy is laid over its result and compared with it", kind="tuning"),
    Remedy("mr2", "MR²", "a representation margin on standardised features, and label smoothing 0.1",
           "probabilities are less sure", cost=1.2, settings=_fixed(method={"name": "mr2"})),
    Remedy("label-smoothing", "Label smoothing", "targets of 0.9 instead of 1", "probabilities are less sure",
           settings=_fixed(method={"name": "erm", "label_smoothing": 0.1})),
    Remedy("mixup", "Mixup", "trains on mixtures of two samples", "underfits short trainings",
           settings=_fixed(data={"mix": "mixup", "mix_alpha": 0.4}), needs=(_soft_labels,)),
    Remedy("cutmix", "CutMix", "pastes boxes of other images", "underfits short trainings; hides small objects",
           settings=_fixed(data={"mix": "cutmix"}), needs=(_images, _soft_labels)),
    Remedy("strong-augmentation", "RandAugment", "stronger augmentation", "may turn a class into another",
           settings=_fixed(data={"augmentation": "randaugment"}), needs=(_images,)),
    Remedy("class-augmentation", "Augmentation by class",
           "drops an augmentation for the classes that are better off without it on validation",
           "the same samples choose the classes and judge them", kind="augmentation", cost=2.0,
           needs=(_images, _augmentation)),
    Remedy("swa", "SWA", "averages the weights of late epochs", "none where the learning rate is large enough then",
           settings=_late_average),
    Remedy("ema", "EMA", "keeps a moving average of the weights", "little effect", settings=_moving_average),
    Remedy("logit-adjustment", "Logit adjustment", "adds the log frequency of each class to its logit in training",
           "frequent classes lose", settings=_fixed(method={"name": "logit-adjustment"}), needs=(_unbalanced,)),
    Remedy("pretrained", "Pretrained weights", "starts from published weights instead of at random",
           "inherits what the weights were trained on", cost=2.0, settings=_published_weights, needs=(_weights,)),
    Remedy("mr2-plain", "MR² without smoothing", "the representation margin alone", "little effect", cost=1.2,
           settings=_fixed(method={"name": "mr2", "label_smoothing": 0.0})),
    Remedy("relabel", "Doubted samples relabelled",
           f"training samples whose label {FOLDS} networks that have not seen them doubt get their probabilities as labels",
           "hard samples with right labels are taken for wrong ones", kind="labels", cost=1.0 + (FOLDS - 1),
           needs=(_samples_for_folds, _soft_labels)),
    Remedy("drop-doubted", "Doubted samples left out",
           "training samples whose label those networks doubt are not trained on",
           "hard samples with right labels are lost", kind="labels", cost=1.0 + (FOLDS - 1),
           needs=(_samples_for_folds,)),
    Remedy("fair-dro", "FairDRO", "weighs classes by their training loss", "easy classes and the mean lose", cost=1.3,
           settings=_fixed(method={"name": "fair-dro"}), default=False),
    Remedy("group-dro", "Group DRO", "raises the weight of the class with the largest loss",
           "easy classes and the mean lose", settings=_fixed(method={"name": "group-dro"}), default=False),
    Remedy("ensemble", "Ensemble", "averages the probabilities of several runs",
           "prediction takes as many times longer", kind="ensemble", cost=0.0),
    Remedy("distillation", "Distilled ensemble", "one network learns the probabilities of the best ensemble",
           "keeps a part of the gain only", kind="distillation", needs=(_soft_labels,)),
    Remedy("offsets", "Class offsets",
           "shifts the borders between classes by a number for each class, fitted on validation",
           "a trade: what one class gains its neighbours pay", kind="offsets", cost=0.0),
)
# fmt: on
REMEDIES = {remedy.name: remedy for remedy in _LADDER}
