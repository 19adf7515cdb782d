"""What a file may cost its reader: memory within a stated budget, regular files only, and weights that are numbers."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import little_memory
from soak.tiny_task import train_words, write_features

from classmargin import _files
from classmargin._array_files import read_npz_arrays
from classmargin._files import memory_budget, open_regular, parse_size, read_bytes, stated_budget
from classmargin.backbones.checkpoints import read_state_dict
from classmargin.cli.main import main
from classmargin.data import load_data
from classmargin.data.formats.arrays import read_idx
from classmargin.data.formats.cifar import load_pickled_arrays
from classmargin.data.formats.image_folder import read_lines, read_mat
from classmargin.evaluation.prediction_files import read_class_names, read_predictions
from classmargin.recipes import record as recipe_record
from classmargin.recipes.class_measures import read_audit_part, read_spreads
from classmargin.recipes.out_folder import read_question
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_parts import read_record
from classmargin.recipes.train_run import read_progress, read_summary, validation_accuracies
from classmargin.training.checkpoint import CheckpointStore, read_tree, write_tree
from classmargin.training.metric_logs import Evaluation, LogFiles
from classmargin.training.run_folder import RunFolder, read_owner

# Room for the refusal of a bomb, above what the process has when it begins to read.
MOST_GROWTH = 500 * 10**6

MEASURE = """
import re, sys
from pathlib import Path
import numpy, pandas, pyarrow.parquet, torch
from classmargin.data import load_data
from classmargin.evaluation.prediction_files import read_predictions

def kilobytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

begin = kilobytes("VmRSS")
try:
    if sys.argv[1] == "predictions":
        read_predictions(sys.argv[2]).audit(num_classes=2, bootstrap=100)
    else:
        load_data(sys.argv[2])
except ValueError as error:
    print(1024 * (kilobytes("VmHWM") - begin), error)
