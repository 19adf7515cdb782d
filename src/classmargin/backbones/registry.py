"""Names to networks.

A network registers one builder of its encoder with a frozen record about it; listing, documentation and
:func:`create_backbone` read the same record.

    @register_backbone("my-net", title="My net", kind="image", parameters=1234, parameters_for=10)
    def build_my_net(*, in_channels: int, input_size: tuple[int, ...] | None, width: int = 64) -> nn.Module:
    ...

The builder returns a module with ``feature_dim``. Its further keywords are the options of the network; a
keyword ``checkpoint`` receives the path of the weights for builders that read their shape from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import nn

from classmargin._checks import check_int, did_you_mean
from classmargin.backbones.checkpoints import (
    Converter,
    StateDict,
    convert_own,
    is_own_format,
    load_weights,
    read_state_dict,
)
from classmargin.backbones.contract import Backbone
from classmargin.backbones.heads import check_options, option_names
from classmargin.backbones.pretrained import grey_statistics

Kind = Literal["image", "features", "text"]
Finisher = Callable[..., None]
_BUILDER_ARGUMENTS = ("in_channels", "input_size", "checkpoint")
_FINISHER_ARGUMENTS = ("backbone", "state", "checkpoint", "head_options")
_BACKBONE_OPTIONS = ("head_options", "normalize_features")


@dataclass(frozen=True)
class BackboneInfo:
    """What is known about a network before it is built.

    Attributes:
        name: Name for :func:`create_backbone`.
        title: Name for people.
        kind: What goes in: ``image``, ``features`` or ``text`` (token numbers).
        build: Makes the encoder.
        parameters: Number of parameters with a linear head for ``parameters_for`` classes; None where it
            depends on the options.
        parameters_for: Number of classes K of that count; None: the encoder alone was counted.
        paper: Where it was published.
        input_size: Image size it was made for; other sizes work unless it says otherwise.
        head: Its default head.
        normalize_features: Whether features have length 1.
        input_mean: Channel means its inputs must be normalised with; None: those of the data.
        input_std: Channel deviations, likewise.
        weights: Where pretrained weights come from; empty if there are none.
        extra: Extra of this package that it needs; empty if none.
        bundled: Finds weights that are installed with a package, for ``pretrained=True``.
        convert: Renames the tensors of published checkpoints; None where the builder reads them itself.
        finish: Runs after the weights are loaded, unless they brought a head: starts it from class names.
    """

    name: str
    title: str
    kind: Kind
    build: Callable[..., nn.Module] = field(repr=False)
    parameters: int | None = None
    parameters_for: int | None = None
    paper: str = ""
    input_size: tuple[int, ...] | None = None
    head: str = "linear"
    normalize_features: bool = False
    input_mean: tuple[float, ...] | None = None
    input_std: tuple[float, ...] | None = None
    weights: str = ""
    extra: str = ""
    bundled: Callable[[], Path] | None = field(default=None, repr=False)
    convert: Converter | None = field(default=convert_own, repr=False)
    finish: Finisher | None = field(default=None, repr=False)

    @property
    def options(self) -> list[str]:
        """Names of the options that :func:`create_backbone` passes on."""
        names = option_names(self.build, skip=_BUILDER_ARGUMENTS)
        if self.finish is not None:
            names += option_names(self.finish, skip=_FINISHER_ARGUMENTS)
        return [*dict.fromkeys(names), *_BACKBONE_OPTIONS]


_BACKBONES: dict[str, BackboneInfo] = {}
_FAMILIES: dict[str, Callable[[str], BackboneInfo]] = {}

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def register_backbone(name: str, **record: Any) -> Callable[[Builder], Builder]:
    """Return a decorator that makes an encoder builder known under ``name``.

    Args:
        name: Name for :func:`create_backbone`; must be new.
        **record: The other fields of :class:`BackboneInfo`.
    """

    def register(build: Builder) -> Builder:
        if name in _BACKBONES:
            raise ValueError(f"a backbone named {name!r} is registered already")
        _BACKBONES[name] = BackboneInfo(name=name, build=build, **record)
        return build

    return register


def register_family(prefix: str, describe: Callable[[str], BackboneInfo]) -> None:
    """Make every name ``prefix:…`` known, for adapters of libraries with networks of their own.

    Args:
        prefix: Word before the colon, e.g. ``timm``.
        describe: Record of one network, given the word after the colon; raises ``ValueError`` for an
            unknown one.
    """
    if prefix in _FAMILIES:
        raise ValueError(f"a family of backbones named {prefix!r} is registered already")
    _FAMILIES[prefix] = describe


def list_backbones() -> list[BackboneInfo]:
    """Return the record of every named network, in the order of registration.

    Example:
        >>> "resnet32" in [info.name for info in list_backbones()]
        True
    """
    return list(_BACKBONES.values())


def backbone_info(name: str) -> BackboneInfo:
    """Return the record of one network.

    Raises:
        ValueError: Unknown name; the message suggests the nearest one.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _FAMILIES:
        return _FAMILIES[prefix](rest)
    if name not in _BACKBONES:
        raise ValueError(
            f"unknown backbone {name!r}{did_you_mean(name, _BACKBONES)}; "
            f"known are {', '.join(sorted(_BACKBONES))}"
        )
    return _BACKBONES[name]


