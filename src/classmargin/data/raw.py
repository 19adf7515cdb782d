"""What a reader of a file format hands over, the check that refuses what cannot be trained on, and the errors.

Data flow: ``formats`` read files into :class:`RawData`; ``load`` decodes small images; ``check_raw`` refuses bad
data in words that name the part, the class or the row at fault; ``sampling`` chooses rows; ``load`` builds the bundle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from classmargin.data.images import ImageSource

IntArray = npt.NDArray[np.int64]


class DataNotFoundError(FileNotFoundError, ValueError):
    """The data set is not on this machine; the message says where to get it and where to put it."""


class DataError(ValueError):
    """The files are there, but what they hold cannot be used."""


class CorruptImageError(DataError):
    """At least one image file cannot be decoded; the message names and counts them."""


class MixedSizeError(DataError):
    """The images differ in size and no ``image_size`` was given."""


def name_some(names: list[str], *, limit: int = 5) -> str:
    """Return the first few of ``names`` and how many more there are.

    Example:
        >>> name_some(["a", "b", "c"], limit=2)
        'a, b and 1 more'
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


@dataclass(frozen=True, eq=False)
class RawPart:
    """Samples of one part (training, validation or test) of a data set.

    Attributes:
        labels: Class of each sample as found, shape ``[N]``; checked later.
        inputs: Images ``[N, C, H, W]`` (uint8 or float), features ``[N, d]`` or token numbers ``[N, T]`` (int64);
            ``None`` when ``images`` is given.
        images: Encoded images that are decoded on demand.
        index: Position of each sample in the part as distributed, shape ``[N]``; all of them when left out.
        full_size: Number of samples of the part as distributed.
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
    """All parts of a data set as a reader found them.

    Attributes:
        train: Training part.
        validation: Validation part, if the data set brings one.
        test: Test part, if the data set brings one.
        class_names: Names in label order; numbers are used when left out.
        notes: Sentences about choices the reader made.
    """

    train: RawPart
    validation: RawPart | None = None
    test: RawPart | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def parts(self) -> dict[str, RawPart]:
        """Return the parts that exist, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}


def check_raw(raw: RawData) -> RawData:
    """Return ``raw`` with int64 labels and class names, or say what is wrong with it.

    Raises:
        DataError: labels that are not integers or lie outside ``[0, K)``, a class without training sample,
            classes that only the test part has, inputs and labels of different length, shape or type, features
            or pixels that are not finite.
    """
    parts = {name: _check_part(name, part) for name, part in raw.parts().items()}
    _check_shapes(parts)
    notes = list(raw.notes)
    class_names = _different_names(raw.class_names or _numbered_classes(parts["train"]), notes)
    _check_training_classes(parts["train"], class_names)
    for name in ("validation", "test"):
        if name in parts:
            notes.extend(_check_other_classes(name, parts[name], class_names))
    return RawData(
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        class_names=class_names,
        notes=tuple(notes),
    )


def _check_part(name: str, part: RawPart) -> RawPart:
    labels = part.labels
    if labels.ndim != 1:
        raise DataError(f"labels of the {name} part must have shape [N], got {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        example = labels[:3].tolist()
        raise DataError(
            f"labels of the {name} part must be integers, got dtype {labels.dtype} (such as {example})"
        )
    samples = (
        len(part.images) if part.images is not None else len(part.inputs) if part.inputs is not None else 0
    )
    if samples != len(labels):
        raise DataError(f"the {name} part has {samples} inputs but {len(labels)} labels")
    if part.inputs is not None and np.issubdtype(part.inputs.dtype, np.floating):
        _check_finite(name, part)
    return replace(part, labels=labels.astype(np.int64))


def _check_finite(name: str, part: RawPart) -> None:
    assert part.inputs is not None
    # Row by row blocks: a mask of a whole large array would double the memory.
    bad_rows: list[int] = []
    for start in range(0, len(part), 4096):
        block = part.inputs[start : start + 4096]
        bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
        bad_rows.extend((np.flatnonzero(bad) + start).tolist())
    if bad_rows:
        rows = name_some([str(row) for row in bad_rows])
        raise DataError(
            f"{len(bad_rows)} of {len(part)} inputs of the {name} part hold NaN or infinity: rows {rows}"
        )


def _check_shapes(parts: dict[str, RawPart]) -> None:
    shapes = {name: part.inputs.shape[1:] for name, part in parts.items() if part.inputs is not None}
    if len(set(shapes.values())) > 1:
        text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"all parts must have inputs of one shape, got {text}")
    kinds = {name: part.inputs.dtype for name, part in parts.items() if part.inputs is not None}
    if len(set(kinds.values())) > 1:  # bytes count as numbers in [0, 1], other numbers as they are
        text = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise DataError(f"all parts must have inputs of one type, got {text}")


def _different_names(names: tuple[str, ...], notes: list[str]) -> tuple[str, ...]:
    """Return names that tell the classes apart: ImageNet has two cranes, a bird and a machine."""
    times = Counter(names)
    repeated = [name for name, count in times.items() if count > 1]
    if not repeated:
        return names
    notes.append(f"several classes are called {name_some(repeated)}; their numbers are added to the names")
    return tuple(f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names))


def _numbered_classes(train: RawPart) -> tuple[str, ...]:
    if len(train) == 0:
        raise DataError("the training part is empty")
    low, high = int(train.labels.min()), int(train.labels.max())
    if low < 0:
        raise DataError(f"labels must be 0 or more, got {low} in the training part")
    if high >= len(train):  # before a name is made for each: a single broken label would take all memory
        raise DataError(
            f"labels must be 0 .. K-1 without gaps, got label {high} in a training part of {len(train)} samples"
        )
    return tuple(str(number) for number in range(high + 1))


def _check_training_classes(train: RawPart, class_names: tuple[str, ...]) -> None:
    if len(train) == 0:
        raise DataError("the training part is empty")
    _check_range("train", train.labels, len(class_names))
    if len(class_names) < 2:
        raise DataError(f"classification needs at least 2 classes, got {len(class_names)}: {class_names}")
    counts = np.bincount(train.labels, minlength=len(class_names))
    empty = [f"{number} ({class_names[number]!r})" for number in np.flatnonzero(counts == 0)]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(class_names)} classes have no training sample: {name_some(empty)}. "
            "Remove these classes or add samples; labels must be 0 .. K-1 without gaps"
        )


def _check_range(name: str, labels: IntArray, num_classes: int) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"labels of the {name} part must lie in [0, {num_classes}); {len(bad)} do not, the first "
            f"at row {first} is {int(labels[first])}"
        )


def _check_other_classes(name: str, part: RawPart, class_names: tuple[str, ...]) -> list[str]:
    """Return a note when ``part`` lacks classes; classes that training lacks are an error."""
    unknown = np.unique(part.labels[part.labels >= len(class_names)])
    if len(unknown):
        raise DataError(
            f"the {name} part has {len(unknown)} classes that the training part does not have: labels "
            f"{name_some([str(label) for label in unknown])}, but training has 0 .. {len(class_names) - 1}"
        )
    _check_range(name, part.labels, len(class_names))
    return missing_classes(name, part, class_names)


def missing_classes(name: str, part: RawPart, class_names: tuple[str, ...]) -> list[str]:
    """Return a note when a part that has samples lacks classes."""
    missing = np.flatnonzero(np.bincount(part.labels, minlength=len(class_names)) == 0)
    if len(part) == 0 or len(missing) == 0:
        return []
    names = name_some([repr(class_names[number]) for number in missing])
    return [f"{len(missing)} of {len(class_names)} classes have no {name} sample ({names}): accuracy unknown"]
