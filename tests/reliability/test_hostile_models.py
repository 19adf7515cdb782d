"""Fuzzed weights, checkpoints and run folders; commands on them; names that would escape or be run."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import hostile
import numpy as np
import pytest
import torch
from hostile import harmless, hostile_bytes, little_memory, long, quick
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save as safetensors_bytes

from classmargin.backbones.checkpoints import read_state_dict
from classmargin.cli.main import main
from classmargin.recipes.out_folder import read_question
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.saved_model import load_model
from classmargin.recipes.train_run import default_folder, train
from classmargin.training.checkpoint import CheckpointStore, read_tree, write_tree
from classmargin.training.config import DataConfig, MethodConfig, RunConfig
from classmargin.training.config_reader import with_values
from classmargin.training.stopping import DivergedError

STATE = {"encoder.weight": torch.ones(3, 2), "head.bias": torch.zeros(3)}


def torch_bytes(content) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def script_bytes() -> bytes:
    file = io.BytesIO()
    with torch.no_grad():
        module = torch.jit.trace(torch.nn.Linear(2, 3), torch.zeros(1, 2), check_trace=False)
    torch.jit.save(module, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def weight_files():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit: archives of that kind exist all the same
        script = script_bytes()
    shards = json.dumps({"weight_map": dict.fromkeys(STATE, "a.safetensors")}).encode()
    return {
        "weights.safetensors": safetensors_bytes(STATE),
        "weights.pt": torch_bytes({"state_dict": STATE, "epoch": 3}),
        "script.pt": script,
        "model.safetensors.index.json": shards,
    }


WEIGHTS = ["weights.safetensors", "weights.pt", "script.pt", "model.safetensors.index.json"]


def read_weights(folder: Path, name: str, content: bytes) -> None:
    (folder / "a.safetensors").write_bytes(safetensors_bytes(STATE))
    (folder / name).write_bytes(content)
    with little_memory(), harmless(f"weights ({name})"):
        assert read_state_dict(folder / name)


@pytest.mark.parametrize("name", WEIGHTS)
def test_good_weights_are_read(name, tmp_path, weight_files):
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(STATE))
    (tmp_path / name).write_bytes(weight_files[name])
    assert len(read_state_dict(tmp_path / name)) == 2


@pytest.mark.parametrize("name", WEIGHTS)
@quick(25)
@given(data=st.data())
def test_damaged_weights_end_in_words(name, tmp_path, weight_files, data):
    read_weights(tmp_path, name, data.draw(hostile_bytes(weight_files[name])))


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
@long(700)
@given(data=st.data())
def test_many_damaged_weights_end_in_words(name, tmp_path, weight_files, data):
    read_weights(tmp_path, name, data.draw(hostile_bytes(weight_files[name])))


class RunsACommand:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_weights_that_would_run_a_command_are_refused_and_it_is_not_run(tmp_path, weight_files):
    proof = tmp_path / "proof"
    bomb = RunsACommand(f"touch {proof}")
    script = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(weight_files["script.pt"])) as good, zipfile.ZipFile(script, "w") as bad:
        for info in good.infolist():
            is_program = info.filename.endswith("/data.pkl")
            bad.writestr(info.filename, pickle.dumps(bomb) if is_program else good.read(info))
    files = {
        "a.pt": torch_bytes({"state_dict": {"w": torch.ones(1)}, "x": bomb}),
        "b.pt": pickle.dumps(bomb),
        "c.pt": script.getvalue(),
        "d.bin": pickle.dumps({"state_dict": bomb}, protocol=0),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        hostile.counted["weights (commands)"] += 1
        with pytest.raises(ValueError, match=name):
            read_state_dict(tmp_path / name)
    assert not proof.exists()
    os.system(bomb.command)
    assert proof.exists(), "the command itself works"


def test_an_index_of_weights_cannot_point_out_of_its_folder(tmp_path):
    (tmp_path / "outside.safetensors").write_bytes(safetensors_bytes(STATE))
    inside = tmp_path / "inside"
    inside.mkdir()
    index = {"weight_map": {"w": "../outside.safetensors", "v": str(tmp_path / "outside.safetensors")}}
    (inside / "model.safetensors.index.json").write_text(json.dumps(index))
    hostile.counted["names"] += 1
    with pytest.raises((ValueError, OSError), match=r"outside\.safetensors"):
        read_state_dict(inside)


# Checkpoints and run folders of ours


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run of one epoch on twelve features, whose class names are attacks of their own."""
    place = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(3), 6)
    names = ['=HYPERLINK("http://x")', "<script>alert(1)</script>", "@SUM(1)\n\x1b[31m"]
    inputs = rng.normal(size=(18, 4)).astype(np.float32)
    np.savez(
        place / "set.npz",
        x_train=inputs,
        y_train=labels,
        x_test=inputs,
        y_test=labels,
        class_names=np.array(names),
    )
    flags = {
        "data": {"name": str(place / "set.npz"), "validation": 0.3},
        "backbone": {"name": "linear"},
        "loop": {"epochs": 1, "batch_size": 6},
        "machine": {"threads": 1, "accelerator": "cpu", "memory_format": "contiguous", "report": True},
    }
    train(gather_config(flags=flags), place / "run", show=False)
    return place / "run"


