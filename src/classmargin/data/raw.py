"""What a reader of a file format hands over, the check that refuses what cannot be trained on, and the errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from classmargin.data.images import ImageSource

IntArray = npt.NDArray[np.int64]
# Arrays and tables live in memory; what is larger than this belongs into files that are streamed.
LARGEST = 64 * 2**30


class DataNotFoundError(FileNotFoundError, ValueError):
    """The data set is not on this machine; the message says where to get it and where to put it."""


class DataError(ValueError):
    """The files are there, but what they hold cannot be used."""


class CorruptImageError(DataError):
    """At least one image file cannot be decoded; the message names and counts them."""


class MixedSizeError(DataError):
    """The images differ in size and no ``image_size`` was given."""


def name_some(names: Sequence[object], *, limit: int = 5) -> str:
    """Return the first few of ``names`` and how many more there are."""
    shown = ", ".join(str(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


@dataclass(frozen=True, eq=False)
class RawPart:
    """Samples of one part: inputs ``[N, C, H, W]`` (uint8 or float), ``[N, d]`` or ``[N, T]`` (int64), or encoded ``images``.

    ``index`` is the position of each sample in the part as distributed, which has ``full_size`` samples.
    """

    labels: npt.NDArray[Any]
    inputs: npt.NDArray[Any] | None = None
    images: ImageSource | None = None
    index: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    full_size: int = -1

    def __post_init__(self) -> None:
        if self.full_size < 0:
            object.__setattr__(self, "index", np.arange(len(self.labels), dtype=np.int64))
            object.__setattr__(self, "full_size", len(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: IntArray) -> RawPart:
        """Return the samples at ``rows``; they keep their index."""
        return replace(
            self,
            labels=self.labels[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            images=None if self.images is None else self.images.take(rows),
            index=self.index[rows],
        )


@dataclass(frozen=True, eq=False)
class RawData:
    """All parts of a data set as a reader found them; classes without names are numbered."""

    train: RawPart
    validation: RawPart | None = None
    test: RawPart | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def parts(self) -> dict[str, RawPart]:
        """Return the parts that exist, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    def with_parts(self, parts: dict[str, RawPart], *notes: str) -> RawData:
        """Return the same data set with other parts and further notes."""
        return RawData(**parts, class_names=self.class_names, notes=(*self.notes, *notes))


def check_raw(raw: RawData) -> RawData:
    """Return ``raw`` with int64 labels and class names, or refuse what cannot be trained on in a DataError."""
    parts = {name: _check_part(name, part) for name, part in raw.parts().items()}
    # Bytes count as numbers in [0, 1], other numbers as they are: parts of two types would not fit together.
    kinds = {name: f"{p.inputs.dtype} {p.inputs.shape[1:]}" for name, p in parts.items() if p.inputs is not None}
    if len(set(kinds.values())) > 1:
        text = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise DataError(f"all parts must have inputs of one type and shape, got {text}")
    train = parts["train"]
    if len(train) == 0:
        raise DataError("the training part is empty")
    class_names = raw.class_names
    if not class_names:
        low, high = int(train.labels.min()), int(train.labels.max())
        if low < 0:
            raise DataError(f"labels must be 0 or more, got {low} in the training part")
        if high >= len(train):  # before a name is made for each: one broken label would take all memory
            raise DataError(
                f"labels must be 0 .. K-1 without gaps, got label {high} in a training part of {len(train)} samples"
            )
        class_names = tuple(str(number) for number in range(high + 1))
    class_names, notes = _different_names(class_names)
    for name, part in parts.items():
        _check_classes(name, part.labels, class_names)
        if name != "train":
            notes += missing_classes(name, part, class_names)
    return RawData(**parts, class_names=class_names, notes=(*raw.notes, *notes))


def _check_part(name: str, part: RawPart) -> RawPart:
    labels, inputs = part.labels, part.inputs
    if labels.ndim != 1:
        raise DataError(f"labels of the {name} part must have shape [N], got {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels of the {name} part must be integers, got dtype {labels.dtype} (such as {labels[:3].tolist()})"
        )
    samples = next((len(given) for given in (part.images, inputs) if given is not None), 0)
    if samples != len(labels):
        raise DataError(f"the {name} part has {samples} inputs but {len(labels)} labels")
    if inputs is not None and np.issubdtype(inputs.dtype, np.floating):
        bad_rows: list[int] = []
        for start in range(0, samples, 4096):  # a mask of a whole large array would double the memory
            block = inputs[start : start + 4096]
            bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
            bad_rows.extend((np.flatnonzero(bad) + start).tolist())
        if bad_rows:
            raise DataError(
                f"{len(bad_rows)} of {samples} inputs of the {name} part hold NaN or infinity: rows {name_some(bad_rows)}"
            )
    return replace(part, labels=labels.astype(np.int64))


def _different_names(names: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return names that tell the classes apart (ImageNet has two cranes, a bird and a machine), and notes."""
    times = Counter(names)
    repeated = [name for name, count in times.items() if count > 1]
    if not repeated:
        return names, []
    notes = [f"several classes are called {name_some(repeated)}; their numbers are added to the names"]
    return tuple(f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(names)), notes


def _check_classes(name: str, labels: IntArray, class_names: tuple[str, ...]) -> None:
    num_classes = len(class_names)
    unknown = np.unique(labels[labels >= num_classes])
    if name != "train" and len(unknown):
        raise DataError(
            f"the {name} part has {len(unknown)} classes that the training part does not have: labels "
            f"{name_some(unknown.tolist())}, but training has 0 .. {num_classes - 1}"
        )
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        first = f"the first at row {bad[0]} is {labels[bad[0]]}"
        raise DataError(f"labels of the {name} part must lie in [0, {num_classes}); {len(bad)} do not, {first}")
    if num_classes < 2:
        raise DataError(f"classification needs at least 2 classes, got {num_classes}: {class_names}")
    empty = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if name == "train" and len(empty):
        raise DataError(
            f"{len(empty)} of {num_classes} classes have no training sample: "
            f"{name_some([f'{k} ({class_names[k]!r})' for k in empty])}. "
            "Remove these classes or add samples; labels must be 0 .. K-1 without gaps"
        )


def missing_classes(name: str, part: RawPart, class_names: tuple[str, ...]) -> list[str]:
    """Return a note when a part that has samples lacks classes."""
    missing = np.flatnonzero(np.bincount(part.labels, minlength=len(class_names)) == 0)
    if len(part) == 0 or len(missing) == 0:
        return []
    names = name_some([repr(class_names[number]) for number in missing])
    return [f"{len(missing)} of {len(class_names)} classes have no {name} sample ({names}): accuracy unknown"]
