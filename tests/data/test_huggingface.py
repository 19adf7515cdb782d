import sys

import numpy as np
import pytest
import torch
from PIL import Image

from classmargin.data import DataError, DataNotFoundError, load_data, make_loader
from classmargin.data.formats.arrow_tables import tables_to_raw

from .conftest import random_images

datasets = pytest.importorskip("datasets", reason="needs the extra 'data'")


@pytest.fixture(autouse=True)
def quiet_library():
    datasets.disable_progress_bars()


def image_dataset(count, *, size=(8, 8), labels=None, grey=False):
    pixels = random_images(count, *size) if grey else random_images(count, *size, 3)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y", "z"])})
    content = {
        "image": [Image.fromarray(p) for p in pixels],
        "label": labels or [k % 3 for k in range(count)],
    }
    return datasets.Dataset.from_dict(content, features=features), pixels


def test_a_folder_written_by_save_to_disk_is_read(tmp_path):
    train, pixels = image_dataset(12)
    test, _ = image_dataset(6)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "set"))
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert bundle.class_names == ("x", "y", "z")
    assert len(bundle.test) == 6
    assert np.array_equal(bundle.train.inputs.numpy(), pixels.transpose(0, 3, 1, 2))


def test_a_single_saved_dataset_is_split(tmp_path):
    image_dataset(30)[0].save_to_disk(str(tmp_path / "set"))
    bundle = load_data(str(tmp_path / "set"))
    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 30