def create_backbone(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    input_size: int | Sequence[int] | None = None,
    head: str | None = None,
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Backbone:
    """Return a network by name, from scratch or with weights.

    Args:
        name: One of :func:`list_backbones`.
        num_classes: Number of classes K.
        in_channels: Channels of the images; ignored for features and text.
        input_size: Height and width of the images (one number for squares), or the size d of feature
            inputs. Left out: the size the network was made for.
        head: ``"linear"``, ``"cosine"`` or ``"gaussian"``; left out: the network's default head.
        pretrained: Start from the weights that are installed with a package.
        checkpoint: Start from this file or folder: the published format of the network, or a saved
            :class:`Backbone`.
        **options: Options of the network (``BackboneInfo.options``), e.g. ``dropout``; and ``head_options``,
            ``normalize_features``.

    Raises:
        ValueError: Unknown name or option, weights that are not there or do not fit.

    Example:
        >>> backbone = create_backbone("resnet20", num_classes=10)
        >>> sum(parameter.numel() for parameter in backbone.parameters())
        269722
    """
    info = backbone_info(name)
    check_int("num_classes", num_classes, minimum=1)
    check_int("in_channels", in_channels, minimum=1)
    check_options(f"backbone {name!r}", options, info.options)
    path = _weights_path(info, pretrained, checkpoint)
    size = _size(info, input_size)
    encoder = _build_encoder(info, in_channels, size, path, options)
    backbone = Backbone(
        encoder,
        feature_dim=_feature_dim(info, encoder),
        num_classes=num_classes,
        head=head or info.head,
        head_options=options.get("head_options"),
        normalize_features=options.get("normalize_features", info.normalize_features),
        name=name,
        input_size=size,
        **_input_statistics(info, encoder, in_channels),
    )
    # A builder leaves in found_options what it found beside the weights and the weights do not show.
    given = {name: options[name] for name in option_names(info.build) if name in options}
    backbone.encoder_options = {**getattr(encoder, "found_options", {}), **given}
    _fill(backbone, info, path, options)
    return backbone


def _size(info: BackboneInfo, input_size: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if input_size is None:
        return info.input_size
    single = 1 if info.kind == "features" else 2
    size = (input_size,) * single if isinstance(input_size, int) else tuple(input_size)
    for side in size:
        check_int("input_size", side, minimum=1)
    if info.kind != "text" and len(size) != single:
        raise ValueError(f"input_size of {info.name!r} must have {single} numbers, got {input_size!r}")
    return size


def _input_statistics(info: BackboneInfo, encoder: nn.Module, in_channels: int) -> dict[str, Any]:
    mean = getattr(encoder, "input_mean", info.input_mean)
    std = getattr(encoder, "input_std", info.input_std)
    if mean is None or std is None or in_channels not in (1, len(mean)):
        return {"input_mean": None, "input_std": None}
    if in_channels == 1:
        mean, std = grey_statistics(mean, std)
    return {"input_mean": mean, "input_std": std}


def _weights_path(info: BackboneInfo, pretrained: bool, checkpoint: str | Path | None) -> Path | None:
    if checkpoint is not None:
        path = Path(checkpoint)
        if not path.exists():
            raise FileNotFoundError(f"checkpoint {path} of {info.name!r} does not exist.{_where(info)}")
        return path
    if not pretrained:
        return None
    if info.bundled is not None:
        return info.bundled()
    raise ValueError(
        f"backbone {info.name!r} comes without weights, and nothing is downloaded.{_where(info)}"
    )


def _where(info: BackboneInfo) -> str:
    if not info.weights:
        return " No pretrained weights are known for it: pass checkpoint= with a file of your own."
    return f" Get {info.weights} and pass the path as checkpoint= (--set backbone.checkpoint=PATH)."


def _build_encoder(
    info: BackboneInfo,
    in_channels: int,
    size: tuple[int, ...] | None,
    path: Path | None,
    options: Mapping[str, Any],
) -> nn.Module:
    names = option_names(info.build)
    given = {"in_channels": in_channels, "input_size": size, "checkpoint": path, **options}
    return info.build(**{name: value for name, value in given.items() if name in names})


def _feature_dim(info: BackboneInfo, encoder: nn.Module) -> int:
    feature_dim = getattr(encoder, "feature_dim", None)
    if not isinstance(feature_dim, int):
        raise TypeError(f"the builder of backbone {info.name!r} must return a module with an int feature_dim")
    return feature_dim


def _fill(backbone: Backbone, info: BackboneInfo, path: Path | None, options: Mapping[str, Any]) -> None:
    state: StateDict | None = None
    head_is_loaded = False
    if path is not None and info.convert is not None:
        state = read_state_dict(path)
        own = is_own_format(state)
        weights = convert_own(state) if own else info.convert(state)
        head_is_loaded = load_weights(backbone, weights, source=str(path), own=own)
        backbone.head_start = "checkpoint" if head_is_loaded else "random"
    if info.finish is not None and not head_is_loaded:
        names = option_names(info.finish)
        given = {"checkpoint": path, **options}
        info.finish(backbone, state, **{name: value for name, value in given.items() if name in names})