@pytest.fixture(scope="module")
def unfinished_run(run_folder, tmp_path_factory):
    """The same run in the middle of its second epoch."""
    from classmargin.training.stopping import StoppedError, StopRequest

    place = tmp_path_factory.mktemp("unfinished") / "run"
    config = with_values(
        gather_config(file=run_folder / "config.toml"),
        {
            "method": {"name": "mr2"},
            "loop": {"epochs": 3, "checkpoint_steps": 1, "ema_decay": 0.9},
            "machine": {"report": False},
        },
    )
    asked = iter([False] * 3 + [True] * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "__bool__", lambda self: next(asked))
        with pytest.raises(StoppedError):
            train(config, place, show=False)
    (place / "done").touch()  # for spoil, which expects what a finished run has
    return place


def test_a_good_run_folder_is_read(run_folder):
    assert load_model(run_folder).record.num_classes == 3


PARTS = ["config.toml", "model.json", "state.json", "tensors.safetensors"]


def spoil(run: Path, target: Path, part: str, content: bytes) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("report.html", "predictions.npz"))
    next(path for path in sorted(target.rglob(part), reverse=True)).write_bytes(content)


def good_part(run: Path, part: str) -> bytes:
    return next(path for path in sorted(run.rglob(part), reverse=True)).read_bytes()


def read_run(run: Path, folder: Path, part: str, content: bytes) -> None:
    spoil(run, folder / "run", part, content)
    with little_memory(), harmless(f"run folder ({part})"):
        load_model(folder / "run")


@pytest.mark.parametrize("part", PARTS)
@quick(12)
@given(data=st.data())
def test_damaged_run_folders_end_in_words(part, tmp_path, run_folder, data):
    read_run(run_folder, tmp_path, part, data.draw(hostile_bytes(good_part(run_folder, part))))


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@long(150)
@given(data=st.data())
def test_many_damaged_run_folders_end_in_words(part, tmp_path, run_folder, data):
    read_run(run_folder, tmp_path, part, data.draw(hostile_bytes(good_part(run_folder, part))))


