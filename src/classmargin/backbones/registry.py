"""Names to networks, and what encoders with published weights share: input statistics, grey images, other image sizes.

    @register_backbone("my-net", title="My net", kind="image", parameters=1234, parameters_for=10)
    def build_my_net(*, in_channels: int, input_size: tuple[int, ...] | None, width: int = 64) -> nn.Module:
    ...

The builder returns a module with ``feature_dim``. Its further keywords are the options of the network; ``checkpoint`` is the
path of the weights. Nothing is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_int, did_you_mean
from classmargin.backbones.checkpoints import Converter, convert_own, is_own_format, load_weights, read_state_dict
from classmargin.backbones.contract import Backbone
from classmargin.backbones.heads import check_options, option_names

Kind = Literal["image", "features", "text"]
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
    input_size: tuple[int, ...] | None = None
    head: str = "linear"
    normalize_features: bool = False
    input_mean: tuple[float, ...] | None = None
    input_std: tuple[float, ...] | None = None
    weights: str = ""
    extra: str = ""
    bundled: Callable[[], Path] | None = field(default=None, repr=False)
    convert: Converter | None = field(default=convert_own, repr=False)
    finish: Callable[..., None] | None = field(default=None, repr=False)

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
        describe: Returns the record of the network of the name after the colon; ``ValueError`` for an unknown one.
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
    """Return the record of one network; of an unknown one a ``ValueError`` suggests the nearest."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _FAMILIES:
        return _FAMILIES[prefix](rest)
    if name not in _BACKBONES:
        raise ValueError(
            f"unknown backbone {name!r}{did_you_mean(name, _BACKBONES)}; known are {', '.join(sorted(_BACKBONES))}"
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
    encoder = _call(info.build, in_channels=in_channels, input_size=size, checkpoint=path, **options)
    backbone = Backbone(
        encoder,
        feature_dim=encoder.feature_dim,
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
    state, head_is_loaded = None, False
    if path is not None and info.convert is not None:
        state = read_state_dict(path)
        own = is_own_format(state)
        weights = convert_own(state) if own else info.convert(state)
        head_is_loaded = load_weights(backbone, weights, source=str(path), own=own)
        backbone.head_start = "checkpoint" if head_is_loaded else "random"
    if info.finish is not None and not head_is_loaded:
        _call(info.finish, backbone, state, checkpoint=path, **options)
    return backbone


def _call(function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Any:
    """Call a builder with those of the keywords that it knows."""
    names = option_names(function)
    return function(*arguments, **{name: value for name, value in given.items() if name in names})


def _size(info: BackboneInfo, input_size: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if input_size is None:
        if info.kind == "features":
            raise ValueError(f"backbone {info.name!r} needs input_size, the number of features of an input")
        return info.input_size
    single = 1 if info.kind == "features" else 2
    given = (input_size,) * single if isinstance(input_size, int) else input_size
    size = tuple(check_int("input_size", side, minimum=1) for side in given)
    if info.kind != "text" and len(size) != single:
        raise ValueError(f"input_size of {info.name!r} must have {single} numbers, got {input_size!r}")
    return size


def _input_statistics(info: BackboneInfo, encoder: nn.Module, in_channels: int) -> dict[str, Any]:
    mean = getattr(encoder, "input_mean", info.input_mean)
    std = getattr(encoder, "input_std", info.input_std)
    if mean is None or std is None or in_channels not in (1, len(mean)):
        return {}
    return {
        "input_mean": _grey(mean) if in_channels == 1 else mean,
        "input_std": _grey(std) if in_channels == 1 else std,
    }


def _weights_path(info: BackboneInfo, pretrained: bool, checkpoint: str | Path | None) -> Path | None:
    where = " No pretrained weights are known for it: pass checkpoint= with a file of your own."
    if info.weights:
        where = f" Get {info.weights} and pass the path as checkpoint= (--set backbone.checkpoint=PATH)."
    if checkpoint is not None:
        path = Path(checkpoint)
        if not path.exists():
            raise FileNotFoundError(f"checkpoint {path} of {info.name!r} does not exist.{where}")
        return path
    if not pretrained:
        return None
    if info.bundled is not None:
        return info.bundled()
    raise ValueError(f"backbone {info.name!r} comes without weights, and nothing is downloaded.{where}")


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def _grey(statistics: Sequence[float]) -> tuple[float]:
    """Return the mean (or deviation) that grey images are normalised with for a colour encoder."""
    return (sum(statistics) / len(statistics),)


class GreyToColour(nn.Module):
    """Repeats a grey channel and moves it from the grey to the colour normalisation of an encoder, exactly."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        (grey_mean,), (grey_std,) = _grey(mean), _grey(std)
        means, stds = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", (grey_std / stds).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", ((grey_mean - means) / stds).view(1, -1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return images ``[B, 3, H, W]`` from ``[B, 1, H, W]``."""
        return inputs * self.scale + self.shift


def colour_adapter(name: str, in_channels: int, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Return what turns images of ``in_channels`` channels into the three an encoder was trained on."""
    if in_channels not in (1, 3):
        raise ValueError(f"in_channels of {name!r} must be 1 or 3, got {in_channels}")
    return nn.Identity() if in_channels == 3 else GreyToColour(mean, std)


def resize_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return position embeddings ``[1 + rows · columns, d]`` (class token, square grid) for another grid, interpolated."""
    side = round((table.shape[0] - 1) ** 0.5)
    if side * side != table.shape[0] - 1 or (side, side) == grid:
        return table
    first, patches = table[:1], table[1:].float()
    image = patches.T.reshape(1, -1, side, side)
    resized = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([first, resized.flatten(2)[0].T.to(table.dtype)])


def patch_grid(input_size: Sequence[int], patch_size: int) -> tuple[int, int]:
    """Return how many patches fit into an image, down and across; it must be a whole number of them."""
    height, width = input_size
    if height % patch_size or width % patch_size:
        raise ValueError(f"input_size must be a multiple of {patch_size}, got {height}x{width}")
    return height // patch_size, width // patch_size
