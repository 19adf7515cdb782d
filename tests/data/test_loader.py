import numpy as np
import pytest
import torch

from classmargin.data import load_data, make_loader, synthetic_features, synthetic_images
from classmargin.data.loader import shard_of

from .conftest import write_image

AUGMENTATIONS = ["none", "standard", "randaugment", "autoaugment"]


@pytest.fixture(scope="module")
def colour():
    return synthetic_images(num_classes=5, side=32, channels=3, samples_per_class=30).bundle


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.index, b.index)


def test_evaluation_visits_every_sample_once_in_order(mini):
    loader = make_loader(mini, "test", batch_size=300, training=False)
    batches = list(loader.epoch(3))
    assert len(loader) == len(batches) == 17
    assert torch.equal(torch.cat([batch.index for batch in batches]), mini.test.index)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), mini.test.labels)


def test_evaluation_inputs_are_the_normalised_images(mini):
    batch = next(make_loader(mini, "validation", batch_size=500, training=False).epoch(0))
    expected = (mini.validation.inputs.double() / 255 - mini.mean[0]) / mini.std[0]
    assert batch.inputs.dtype == torch.float32
    assert (batch.inputs.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_resuming_at_any_step_continues_bit_for_bit(colour, augmentation):
    options = {"batch_size": 20, "training": True, "augmentation": augmentation, "views": 2, "seed": 4}
    whole = list(make_loader(colour, "train", **options).epoch(6))
    for start in (0, 1, 5, 7):
        assert_same(whole[start:], make_loader(colour, "train", **options).epoch(6, start))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
@pytest.mark.parametrize("sampler", ["plain", "class-balanced"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_shards_of_all_ranks_make_up_the_single_process_batch(colour, augmentation, sampler, world_size):
    options = {
        "batch_size": 16,
        "training": True,
        "augmentation": augmentation,
        "sampler": sampler,
        "seed": 2,
        "views": 2,
    }
    whole = list(make_loader(colour, "train", **options).epoch(1))
    shards = [
        list(make_loader(colour, "train", rank=rank, world_size=world_size, **options).epoch(1))
        for rank in range(world_size)
    ]
    for step, batch in enumerate(whole):
        pieces = [shard[step] for shard in shards]
        for view in range(2):
            own = batch.inputs.chunk(2)[view]
            assert torch.equal(own, torch.cat([piece.inputs.chunk(2)[view] for piece in pieces]))
        assert torch.equal(batch.index.chunk(2)[0], torch.cat([piece.index.chunk(2)[0] for piece in pieces]))


def test_class_balanced_slots_stay_on_one_rank(colour):
    options = {"batch_size": 16, "training": True, "sampler": "class-balanced"}
    for rank in (0, 1):
        for batch in make_loader(colour, "train", rank=rank, world_size=2, **options).epoch(0):
            slots = batch.labels.view(2, 4)
            assert torch.all(slots == slots[:, :1])


def test_the_last_evaluation_batch_is_shared_out_evenly_and_completely(mini):
    loaders = [make_loader(mini, "test", batch_size=768, training=False, rank=r, world_size=3) for r in range(3)]
    batches = [list(loader.epoch(0)) for loader in loaders]
    last = [len(rank[-1].labels) for rank in batches]
    assert last == [131, 131, 130]
    index = torch.cat([rank[step].index for step in range(len(batches[0])) for rank in batches])
    assert torch.equal(index, mini.test.index)


@pytest.mark.parametrize(("count", "world_size"), [(10, 3), (1, 2), (0, 2), (7, 7)])
def test_shards_cover_a_batch_without_overlap(count, world_size):
    rows = [row for rank in range(world_size) for row in range(count)[shard_of(count, rank, world_size)]]
    assert rows == list(range(count))


def test_a_rank_without_sample_gets_an_empty_batch():
    bundle = synthetic_images(num_classes=2, samples_per_class=3).bundle
    loader = make_loader(bundle, "test", batch_size=5 * 2, training=False, rank=1, world_size=2)
    assert len(next(loader.epoch(0)).labels) == 3
    single = make_loader(load_tiny(1), "test", batch_size=2, training=False, rank=1, world_size=2)
    assert next(single.epoch(0)).inputs.shape == (0, 1, 8, 8)


def load_tiny(test_size):
    from dataclasses import replace

    bundle = synthetic_images(num_classes=2, samples_per_class=3).bundle
    part = replace(
        bundle.test,
        labels=bundle.test.labels[:test_size],
        index=bundle.test.index[:test_size],
        inputs=bundle.test.inputs[:test_size],
    )
    return replace(bundle, test=part)


def test_views_differ_and_come_one_after_the_other(colour):
    batch = next(make_loader(colour, "train", batch_size=30, training=True, augmentation="standard", views=3).epoch(0))
    assert batch.views == 3
    assert batch.inputs.shape == (90, 3, 32, 32)
    views = batch.inputs.chunk(3)
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[1], views[2])
    for repeated in (batch.labels, batch.index):
        first, second, third = repeated.chunk(3)
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_views_without_augmentation_are_equal(colour):
    batch = next(make_loader(colour, "train", batch_size=10, training=True, views=2).epoch(0))
    assert torch.equal(*batch.inputs.chunk(2))


def test_augmentation_changes_with_epoch_and_seed_but_the_index_stays_true(colour):
    options = {"batch_size": 150, "training": True, "augmentation": "standard"}
    seen = [next(make_loader(colour, "train", seed=s, **options).epoch(e)) for s, e in ((0, 0), (0, 1), (1, 0))]
    by_index = [batch.inputs[batch.index.argsort()] for batch in seen]
    assert not torch.equal(by_index[0], by_index[1])
    assert not torch.equal(by_index[0], by_index[2])
    for batch in seen:
        assert torch.equal(batch.labels, colour.train.labels[batch.index])


def test_every_training_sample_comes_once_an_epoch(colour):
    loader = make_loader(colour, "train", batch_size=15, training=True)
    index = torch.cat([batch.index for batch in loader.epoch(0)])
    assert index.sort().values.tolist() == list(range(150))


@pytest.mark.parametrize(("batch_size", "sizes"), [(40, [40, 40, 40]), (200, [150])])
def test_the_incomplete_training_batch_is_dropped_unless_it_is_the_only_one(colour, batch_size, sizes):
    loader = make_loader(colour, "train", batch_size=batch_size, training=True)
    assert [len(batch.labels) for batch in loader.epoch(0)] == sizes
    assert len(loader) == len(sizes)


def test_multiplicity_makes_samples_come_more_often(colour):
    times = torch.ones(150, dtype=torch.int64)
    times[7], times[9] = 5, 0
    loader = make_loader(colour, "train", batch_size=153, training=True, multiplicity=times)
    index = next(loader.epoch(0)).index
    assert torch.equal(torch.bincount(index, minlength=150), times)


def test_images_in_memory_are_brought_to_the_wanted_size():
    bundle = load_data("fashion-mnist-mini", image_size=40)
    assert bundle.input_shape == (1, 40, 40)
    batch = next(make_loader(bundle, "train", batch_size=8, training=True, augmentation="standard").epoch(0))
    assert batch.inputs.shape == (8, 1, 40, 40)


def test_digits_are_never_mirrored(tmp_path):
    from .conftest import write_idx_set

    write_idx_set(tmp_path / "mnist", classes=10)
    bundle = load_data("mnist", root=tmp_path, validation=0.0)
    batch = next(make_loader(bundle, "train", batch_size=40, training=True, augmentation="standard").epoch(0))
    images = bundle.train.inputs[batch.index].numpy()[:, 0]
    inner = (
        ((batch.inputs[:, 0] * bundle.std[0] + bundle.mean[0]) * 255).round().numpy().astype(np.uint8)[:, 8:20, 8:20]
    )
    for source, cut in zip(images, inner, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(source, (12, 12)).reshape(-1, 12, 12)
        assert np.any(np.all(windows == cut, axis=(1, 2)))


def test_loading_leaves_the_global_random_states_alone(colour):
    numbers, state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(make_loader(colour, "train", batch_size=20, training=True, augmentation="autoaugment").epoch(0))
    assert torch.equal(numbers, torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 9, "world_size": 2}, "multiple of world_size=2"),
        ({"rank": 2, "world_size": 2}, "rank must be at most 1"),
        ({"augmentation": "standart"}, "did you mean 'standard'"),
        ({"sampler": "balanced"}, "sampler must be one of"),
        ({"sampler": "class-balanced"}, "multiple of samples_per_class=4 for the class-balanced sampler"),
        ({"training": False, "augmentation": "standard"}, "must be 'none' for evaluation"),
        ({"training": False, "sampler": "class-balanced"}, "evaluation visits every sample once"),
        ({"split": "tests"}, "did you mean 'test'"),
    ],
)
def test_impossible_requests_are_named(colour, options, message):
    settings = {"batch_size": 10, "training": True, **options}
    with pytest.raises(ValueError, match=message):
        make_loader(colour, settings.pop("split", "train"), **settings)


