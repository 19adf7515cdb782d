"""RandAugment (Cubuk et al., 2020) and AutoAugment (Cubuk et al., 2019) for batches, every image on its own.

Drawing and applying are two steps: the numbers for a whole global batch are drawn first, so that each process
can apply its share and the union is what one process would have made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classmargin.data.pixel_ops import OPERATIONS, Bytes

NAMES = tuple(OPERATIONS)
_SIGNED = {
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
}
_RAND_OPERATIONS = tuple(name for name in NAMES if name != "invert")
RAND_OPERATIONS_PER_IMAGE = 2
RAND_LEVEL = 9 / 30

# Sub-policies as published: two operations each with probability (tenths) and level (0 to 9).
_CIFAR_POLICY = """
invert 1 0 contrast 2 6 | rotate 7 2 translate_x 3 9 | sharpness 8 1 sharpness 9 3
shear_y 5 8 translate_y 7 9 | autocontrast 5 0 equalize 9 0 | shear_y 2 7 posterize 3 7
color 4 3 brightness 6 7 | sharpness 3 9 brightness 7 9 | equalize 6 0 equalize 5 0
contrast 6 7 sharpness 6 5 | color 7 7 translate_x 5 8 | equalize 3 0 autocontrast 4 0
translate_y 4 3 sharpness 2 6 | brightness 9 6 color 2 8 | solarize 5 2 invert 0 0
equalize 2 0 autocontrast 6 0 | equalize 2 0 equalize 6 0 | color 9 9 equalize 6 0
autocontrast 8 0 solarize 2 8 | brightness 1 3 color 7 0 | solarize 4 5 autocontrast 9 0
translate_y 9 9 translate_y 7 9 | autocontrast 9 0 solarize 8 3 | equalize 8 0 invert 1 0
translate_y 7 9 autocontrast 9 0
"""
_IMAGENET_POLICY = """
posterize 4 8 rotate 6 9 | solarize 6 5 autocontrast 6 0 | equalize 8 0 equalize 6 0
posterize 6 7 posterize 6 6 | equalize 4 0 solarize 2 4 | equalize 4 0 rotate 8 8
solarize 6 3 equalize 6 0 | posterize 8 5 equalize 10 0 | rotate 2 3 solarize 6 8
equalize 6 0 posterize 4 6 | rotate 8 8 color 4 0 | rotate 4 9 equalize 6 0
equalize 0 0 equalize 8 0 | invert 6 0 equalize 10 0 | color 6 4 contrast 10 8
rotate 8 8 color 10 2 | color 8 8 solarize 8 7 | sharpness 4 7 invert 6 0
shear_x 6 5 equalize 10 0 | color 4 0 equalize 6 0 | equalize 4 0 solarize 2 4
solarize 6 5 autocontrast 6 0 | invert 6 0 equalize 10 0 | color 6 4 contrast 10 8
equalize 8 0 equalize 6 0
"""


@dataclass(frozen=True)
class DrawnPolicy:
    """Operations of each image, in order.

    Attributes:
        operations: Positions in ``NAMES``, ``[B, R]`` for ``R`` rounds.
        levels: Strength between 0 and 1, ``[B, R]``.
        signs: -1 or 1, ``[B, R]``, for the operations that have two directions.
    """

    operations: npt.NDArray[np.int64]
    levels: npt.NDArray[np.float64]
    signs: npt.NDArray[np.float64]

    def rows(self, chosen: slice) -> DrawnPolicy:
        """Return what was drawn for some of the images."""
        return DrawnPolicy(self.operations[chosen], self.levels[chosen], self.signs[chosen])


def draw_randaugment(random: np.random.Generator, count: int) -> DrawnPolicy:
    """Draw two of the 14 operations for each image, at level 9 of 30 as in the common implementations."""
    shape = (count, RAND_OPERATIONS_PER_IMAGE)
    choices = np.array([NAMES.index(name) for name in _RAND_OPERATIONS])
    operations = choices[random.integers(0, len(choices), shape)]
    return DrawnPolicy(operations, np.full(shape, RAND_LEVEL), _signs(random, shape))


def draw_autoaugment(random: np.random.Generator, count: int, *, small_images: bool) -> DrawnPolicy:
    """Draw one sub-policy for each image, from the CIFAR table for small images, else the ImageNet table."""
    table = _parse(_CIFAR_POLICY if small_images else _IMAGENET_POLICY)
    chosen = table[random.integers(0, len(table), count)]
    happens = random.random((count, 2)) < chosen[:, :, 1] / 10.0
    signs = _signs(random, (count, 2))
    operations = np.where(happens, chosen[:, :, 0].astype(np.int64), NAMES.index("identity"))
    return DrawnPolicy(operations, chosen[:, :, 2] / 9.0, signs)


def apply_policy(images: Bytes, drawn: DrawnPolicy) -> Bytes:
    """Apply to each image its operations, all images with the same operation together.

    Args:
        images: Bytes ``[B, C, H, W]``.
        drawn: What was drawn for these images.

    Returns:
        New images of the same shape.
    """
    result = images.copy()
    for turn in range(drawn.operations.shape[1]):
        for number in np.unique(drawn.operations[:, turn]):
            rows = np.flatnonzero(drawn.operations[:, turn] == number)
            strengths = strength_of(NAMES[number], drawn.levels[rows, turn], drawn.signs[rows, turn])
            result[rows] = OPERATIONS[NAMES[number]](result[rows], strengths)
    return result


def strength_of(
    name: str, levels: npt.NDArray[np.float64], signs: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the strength that a level in [0, 1] means for an operation.

    Example:
        >>> strength_of("rotate", np.array([0.5]), np.array([-1.0])).tolist()
        [-15.0]
    """
    if name == "posterize":
        return 8.0 - np.round(4.0 * levels)
    if name == "solarize":
        return 255.0 * (1.0 - levels)
    if name not in _SIGNED:
        return np.zeros_like(levels)
    largest = {"shear": 0.3, "translate": 150.0 / 331.0, "rotate": 30.0}.get(name.split("_")[0], 0.9)
    return signs * largest * levels


def _signs(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    return np.where(random.integers(0, 2, shape) == 1, 1.0, -1.0)


def _parse(policy: str) -> npt.NDArray[np.float64]:
    """Return sub-policies as numbers ``[25, 2, 3]``: operation, tenths of probability, level."""
    words = np.array(policy.replace("|", " ").split()).reshape(-1, 3)
    rows = [[NAMES.index(str(name)), float(tenths), float(level)] for name, tenths, level in words]
    return np.array(rows, dtype=np.float64).reshape(-1, 2, 3)
