"""The fine-grained sets and ImageNet in the layouts in which they are distributed, three classes each."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from classmargin.data import DataError, DataNotFoundError, list_data, load_data, make_loader

from .conftest import write_image, write_tree


def write_images(folder, names):
    for number, name in enumerate(names):
        write_image(folder / name, size=(70 + number % 5, 90), seed=number)


def write_pets(folder):
    breeds = ["Abyssinian", "american_bulldog", "Bengal"]
    lists = {"trainval": range(4), "test": range(4, 6)}
    for list_name, numbers in lists.items():
        lines = [f"{breed}_{k} {label + 1} 1 1" for label, breed in enumerate(breeds) for k in numbers]
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"{list_name}.txt").write_text(
            "#Image CLASS-ID SPECIES BREED ID\n" + "\n".join(lines)
        )
    write_images(folder / "images", [f"{breed}_{k}.jpg" for breed in breeds for k in range(6)])


def write_food(folder):
    classes = ["apple_pie", "baby_back_ribs", "baklava"]
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "classes.txt").write_text("\n".join(classes) + "\n")
    for list_name, numbers in {"train": range(4), "test": range(4, 6)}.items():
        lines = [f"{name}/{100 + k}" for name in classes for k in numbers]
        (folder / "meta" / f"{list_name}.txt").write_text("\n".join(lines) + "\n")
    write_images(folder / "images", [f"{name}/{100 + k}.jpg" for name in classes for k in range(6)])


def write_aircraft(folder):
    variants = ["707-320", "Boeing 717", "F/A-18"]
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("\n".join(variants) + "\n")
    for part, numbers in {"train": range(4), "val": range(4, 6), "test": range(6, 8)}.items():
        lines = [f"{label}{k:04d} {name}" for label, name in enumerate(variants) for k in numbers]
        (data / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n")
    write_images(data / "images", [f"{label}{k:04d}.jpg" for label in range(3) for k in range(8)])


def write_flowers(folder):
    folder.mkdir(parents=True)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1 + k % 3 for k in range(18)]], dtype=np.uint8)})
    sets = {"trnid": np.arange(1, 10), "valid": np.arange(10, 13), "tstid": np.arange(13, 19)}
    savemat(folder / "setid.mat", {key: value[None].astype(np.uint16) for key, value in sets.items()})
    write_images(folder / "jpg", [f"image_{k:05d}.jpg" for k in range(1, 19)])


def annotations(names, labels):
    rows = np.zeros((1, len(names)), dtype=[("fname", object), ("class", object)])
    for position, row in enumerate(zip(names, labels, strict=True)):
        rows[0, position] = row
    return rows


def class_cell(names):
    return np.array([names], dtype=object)


CARS = ["AM General Hummer", "Acura RL", "Acura TL"]


def write_cars(folder):
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": class_cell(CARS)})
    for part, per_class, place in (
        ("train", 4, folder / "devkit" / "cars_train_annos.mat"),
        ("test", 2, folder / "cars_test_annos_withlabels.mat"),
    ):
        names = [f"{k:05d}.jpg" for k in range(1, 3 * per_class + 1)]
        savemat(place, {"annotations": annotations(names, [1 + k % 3 for k in range(len(names))])})
        write_images(folder / f"cars_{part}", names)


def write_imagenet(folder, *, flat=None):
    synsets = ["n01440764", "n01443537", "n01484850"]
    write_tree(folder / "train", synsets, 4, size=(70, 90), ending="JPEG")
    if flat is None:
        write_tree(folder / "val", synsets, 2, size=(70, 90), ending="JPEG")
        return
    labels = [2, 0, 1, 1, 0, 2]
    names = [f"ILSVRC2012_val_{k:08d}" for k in range(1, 7)]
    write_images(folder / "val", [f"{name}.JPEG" for name in names])
    if flat == "csv":
        rows = [f"{name},{synsets[label]} 1 2 3 4 " for name, label in zip(names, labels, strict=True)]
        (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "\n".join(rows))
        (folder / "LOC_synset_mapping.txt").write_text("\n".join(f"{s} word {s[-1]}, other" for s in synsets))
    else:
        devkit = folder / "ILSVRC2012_devkit_t12" / "data"
        devkit.mkdir(parents=True)
        order = [3, 1, 2]  # ILSVRC2012_ID of each synset: its own order, not the sorted one
        meta = np.zeros((3, 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
        for row, synset in enumerate(synsets):
            meta[row, 0] = (order[row], synset, f"word {synset[-1]}, other")
        savemat(devkit / "meta.mat", {"synsets": meta})
        truth = "\n".join(str(order[label]) for label in labels)
        (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)


LAYOUTS = {
    "oxford-pets": (write_pets, (12, 0, 6), "american bulldog"),
    "food-101": (write_food, (12, 0, 6), "baby back ribs"),
    "fgvc-aircraft": (write_aircraft, (12, 6, 6), "Boeing 717"),
    "flowers-102": (write_flowers, (9, 3, 6), "flower 2"),
    "stanford-cars": (write_cars, (12, 0, 6), "Acura RL"),
    "imagenet": (write_imagenet, (12, 0, 6), "n01443537"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_set_is_read_from_the_layout_in_which_it_is_distributed(tmp_path, name):
    write, sizes, second_class = LAYOUTS[name]
    write(tmp_path / name)
    own_validation = None if sizes[1] else 0.0
    bundle = load_data(name, root=tmp_path, validation=own_validation)
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == sizes
    assert bundle.num_classes == 3
    assert bundle.class_names[1] == second_class
    assert bundle.train.class_counts.tolist() == [sizes[0] // 3] * 3
    assert bundle.input_shape == (3, 224, 224)
    assert any("but these files hold 3" in note for note in bundle.notes)
    batch = next(make_loader(bundle, "train", batch_size=2, training=True, augmentation="standard").epoch(0))
    assert batch.inputs.shape == (2, 3, 224, 224)


def test_the_test_above_knows_every_streamed_set_of_the_catalogue():
    streamed = {info.name for info in list_data() if info.image_size is not None}
    assert streamed == set(LAYOUTS)


def test_labels_belong_to_their_images(tmp_path):
    write_pets(tmp_path / "oxford-pets")
    bundle = load_data("oxford-pets", root=tmp_path)
    for path, label in zip(bundle.test.paths, bundle.test.labels.tolist(), strict=True):
        assert path.startswith(["Abyssinian", "american_bulldog", "Bengal"][label])


def test_flower_labels_follow_the_image_number(tmp_path):
    write_flowers(tmp_path / "flowers-102")
    bundle = load_data("flowers-102", root=tmp_path)
    numbers = [int(path[6:11]) for path in bundle.test.paths]
    assert bundle.test.labels.tolist() == [(number - 1) % 3 for number in numbers]
    (tmp_path / "flowers-102" / "class_names.txt").write_text("rose\ntulip\niris\n")
    assert load_data("flowers-102", root=tmp_path).class_names == ("rose", "tulip", "iris")


def test_cars_without_test_labels_are_refused(tmp_path):
    write_cars(tmp_path / "stanford-cars")
    rows = np.zeros((1, 1), dtype=[("fname", object)])
    rows[0, 0] = ("00001.jpg",)
    savemat(
        tmp_path / "stanford-cars" / "cars_test_annos_withlabels.mat",
        {"annotations": np.repeat(rows, 2, axis=1)},
    )
    with pytest.raises(DataError, match="cars_test_annos_withlabels"):
        load_data("stanford-cars", root=tmp_path)


@pytest.mark.parametrize("flat", ["csv", "devkit"])
def test_flat_imagenet_validation_gets_its_classes_from_the_lists(tmp_path, flat):
    write_imagenet(tmp_path / "imagenet", flat=flat)
    bundle = load_data("imagenet", root=tmp_path)
    assert bundle.test.labels.tolist() == [2, 0, 1, 1, 0, 2]
    assert bundle.class_names == ("word 4", "word 7", "word 0")


def test_flat_imagenet_validation_without_lists_is_refused(tmp_path):
    write_imagenet(tmp_path / "imagenet", flat="csv")
    (tmp_path / "imagenet" / "LOC_val_solution.csv").unlink()
    with pytest.raises(DataError, match="put LOC_val_solution"):
        load_data("imagenet", root=tmp_path)


def test_imagenet_in_the_kaggle_folders_is_found(tmp_path):
    write_imagenet(tmp_path / "imagenet" / "ILSVRC" / "Data" / "CLS-LOC")
    assert len(load_data("imagenet", root=tmp_path).test) == 6


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("oxford-pets", "annotations/test.txt"),
        ("food-101", "meta/classes.txt"),
        ("flowers-102", "setid.mat"),
        ("fgvc-aircraft", "data/variants.txt"),
        ("stanford-cars", "devkit/cars_meta.mat"),
    ],
)
def test_a_missing_list_is_named(tmp_path, name, file):
    LAYOUTS[name][0](tmp_path / name)
    (tmp_path / name / file).unlink()
    with pytest.raises(DataError, match=f"{file.split('/')[-1]} is missing"):
        load_data(name, root=tmp_path)


def test_a_damaged_mat_file_is_refused(tmp_path):
    write_flowers(tmp_path / "flowers-102")
    (tmp_path / "flowers-102" / "setid.mat").write_bytes(b"not matlab" * 30)
    with pytest.raises(DataError, match=r"setid\.mat is not a readable"):
        load_data("flowers-102", root=tmp_path)


def test_a_listed_image_that_is_not_there_is_named_when_read(tmp_path):
    write_pets(tmp_path / "oxford-pets")
    (tmp_path / "oxford-pets" / "images" / "Bengal_4.jpg").unlink()
    loader = make_loader(load_data("oxford-pets", root=tmp_path), "test", batch_size=6, training=False)
    with pytest.raises(DataError, match=r"images cannot be read: Bengal_4\.jpg"):
        next(loader.epoch(0))


@pytest.mark.parametrize("name", LAYOUTS)
def test_sets_behind_a_licence_say_where_to_get_them_and_are_never_downloaded(tmp_path, name):
    with pytest.raises(DataNotFoundError) as caught:
        load_data(name, root=tmp_path, download=True)
    assert "https://" in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "--download" not in str(caught.value)


def test_streamed_evaluation_visits_every_sample_once_in_order(tmp_path):
    write_food(tmp_path / "food-101")
    bundle = load_data("food-101", root=tmp_path, image_size=70)
    batches = list(make_loader(bundle, "test", batch_size=4, training=False).epoch(0))
    assert [len(batch.labels) for batch in batches] == [4, 2]
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(6))


@pytest.mark.parametrize("flat", ["csv", "devkit"])
def test_hidden_files_among_flat_imagenet_validation_images_do_no_harm(tmp_path, flat):
    write_imagenet(tmp_path / "imagenet", flat=flat)
    val = tmp_path / "imagenet" / "val"
    (val / "._ILSVRC2012_val_00000001.JPEG").write_bytes(b"resource fork")
    (val / ".ipynb_checkpoints").mkdir()
    assert load_data("imagenet", root=tmp_path).test.labels.tolist() == [2, 0, 1, 1, 0, 2]


def test_imagenet_without_validation_images_is_refused(tmp_path):
    write_imagenet(tmp_path / "imagenet", flat="csv")
    for path in (tmp_path / "imagenet" / "val").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="must hold the validation images"):
        load_data("imagenet", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "write", "train", "official"),
    [
        ("flowers-102", write_flowers, 9, 3),
        ("fgvc-aircraft", write_aircraft, 12, 6),
    ],
)
def test_without_validation_the_official_validation_part_is_trained_on(tmp_path, name, write, train, official):
    write(tmp_path / name)
    apart, together = (load_data(name, root=tmp_path, validation=share) for share in (None, 0.0))
    assert (len(apart.train), len(apart.validation)) == (train, official)
    assert (len(together.train), len(together.validation)) == (train + official, 0)
    assert together.train.full_size == train + official
    assert together.train.index.tolist() == list(range(train + official))
    assert together.train.paths == [*apart.train.paths, *apart.validation.paths]
    assert together.train.labels.tolist() == [*apart.train.labels.tolist(), *apart.validation.labels.tolist()]
    assert any(f"the {official} samples of the validation part are trained on" in note for note in together.notes)


@pytest.mark.parametrize(
    "lines",
    ["tench\ngoldfish\nwhite shark\n", "n01484850 white shark\nn01440764 tench\nn01443537 goldfish\n"],
)
def test_imagenet_classes_have_the_names_of_a_file_beside_them(tmp_path, lines):
    write_imagenet(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "class_names.txt").write_text(lines)
    assert load_data("imagenet", root=tmp_path).class_names == ("tench", "goldfish", "white shark")


def test_a_file_of_names_for_other_classes_is_refused(tmp_path):
    write_imagenet(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "class_names.txt").write_text("tench\ngoldfish\n")
    with pytest.raises(DataError, match="must name 3 classes, one on each line, got 2 lines"):
        load_data("imagenet", root=tmp_path)