def test_features_are_not_augmented():
    bundle = synthetic_features().bundle
    with pytest.raises(ValueError, match="augmentation must be 'none' for features"):
        make_loader(bundle, "train", batch_size=10, training=True, augmentation="standard")
    batch = next(make_loader(bundle, "train", batch_size=10, training=True, views=2).epoch(0))
    assert batch.inputs.shape == (20, 16)


def test_an_empty_validation_split_has_no_batches_and_cannot_be_trained_on():
    bundle = load_data("fashion-mnist-mini", validation=0.0)
    assert list(make_loader(bundle, "validation", batch_size=10, training=False).epoch(0)) == []
    with pytest.raises(ValueError, match="empty"):
        make_loader(bundle, "validation", batch_size=10, training=True)


def test_images_travel_to_a_device_as_bytes_and_become_numbers_there(monkeypatch):
    bundle = synthetic_images(num_classes=3, side=8, channels=3, samples_per_class=20).bundle
    loader = make_loader(bundle, "train", batch_size=8, training=True, augmentation="standard")
    moved = []
    plain = torch.Tensor.to

    def to(self, *arguments, **options):
        result = plain(self, *arguments, **options)
        if result.device != self.device and self.shape == (8, 3, 8, 8):
            moved.append((self.dtype, options.get("non_blocking")))
        return result

    monkeypatch.setattr(torch.Tensor, "to", to)
    batch = next(loader.epoch(0, device="meta", memory_format=torch.channels_last))
    assert moved == [(torch.uint8, True)]
    assert {part.device.type for part in (batch.inputs, batch.labels, batch.index)} == {"meta"}
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


