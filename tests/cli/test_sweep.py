"""The verb ``sweep``: words in, exit codes and files out."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

pytest.importorskip("optuna")


@pytest.fixture
def features(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    inputs = (np.eye(6)[labels] + 0.7 * rng.normal(size=(60, 6))).astype(np.float32)
    file = tmp_path / "toy.npz"
    np.savez(file, x_train=inputs, y_train=labels, x_test=inputs[::2], y_test=labels[::2])
    return file


@pytest.fixture
def words(features, tmp_path):
    return [
        "sweep",
        "--data",
        features,
        "--backbone",
        "linear",
        "--epochs",
        1,
        "--set",
        "data.validation=0.3",
        "--set",
        "machine.accelerator=cpu",
        "--out",
        tmp_path / "out",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--search", "mean_margim=1,2"], "did you mean 'mean_margin'"),
        (["--search", "optimizer.weight_decai=1,2"], "did you mean 'weight_decay'"),
        (["--search", "mean_margin=3:1"], "LOW below HIGH"),
        (["--search", "mean_margin=-1,1"], "mean_margin"),
        (["--objective", "hart"], "did you mean 'hard'"),
        (["--method", "mr3"], "did you mean 'mr2'"),
        (["--backbone", "linea"], "did you mean 'linear'"),
        (["--set", "data.validation=0"], "validation samples"),
        (["--storage", "nonsense"], "--storage nonsense"),
        (["--reference", "nowhere"], "nowhere"),
        (["--trials", "0"], "--trials"),
        (["--pruner", "medium"], "--pruner"),
        (["--engine", "raye"], "--engine"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_clear_line(run, words, more, message, tmp_path):
    done = run(*words, *more)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists(), "what this call made is taken away again"


def test_bad_settings_found_by_the_reference_leave_no_folder(run, words, tmp_path):
    done = run(*words, "--backbone", "small-cnn")
    assert done.code == 2
    assert "small-cnn reads images" in done.err
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    assert run(*words, "--backbone", "small-cnn").code == 2
    assert (tmp_path / "out").exists(), "somebody else made it"


def test_permission_to_download_is_no_part_of_the_question(run, words, tmp_path, monkeypatch):
    asked = []

    def load(name, **more):
        asked.append(more["download"])
        raise ValueError("fetched enough")

    monkeypatch.setattr("classmargin.recipes.run_parts.load_data", load)
    for more, download in (((), False), (("--download",), True)):
        done = run(*words, "--data", "mnist", *more)
        assert "fetched enough" in done.err
        assert asked.pop() is download


def test_a_missing_package_is_named_with_its_extra(run, words, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    done = run(*words, "--engine", "ray")
    assert done.code == 2
    assert "classmargin[ray]" in done.err
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = run(*words)
    assert done.code == 2
    assert "classmargin[sweep]" in done.err


def test_the_result_is_shown_in_every_format(run, words, tmp_path, monkeypatch):
    from classmargin.recipes import run_sweep

    here = partial(run_sweep.run_sweep, engine="inline")
    monkeypatch.setattr(run_sweep, "run_sweep", lambda plan, out, *, engine, **more: here(plan, out, **more))
    searched = [*words, "--search", "mean_margin=1,2", "--set", "machine.threads=1", "--free-easy"]
    done = run(*searched)
    assert done.code == 0, done.err
    assert "looked at once for this trial alone" in done.out
    for output, sign in (
        ("json", '"selected_on": "validation"'),
        ("markdown", "**Trials by hard"),
        ("latex", r"\toprule"),
    ):
        again = run(*searched, "--format", output)
        assert again.code == 0
        assert sign in again.out
    assert {"result.json", "table.md", "best.toml", "report.html"} <= {p.name for p in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_a_sweep_from_the_command_line_with_real_processes(run, words, tmp_path):
    done = run(*words, "--search", "mean_margin=1,2", "--jobs", 2, "--format", "json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["complete"]
    assert [row["outcome"] for row in result["trials"]] == ["finished", "finished"]
    assert set(result["test_of_best"]) >= {"overall", "easy", "medium", "hard", "worst"}
    assert len(list((tmp_path / "out" / "runs").glob("*/done"))) == 1
    assert (tmp_path / "out" / "report.html").exists()
    again = run(*words, "--search", "mean_margin=1,2", "--jobs", 2)
    assert again.code == 0
    assert "2 of 2 runs are finished already" in again.err
    assert "on validation" in again.out
    assert "looked at once for this trial alone" in again.out
