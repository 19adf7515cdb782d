import struct

import numpy as np
import pytest

from classmargin.data import DataError, load_data
from classmargin.data.formats.arrays import read_idx, read_idx_folder

from .conftest import random_images, write_idx, write_idx_set


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_come_back_as_written(tmp_path, zipped):
    array = random_images(5, 4, 3)
    write_idx(tmp_path / "a", array, zipped=zipped)
    assert np.array_equal(read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_of_four_idx_files_is_a_data_set(tmp_path, zipped):
    content = write_idx_set(tmp_path, zipped=zipped)
    raw = read_idx_folder(tmp_path)
    assert np.array_equal(raw.train.inputs[:, 0], content["train"])
    assert np.array_equal(raw.test.inputs[:, 0], content["t10k"])
    assert raw.train.labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_named_idx_sets_are_found_below_the_root(tmp_path, name):
    write_idx_set(tmp_path / name, classes=10, zipped=True)
    bundle = load_data(name, root=tmp_path)
    assert bundle.input_shape == (1, 28, 28)
    assert bundle.num_classes == 10
    assert bundle.flip is (name != "mnist")


def test_a_missing_file_of_the_four_is_named(tmp_path):
    write_idx_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        read_idx_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "must hold 5 bytes.*got 3"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02abc", "got more"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01abcd", "not an idx file of bytes"),
        (b"\x89PNG....", "not an idx file of bytes"),
        (b"\x00", "damaged or cut short"),
        (struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31), "claims"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path)


def test_a_cut_gzip_file_is_refused(tmp_path):
    write_idx(tmp_path / "whole", random_images(50, 8, 8), zipped=True)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:200])
    with pytest.raises(DataError, match="damaged or cut short"):
        read_idx(tmp_path / "cut")
