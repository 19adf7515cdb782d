from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from classmargin.data import CorruptImageError, DataError, Framing, MixedSizeError, load_data, make_loader
from classmargin.data.pixels import draw_crop_box

from .conftest import write_image, write_tree


def all_inputs(bundle, split_name, **options):
    loader = make_loader(bundle, split_name, batch_size=4, **{"training": False, **options})
    return torch.cat([batch.inputs for batch in loader.epoch(0)])


def test_a_single_tree_is_split_in_three(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 10)
    bundle = load_data(str(tmp_path / "set"))
    assert bundle.class_names == ("cat", "dog")
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (14, 2, 4)
    assert any("20% of every class" in note for note in bundle.notes)
    assert bundle.train.paths is None


def test_train_val_and_test_folders_are_taken_as_they_are(tmp_path):
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        write_tree(tmp_path / "set" / part, ["cat", "dog"], count)
    bundle = load_data(str(tmp_path / "set"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (12, 4, 6)


def test_without_test_folder_the_val_folder_judges_and_does_not_choose(tmp_path):
    write_tree(tmp_path / "set" / "train", ["cat", "dog"], 10)
    write_tree(tmp_path / "set" / "val", ["cat", "dog"], 3)
    bundle = load_data(str(tmp_path / "set"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (18, 2, 6)
    assert any("the validation part is the test part" in note for note in bundle.notes)


def test_pixels_of_small_images_are_decoded_exactly(tmp_path):
    pixels = write_image(tmp_path / "set" / "a" / "1.png", size=(5, 7), seed=1)
    write_image(tmp_path / "set" / "b" / "deep" / "er" / "2.png", size=(5, 7), seed=2)
    for name in ("a", "b"):
        for number in range(3, 9):
            write_image(tmp_path / "set" / name / f"{number}.png", size=(5, 7), seed=number)
    bundle = load_data(str(tmp_path / "set"), validation=0.0)
    assert bundle.input_shape == (3, 5, 7)
    every = {int(i): x for s in (bundle.train, bundle.test) for i, x in zip(s.index, s.inputs, strict=True)}
    assert len(every) == 14
    assert np.array_equal(every[0].numpy(), pixels.transpose(2, 0, 1))


def test_grey_trees_have_one_channel(tmp_path):
    for name in ("a", "b"):
        for number in range(4):
            write_image(tmp_path / "set" / name / f"{number}.png", mode="L", seed=number)
    assert load_data(str(tmp_path / "set")).input_shape == (1, 8, 8)


def test_images_of_mixed_size_need_an_image_size(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 6)
    write_image(tmp_path / "set" / "dog" / "odd.png", size=(9, 12))
    with pytest.raises(MixedSizeError, match=r"2 different sizes.*12 of 8x8, 1 of 9x12.*--set data.image_size"):
        load_data(str(tmp_path / "set"))
    bundle = load_data(str(tmp_path / "set"), image_size=6)
    assert bundle.input_shape == (3, 6, 6)
    assert bundle.train.inputs.shape[1:] == (3, 6, 6)


def test_shorter_side_is_scaled_and_the_centre_cut_out(tmp_path):
    stripes = np.zeros((8, 16, 3), np.uint8)
    stripes[:, 4:12] = 200
    for name in ("a", "b"):
        for number in range(4):
            path = tmp_path / "set" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(stripes).save(path)
    bundle = load_data(str(tmp_path / "set"), image_size=8)
    assert torch.all(bundle.train.inputs == 200)


def test_corrupt_files_are_named_and_counted(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 6)
    (tmp_path / "set" / "cat" / "broken.png").write_bytes(b"not an image")
    whole = (tmp_path / "set" / "cat" / "000.png").read_bytes()
    (tmp_path / "set" / "dog" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "set" / "dog" / "empty.png").write_bytes(b"")
    with pytest.raises(CorruptImageError, match=r"2 of 15 images cannot be read: cat/broken\.png.*dog/empty\.png"):
        load_data(str(tmp_path / "set"))
    with pytest.raises(CorruptImageError, match=r"3 of 15 images.*cat/broken\.png.*dog/cut\.png.*dog/empty\.png"):
        load_data(str(tmp_path / "set"), image_size=8)


@pytest.mark.parametrize("image_size", [None, 8, 80])
def test_corrupt_files_are_skipped_only_on_request_and_the_rest_keeps_its_index(tmp_path, image_size):
    write_tree(tmp_path / "set", ["cat", "dog"], 6)
    whole = (tmp_path / "set" / "cat" / "000.png").read_bytes()
    (tmp_path / "set" / "cat" / "00.png").write_bytes(whole[: len(whole) // 2])
    bundle = load_data(str(tmp_path / "set"), image_size=image_size, skip_corrupt=True, validation=0.0)
    index = torch.cat([bundle.train.index, bundle.test.index])
    # 00.png sorts first (position 0) and is the one left out.
    assert index.sort().values.tolist() == list(range(1, 13))
    assert bundle.train.full_size == 13
    assert any("1 of 13 images cannot be read and are left out: cat/00.png" in note for note in bundle.notes)


def test_a_class_whose_files_are_all_corrupt_has_no_training_sample(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 4)
    for path in (tmp_path / "set" / "dog").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"1 of 2 classes have no training sample: 1 \('dog'\)"):
        load_data(str(tmp_path / "set"), skip_corrupt=True)


def test_an_empty_class_folder_is_refused(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 4)
    (tmp_path / "set" / "bird").mkdir()
    with pytest.raises(DataError, match=r"classes have no training sample: 0 \('bird'\)"):
        load_data(str(tmp_path / "set"))


def test_a_class_that_only_the_test_folder_has_is_refused(tmp_path):
    write_tree(tmp_path / "set" / "train", ["cat", "dog"], 3)
    write_tree(tmp_path / "set" / "test", ["cat", "emu"], 3)
    with pytest.raises(DataError, match="1 classes that the training part does not have: emu"):
        load_data(str(tmp_path / "set"))


def test_a_folder_of_nothing_known_is_refused(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "readme.txt").write_text("hello")
    with pytest.raises(DataError, match="expected class folders with images"):
        load_data(str(tmp_path / "set"))


def test_a_decompression_bomb_is_treated_as_corrupt(tmp_path, monkeypatch):
    write_tree(tmp_path / "set", ["cat", "dog"], 4)
    write_image(tmp_path / "set" / "cat" / "bomb.png", size=(30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(CorruptImageError, match=r"1 of 9 images.*bomb\.png"):
        load_data(str(tmp_path / "set"), image_size=8)


def large_tree(folder, per_class=4):
    for label, name in enumerate(("cat", "dog")):
        for number in range(per_class):
            write_image(folder / name / f"{number}.jpg", size=(90 + 3 * number, 120), seed=10 * label + number)
    return str(folder)


def test_large_images_are_streamed(tmp_path):
    bundle = load_data(large_tree(tmp_path / "set"), image_size=70)
    assert bundle.streamed
    assert bundle.train.inputs is None
    assert len(bundle.train.paths) == len(bundle.train)
    assert bundle.input_shape == (3, 70, 70)
    assert bundle.resize == 80
    assert all_inputs(bundle, "test").shape == (2, 3, 70, 70)
    assert any("statistics of ImageNet" in note for note in bundle.notes)


def test_streamed_images_of_one_size_are_used_as_they_are(tmp_path):
    pixels = [write_image(tmp_path / "set" / n / f"{k}.png", size=(66, 70), seed=k) for n in "ab" for k in range(3)]
    bundle = load_data(str(tmp_path / "set"))
    assert bundle.streamed
    assert bundle.input_shape == (3, 66, 70)
    batch = next(make_loader(bundle, "test", batch_size=2, training=False).epoch(0))
    expected = pixels[int(batch.index[0])] / 255.0
    restored = batch.inputs[0].permute(1, 2, 0).numpy() * np.array(bundle.std) + np.array(bundle.mean)
    assert np.abs(restored - expected).max() < 1e-5


@pytest.mark.parametrize("augmentation", ["none", "standard", "randaugment", "autoaugment"])
def test_workers_change_nothing_in_a_stream(tmp_path, augmentation):
    bundle = load_data(large_tree(tmp_path / "set", per_class=6), image_size=66, validation=0.0)
    options = {"batch_size": 4, "training": True, "augmentation": augmentation, "views": 2, "seed": 3}
    alone = list(make_loader(bundle, "train", workers=0, **options).epoch(2))
    helped = list(make_loader(bundle, "train", workers=2, **options).epoch(2))
    assert len(alone) == len(helped) == 2
    for a, b in zip(alone, helped, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.index, b.index)


def test_streamed_shards_make_up_the_single_process_batch(tmp_path):
    bundle = load_data(large_tree(tmp_path / "set", per_class=6), image_size=66, validation=0.0)
    options = {"batch_size": 4, "training": True, "augmentation": "randaugment", "seed": 1}
    whole = list(make_loader(bundle, "train", **options).epoch(0))
    shards = [list(make_loader(bundle, "train", rank=r, world_size=2, **options).epoch(0)) for r in (0, 1)]
    for step, batch in enumerate(whole):
        assert torch.equal(batch.inputs, torch.cat([shard[step].inputs for shard in shards]))


def test_streaming_leaves_the_global_random_state_alone(tmp_path):
    bundle = load_data(large_tree(tmp_path / "set"), image_size=66)
    before = torch.get_rng_state()
    list(make_loader(bundle, "train", batch_size=2, training=True, augmentation="standard", workers=1).epoch(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_file_found_while_streaming_is_named_with_what_to_do(tmp_path, workers):
    folder = tmp_path / "set"
    large_tree(folder / "train", per_class=8)
    large_tree(folder / "test", per_class=1)
    path = folder / "train" / "cat" / "5.jpg"
    path.write_bytes(path.read_bytes()[:400])
    bundle = load_data(str(folder), image_size=70, validation=0.0)
    loader = make_loader(bundle, "train", batch_size=4, training=False, workers=workers)
    with pytest.raises(CorruptImageError, match=r"images cannot be read: cat/5\.jpg.*skip_corrupt"):
        list(loader.epoch(0))


def test_storage_does_not_change_what_small_images_become(tmp_path, monkeypatch):
    write_tree(tmp_path / "set", ["cat", "dog"], 8, size=(12, 16))
    folder = str(tmp_path / "set")
    options = {"training": True, "augmentation": "standard", "seed": 5}
    in_memory = load_data(folder, image_size=10, validation=0.0)
    monkeypatch.setattr("classmargin.data.load.MEMORY_LIMIT", 0)
    streamed = load_data(folder, image_size=10, validation=0.0)
    assert streamed.streamed
    assert not in_memory.streamed
    pixels = [all_inputs(b, "train", **options) * torch.tensor(b.std).view(1, 3, 1, 1) for b in (in_memory, streamed)]
    shift = [torch.tensor(b.mean).view(1, 3, 1, 1) for b in (in_memory, streamed)]
    assert torch.allclose(pixels[0] + shift[0], pixels[1] + shift[1], atol=1e-5)


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_images_of_16_bits_keep_their_grey_levels(tmp_path, ending):
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 4
    for name in ("a", "b"):
        for number in range(4):
            path = tmp_path / "set" / name / f"{number}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if ending == "pgm":
                path.write_bytes(b"P5\n8 8\n65535\n" + (levels * 257).astype(">u2").tobytes())
            else:
                Image.fromarray(levels * 257).save(path)
    bundle = load_data(str(tmp_path / "set"))
    assert bundle.input_shape == (1, 8, 8)
    assert np.array_equal(bundle.train.inputs[0, 0].numpy(), levels)
    coloured = load_data(str(tmp_path / "set"), image_size=8)
    assert np.array_equal(coloured.train.inputs[0, 2].numpy(), levels)


@pytest.mark.parametrize("values", [np.linspace(0.0, 1.0, 64), np.linspace(0.0, 3000.0, 64), np.arange(64.0)])
def test_images_of_32_bits_without_agreed_white_are_refused(tmp_path, values):
    write_tree(tmp_path / "set", ["cat", "dog"], 6)
    Image.fromarray(values.astype(np.float32).reshape(8, 8)).save(tmp_path / "set" / "cat" / "odd.tif")
    with pytest.raises(CorruptImageError, match=r"odd\.tif \(32-bit values have no agreed white"):
        load_data(str(tmp_path / "set"))


@pytest.mark.parametrize("names", [("Train", "Val", "Test"), ("training", "validation", "testing")])
def test_parts_may_be_written_in_capitals_or_in_full(tmp_path, names):
    for part, count in zip(names, (6, 2, 3), strict=True):
        write_tree(tmp_path / "set" / part, ["cat", "dog"], count)
    bundle = load_data(str(tmp_path / "set"))
    assert bundle.class_names == ("cat", "dog")
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (12, 4, 6)


def test_a_class_may_be_called_train(tmp_path):
    write_tree(tmp_path / "set", ["bus", "test", "train"], 10)
    assert load_data(str(tmp_path / "set")).class_names == ("bus", "test", "train")


def test_parts_without_a_training_part_are_not_classes(tmp_path):
    for part in ("val", "test"):
        write_tree(tmp_path / "set" / part, ["cat", "dog"], 3)
    with pytest.raises(DataError, match="has the parts validation, test, but no folder called train"):
        load_data(str(tmp_path / "set"))


def test_a_test_folder_without_classes_is_left_aside(tmp_path):
    write_tree(tmp_path / "set" / "train", ["cat", "dog"], 10)
    for number in range(5):
        write_image(tmp_path / "set" / "test" / f"{number}.png", seed=number)
    bundle = load_data(str(tmp_path / "set"))
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (14, 2, 4)
    assert any("the folder test has no class folders with images" in note for note in bundle.notes)


def test_names_that_browsers_give_to_jpeg_files_are_known(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 10)
    for name in ("cat", "dog"):
        (tmp_path / "set" / name / "000.png").rename(tmp_path / "set" / name / "000.JFIF")
    bundle = load_data(str(tmp_path / "set"))
    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 20


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_images_that_are_not_read_are_named(tmp_path, parts):
    for part in parts:
        write_tree(tmp_path / "set" / part, ["cat", "dog"], 10)
    (tmp_path / "set" / parts[-1] / "dog" / "IMG_1.HEIC").write_bytes(b"")
    (tmp_path / "set" / parts[-1] / "dog" / "notes.txt").write_bytes(b"")
    assert "1 images of kinds that are not read: dog/IMG_1.HEIC" in load_data(str(tmp_path / "set")).notes


def test_copies_in_hidden_folders_are_no_samples(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 10)
    for name in ("cat", "dog"):
        write_image(tmp_path / "set" / name / ".ipynb_checkpoints" / "000-checkpoint.png")
        write_image(tmp_path / "set" / name / "__MACOSX" / "000.png")
    bundle = load_data(str(tmp_path / "set"))
    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 20


def test_a_class_too_small_to_be_held_out_is_named(tmp_path):
    write_tree(tmp_path / "set", ["cat", "dog"], 10)
    write_tree(tmp_path / "set", ["unicorn"], 1)
    notes = load_data(str(tmp_path / "set")).notes
    assert "1 of 3 classes have no test sample ('unicorn'): accuracy unknown" in notes
    assert "1 of 3 classes have no validation sample ('unicorn'): accuracy unknown" in notes


CLIP_FRAMING = Framing((0.9, 1.0), centre_share=1.0, interpolation="bicubic", flip=False)


def test_evaluation_scales_bicubic_and_cuts_the_centre_as_clip_does(tmp_path):
    bundle = load_data(large_tree(tmp_path / "set", per_class=6), image_size=70, framing=CLIP_FRAMING)
    assert bundle.resize == 70
    assert not bundle.flip
    loader = make_loader(replace(bundle, mean=(0.0,) * 3, std=(1.0,) * 3), "test", batch_size=1, training=False)
    found = next(loader.epoch(0)).inputs[0].numpy() * 255
    with Image.open(tmp_path / "set" / bundle.test.paths[0]) as image:
        scale = 70 / min(image.size)
        scaled = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (scaled.width - 70) // 2, (scaled.height - 70) // 2
    expected = np.asarray(scaled.crop((left, top, left + 70, top + 70))).transpose(2, 0, 1)
    assert np.abs(found - expected).max() < 1e-3


def test_crops_keep_the_wanted_share_of_the_area():
    random = np.random.default_rng(0)
    boxes = [draw_crop_box(random, 400, 300, scale=(0.9, 1.0)) for _ in range(300)]
    shares = [(right - left) * (bottom - top) / 120_000 for left, top, right, bottom in boxes]
    assert min(shares) > 0.89
    assert max(shares) <= 1.0
    assert max(shares) - min(shares) > 0.08


def test_training_without_mirroring_never_mirrors(tmp_path):
    """Of a crop of the whole image, bicubic at the same size, nothing is left to chance."""
    write_image(tmp_path / "set" / "a" / "1.png", size=(70, 70), seed=1)
    write_image(tmp_path / "set" / "b" / "2.png", size=(70, 70), seed=2)
    whole = Framing((1.0, 1.0), centre_share=1.0, interpolation="bicubic", flip=False)
    bundle = load_data(str(tmp_path / "set"), image_size=70, framing=whole, validation=0.0)
    training = make_loader(bundle, "train", batch_size=1, training=True, augmentation="standard")
    plain = {int(b.index[0]): b.inputs for b in make_loader(bundle, "train", batch_size=1, training=False).epoch(0)}
    for epoch in range(6):
        for batch in training.epoch(epoch):
            # A crop of the whole area has another shape unless the drawn sides are those of the image.
            mirrored = plain[int(batch.index[0])].flip(-1)
            assert (batch.inputs - mirrored).abs().mean() > (batch.inputs - plain[int(batch.index[0])]).abs().mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.5, 0.4)}, "crop_scale"),
        ({"centre_share": 1.5}, "centre_share"),
        ({"interpolation": "bicubik"}, "did you mean 'bicubic'"),
    ],
)
def test_framings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Framing(**options)