def test_the_memory_format_changes_no_number():
    bundle = synthetic_images(num_classes=3, side=8, channels=3, samples_per_class=20).bundle
    loader = make_loader(bundle, "train", batch_size=8, training=True, augmentation="standard")
    for plain, other in zip(loader.epoch(1), loader.epoch(1, memory_format=torch.channels_last), strict=True):
        assert torch.equal(plain.inputs, other.inputs)
        assert plain.inputs.is_contiguous()


@pytest.mark.parametrize(
    ("augmentation", "weaker"),
    [("standard", "none"), ("randaugment", "standard"), ("autoaugment", "standard")],
)
def test_spared_classes_do_without_the_last_step_and_all_others_notice_nothing(colour, augmentation, weaker):
    options = {"batch_size": 20, "training": True, "views": 2, "seed": 4}
    (full, less, mixed) = (
        next(make_loader(colour, "train", augmentation=name, spared=spared, **options).epoch(1))
        for name, spared in ((augmentation, ()), (weaker, ()), (augmentation, (1, 3)))
    )
    spared = torch.isin(mixed.labels, torch.tensor([1, 3]))
    assert 0 < spared.sum() < len(spared)
    assert torch.equal(mixed.inputs[spared], less.inputs[spared])
    assert torch.equal(mixed.inputs[~spared], full.inputs[~spared])
    assert not torch.equal(full.inputs[spared], less.inputs[spared])


def test_streamed_photographs_of_spared_classes_are_cut_as_in_evaluation(tmp_path):
    for part, label, number in [(p, c, n) for p in ("train", "val") for c in "ab" for n in range(4)]:
        write_image(tmp_path / part / label / f"{number}.png", size=(90, 100), seed=number)
    bundle = load_data(str(tmp_path), image_size=80, validation=0.0)
    assert bundle.streamed
    options = {"batch_size": 8, "training": True, "augmentation": "standard"}
    batch = next(make_loader(bundle, "train", spared=(0,), **options).epoch(0))
    plain = next(make_loader(bundle, "train", batch_size=8, training=False).epoch(0))
    drawn = next(make_loader(bundle, "train", **options).epoch(0))
    for row, index in enumerate(batch.index):
        same = plain if batch.labels[row] == 0 else drawn
        assert torch.equal(batch.inputs[row], same.inputs[same.index == index][0])