@pytest.mark.parametrize(
    "layout", ["{part}-00000-of-00001.parquet", "data/{part}-00000-of-00001.parquet", "{part}/0.parquet"]
)
def test_parquet_folders_are_read_by_the_names_of_their_parts(tmp_path, layout):
    for part, count in (("train", 12), ("validation", 6), ("test", 9)):
        path = tmp_path / "set" / layout.format(part=part)
        path.parent.mkdir(parents=True, exist_ok=True)
        image_dataset(count)[0].to_parquet(str(path))
    bundle = load_data(str(tmp_path / "set"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (12, 6, 9)


def test_shards_follow_one_another_and_grey_images_stay_grey(tmp_path):
    (tmp_path / "set").mkdir()
    data, pixels = image_dataset(12, grey=True)
    for number in range(2):
        part = data.select(range(6 * number, 6 * number + 6))
        part.to_parquet(str(tmp_path / "set" / f"train-0000{number}-of-00002.parquet"))
    data.to_parquet(str(tmp_path / "set" / "test.parquet"))
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert np.array_equal(bundle.train.inputs.numpy()[:, 0], pixels)


def test_one_parquet_file_of_feature_lists_is_a_feature_set(tmp_path):
    features = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    data = datasets.Dataset.from_dict({"embedding": features.tolist(), "label": [k % 2 for k in range(20)]})
    data.to_parquet(str(tmp_path / "set.parquet"))
    bundle = load_data(str(tmp_path / "set.parquet"))
    assert bundle.kind == "features"
    assert bundle.input_shape == (5,)
    assert np.allclose(bundle.train.inputs.numpy(), features[bundle.train.index.numpy()])


def test_large_images_in_tables_are_streamed_also_by_workers(tmp_path):
    image_dataset(12, size=(70, 80))[0].to_parquet(str(tmp_path / "set.parquet"))
    bundle = load_data(str(tmp_path / "set.parquet"), image_size=66)
    assert bundle.streamed
    assert "row" in bundle.train.paths[0]
    options = {"batch_size": 3, "training": True, "augmentation": "standard"}
    alone = next(make_loader(bundle, "train", **options).epoch(0))
    helped = next(make_loader(bundle, "train", workers=1, **options).epoch(0))
    assert torch.equal(alone.inputs, helped.inputs)


def test_a_test_part_without_labels_is_left_aside(tmp_path):
    (tmp_path / "set").mkdir()
    image_dataset(30)[0].to_parquet(str(tmp_path / "set" / "train.parquet"))
    image_dataset(6, labels=[-1] * 6)[0].to_parquet(str(tmp_path / "set" / "test.parquet"))
    bundle = load_data(str(tmp_path / "set"))
    assert any("no labels" in note for note in bundle.notes)
    assert len(bundle.test) == 6  # a fifth of the training part


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "neither images nor lists of numbers"),
        ({"embedding": [[1.0], [2.0]]}, "no label column"),
        ({"embedding": [[1.0], [2.0]], "label": [0, None]}, "1 labels are missing"),
        ({"embedding": [[1.0], [2.0, 3.0]], "label": [0, 1]}, "same length"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_with_their_columns(tmp_path, content, message):
    datasets.Dataset.from_dict(content).to_parquet(str(tmp_path / "set.parquet"))
    with pytest.raises(DataError, match=message):
        load_data(str(tmp_path / "set.parquet"))


def test_a_folder_or_a_broken_link_with_the_name_of_a_parquet_file_is_refused_in_words(tmp_path):
    (tmp_path / "a" / "train.parquet").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.parquet").symlink_to(tmp_path / "nowhere")
    for name in "ab":
        with pytest.raises(DataError, match=r"train\.parquet is not a readable \.parquet table"):
            load_data(str(tmp_path / name))


def test_a_damaged_parquet_file_is_refused(tmp_path):
    (tmp_path / "set.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"not a readable \.parquet table"):
        load_data(str(tmp_path / "set.parquet"))


def test_hub_names_are_never_fetched_silently(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("the hub was asked"))
    with pytest.raises(DataNotFoundError, match=r"owner/name.*download=True"):
        load_data("hf:owner/name", root=tmp_path)
    with pytest.raises(DataNotFoundError, match="hf:owner/name"):
        load_data("owner/name", root=tmp_path)


def test_an_allowed_hub_download_is_kept_and_not_repeated(tmp_path, monkeypatch):
    asked = []

    def load_dataset(name):
        asked.append(name)
        return datasets.DatasetDict({"train": image_dataset(12)[0], "test": image_dataset(6)[0]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    first = load_data("hf:owner/name", root=tmp_path, download=True)
    again = load_data("hf:owner/name", root=tmp_path)
    assert asked == ["owner/name"]
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert first.name == "hf:owner/name"


def test_a_hub_download_that_was_cut_off_is_not_taken_for_the_data(tmp_path, monkeypatch):
    whole = datasets.DatasetDict({"train": image_dataset(12)[0], "test": image_dataset(6)[0]})

    class Cut:
        def save_to_disk(self, folder):
            whole.save_to_disk(folder)
            raise OSError("no space left")

    monkeypatch.setattr(datasets, "load_dataset", lambda name: Cut())
    with pytest.raises(OSError, match="no space left"):
        load_data("hf:owner/name", root=tmp_path, download=True)
    with pytest.raises(DataNotFoundError):
        load_data("hf:owner/name", root=tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: whole)
    assert len(load_data("hf:owner/name", root=tmp_path, download=True).test) == 6


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    image_dataset(6)[0].save_to_disk(str(tmp_path / "set"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"classmargin\[data\]"):
        load_data(str(tmp_path / "set"))


def feature_table(count, *, first="x", offset=0.0, names=None):
    content = {
        first: [[offset, float(k)] for k in range(count)],
        "label": [k % 2 for k in range(count)],
    }
    data = datasets.Dataset.from_dict(content)
    return data if names is None else data.cast_column("label", datasets.ClassLabel(names=names))


def write_features(folder, counts, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        feature_table(count, **options).to_parquet(str(folder / f"{name}.parquet"))


@pytest.mark.parametrize("pattern", ["set_{}", "my.data-{}-0", "{}0"])
@pytest.mark.parametrize("change", [str, str.capitalize])
def test_the_part_may_stand_anywhere_in_the_name_of_a_parquet_file(tmp_path, pattern, change):
    write_features(tmp_path / "set", {pattern.format(change(k)): n for k, n in {"train": 40, "test": 20}.items()})
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert (len(bundle.train), len(bundle.test)) == (40, 20)


def test_parquet_files_beside_the_training_part_are_not_added_to_it(tmp_path):
    write_features(tmp_path / "set", {"train": 40, "test": 20, "extra": 100, "._train": 7})
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert (len(bundle.train), len(bundle.test)) == (40, 20)
    assert any("the files extra.parquet" in note and "ignored" in note for note in bundle.notes)


def test_parquet_files_without_a_word_for_training_are_the_training_part(tmp_path):
    write_features(tmp_path / "set", {"part-0": 30, "part-1": 10, "test": 20})
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert (len(bundle.train), len(bundle.test)) == (40, 20)


@pytest.mark.parametrize("place", ["test/mine.parquet", "test.parquet", "mine.PARQUET"])
def test_a_single_parquet_file_is_the_whole_set_whatever_its_name(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    feature_table(40).to_parquet(str(tmp_path / place))
    bundle = load_data(str(tmp_path / place))
    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 40


def test_a_parquet_file_without_labels_is_named(tmp_path):
    write_features(tmp_path / "set", {"train": 40})
    feature_table(20).rename_column("label", "number").to_parquet(str(tmp_path / "set/test.parquet"))
    with pytest.raises(DataError, match=r"test\.parquet has no label column .* only \['x', 'number'\]"):
        load_data(str(tmp_path / "set"))


@pytest.mark.parametrize("of_images", ["train", "test"])
def test_images_in_one_part_and_numbers_in_another_are_refused(tmp_path, of_images):
    (tmp_path / "set").mkdir()
    for part in ("train", "test"):
        images = image_dataset(12)[0].rename_column("image", "x")
        table = images if part == of_images else feature_table(12)
        table.to_parquet(str(tmp_path / f"set/{part}.parquet"))
    with pytest.raises(DataError, match="either all parts must hold encoded images, or none"):
        load_data(str(tmp_path / "set"))


def test_parts_whose_classes_were_numbered_apart_are_refused(tmp_path):
    write_features(tmp_path / "set", {"train": 40}, names=["cat", "dog"])
    write_features(tmp_path / "set", {"test": 20}, names=["dog", "cat"])
    with pytest.raises(DataError, match="the test part has other class names, or in another order"):
        load_data(str(tmp_path / "set"))


def test_all_parts_take_the_inputs_from_one_column(tmp_path):
    (tmp_path / "set").mkdir()
    for part, order in {"train": ("a", "b"), "test": ("b", "a")}.items():
        content = {name: [[float(name == "b")] * 3] * 20 for name in order}
        data = datasets.Dataset.from_dict({**content, "label": [k % 2 for k in range(20)]})
        data.to_parquet(str(tmp_path / "set" / f"{part}.parquet"))
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert bundle.train.inputs.unique().tolist() == bundle.test.inputs.unique().tolist() == [0.0]
    assert "the inputs are the column 'a', not 'b'" in bundle.notes


def test_tables_of_more_than_two_gigabytes_of_images_are_read():
    arrow = pytest.importorskip("pyarrow")
    # One chunk of 8 MiB that the table holds 300 times.
    encoded = arrow.array([bytes(2**23 - 1) + b"x"], arrow.binary())
    chunk = arrow.StructArray.from_arrays([encoded], ["bytes"])
    table = arrow.table({"image": arrow.chunked_array([chunk] * 300), "label": [k % 2 for k in range(300)]})
    images = tables_to_raw({"train": table}, "large").train.images
    assert len(images) == 300
    assert images.open(299).getvalue()[-1:] == b"x"


def test_lists_of_several_chunks_keep_their_order():
    arrow = pytest.importorskip("pyarrow")
    chunks = [arrow.array([[1.0, 2.0], [3.0, 4.0]]), arrow.array([[5.0, 6.0]]).slice(0)]
    table = arrow.table({"x": arrow.chunked_array(chunks), "label": [0, 1, 0]})
    assert tables_to_raw({"train": table}, "chunks").train.inputs.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_unknown_parts_of_a_saved_dataset_are_named(tmp_path):
    parts = {"train": feature_table(20), "test": feature_table(10), "extra": feature_table(10)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert any("the parts extra are neither" in note for note in bundle.notes)
