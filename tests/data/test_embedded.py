import hashlib
import io
import lzma
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from classmargin.data import DataError, load_data
from classmargin.data.catalog import FASHION_CLASSES
from classmargin.data.formats.arrays import EMBEDDED, MINI_FILE, read_embedded

from .conftest import write_idx_set

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_fashion_mnist_mini.py"


def test_the_embedded_set_is_balanced_and_large_enough(mini):
    whole = load_data("fashion-mnist-mini", validation=0.0)
    assert whole.train.class_counts.tolist() == [500] * 10
    assert whole.test.class_counts.tolist() == [500] * 10
    assert whole.input_shape == (1, 28, 28)
    assert whole.class_names == FASHION_CLASSES
    assert whole.notes == ()


def test_it_fits_into_the_wheel_with_licence_and_checksum_beside_it():
    assert MINI_FILE.stat().st_size <= 4_000_000
    assert "MIT" in (EMBEDDED / "LICENSE").read_text(encoding="utf-8")
    assert "Zalando" in (EMBEDDED / "LICENSE").read_text(encoding="utf-8")
    digest = hashlib.sha256(MINI_FILE.read_bytes()).hexdigest()
    assert (EMBEDDED / "SHA256SUMS").read_text(encoding="utf-8").split() == [digest, MINI_FILE.name]


def test_it_has_easy_and_hard_classes(mini):
    """A linear model reads ankle boots and trousers well and shirts badly."""
    torch.manual_seed(0)
    train = torch.cat([mini.train.inputs, mini.validation.inputs]).flatten(1).float() / 255
    labels = torch.cat([mini.train.labels, mini.validation.labels])
    weight = torch.zeros(784, 10, requires_grad=True)
    bias = torch.zeros(10, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=40)

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(train @ weight + bias, labels) + 1e-3 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    predicted = (mini.test.inputs.flatten(1).float() / 255 @ weight + bias).argmax(1)
    recall = {
        name: float((predicted[mini.test.labels == label] == label).float().mean())
        for label, name in enumerate(mini.class_names)
    }
    assert recall["ankle boot"] > 0.88
    assert recall["trouser"] > 0.9
    assert recall["shirt"] < 0.65
    assert recall["ankle boot"] - recall["shirt"] > 0.25
    assert min(recall, key=recall.get) == "shirt"


def test_a_damaged_embedded_file_is_refused(tmp_path):
    content = bytearray(MINI_FILE.read_bytes())
    content[1000] ^= 1
    (tmp_path / MINI_FILE.name).write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        read_embedded(tmp_path / MINI_FILE.name)


def run_script(monkeypatch, folder, out, *options):
    monkeypatch.setattr("sys.argv", [str(SCRIPT), str(folder), "--out", str(out), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_script_keeps_the_first_images_of_each_class_unchanged(tmp_path, monkeypatch):
    content = write_idx_set(tmp_path / "idx", per_class=6, classes=10)
    run_script(monkeypatch, tmp_path / "idx", tmp_path / "mini.npz.xz", "--train", "4", "--test", "3")
    raw = read_embedded(tmp_path / "mini.npz.xz")
    assert np.array_equal(raw.train.inputs[:, 0], content["train"][:40])
    assert np.array_equal(raw.test.inputs[:, 0], content["t10k"][:30])


def test_the_script_refuses_sets_that_are_too_small(tmp_path, monkeypatch):
    write_idx_set(tmp_path / "idx", per_class=2, classes=10)
    with pytest.raises(SystemExit, match="every class needs 500 images, the smallest has 2"):
        run_script(monkeypatch, tmp_path / "idx", tmp_path / "mini.npz.xz")
    assert not (tmp_path / "mini.npz.xz").exists()


def test_the_embedded_pixels_are_those_of_the_original_files():
    variable = "CLASSMARGIN_FASHION_MNIST"
    if variable not in os.environ:
        pytest.skip(f"${variable} does not name a folder with the original files")
    folder = Path(os.environ[variable])
    from classmargin.data.formats.arrays import read_idx_folder

    original = read_idx_folder(folder)
    with np.load(io.BytesIO(lzma.decompress(MINI_FILE.read_bytes())), allow_pickle=False) as archive:
        for name, part in (("train", original.train), ("test", original.test)):
            rows = archive[f"{name}_index"]
            assert np.array_equal(archive[f"x_{name}"], part.inputs[rows, 0])
            assert np.array_equal(archive[f"y_{name}"], part.labels[rows])
            for label in range(10):
                first = np.flatnonzero(part.labels == label)[:500]
                assert set(first) <= set(rows)
