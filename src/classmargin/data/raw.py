"""What a reader of a file format hands over: parts as they are on disk, before any split, subset or check.

Data flow: ``formats/*`` read files into :class:`RawData`; ``prepare_images`` decodes small images;
``check_raw`` refuses what cannot be trained on; ``splits`` and ``long_tail`` choose rows; ``load_data``
builds the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin.data.image_source import ImageSource

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RawPart:
    """Samples of one part (training, validation or test) of a data set.

    Attributes:
        labels: Class of each sample as found, shape ``[N]``; checked later.
        inputs: Images ``[N, C, H, W]`` (uint8 or float) or features ``[N, d]``; ``None`` when ``images`` is
            given.
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
