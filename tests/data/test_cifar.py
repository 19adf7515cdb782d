import pickle
import struct

import numpy as np
import pytest

from classmargin.data import DataError, load_data
from classmargin.data.formats.cifar import CIFAR10, CIFAR100, load_pickled_arrays

from .conftest import random_images


def python2_text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python2_array(array: np.ndarray) -> bytes:
    """Return the opcodes with which Python 2 and an old NumPy pickled an array of bytes (as in CIFAR)."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in array.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = array.tobytes()
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    return start + b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"


def python2_batch(pixels: np.ndarray, labels: list[int], key: bytes) -> bytes:
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = python2_text(b"data") + python2_array(pixels) + python2_text(key) + numbers
    return b"\x80\x02}(" + items + b"u."


def python2_names(key: bytes, names: list[bytes]) -> bytes:
    return b"\x80\x02}(" + python2_text(key) + b"](" + b"".join(python2_text(name) for name in names) + b"eu."


def write_cifar10(folder, *, per_batch: int = 20) -> list[np.ndarray]:
    folder.mkdir(parents=True)
    pixels = []
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        pixels.append(random_images(per_batch, 3072, seed=number))
        labels = [row % 10 for row in range(per_batch)]
        (folder / name).write_bytes(python2_batch(pixels[-1], labels, b"labels"))
    names = [f"thing {k}".encode() for k in range(10)]
    (folder / "batches.meta").write_bytes(python2_names(b"label_names", names))
    return pixels


def write_cifar100(folder) -> np.ndarray:
    folder.mkdir(parents=True)
    pixels = random_images(300, 3072)
    labels = [row % 100 for row in range(300)]
    for name in ("train", "test"):
        (folder / name).write_bytes(python2_batch(pixels, labels, b"fine_labels"))
    names = [f"fine {k}".encode() for k in range(100)]
    (folder / "meta").write_bytes(python2_names(b"fine_label_names", names))
    return pixels


def test_pickles_of_python_2_are_read_as_python_itself_would(tmp_path):
    pixels = random_images(4, 3072)
    path = tmp_path / "batch"
    path.write_bytes(python2_batch(pixels, [0, 1, 2, 3], b"labels"))
    content = load_pickled_arrays(path)
    assert np.array_equal(content["data"], pixels)
    assert content["labels"] == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_of_python_3_are_read_too(tmp_path, protocol, order):
    array = np.asarray(random_images(4, 6), order=order)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": array, "numbers": np.arange(3, dtype=">i4")}, protocol=protocol))
    content = load_pickled_arrays(path)
    assert np.array_equal(content["data"], array)
    assert content["numbers"].tolist() == [0, 1, 2]


def test_cifar10_batches_follow_one_another(tmp_path):
    pixels = write_cifar10(tmp_path / "cifar-10-batches-py")
    raw = CIFAR10.read(tmp_path)
    assert np.array_equal(raw.train.inputs, np.concatenate(pixels[:5]).reshape(-1, 3, 32, 32))
    assert np.array_equal(raw.test.inputs, pixels[5].reshape(-1, 3, 32, 32))
    assert raw.class_names[3] == "thing 3"


def test_cifar100_uses_the_fine_labels(tmp_path):
    pixels = write_cifar100(tmp_path / "cifar-100-python")
    raw = CIFAR100.read(tmp_path)
    assert np.array_equal(raw.train.inputs.reshape(300, 3072), pixels)
    assert raw.train.labels[57] == 57
    assert len(raw.class_names) == 100


def test_cifar_is_found_by_name_as_folder_and_as_npz(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    bundle = load_data("cifar10", root=tmp_path, validation=0.0)
    assert bundle.input_shape == (3, 32, 32)
    assert len(bundle.train) == 100
    np.savez(
        tmp_path / "cifar100.npz",
        x_train=random_images(200, 32, 32, 3),
        y_train=np.arange(200) % 100,
        x_test=random_images(100, 32, 32, 3),
        y_test=np.arange(100),
    )
    assert load_data("cifar100", root=tmp_path).num_classes == 100


class Malicious:
    """Asks the reader of its pickle to run a command."""

    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_and_nothing_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Malicious(marker)}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1.*system.*refused"):
        load_data(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbuiltins\neval\n(U\x011tR.",
        b"c__builtin__\ngetattr\n.",
        b"cnumpy\nload\n(U\x01atR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"ccollections\nOrderedDict\n)R.",
        b"P1\n.",
        b"K\x01Q.",
    ],
)
def test_every_other_name_and_outside_reference_is_refused(tmp_path, opcodes):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02" + opcodes)
    with pytest.raises(DataError, match="refused"):
        load_pickled_arrays(path)


def test_a_pickle_cannot_change_the_stand_ins_it_reaches(tmp_path):
    path = tmp_path / "batch"
    # BUILD with slot state is setattr: here on the stand-in of numpy.dtype.
    path.write_bytes(b"\x80\x02cnumpy\ndtype\nN}U\x04codeU\x01xs\x86b.")
    with pytest.raises(DataError, match="not a readable pickle"):
        load_pickled_arrays(path)


@pytest.mark.parametrize("bad", [np.array([object()]), np.array(["a"]), np.array([1.5]), np.zeros(2, "M8[s]")])
def test_only_integer_arrays_are_built(tmp_path, bad):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": bad.astype(object) if bad.dtype == object else bad}, protocol=2))
    with pytest.raises(DataError):
        load_pickled_arrays(path)


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path):
    good = python2_batch(random_images(2, 4), [0, 1], b"labels")
    path = tmp_path / "batch"
    path.write_bytes(
        good.replace(
            struct.pack("<i", 2) + b"J" + struct.pack("<i", 4),
            struct.pack("<i", 9) + b"J" + struct.pack("<i", 4),
        )
    )
    with pytest.raises(DataError, match="do not fit its shape"):
        load_pickled_arrays(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", b"\x80\x02K\x01."])
def test_what_is_no_pickle_of_a_dictionary_is_refused(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(DataError):
        load_pickled_arrays(path)


def test_a_missing_batch_and_a_wrong_shape_are_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "test_batch").write_bytes(python2_batch(random_images(2, 4), [0, 1], b"labels"))
    with pytest.raises(DataError, match=r"test_batch.*\[N, 3072\]"):
        CIFAR10.read(tmp_path)
    (folder / "test_batch").unlink()
    with pytest.raises(DataError, match="test_batch is missing"):
        CIFAR10.read(tmp_path)


def test_a_missing_training_batch_is_named(tmp_path):
    write_cifar10(tmp_path / "set")
    (tmp_path / "set" / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3 is missing"):
        load_data(str(tmp_path / "set"))
