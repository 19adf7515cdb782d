"""``classmargin train`` as real processes: killed and resumed, two processes, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from classmargin.cli.main import main
from classmargin.data import load_data

COMMON = [
    "--set", "machine.accelerator=cpu", "--set", "machine.report=false",
    "--set", "loop.batch_size=32", "--set", "optimizer.learning_rate=0.05",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Forty training and ten test images of each class of the embedded data."""
    bundle = load_data("fashion-mnist-mini")
    file = tmp_path_factory.mktemp("data") / "tiny.npz"
    arrays = {"class_names": np.array(bundle.class_names)}
    for name, split, count in (("train", bundle.train, 40), ("test", bundle.test, 10)):
        rows = torch.cat([torch.nonzero(split.labels == label)[:count, 0] for label in range(10)])
        arrays[f"x_{name}"] = split.inputs[rows, 0].numpy()
        arrays[f"y_{name}"] = split.labels[rows].numpy()
    np.savez(file, **arrays)
    return file


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(*words: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "classmargin", "train", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def newest_tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((run / "checkpoint").glob("step-*"))[-1] / "tensors.safetensors")


def assert_same_run(left: Path, right: Path) -> None:
    for name in ("metrics.jsonl", "metrics.csv", "class_accuracy.csv"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    one, other = newest_tensors(left), newest_tensors(right)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    with np.load(left / "predictions.npz") as a, np.load(right / "predictions.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a.files)


@pytest.fixture
def kill_when(wait_until, family_of):
    """Return a function that kills a process when its run has logged some epochs, and waits until no process of it is left."""

    def kill(process: subprocess.Popen, run: Path, epochs: int) -> None:
        wait_until(lambda: lines(run / "metrics.jsonl") >= epochs, process)
        others_ended = family_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_until(others_ended)

    return kill


# A whole command that kills itself in the middle of training: from outside, a slow machine would miss that moment.
KILLED = """
import os, signal, sys
from classmargin.cli.main import main
from classmargin.training.loop import Loop
step = Loop._train_step
def kill_after(self, batch):
    step(self, batch)
    if self.position.global_step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
Loop._train_step = kill_after
sys.exit(main(sys.argv[2:]))
"""


def test_a_killed_run_resumes_and_ends_bit_identical(tiny, tmp_path):
    words = ["--data", tiny, "--method", "mr2", "--epochs", 12, *COMMON, "--set", "loop.checkpoint_steps=3"]
    command = [
        sys.executable,
        "-c",
        KILLED,
        "16",
        "train",
        *map(str, words),
        "--out",
        str(tmp_path / "killed"),
    ]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "done").exists()
    assert main(["train", "--out", str(tmp_path / "killed"), "--resume"]) == 0
    assert main(["train", *map(str, words), "--out", str(tmp_path / "whole")]) == 0
    sessions = json.loads((tmp_path / "killed" / "run.json").read_text())["sessions"]
    assert sessions[1]["resumed_from_step"] > 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["erm", "jtt", "sam+mr2"])
def test_a_run_killed_many_times_ends_bit_identical(tiny, tmp_path, method, kill_when):
    words = ["--data", tiny, "--method", method, "--epochs", 20, *COMMON, "--set", "loop.checkpoint_steps=2"]
    for epochs in (1, 4, 7, 11, 15):
        kill_when(start(*words, "--out", tmp_path / "killed", "--resume"), tmp_path / "killed", epochs)
    assert main(["train", "--out", str(tmp_path / "killed"), "--resume"]) == 0
    assert main(["train", *map(str, words), "--out", str(tmp_path / "whole")]) == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_two_processes_equal_one(tiny, tmp_path):
    # float64, so that what remains is a mistake and not rounding.
    words = ["--data", tiny, "--method", "mr2", "--epochs", 2, *COMMON, "--set", "loop.precision=64-true"]
    code, _, err = finish(start(*words, "--devices", 2, "--out", tmp_path / "two"))
    assert code == 0, err
    assert main(["train", *map(str, words), "--out", str(tmp_path / "one")]) == 0
    one, two = newest_tensors(tmp_path / "one"), newest_tensors(tmp_path / "two")
    compared = [name for name in one if name.split(".")[0] in ("network", "method", "optimizer")]
    assert len(compared) > 20
    for name in compared:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-11)
    with (
        np.load(tmp_path / "one" / "predictions.npz") as a,
        np.load(tmp_path / "two" / "predictions.npz") as b,
    ):
        assert np.array_equal(a["sample_id"], b["sample_id"])
        np.testing.assert_allclose(a["logits"], b["logits"], atol=1e-6)


