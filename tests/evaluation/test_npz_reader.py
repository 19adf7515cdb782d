"""Files from strangers: pickles, bombs, lies about sizes, truncation."""

import io
import zipfile

import numpy as np
import pytest

from classmargin._array_files import read_npz_arrays
from classmargin.evaluation.prediction_tables import PredictionFileError, refused_as


def read_npz(path, names, max_bytes=2**33):
    with refused_as():
        return read_npz_arrays(path, names, max_bytes=max_bytes, mapped=("logits", "probabilities"))


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def zip_file(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


class Harmful:
    """Would write a file if it were ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "labels": np.arange(5),
        "logits": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays, other=np.ones(3))
        found = read_npz(tmp_path / "a.npz", ["labels", "logits", "features"])
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_fortran_order_is_read(tmp_path):
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez(tmp_path / "a.npz", logits=array)
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz", ["logits"])["logits"], array)


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    target = tmp_path / "harm"
    np.savez(tmp_path / "a.npz", labels=np.array([Harmful(str(target))], dtype=object))
    with pytest.raises(PredictionFileError, match="pickled Python objects, which are never loaded"):
        read_npz(tmp_path / "a.npz", ["labels"])
    assert not target.exists()


def test_members_that_nobody_asked_for_are_not_even_looked_at(tmp_path):
    target = tmp_path / "harm"
    np.savez(tmp_path / "a.npz", labels=np.zeros(2), extra=np.array([Harmful(str(target))], dtype=object))
    assert read_npz(tmp_path / "a.npz", ["labels"]).keys() == {"labels"}
    assert not target.exists()


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path):
    bomb = zip_file(tmp_path / "a.npz", {"logits.npy": npy_bytes(np.zeros(80 * 2**20, np.uint8))}, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 2**20
    with pytest.raises(PredictionFileError, match="possible zip bomb"):
        read_npz(bomb, ["logits"])


def test_files_above_the_limit_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.zeros(1000), logits=np.zeros(1000))
    with pytest.raises(PredictionFileError, match="more than the limit of 9000"):
        read_npz(tmp_path / "a.npz", ["labels", "logits"], max_bytes=9000)
    assert len(read_npz(tmp_path / "a.npz", ["labels"], max_bytes=9000)["labels"]) == 1000


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    honest = npy_bytes(np.zeros(4))
    lie = honest.replace(b"(4,), }", b"(9000000000,), }")[: len(honest)]
    zip_file(tmp_path / "a.npz", {"logits.npy": lie})
    with pytest.raises(PredictionFileError, match=r"claims shape|cannot be read|is not a NumPy array"):
        read_npz(tmp_path / "a.npz", ["logits"])


def test_a_large_claim_takes_no_memory(tmp_path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 4)}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    zip_file(tmp_path / "a.npz", {"logits.npy": buffer.getvalue() + b"\0" * 64})
    with pytest.raises(PredictionFileError, match=r"claims shape \(1000000000000, 4\)"):
        read_npz(tmp_path / "a.npz", ["logits"])


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.99])
def test_truncated_files_are_refused(tmp_path, kept):
    np.savez(tmp_path / "a.npz", labels=np.arange(1000))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(PredictionFileError, match=r"is not a complete \.npz file"):
        read_npz(tmp_path / "a.npz", ["labels"])


@pytest.mark.parametrize("position", [200, 4000])
def test_flipped_bytes_are_noticed(tmp_path, position):
    np.savez_compressed(tmp_path / "a.npz", labels=np.random.default_rng(0).integers(0, 9, 20_000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[position] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(PredictionFileError):
        read_npz(tmp_path / "a.npz", ["labels"])


@pytest.mark.parametrize(
    "content", [b"", b"not numpy at all", npy_bytes(np.zeros(3))[:20], b"\x93NUMPY\x09\x00" + b"\0" * 50]
)
def test_members_that_are_no_arrays_are_refused(tmp_path, content):
    zip_file(tmp_path / "a.npz", {"labels.npy": content})
    with pytest.raises(PredictionFileError):
        read_npz(tmp_path / "a.npz", ["labels"])


def test_a_name_that_comes_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("labels.npy", npy_bytes(np.zeros(2)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("labels.npy", npy_bytes(np.ones(2)))
    with pytest.raises(PredictionFileError, match="more than once"):
        read_npz(tmp_path / "a.npz", ["labels"])


def test_encrypted_members_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.arange(10))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(PredictionFileError, match=r"encrypted|password"):
        read_npz(tmp_path / "a.npz", ["labels"])