"""


def refusal(what: str, path: Path) -> tuple[int, str]:
    """Return by how many bytes a process grew that was given a bomb, and its words."""
    answer = subprocess.run(
        [sys.executable, "-c", MEASURE, what, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    growth, _, words = answer.stdout.partition(" ")
    assert words, "the bomb was read"
    return int(growth), words


def test_a_hundred_million_zeros_in_a_small_parquet_file_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = pa.array(np.zeros(10**6, np.int64))
    block = pa.table({"label": zeros, "prediction": zeros})
    path = tmp_path / "predictions.parquet"
    with pq.ParquetWriter(path, block.schema, compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(block)
    assert path.stat().st_size < 2 * 10**6
    growth, words = refusal("predictions", path)
    assert growth < MOST_GROWTH
    assert str(path) in words
    assert "possible bomb" in words


@pytest.mark.parametrize("kind", ["<U0", "|S0", "|V0"])
def test_items_without_size_are_refused_however_many_they_are(tmp_path, kind):
    header = repr({"descr": kind, "fortran_order": False, "shape": (2**28,)}).encode()
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    path = tmp_path / "predictions.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("labels", "predictions"):
            archive.writestr(f"{name}.npy", member)
    growth, words = refusal("predictions", path)
    assert growth < MOST_GROWTH
    assert "items without size" in words


def test_rows_without_columns_are_refused_before_they_are_counted(tmp_path):
    header = repr({"descr": "<f4", "fortran_order": False, "shape": (2**40, 0)}).encode()
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(
        ValueError, match=r"x_train\.npy' claims shape \(1099511627776, 0\), of which nothing is stored"
    ):
        read_npz_arrays(path, ["x_train"], max_bytes=2**30)
    np.savez(tmp_path / "empty.npz", x_test=np.zeros((0, 32), np.float32))
    assert read_npz_arrays(tmp_path / "empty.npz", ["x_test"], max_bytes=2**30)["x_test"].shape == (0, 32)


def write_small_bombs(path: Path, names: list[str]) -> None:
    """Write arrays of zeros that are each just too small to be suspicious; they are packed once and copied."""
    content = io.BytesIO()
    np.save(content, np.zeros(63 * 2**20, np.uint8))
    raw = content.getvalue()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(raw) + packer.flush()
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type, info.CRC = zipfile.ZIP_DEFLATED, zlib.crc32(raw)
            info.file_size, info.compress_size = len(raw), len(packed)
            info.header_offset = archive.fp.tell()
            archive.fp.write(info.FileHeader() + packed)
            archive.filelist.append(info)
            archive.start_dir, archive._didModify = archive.fp.tell(), True


KNOWN = [f"{array}_{part}" for part in ("train", "val", "valid", "validation", "test") for array in "xy"]


@pytest.mark.parametrize(
    ("names", "words"),
    [([f"x_{k}" for k in range(60)], "must hold x_train"), (KNOWN, "possible zip bomb")],
    ids=["unknown names", "known names"],
)
def test_many_small_bombs_count_as_one_large_one(tmp_path, names, words):
    path = tmp_path / "data.npz"
    write_small_bombs(path, names)
    growth, said = refusal("data", path)
    assert growth < MOST_GROWTH
    assert words in said


# The budget


def test_max_memory_bounds_what_a_command_reads_and_ends_with_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(_files.MAX_MEMORY, raising=False)
    path = tmp_path / "a.npz"
    np.savez(path, labels=np.arange(2000) % 2, logits=np.random.default_rng(0).normal(size=(2000, 2)))
    assert main(["audit", str(path), "--max-memory", "10kB", "--bootstrap", "100"]) == 2
    words = capsys.readouterr().err
    assert str(path) in words
    assert "more than the limit of 10000 bytes; --max-memory" in words
    assert _files.MAX_MEMORY not in os.environ
    assert main(["audit", str(path), "--max-memory", "1MB", "--bootstrap", "100"]) == 0


def test_a_table_counts_as_what_it_becomes_not_as_its_letters(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,prediction\n" + "0,0\n" * 10_000)
    with pytest.raises(ValueError, match=r"a\.csv would need .* more than the limit of 100000 bytes"):
        read_predictions(path, max_bytes=100_000)
    assert len(read_predictions(path, max_bytes=400_000).labels) == 10_000


def test_the_default_budget_is_half_of_what_is_free_within_bounds(monkeypatch):
    monkeypatch.delenv(_files.MAX_MEMORY, raising=False)
    for free, expected in ((10 * 2**30, 5 * 2**30), (100 * 2**30, 8 * 2**30), (0, _files.LEAST_BUDGET)):
        monkeypatch.setattr(_files, "available_memory", lambda free=free: free)
        assert memory_budget(8 * 2**30) == expected
    with stated_budget("3GB"):
        assert memory_budget(8 * 2**30) == 3 * 10**9
    assert memory_budget(8 * 2**30) == _files.LEAST_BUDGET


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "1e9", "nan", "9" * 30, "1XB"])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match="--max-memory must be a size such as"):
        parse_size("--max-memory", text)


# Devices and pipes in place of files


def in_run(name, reader):
    return name, lambda path: reader(RunFolder(path.parent))


SMALL = {
    "--config": ("run.toml", lambda path: gather_config(file=path)),
    "config.toml": in_run("config.toml", RunFolder.read_config),
    "model.json": in_run("model.json", read_record),
    "done": in_run("done", read_summary),
    "audit.json": in_run("audit.json", lambda run: read_audit_part(run, "by_class")),
    "spread.jsonl": in_run("spread.jsonl", read_spreads),
    "metrics.jsonl": ("metrics.jsonl", lambda path: validation_accuracies(path.parent)),
    "metrics.csv": ("metrics.csv", lambda path: LogFiles(path.parent, []).log(Evaluation(1, 1, {}, []))),
    "--class-names": ("names.txt", read_class_names),
    "--class-names as JSON": ("names.json", read_class_names),
    "question": ("question.json", read_question),
    "record": ("record.json", recipe_record.read_record),
    "predictions.npz": ("a.npz", read_predictions),
    "predictions.csv": ("a.csv", read_predictions),
    "predictions.parquet": ("a.parquet", read_predictions),
    "data.npz": ("d.npz", lambda path: load_data(str(path))),
    "data.npy": ("x_train.npy", lambda path: load_data(str(path))),
    "data.parquet": ("d.parquet", lambda path: load_data(str(path))),
    "list": ("list.txt", read_lines),
    "matlab": ("meta.mat", read_mat),
    "pickle": ("data_batch_1", load_pickled_arrays),
    "idx": ("train-images-idx3-ubyte", read_idx),
    "weights.safetensors": ("w.safetensors", read_state_dict),
    "weights.pt": ("w.pt", read_state_dict),
    "index of weights": ("model.safetensors.index.json", read_state_dict),
}


def put(kind: str, path: Path) -> None:
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("name", SMALL)
def test_devices_and_pipes_are_not_read_as_files(name, kind, tmp_path):
    file, reader = SMALL[name]
    put(kind, tmp_path / file)
    with little_memory(), pytest.raises((ValueError, OSError)) as caught:
        reader(tmp_path / file)
    assert tmp_path.name in str(caught.value)


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_checkpoint_of_devices_or_pipes_is_damaged(name, kind, tmp_path):
    write_tree(tmp_path / "step-1", {"weight": torch.ones(2)})
    (tmp_path / "step-1" / name).unlink()
    put(kind, tmp_path / "step-1" / name)
    with little_memory(), pytest.raises(ValueError, match=f"{name} must be a regular file"):
        read_tree(tmp_path / "step-1")


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_only_informs_counts_as_absent(kind, tmp_path):
    put(kind, tmp_path / "x")
    with little_memory():
        assert read_owner(tmp_path / "x") is None
        assert read_progress(tmp_path / "x") is None


def test_links_to_files_are_followed_and_what_is_read_is_counted(tmp_path):
    (tmp_path / "a").write_bytes(b"whole")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_bytes(tmp_path / "b") == b"whole"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "b", max_bytes=4)
    with pytest.raises(ValueError, match="larger than 0 bytes"):
        read_bytes("/proc/self/stat", max_bytes=0)  # it says that it is empty
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


# Weights that are no numbers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = write_features(folder / "features.npz")
    assert main(train_words(data, "erm", folder / "run", epochs=1)) == 0
    return folder / "run", data


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("verb", ["predict", "safetensors", "torchscript"])
def test_a_network_that_is_no_number_neither_predicts_nor_is_exported(run, tmp_path, verb, value, capsys):
    folder, data = run
    store = CheckpointStore(folder / "checkpoint")
    step, tree = store.load_newest()
    name, weight = next((name, weight) for name, weight in tree["network"].items() if weight.dim() == 2)
    tree["network"] = {**tree["network"], name: weight.clone()}
    tree["network"][name][0, 0] = value
    whole = store.paths()[0].rename(tmp_path / "whole")
    out = tmp_path / ("p.npz" if verb == "predict" else "exported")
    words = ["predict", str(folder), str(data)] if verb == "predict" else ["export", str(folder), "--format", verb]
    try:
        store.save(step, tree)
        assert main([*words, "--out", str(out)]) == 2
        assert f"NaN or infinity in {name!r}" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == [whole]
    finally:
        store.save(step, read_tree(whole))
    assert main([*words, "--out", str(out)]) == 0


# Absurd sizes


def test_a_hundred_thousand_columns_are_refused_at_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label," + ",".join(f"p_{k}" for k in range(100_000)) + "\n0" + ",0" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"a\.csv must have at most \d+ columns .* got 100001"):
        read_predictions(path)


def test_images_too_small_for_a_network_are_told_in_a_sentence(tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 255, (60, 1, 1, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", inputs=pixels, labels=np.arange(60) % 3)
    words = ["train", "--data", str(tmp_path / "d.npz"), "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "small-cnn does not take images of 1 x 1 pixels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "--set", "data.image_size=30000"], "data.image_size must be at most 4096, got 30000"),
        (["train", "--set", "machine.threads=5000"], "machine.threads must be at most 1024, got 5000"),
        (["train", "--threads", "5000"], "--threads must be at most"),
        (["train", "--devices", "10000"], "--devices must be at most"),
        (["train", "--set", f"loop.accumulate={2**70}"], "loop.accumulate must be at most"),
        (["audit", "a.npz", "--bootstrap", str(2**63)], "--bootstrap"),
        (["sweep", "--method", "mr2", "--out", "s", "--jobs", str(2**40)], "--jobs"),
    ],
    ids=lambda value: value[-1][:30] if isinstance(value, list) else "",
)
def test_numbers_beyond_reason_name_their_argument(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "too large to convert" not in error
