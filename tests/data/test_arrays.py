import numpy as np
import pytest
import torch

from classmargin.data import DataError, load_data, make_loader

from .conftest import random_images


def write_npz(path, **changes):
    content = {
        "x_train": random_images(40, 6, 6, 3),
        "y_train": np.arange(40) % 4,
        "x_test": random_images(8, 6, 6, 3, seed=1),
        "y_test": np.arange(8) % 4,
    }
    content.update(changes)
    np.savez(path, **{key: value for key, value in content.items() if value is not None})
    return content


def test_npz_images_come_back_with_channels_first(tmp_path):
    content = write_npz(tmp_path / "set.npz")
    bundle = load_data(str(tmp_path / "set.npz"), validation=0.0)
    assert bundle.kind == "images"
    assert bundle.input_shape == (3, 6, 6)
    assert bundle.name == "set"
    assert np.array_equal(bundle.train.inputs.numpy(), content["x_train"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("shape", "expected"), [((40, 6, 6), (1, 6, 6)), ((40, 3, 6, 6), (3, 6, 6)), ((40, 6, 6, 1), (1, 6, 6))]
)
def test_image_layouts_are_recognised(tmp_path, shape, expected):
    write_npz(tmp_path / "set.npz", x_train=random_images(*shape), x_test=random_images(8, *shape[1:]))
    assert load_data(str(tmp_path / "set.npz")).input_shape == expected


def test_half_precision_features_become_float32_and_stay_unscaled(tmp_path):
    features = np.random.default_rng(0).normal(5.0, 3.0, (40, 7)).astype(np.float16)
    write_npz(tmp_path / "set.npz", x_train=features, x_test=features[:8])
    bundle = load_data(str(tmp_path / "set.npz"), validation=0.0)
    assert bundle.kind == "features"
    assert bundle.input_shape == (7,)
    batch = next(make_loader(bundle, "train", batch_size=40, training=False).epoch(0))
    assert batch.inputs.dtype == torch.float32
    assert np.array_equal(batch.inputs.numpy(), features.astype(np.float32))


def test_given_validation_part_is_used(tmp_path):
    write_npz(tmp_path / "set.npz", x_val=random_images(12, 6, 6, 3, seed=5), y_val=np.arange(12) % 4)
    bundle = load_data(str(tmp_path / "set.npz"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (40, 12, 8)


def test_inputs_and_labels_alone_are_split_in_three(tmp_path):
    np.savez(
        tmp_path / "set.npz",
        inputs=random_images(100, 5, 5),
        labels=np.arange(100) % 2,
        class_names=["a", "b"],
    )
    bundle = load_data(str(tmp_path / "set.npz"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (72, 8, 20)
    assert bundle.class_names == ("a", "b")
    every = torch.cat([bundle.train.index, bundle.validation.index, bundle.test.index])
    assert every.sort().values.tolist() == list(range(100))


def test_integers_per_text_are_tokens_and_stay_whole(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 500, (40, 6)).astype(np.int32)
    write_npz(tmp_path / "set.npz", x_train=tokens, x_test=tokens[:8])
    bundle = load_data(str(tmp_path / "set.npz"), validation=0.0)
    assert (bundle.kind, bundle.input_shape) == ("text", (6,))
    batch = next(make_loader(bundle, "test", batch_size=8, training=False).epoch(0))
    assert batch.inputs.dtype == torch.int64
    assert np.array_equal(batch.inputs.numpy(), tokens[:8])
    with pytest.raises(ValueError, match="augmentation must be 'none' for text"):
        make_loader(bundle, "train", batch_size=4, training=True, augmentation="standard")


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("inputs", "labels")])
def test_npy_files_side_by_side_are_read_from_folder_or_file(tmp_path, names):
    inputs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.save(tmp_path / f"{names[0]}.npy", inputs)
    np.save(tmp_path / f"{names[1]}.npy", np.arange(20) % 2)
    for place in (tmp_path, tmp_path / f"{names[0]}.npy"):
        assert load_data(str(place)).input_shape == (3,)


def test_a_file_below_the_root_is_found_by_its_bare_name(tmp_path):
    write_npz(tmp_path / "mine.npz")
    assert load_data("mine", root=tmp_path).num_classes == 4


def test_label_columns_are_flattened(tmp_path):
    write_npz(tmp_path / "set.npz", y_train=(np.arange(40) % 4)[:, None])
    assert load_data(str(tmp_path / "set.npz")).num_classes == 4


def test_float_images_keep_their_values_and_are_standardised(tmp_path):
    images = np.random.default_rng(0).normal(2.0, 3.0, (40, 6, 6, 1)).astype(np.float32)
    write_npz(tmp_path / "set.npz", x_train=images, x_test=images[:8])
    bundle = load_data(str(tmp_path / "set.npz"), validation=0.0)
    batch = next(make_loader(bundle, "train", batch_size=40, training=False).epoch(0))
    assert abs(float(batch.inputs.mean())) < 1e-4
    assert abs(float(batch.inputs.std()) - 1.0) < 1e-2
    with pytest.raises(ValueError, match="needs images of bytes"):
        make_loader(bundle, "train", batch_size=4, training=True, augmentation="randaugment")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"y_train": np.arange(40) % 4 + 0.5},
            "labels of the train part must be integers, got dtype float64",
        ),
        ({"y_train": np.array(["a", "b"] * 20)}, "labels of the train part must be integers"),
        ({"y_train": np.arange(40) % 4 == 0}, "must be integers, got dtype bool"),
        ({"y_train": np.arange(40) % 4 - 1}, "labels must be 0 or more, got -1"),
        ({"y_train": np.arange(39) % 4}, "40 inputs but 39 labels"),
        ({"y_train": np.zeros((40, 2), int)}, r"must have shape \[N\]"),
        (
            {"y_train": np.arange(40) % 4 * 2},
            r"3 of 7 classes have no training sample: 1 \('1'\), 3 \('3'\), 5 \('5'\)",
        ),
        ({"y_train": np.zeros(40, int)}, "at least 2 classes"),
        ({"y_test": np.arange(8)}, "4 classes that the training part does not have: labels 4, 5, 6, 7"),
        ({"y_test": np.arange(8) % 4 - 1}, "2 do not, the first at row 0 is -1"),
        ({"class_names": np.array(["a", "b", "c"])}, r"labels of the train part must lie in \[0, 3\)"),
        ({"class_names": np.array(list("abcde"))}, r"1 of 5 classes have no training sample: 4 \('e'\)"),
        ({"x_test": random_images(8, 5, 5, 3)}, "inputs of one type and shape"),
        ({"x_train": np.zeros((40, 6, 6, 7), np.uint8)}, "1, 3 or 4 channels"),
        ({"x_train": np.zeros((40, 6, 6), np.int32)}, "uint8 or floating point"),
        ({"x_train": np.full((40, 6), -1)}, r"token numbers must lie in \[0, 16777216\), got -1 to -1"),
        ({"x_train": None}, "both x_train and y_train"),
        ({"x_train": None, "y_train": None}, "must hold x_train and y_train"),
        (
            {"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int), "x_test": np.zeros((8, 6))},
            "training part is empty",
        ),
    ],
)
def test_unusable_arrays_are_refused_in_words(tmp_path, changes, message):
    write_npz(tmp_path / "set.npz", **changes)
    with pytest.raises(DataError, match=message):
        load_data(str(tmp_path / "set.npz"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_named_by_row(tmp_path, value):
    features = np.zeros((40, 3))
    features[[7, 11], 1] = value
    write_npz(tmp_path / "set.npz", x_train=features, x_test=np.zeros((8, 3)))
    with pytest.raises(DataError, match=r"2 of 40 inputs of the train part hold NaN or infinity: rows 7, 11"):
        load_data(str(tmp_path / "set.npz"))


def test_fewer_classes_in_test_than_in_training_are_noted_not_refused(tmp_path):
    write_npz(tmp_path / "set.npz", y_test=np.arange(8) % 3)
    bundle = load_data(str(tmp_path / "set.npz"))
    assert any("1 of 4 classes have no test sample ('3')" in note for note in bundle.notes)
    assert bundle.test.class_counts.tolist() == [3, 3, 2, 0]


def test_an_array_file_of_another_name_is_not_swapped_for_its_neighbours(tmp_path):
    for name, content in (
        ("x_train", np.zeros((20, 3))),
        ("y_train", np.arange(20) % 2),
        ("mine", np.ones((20, 3))),
    ):
        np.save(tmp_path / f"{name}.npy", content)
    with pytest.raises(DataError, match=r"mine\.npy is one array without labels.*x_train\.npy"):
        load_data(str(tmp_path / "mine.npy"))


def test_pickled_arrays_in_npz_and_npy_are_refused(tmp_path):
    np.savez(tmp_path / "set.npz", x_train=np.array([{}], dtype=object), y_train=np.zeros(1, int))
    with pytest.raises(DataError, match="pickled Python objects"):
        load_data(str(tmp_path / "set.npz"))
    np.save(tmp_path / "x_train.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match="pickled Python objects"):
        load_data(str(tmp_path / "x_train.npy"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text"])
def test_a_damaged_npz_is_refused(tmp_path, content):
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"set\.npz"):
        load_data(str(tmp_path / "set.npz"))


def test_an_unknown_file_ending_is_refused(tmp_path):
    (tmp_path / "set.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"must be one of \.npz, \.npy, \.parquet"):
        load_data(str(tmp_path / "set.csv"))


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-2.0, 2.0)])
def test_named_sets_in_other_units_are_measured(tmp_path, low, high):
    images = np.random.default_rng(0).uniform(low, high, (40, 28, 28)).astype(np.float32)
    write_npz(tmp_path / "mnist.npz", x_train=images, x_test=images[:8])
    bundle = load_data("mnist", root=tmp_path, validation=0.0)
    assert bundle.mean == pytest.approx((images.mean(),), abs=1e-3)
    assert bundle.std == pytest.approx((images.std(),), rel=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_named_sets_in_the_usual_units_have_the_usual_statistics(tmp_path, dtype):
    images = random_images(40, 28, 28) if dtype == np.uint8 else random_images(40, 28, 28) / np.float32(255)
    write_npz(tmp_path / "mnist.npz", x_train=images, x_test=images[:8])
    assert load_data("mnist", root=tmp_path).mean == (0.1307,)


def test_parts_of_bytes_and_of_floats_are_refused(tmp_path):
    write_npz(tmp_path / "set.npz", x_train=random_images(40, 6, 6, 3).astype(np.float32))
    with pytest.raises(DataError, match=r"inputs of one type and shape, got train float32 \(.*\), test uint8"):
        load_data(str(tmp_path / "set.npz"))


def test_classes_of_one_name_are_told_apart(tmp_path):
    write_npz(tmp_path / "set.npz", class_names=np.array(["crane", "heron", "crane", "tram"]))
    bundle = load_data(str(tmp_path / "set.npz"))
    assert bundle.class_names == ("crane (0)", "heron", "crane (2)", "tram")
    assert any("several classes are called crane" in note for note in bundle.notes)


@pytest.mark.parametrize("kind", ["U1", "S1"])
def test_an_empty_list_of_class_names_is_none(tmp_path, kind):
    write_npz(tmp_path / "set.npz", class_names=np.array([], dtype=kind))
    assert load_data(str(tmp_path / "set.npz")).class_names == ("0", "1", "2", "3")
