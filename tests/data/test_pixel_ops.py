"""Our batched operations against Pillow, in which AutoAugment and RandAugment were published."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from classmargin.data import policies
from classmargin.data.policies import (
    NAMES,
    OPERATIONS,
    DrawnPolicy,
    apply_policy,
    draw_autoaugment,
    draw_randaugment,
    strength_of,
)


def affine(*matrix):
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


PILLOW = {
    "identity": lambda s: lambda image: image,
    "brightness": lambda s: lambda image: ImageEnhance.Brightness(image).enhance(1 + s),
    "color": lambda s: lambda image: ImageEnhance.Color(image).enhance(1 + s),
    "contrast": lambda s: lambda image: ImageEnhance.Contrast(image).enhance(1 + s),
    "sharpness": lambda s: lambda image: ImageEnhance.Sharpness(image).enhance(1 + s),
    "posterize": lambda s: lambda image: ImageOps.posterize(image, int(s)),
    "solarize": lambda s: lambda image: ImageOps.solarize(image, s),
    "autocontrast": lambda s: ImageOps.autocontrast,
    "equalize": lambda s: ImageOps.equalize,
    "invert": lambda s: ImageOps.invert,
    "shear_x": lambda s: affine(1, s, 0, 0, 1, 0),
    "shear_y": lambda s: affine(1, 0, 0, s, 1, 0),
    "translate_x": lambda s: lambda image: affine(1, 0, s * image.width, 0, 1, 0)(image),
    "translate_y": lambda s: lambda image: affine(1, 0, 0, 0, 1, s * image.height)(image),
    "rotate": lambda s: lambda image: image.rotate(s, Image.Resampling.NEAREST),
}


def pictures(channels, seed=0, height=24, width=20):
    """Return smooth, dark, noisy and constant images, ``[4, C, H, W]``."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    smooth = (rows * 7 + columns * 3) % 256
    kinds = [smooth, smooth // 3 + 20, random.integers(0, 256, (height, width)), np.full((height, width), 77)]
    shift = np.arange(channels)[:, None, None] * 11
    return np.stack([np.clip(kind[None] + shift, 0, 255) for kind in kinds]).astype(np.uint8)


def through_pillow(image, operation):
    array = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    result = np.asarray(operation(Image.fromarray(array)))
    return result[None] if len(image) == 1 else result.transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_operation_equals_pillow_within_one_grey_level(name, sign, level, channels):
    images = pictures(channels)
    strengths = strength_of(name, np.full(4, level), np.full(4, sign))
    ours = OPERATIONS[name](images, strengths)
    assert ours.dtype == np.uint8
    for image, result, strength in zip(images, ours, strengths, strict=True):
        expected = through_pillow(image, PILLOW[name](float(strength)))
        difference = np.abs(result.astype(int) - expected.astype(int))
        if name in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate"):
            # Pixels whose source lies exactly between two pixels may round either way.
            assert (difference > 0).mean() < 0.005
        else:
            assert difference.max() <= 1


def test_pillow_is_known_for_every_operation():
    assert set(PILLOW) == set(OPERATIONS)


def test_every_image_gets_its_own_strength():
    images = np.full((2, 1, 4, 4), 100, np.uint8)
    result = OPERATIONS["brightness"](images, np.array([0.0, 0.5]))
    assert result[:, 0, 0, 0].tolist() == [100, 150]


def test_shifting_right_shows_black_on_the_left():
    images = np.full((1, 1, 10, 10), 9, np.uint8)
    result = OPERATIONS["translate_x"](images, np.array([-0.2]))
    assert result[0, 0, 0].tolist() == [0, 0, 9, 9, 9, 9, 9, 9, 9, 9]


def test_strengths_follow_the_published_ranges():
    def strongest(name):
        return float(strength_of(name, np.array([1.0]), np.array([1.0]))[0])

    assert strongest("shear_x") == pytest.approx(0.3)
    assert strongest("translate_y") == pytest.approx(150 / 331)
    assert strongest("rotate") == pytest.approx(30.0)
    assert strongest("color") == pytest.approx(0.9)
    assert strongest("posterize") == 4.0
    assert strongest("solarize") == 0.0
    assert strength_of("posterize", np.array([9 / 30]), np.array([1.0]))[0] == 7.0


def test_autoaugment_tables_have_25_sub_policies_of_two_operations():
    for table in (policies._CIFAR_POLICY, policies._IMAGENET_POLICY):
        assert policies._parse(table).shape == (25, 2, 3)
    first = policies._parse(policies._IMAGENET_POLICY)[0]
    assert [NAMES[int(operation)] for operation in first[:, 0]] == ["posterize", "rotate"]
    assert first[:, 1:].tolist() == [[4.0, 8.0], [6.0, 9.0]]


def test_autoaugment_operations_happen_as_often_as_their_probabilities_say():
    drawn = draw_autoaugment(np.random.default_rng(0), 50_000, small_images=True)
    table = policies._parse(policies._CIFAR_POLICY)
    expected = np.zeros(len(NAMES))
    for sub_policy in table:
        for operation, tenths, _level in sub_policy:
            expected[int(operation)] += tenths / 10 / len(table)
    expected[NAMES.index("identity")] = 2.0 - expected.sum()
    found = np.bincount(drawn.operations.ravel(), minlength=len(NAMES)) / 50_000
    assert np.abs(found - expected).max() < 0.02


def test_randaugment_draws_two_of_fourteen_operations_evenly_and_never_inverts():
    drawn = draw_randaugment(np.random.default_rng(0), 30_000)
    share = np.bincount(drawn.operations.ravel(), minlength=len(NAMES)) / 60_000
    assert share[NAMES.index("invert")] == 0.0
    others = np.delete(share, NAMES.index("invert"))
    assert np.abs(others - 1 / 14).max() < 0.005


@pytest.mark.parametrize("channels", [1, 3])
def test_a_policy_applied_to_a_batch_equals_its_operations_one_image_at_a_time(channels):
    images = np.concatenate([pictures(channels, seed) for seed in range(16)])
    drawn = draw_randaugment(np.random.default_rng(3), len(images))
    result = apply_policy(images, drawn)
    for row in range(len(images)):
        alone = images[row : row + 1]
        for turn in range(2):
            name = NAMES[drawn.operations[row, turn]]
            strength = strength_of(name, drawn.levels[row : row + 1, turn], drawn.signs[row : row + 1, turn])
            alone = OPERATIONS[name](alone, strength)
        assert np.array_equal(result[row], alone[0])


def test_applying_a_policy_leaves_its_input_alone():
    images = pictures(3)
    before = images.copy()
    invert = DrawnPolicy(np.full((4, 1), NAMES.index("invert")), np.ones((4, 1)), np.ones((4, 1)))
    assert np.array_equal(apply_policy(images, invert), 255 - before)
    assert np.array_equal(images, before)


def test_tiny_images_survive_every_operation():
    images = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)
    for name in NAMES:
        assert OPERATIONS[name](images, strength_of(name, np.full(2, 0.5), np.ones(2))).shape == images.shape