@pytest.mark.slow
def test_two_processes_killed_and_resumed_equal_two_uninterrupted(tiny, tmp_path, kill_when):
    words = ["--data", tiny, "--backbone", "resnet20", "--epochs", 4, *COMMON, "--devices", 2]
    process = start(*words, "--out", tmp_path / "killed")
    kill_when(process, tmp_path / "killed", 2)
    code, _, err = finish(start("--out", tmp_path / "killed", "--resume"))
    assert code == 0, err
    code, _, err = finish(start(*words, "--out", tmp_path / "whole"))
    assert code == 0, err
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_torchrun_is_understood(tiny, tmp_path):
    words = ["--data", tiny, "--epochs", "1", *COMMON, "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "classmargin", "train", *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "random.1.torch" in newest_tensors(tmp_path / "run")


def test_sigterm_saves_and_ends_with_the_code_of_a_preemption(tiny, tmp_path, wait_until):
    words = ["--data", tiny, "--epochs", 200, *COMMON, "--out", tmp_path / "run"]
    process = start(*words)
    wait_until(lambda: lines(tmp_path / "run" / "metrics.jsonl") >= 2, process)
    process.terminate()
    code, _, err = finish(process)
    assert code == 143
    assert "resume with --resume" in err
    assert "Traceback" not in err
    newest = sorted((tmp_path / "run" / "checkpoint").glob("step-*"))[-1]
    assert (newest / "state.json").exists()


def test_a_loss_that_is_no_number_ends_with_code_3_and_names_the_batch(tiny, tmp_path, capsys):
    words = ["--data", tiny, "--epochs", 3, *COMMON, "--set", "optimizer.learning_rate=1e30"]
    assert main(["train", *map(str, words), "--out", str(tmp_path / "run")]) == 3
    message = capsys.readouterr().err
    assert "samples with index" in message
    assert "failure/step-" in message
    (failure,) = (tmp_path / "run" / "failure").iterdir()
    assert (failure / "tensors.safetensors").exists()


def test_a_damaged_newest_checkpoint_falls_back_and_ends_the_same(tiny, tmp_path, capsys):
    words = ["--data", tiny, "--epochs", 3, *COMMON]
    for name in ("damaged", "whole"):
        assert main(["train", *map(str, words), "--out", str(tmp_path / name)]) == 0
    run = tmp_path / "damaged"
    (run / "done").unlink()
    newest = sorted((run / "checkpoint").glob("step-*"))[-1]
    os.truncate(newest / "tensors.safetensors", 1000)
    capsys.readouterr()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert f"{newest.name} is damaged" in capsys.readouterr().err
    assert_same_run(run, tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "mr3"], "did you mean 'mr2'"),
        (["--backbone", "smallcnn"], "did you mean 'small-cnn'"),
        (["--data", "fashion-mnist-mni"], "fashion-mnist-mini"),
        (["--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--preset", "cifra"], "did you mean 'cifar'"),
        (["--set", "loop.epochz=3"], "did you mean 'epochs'"),
        (["--set", "method.label_smothing=0.1"], "did you mean 'label_smoothing'"),
        (["--set", "nonsense"], "PART.KEY=VALUE"),
        (["--fraction", "2"], "data.fraction must be > 0 and <= 1, got 2"),
        (["--imbalance", "0.1"], "data.imbalance must be >= 1, got 0.1"),
    ],
)
def test_bad_input_is_one_clear_line_and_code_2(tmp_path, capsys, words, message):
    assert main(["train", *words, "--epochs", "1", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_config_typo_names_the_file_key(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('[optimiser]\nname = "sgd"\n')
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    assert "did you mean 'optimizer'" in capsys.readouterr().err


def test_settings_come_from_preset_then_file_then_flags(tmp_path, capsys, tiny):
    file = tmp_path / "run.toml"
    file.write_text(f'preset = "cifar"\n[data]\nname = "{tiny}"\n[loop]\nepochs = 9\nbatch_size = 50\n')
    words = [
        "--config",
        str(file),
        "--backbone",
        "small-cnn",
        "--epochs",
        "1",
        *COMMON,
        "--set",
        "loop.batch_size=40",
    ]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "epochs = 1\n" in text
    assert "batch_size = 40" in text
    assert "weight_decay = 0.0005" in text
    assert 'name = "small-cnn"' in text


def test_a_class_without_training_samples_is_refused(tmp_path, capsys):
    inputs = np.zeros((20, 8, 8), dtype=np.uint8)
    file = tmp_path / "gap.npz"
    np.savez(file, x_train=inputs, y_train=np.arange(20) % 2, x_test=inputs, y_test=np.arange(20) % 3)
    assert main(["train", "--data", str(file), "--epochs", "1", "--out", str(tmp_path / "run")]) == 2
    assert "classes that the training part does not have: labels 2" in capsys.readouterr().err


def test_fewer_classes_in_test_than_in_train_are_refused(tmp_path, capsys):
    inputs = np.zeros((20, 8, 8), dtype=np.uint8)
    file = tmp_path / "gap.npz"
    np.savez(file, x_train=inputs, y_train=np.arange(20) % 3, x_test=inputs, y_test=np.arange(20) % 2)
    words = ["train", "--data", str(file), "--epochs", "1", *COMMON]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "no test sample of 1 of 3 classes: 2" in capsys.readouterr().err
    assert main([*words, "--set", "data.allow_absent=true", "--out", str(tmp_path / "run")]) == 0
    assert "  hard –  worst " in capsys.readouterr().out
