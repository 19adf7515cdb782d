import numpy as np
import pytest
import torch

from classmargin.data.pixels import (
    bring_to_size,
    channel_statistics,
    crop_and_flip,
    crop_padding,
    draw_crop_and_flip,
    normalise,
)
from classmargin.data.sampling import Purpose, stream

from .conftest import random_images


@pytest.mark.parametrize("shape", [(6, 3, 32, 32), (5, 1, 28, 28), (3, 3, 9, 14), (2, 2, 48, 64)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_crop_and_flip_equal_a_loop_over_images(shape, kind):
    images = random_images(*shape).astype(kind)
    random = np.random.default_rng(1)
    tops, lefts, mirrored = draw_crop_and_flip(random, shape[0], shape[2:], flip=True)
    mirrored[:2] = [True, False]
    result = crop_and_flip(images, tops, lefts, mirrored)
    down, right = crop_padding(shape[2]), crop_padding(shape[3])
    for row in range(shape[0]):
        padded = np.pad(images[row], ((0, 0), (down, down), (right, right)))
        top, left = tops[row], lefts[row]
        expected = padded[:, top : top + shape[2], left : left + shape[3]]
        assert np.array_equal(result[row], expected[..., ::-1] if mirrored[row] else expected)
    assert result.dtype == kind


def test_the_middle_crop_without_mirror_changes_nothing_and_the_input_is_left_alone():
    images = random_images(4, 3, 32, 32)
    before = images.copy()
    middle = np.full(4, 4)
    assert np.array_equal(crop_and_flip(images, middle, middle, np.zeros(4, bool)), images)
    crop_and_flip(images, np.zeros(4, int), middle, np.ones(4, bool))
    assert np.array_equal(images, before)


def test_all_shifts_and_half_of_the_mirrors_are_drawn():
    tops, lefts, mirrored = draw_crop_and_flip(np.random.default_rng(0), 20000, (32, 32), flip=True)
    for shifts in (tops, lefts):
        share = np.bincount(shifts) / len(shifts)
        assert len(share) == 9
        assert np.abs(share - 1 / 9).max() < 0.01
    assert abs(mirrored.mean() - 0.5) < 0.02
    assert not draw_crop_and_flip(np.random.default_rng(0), 100, (32, 32), flip=False)[2].any()


def test_normalised_bytes_follow_the_formula():
    images = random_images(4, 3, 5, 5)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.1)
    expected = (images / 255.0 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    result = normalise(torch.from_numpy(images), mean, std)
    assert result.dtype == torch.float32
    assert np.abs(result.numpy() - expected).max() < 1e-5


def test_normalised_floats_are_not_rescaled_and_the_input_is_left_alone():
    images = torch.randn(2, 1, 3, 3)
    before = images.clone()
    assert torch.allclose(normalise(images, (1.0,), (2.0,)), (before - 1.0) / 2.0)
    assert torch.equal(images, before)


def test_normalising_a_shard_gives_the_same_bits_as_normalising_the_batch():
    images = torch.from_numpy(random_images(7, 3, 5, 7))
    whole = normalise(images, (0.49, 0.48, 0.44), (0.25, 0.24, 0.26))
    parts = [normalise(images[a:b], (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)) for a, b in ((0, 3), (3, 4), (4, 7))]
    assert torch.equal(whole, torch.cat(parts))


def test_bringing_to_size_keeps_constants_and_fits_the_shape():
    images = torch.full((2, 3, 8, 12), 0.5)
    for size in ((8, 8), (16, 16), (4, 4)):
        result = bring_to_size(images, size)
        assert result.shape == (2, 3, *size)
        assert torch.allclose(result, torch.tensor(0.5))
    assert bring_to_size(images, (8, 12)) is images
    assert bring_to_size(images[:0], (4, 4)).shape == (0, 3, 4, 4)


def test_streams_are_equal_at_one_address_and_differ_between_addresses():
    base = {"seed": 1, "epoch": 2, "step": 3, "view": 0, "position": 4}
    first = stream(Purpose.CROP, **base).random(4)
    assert np.array_equal(first, stream(Purpose.CROP, **base).random(4))
    others = [stream(Purpose.POLICY, **base), *(stream(Purpose.CROP, **{**base, key: 9}) for key in base)]
    assert all(not np.array_equal(first, other.random(4)) for other in others)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_constant_channel_is_not_scaled(dtype):
    # The mean of seven such bytes, as numbers in [0, 1], is off by one rounding.
    images = torch.tensor([5, 7]).view(1, 2, 1, 1).expand(7, 2, 1, 1).to(dtype)
    _mean, std, _notes = channel_statistics(images, 2)
    assert std == (1.0, 1.0)