trees = st.recursive(
    st.one_of(st.none(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.just("tensor")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["weights", "network", "method", "position", "average", "best_weights"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


def with_tensors(tree):
    if tree == "tensor":
        return torch.ones(2)
    if isinstance(tree, dict):
        return {key: with_tensors(value) for key, value in tree.items()}
    return [with_tensors(value) for value in tree] if isinstance(tree, list) else tree


@quick(25)
@given(tree=st.dictionaries(st.sampled_from(["weights", "network", "method", "position", "random"]), trees, max_size=5))
def test_whole_checkpoints_of_something_else_end_in_words(tmp_path, run_folder, tree):
    """The checksum is right: somebody wrote this on purpose."""
    spoil(run_folder, tmp_path / "run", "config.toml", good_part(run_folder, "config.toml"))
    store = CheckpointStore(tmp_path / "run" / "checkpoint")
    for path in store.paths():
        shutil.rmtree(path)
    write_tree(store.folder / "step-00000003", with_tensors(tree))
    with little_memory(), harmless("checkpoint"):
        load_model(tmp_path / "run")
    (tmp_path / "run" / "done").unlink()
    config = gather_config(file=tmp_path / "run" / "config.toml")
    with little_memory(), harmless("checkpoint"):
        train(config, tmp_path / "run", resume=True, show=False)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=3),
)


def swap_one_leaf(tree, data):
    """Replace one value, or one tensor by another kind of thing, somewhere in a state."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = data.draw(st.sampled_from(keys))
    if isinstance(tree[key], (dict, list)) and tree[key] and data.draw(st.integers(0, 4)):
        swap_one_leaf(tree[key], data)
    elif isinstance(tree[key], torch.Tensor):
        tree[key] = data.draw(
            st.sampled_from([torch.zeros(2), torch.tensor(float("nan")), torch.zeros(0), tree[key].double(), None])
        )
    else:
        tree[key] = data.draw(st.one_of(values, st.just({}), st.just([])))


def go_on_with_a_swapped_leaf(folder, run_folder, data) -> None:
    spoil(run_folder, folder / "run", "config.toml", good_part(run_folder, "config.toml"))
    store = CheckpointStore(folder / "run" / "checkpoint")
    step, tree = store.load_newest()
    swap_one_leaf(tree, data)
    for path in store.paths():
        shutil.rmtree(path)
    write_tree(store.folder / f"step-{step:08d}", tree)
    (folder / "run" / "done").unlink()
    config = gather_config(file=folder / "run" / "config.toml")
    with little_memory(), harmless("checkpoint"):
        load_model(folder / "run")
    with little_memory(), harmless("checkpoint", DivergedError):
        train(config, folder / "run", resume=True, show=False)


@quick(10)
@given(data=st.data())
def test_checkpoints_with_one_value_swapped_end_in_words(tmp_path, unfinished_run, data):
    """The checksum is right and nearly everything fits."""
    go_on_with_a_swapped_leaf(tmp_path, unfinished_run, data)


@pytest.mark.slow
@long(30)  # each of them is a training
@given(data=st.data())
def test_many_checkpoints_with_one_value_swapped_end_in_words(tmp_path, unfinished_run, data):
    go_on_with_a_swapped_leaf(tmp_path, unfinished_run, data)


def test_state_nested_without_end_is_a_damaged_checkpoint(tmp_path):
    write_tree(tmp_path / "step-00000001", {"a": torch.ones(1)})
    record = json.loads((tmp_path / "step-00000001" / "state.json").read_text())
    for tower in ("[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900):
        text = json.dumps({**record, "state": 0}).replace('"state": 0', f'"state": {tower}')
        (tmp_path / "step-00000001" / "state.json").write_text(text)
        with harmless("checkpoint"):
            read_tree(tmp_path / "step-00000001")


@quick(40)
@given(data=st.data())
def test_damaged_plans_of_sweeps_end_in_words(tmp_path, data):
    from classmargin.recipes.sweep_space import parse_objective, parse_search
    from classmargin.recipes.sweep_study import SweepPlan

    config = RunConfig(method=MethodConfig("mr2"))
    plan = SweepPlan(config, parse_search(["mean_margin=1,2"], config), parse_objective("hard"), 3, "s", "sqlite:///x")
    good = json.dumps(plan.question().to_dict()).encode()
    (tmp_path / "question.json").write_bytes(data.draw(hostile_bytes(good)))
    with harmless("question.json"):
        read_question(tmp_path / "question.json")


# The command line: one line, code 2, no traceback


@pytest.mark.parametrize("part", PARTS)
def test_commands_on_broken_run_folders_say_one_line(part, tmp_path, run_folder, capsys):
    spoil(run_folder, tmp_path / "run", part, b"\x00\xff broken")
    for path in list((tmp_path / "run" / "checkpoint").glob("step-*"))[1:]:
        shutil.rmtree(path)
    words = ["predict", str(tmp_path / "run"), str(run_folder.parent / "set.npz")]
    capsys.readouterr()
    code = main([*words, "--out", str(tmp_path / "out.npz")])
    errors = capsys.readouterr().err
    hostile.counted["command line"] += 1
    assert code == 2, errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("classmargin: error: ")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    "value", ["1" + "0" * 400, "-1", "nan", "inf", "1e999", "[1]", "''", "{}", "0x", "true", "2024-01-01"]
)
@pytest.mark.parametrize(
    "key", ["optimizer.learning_rate", "loop.epochs", "loop.batch_size", "data.fraction", "loop.seed"]
)
def test_absurd_settings_say_one_line(key, value, tmp_path, run_folder, capsys):
    capsys.readouterr()
    base = ["train", "--data", str(run_folder.parent / "set.npz"), "--backbone", "linear", "--epochs", "1"]
    hostile.counted["command line"] += 1
    code = main([*base, "--set", f"{key}={value}", "--out", str(tmp_path / "run")])
    errors = capsys.readouterr().err
    assert code == 2, errors
    assert "Traceback" not in errors


# Names that would escape, and names that would be run


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30) | st.sampled_from(
    ["..", "../..", "/etc/passwd", "a/../../b", "~", "C:\\x", "."]
)


@quick(100)
@given(name=names)
def test_run_folders_stay_below_their_parent(name):
    hostile.counted["names"] += 1
    config = RunConfig(data=DataConfig(name=name))
    folder = default_folder(config, "runs")
    assert folder.parent == Path("runs")
    assert folder.name not in ("", ".", "..")
    assert "/" not in folder.name
    assert "\\" not in folder.name


def test_class_names_cannot_run_in_tables_or_pages(run_folder):
    """The three classes of the run are called like a formula, a script and a colour of the terminal."""
    with (run_folder / "class_accuracy.csv").open(newline="") as file:
        header = next(csv.reader(file))
    assert header[2].startswith("'=HYPERLINK")
    assert header[4].startswith("'@SUM")
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in header)
    with (run_folder / "metrics.csv").open(newline="") as file:
        assert not any(cell.startswith(("=", "+", "@")) for row in csv.reader(file) for cell in row)
    page = (run_folder / "report.html").read_text()
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_class_names_cannot_reach_the_terminal_or_markdown(run_folder, capsys):
    for output in ("table", "markdown", "latex"):
        capsys.readouterr()
        assert main(["audit", str(run_folder), "--format", output]) == 0
        shown = capsys.readouterr().out
        assert "\x1b[31m" not in shown
        if output == "markdown":
            assert "<script>" not in shown


def test_a_resumed_run_goes_on_writing_under_its_safe_names(run_folder, tmp_path):
    target = tmp_path / "longer"
    config = with_values(gather_config(file=run_folder / "config.toml"), {"loop": {"epochs": 2}})
    train(config, target, show=False)
    with (target / "class_accuracy.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 3
    assert all(cell != "" for row in rows for cell in row)
