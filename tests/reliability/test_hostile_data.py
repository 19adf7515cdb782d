"""Fuzzed data sets: arrays, idx files, CIFAR pickles, parquet, image folders."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zlib

import hostile
import numpy as np
import pytest
from hostile import harmless, hostile_bytes, little_memory, long, quick
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from classmargin.data import load_data
from classmargin.data.formats.arrow_tables import read_hub
from classmargin.data.formats.cifar import load_pickled_arrays

LABELS = np.tile(np.arange(3), 4)
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def idx(array) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def cifar_batch(protocol: int) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (6, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 0, 1, 2], b"batch_label": b"x"}, protocol=protocol)


def parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [[float(value) for value in row] for row in PIXELS.reshape(12, -1)]
    file = io.BytesIO()
    pq.write_table(pa.table({"features": rows, "label": LABELS.tolist()}), file)
    return file.getvalue()


def png(size=(4, 4)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_npz(folder, content):
    (folder / "set.npz").write_bytes(content)
    return folder / "set.npz"


def write_npy(folder, content):
    place = folder / "arrays"
    place.mkdir(exist_ok=True)
    (place / "x_train.npy").write_bytes(content)
    (place / "y_train.npy").write_bytes(npy(LABELS))
    return place


def write_idx(folder, content):
    place = folder / "idx"
    place.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        (place / f"{part}-images-idx3-ubyte").write_bytes(content)
        (place / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return place


def write_idx_gz(folder, content):
    place = folder / "gz"
    place.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        (place / f"{part}-images-idx3-ubyte.gz").write_bytes(content)
        (place / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS), mtime=0))
    return place


def write_cifar(folder, content):
    place = folder / "cifar-10-batches-py"
    place.mkdir(exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (place / name).write_bytes(content)
    return place


def write_parquet(folder, content):
    (folder / "set.parquet").write_bytes(content)
    return folder / "set.parquet"


def write_images(folder, content):
    for name in ("cat", "dog"):
        place = folder / "images" / name
        place.mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (place / f"{number}.png").write_bytes(content if number == 0 else png())
    return folder / "images"


FORMATS = {
    "npz": (write_npz, npz(x_train=PIXELS, y_train=LABELS, class_names=np.array(["a", "b", "c"]))),
    "npy": (write_npy, npy(PIXELS)),
    "idx": (write_idx, idx(PIXELS)),
    "idx.gz": (write_idx_gz, gzip.compress(idx(PIXELS), mtime=0)),
    "CIFAR pickle": (write_cifar, cifar_batch(2)),
    "parquet": (write_parquet, parquet()),
    "images": (write_images, png()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_good_files_are_read(name, tmp_path):
    write, good = FORMATS[name]
    assert load_data(str(write(tmp_path, good))).num_classes >= 2


def load_one(folder, name: str, content: bytes) -> None:
    place = FORMATS[name][0](folder, content)
    with little_memory(), harmless(name):
        bundle = load_data(str(place))
        assert len(bundle.train) > 0
        assert int(bundle.train.labels.max()) < bundle.num_classes


@pytest.mark.parametrize("name", FORMATS)
@quick(30)
@given(data=st.data())
def test_damaged_data_end_in_words(name, tmp_path, data):
    load_one(tmp_path, name, data.draw(hostile_bytes(FORMATS[name][1])))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@long(700)
@given(data=st.data())
def test_many_damaged_data_end_in_words(name, tmp_path, data):
    load_one(tmp_path, name, data.draw(hostile_bytes(FORMATS[name][1])))


dtypes = st.sampled_from(["<i8", "u1", "<f4", "<f8", ">i2", "?", "<c8", "<U3", "S2", "<M8[s]", "<f2", "i4,f4"])
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 12]), max_size=5).map(tuple)
odd_arrays = st.tuples(dtypes, shapes).map(lambda pair: np.zeros(pair[1], dtype=pair[0]))
keys = st.sampled_from(["x_train", "y_train", "x_val", "y_val", "x_test", "y_test", "class_names", "inputs", "labels"])


@quick(60)
@given(arrays=st.dictionaries(keys, odd_arrays, max_size=4))
def test_arrays_of_any_kind_end_in_words(tmp_path, arrays):
    load_one(tmp_path, "npz", npz(**{"x_train": PIXELS, "y_train": LABELS, **arrays}))


# Bombs and lies


def assert_refused(reader, place, words):
    hostile.counted[reader] += 1
    with little_memory(2**28), pytest.raises(ValueError, match=words):
        load_data(str(place))


def test_a_zip_bomb_is_refused(tmp_path):
    bomb = npz(x_train=np.zeros((2**17, 32, 32), np.uint8), y_train=LABELS)
    assert len(bomb) < 2**19
    assert_refused("npz", write_npz(tmp_path, bomb), "zip bomb")


def test_a_gzip_bomb_is_refused(tmp_path):
    packer = zlib.compressobj(9, wbits=31)
    content = packer.compress(struct.pack(">HBBIII", 0, 8, 3, 2**18, 64, 64))
    for _ in range(64):
        content += packer.compress(bytes(2**20))
    content += packer.flush()
    assert len(content) < 2**17
    assert_refused("idx.gz", write_idx_gz(tmp_path, content), "far more than its")


@pytest.mark.parametrize("shape", [(2**31, 2**31), (2**62,), (10**9, 28, 28)])
def test_an_array_that_claims_more_than_its_file_is_refused(tmp_path, shape):
    packed = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    content = b"\x93NUMPY\x01\x00" + len(packed).to_bytes(2, "little") + packed + bytes(100)
    assert_refused("npy", write_npy(tmp_path, content), "claims shape")


def test_an_idx_file_that_claims_more_than_it_holds_is_refused(tmp_path):
    content = struct.pack(">HBBIII", 0, 8, 3, 2**20, 60, 60) + bytes(100)
    assert_refused("idx", write_idx(tmp_path, content), "far more than its")


@pytest.mark.parametrize("label", [12, 10**9, 2**62])
def test_a_single_label_beyond_all_reason_is_refused_before_names_are_made_for_it(tmp_path, label):
    labels = LABELS.copy()
    labels[3] = label
    content = npz(x_train=PIXELS, y_train=labels)
    assert_refused("npz", write_npz(tmp_path, content), f"without gaps, got label {label} in a training part of 12")


# Lists and tables of the sets of the catalogue


def pets(folder, trainval: str, test: str = "cat_1 1 1 1\ndog_1 2 1 1\n"):
    place = folder / "oxford-pets"
    (place / "annotations").mkdir(parents=True, exist_ok=True)
    (place / "images").mkdir(exist_ok=True)
    for name in ("cat_1", "dog_1", "cat_2", "dog_2"):
        (place / "images" / f"{name}.jpg").write_bytes(image_bytes("JPEG"))
    (place / "annotations" / "trainval.txt").write_text(trainval)
    (place / "annotations" / "test.txt").write_text(test)
    return folder


GOOD_LIST = "cat_1 1 1 1\ndog_1 2 1 1\ncat_2 1 1 1\ndog_2 2 1 1\n"


def test_a_good_list_is_read(tmp_path):
    assert load_data("oxford-pets", root=pets(tmp_path, GOOD_LIST)).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("../../private 1 1 1", "is not below"),
        ("/etc/passwd 1 1 1", "is not below"),
        ("cat_1 999999999999 1 1", "names class 999999999999"),
        ("cat_1", "does not hold"),
        ("cat_1 one 1 1", "does not hold"),
        (f"cat_1 {'9' * 30} 1 1", "does not hold|names class"),
        ("cat_1 0 1 1", "labels of the train part must lie in"),
    ],
)
def test_hostile_lists_are_refused_in_words_and_lead_nowhere(tmp_path, line, words):
    hostile.counted["lists"] += 1
    with little_memory(2**28), pytest.raises(ValueError, match=words):
        load_data("oxford-pets", root=pets(tmp_path, f"{GOOD_LIST}{line}\n"))


@quick(40)
@given(content=hostile_bytes(GOOD_LIST.encode()))
def test_damaged_lists_end_in_words(tmp_path, content):
    pets(tmp_path, GOOD_LIST)
    (tmp_path / "oxford-pets" / "annotations" / "trainval.txt").write_bytes(content)
    with little_memory(), harmless("lists"):
        load_data("oxford-pets", root=tmp_path)


@pytest.mark.parametrize("labels", [np.array([1, 2, 10**9]), np.array([]), np.array(["a"]), np.zeros((2, 2))])
@pytest.mark.parametrize("numbers", [np.array([1, 2, 3]), np.array([7]), np.array([])])
def test_hostile_tables_of_matlab_end_in_words(tmp_path, labels, numbers):
    from scipy.io import savemat

    place = tmp_path / "flowers-102"
    (place / "jpg").mkdir(parents=True)
    for number in (1, 2, 3):
        (place / "jpg" / f"image_{number:05d}.jpg").write_bytes(image_bytes("JPEG"))
    savemat(place / "imagelabels.mat", {"labels": labels})
    savemat(place / "setid.mat", {"trnid": numbers, "valid": numbers, "tstid": numbers})
    with little_memory(), harmless("MATLAB tables"):
        load_data("flowers-102", root=tmp_path)


# Pickles


class RunsACommand:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_is_refused_and_the_command_is_not_run(tmp_path, protocol):
    proof = tmp_path / "proof"
    bomb = RunsACommand(f"touch {proof}")
    for content in (bomb, {b"data": bomb, b"labels": [0]}, [bomb], {bomb.command: {b"x": [bomb]}}):
        place = write_cifar(tmp_path, pickle.dumps(content, protocol=protocol))
        assert_refused("CIFAR pickle", place, "refused|readable pickle")
    assert not proof.exists()
    os.system(f"touch {proof}")
    assert proof.exists(), "the command itself works"


NAMES = [
    ("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("subprocess", "Popen"), ("numpy", "load"),
    ("numpy.core.multiarray", "scalar"), ("copyreg", "_reconstructor"), ("codecs", "decode"), ("numpy", "ndarray.tofile"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_may_name_nothing_but_arrays(tmp_path, name):
    module, attribute = name
    (tmp_path / "bad").write_bytes(b"c" + module.encode() + b"\n" + attribute.encode() + b"\n(S'x'\ntR.")
    hostile.counted["CIFAR pickle"] += 1
    with pytest.raises(ValueError, match=r"has no need of: refused"):
        load_pickled_arrays(tmp_path / "bad")


def test_a_pickle_of_ten_bytes_cannot_take_gigabytes(tmp_path):
    (tmp_path / "bad").write_bytes(b"}r\xff\xff\xff\x7f.")  # an empty dictionary, remembered under 2**31 - 1
    hostile.counted["CIFAR pickle"] += 1
    with little_memory(2**28), pytest.raises(ValueError, match="more memory than its size explains"):
        load_pickled_arrays(tmp_path / "bad")


def test_a_tower_of_tuples_cannot_overflow_the_stack(tmp_path):
    (tmp_path / "bad").write_bytes(b"}N" + b"\x85" * 1_000_000 + b"K\x01s.")
    hostile.counted["CIFAR pickle"] += 1
    with pytest.raises(ValueError, match="nests tuples"):
        load_pickled_arrays(tmp_path / "bad")


def test_a_tower_of_lists_as_class_names_ends_in_words(tmp_path):
    place = write_cifar(tmp_path, cifar_batch(2))
    tower = b"]" * 100_000 + b"a" * 99_999
    (place / "batches.meta").write_bytes(b"}C\x0blabel_names" + tower + b"s.")
    assert_refused("CIFAR pickle", place, "list of names")


opcodes = st.lists(
    st.sampled_from([bytes([code]) for code in b"()0NtRb}]{sauq.cl\x85\x86\x87\x88\x80\x93\x94\x8c\x95"]),
    max_size=40,
)


@quick(100)
@given(parts=st.lists(st.one_of(opcodes.map(b"".join), st.binary(max_size=8)), max_size=6))
def test_pickles_of_any_instructions_end_in_words(tmp_path, parts):
    (tmp_path / "any").write_bytes(b"".join(parts))
    with little_memory(), harmless("CIFAR pickle"):
        load_pickled_arrays(tmp_path / "any")


@pytest.mark.slow
@long(2000)
@given(parts=st.lists(st.one_of(opcodes.map(b"".join), st.binary(max_size=8)), max_size=6))
def test_many_pickles_of_any_instructions_end_in_words(tmp_path, parts):
    (tmp_path / "any").write_bytes(b"".join(parts))
    with little_memory(), harmless("CIFAR pickle"):
        load_pickled_arrays(tmp_path / "any")


# Images


def image_bytes(kind: str, **options) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_a_mislabelled_image_is_read_by_what_it_is(tmp_path, kind):
    hostile.counted["images"] += 1
    assert len(load_data(str(write_images(tmp_path, image_bytes(kind)))).class_names) == 2


def test_an_animation_counts_as_its_first_picture(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        file = io.BytesIO()
        frames[0].save(
            file,
            kind,
            save_all=True,
            append_images=frames[1:],
            **({"lossless": True} if kind == "WEBP" else {}),
        )
        hostile.counted["images"] += 1
        bundle = load_data(str(write_images(tmp_path, file.getvalue())), validation=0.0)
        reds = [image for image in bundle.train.inputs if tuple(image[:, 0, 0].tolist()) == (255, 0, 0)]
        others = [image for image in bundle.test.inputs if tuple(image[:, 0, 0].tolist()) == (255, 0, 0)]
        assert len(reds) + len(others) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n(%s) (w) file\n%%EOF\n",  # Pillow would start Ghostscript
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        png()[:45],
    ],
    ids=["postscript", "svg", "empty", "png head", "gif head", "cut"],
)
def test_what_is_no_picture_is_named_and_can_be_left_out(tmp_path, content):
    place = write_images(tmp_path, content)
    assert_refused("images", place, r"2 of 6 images cannot be read: cat/0\.png")
    kept = load_data(str(place), skip_corrupt=True, validation=0.0)
    assert len(kept.train) + len(kept.test) == 4


def header_of(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    chunks = [body, b"IDAT" + pixels, b"IEND"]
    packed = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (0, 5), (20_000, 5_000)])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path, size):
    assert_refused("images", write_images(tmp_path, header_of(*size)), "images cannot be read")


def test_a_picture_of_one_line_cannot_be_blown_up(tmp_path):
    file = io.BytesIO()
    Image.new("L", (1, 4_000_000)).save(file, "PNG")
    place = write_images(tmp_path, file.getvalue())
    hostile.counted["images"] += 1
    with little_memory(), pytest.raises(ValueError, match="too narrow"):
        load_data(str(place), image_size=32)


def test_a_pipe_among_the_images_is_not_waited_for(tmp_path):
    place = write_images(tmp_path, png())
    os.mkfifo(place / "cat" / "9.png")
    assert_refused("images", place, r"cat/9\.png \(not there, or not a regular file")


def test_a_link_in_a_circle_is_not_followed(tmp_path):
    place = write_images(tmp_path, png())
    (place / "cat" / "again").symlink_to(place, target_is_directory=True)
    (place / "cat" / "8.png").symlink_to(place / "cat" / "8.png")
    hostile.counted["images"] += 1
    assert_refused("images", place, r"1 of 7 images cannot be read: cat/8\.png")


@pytest.mark.parametrize("name", ["../../etc", "..", ".", "a/../../b", "/etc", "a/b/c", "", "a b"])
def test_names_of_the_hub_stay_below_the_data_folder(tmp_path, name):
    hostile.counted["names"] += 1
    with pytest.raises(ValueError, match="a hub data set is named"):
        read_hub(name, tmp_path, download=True)
