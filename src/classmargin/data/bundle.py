"""A loaded data set as the rest of the package sees it: three splits and what a network needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin._checks import check_choice, check_number
from classmargin.data.images import ImageSource

Kind = Literal["images", "features", "text"]
SPLIT_NAMES = ("train", "validation", "test")
INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of one split, either in memory (``inputs``) or streamed from files (``images``).

    Attributes:
        labels: Classes, int64 ``[N]``.
        index: Stable position of each sample in the training (or test) set as distributed, int64 ``[N]``. It
            does not change with the fraction, the imbalance or the seed.
        full_size: Size of the set that ``index`` points into: buffers indexed by ``index`` need this length.
        num_classes: ``K``.
        inputs: Images ``[N, C, H, W]`` (uint8, or float32 where the files hold floats), features ``[N, d]``
            (float32) or token numbers ``[N, T]`` (int64).
        images: Encoded images, where the set is too large for memory.
    """

    labels: Tensor
    index: Tensor
    full_size: int
    num_classes: int
    inputs: Tensor | None = None
    images: ImageSource | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def take(self, kept: NDArray[np.bool_]) -> Split:
        """Return the samples that a mask ``[N]`` keeps; they keep their index."""
        rows = torch.from_numpy(np.flatnonzero(kept))
        return replace(
            self,
            labels=self.labels[rows],
            index=self.index[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            images=None if self.images is None else self.images.take(rows.numpy()),
        )

    @property
    def class_counts(self) -> Tensor:
        """Number of samples of each class, int64 ``[K]``."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    @property
    def paths(self) -> list[str] | None:
        """Names of the streamed images, or ``None`` where the samples live in memory."""
        if self.images is None:
            return None
        return [self.images.name(position) for position in range(len(self.images))]


@dataclass(frozen=True)
class Framing:
    """How photographs become squares for the network; the defaults are those of training on ImageNet from scratch.

    Attributes:
        crop_scale: Smallest and largest share of the area that a random crop keeps while training.
        centre_share: Share of the shorter side that the centre cut keeps in evaluation: 224 of 256 pixels by default.
        interpolation: ``"bilinear"`` or ``"bicubic"``, whenever images change their size.
        flip: Whether images may be mirrored while training, if the data set allows it.
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    centre_share: float = 0.875
    interpolation: str = "bilinear"
    flip: bool = True

    def __post_init__(self) -> None:
        smallest, largest = self.crop_scale
        check_number("crop_scale", smallest, above=0.0, maximum=1.0)
        check_number("crop_scale", largest, minimum=smallest, maximum=1.0)
        check_number("centre_share", self.centre_share, above=0.0, maximum=1.0)
        check_choice("interpolation", self.interpolation, INTERPOLATIONS)


@dataclass(frozen=True, eq=False)
class DataBundle:
    """A data set, split and described.

    Attributes:
        name: Catalogue name, or the name of the file or folder.
        kind: ``"images"``, ``"features"`` or ``"text"`` (token numbers).
        class_names: Names in label order.
        num_classes: ``K``.
        train: Training split, after ``fraction`` and ``imbalance``.
        validation: Validation split, never cut; the only one that may choose models. May be empty.
        test: Test split, never cut.
        mean: Mean of each channel, subtracted from images. Bytes count as numbers in [0, 1]; features are
            handed out unchanged (mean 0, std 1).
        std: Standard deviation of each channel, by which images are divided.
        input_shape: ``(C, H, W)`` or ``(d,)``.
        notes: Sentences about choices made while loading; worth printing once.
        flip: Whether a mirrored image keeps its class (false for digits).
        resize: Length of the shorter side to which a streamed image is scaled before its centre is cut out,
            or ``None`` where images are used as they are.
        framing: How images of other sizes become squares.
    """

    name: str
    kind: Kind
    class_names: tuple[str, ...]
    num_classes: int
    train: Split
    validation: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    input_shape: tuple[int, ...]
    notes: tuple[str, ...] = ()
    flip: bool = True
    resize: int | None = None
    framing: Framing = Framing()

    def split(self, name: str) -> Split:
        """Return the split called ``"train"``, ``"validation"`` or ``"test"``."""
        split: Split = getattr(self, check_choice("split_name", name, SPLIT_NAMES))
        return split

    @property
    def streamed(self) -> bool:
        """Whether images are decoded while training instead of living in memory."""
        return self.train.images is not None
