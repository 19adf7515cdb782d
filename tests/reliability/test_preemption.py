"""What schedulers do: start again with little said, signal pools of runs, and take one of two processes away."""

from __future__ import annotations

import signal
import subprocess

import pytest
from soak.tiny_task import train_words, write_features

from classmargin.cli.main import main
from classmargin.recipes import runner
from classmargin.recipes.recipe_plan import plan_comparison
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.train_run import exit_code_of_rank
from classmargin.training.stopping import StoppedError


def test_going_on_without_a_run_and_without_settings_is_refused(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--threads", "1"]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_same_command_begins_goes_on_and_leaves_alone(tmp_path, capsys):
    data = write_features(tmp_path / "features.npz")
    words = train_words(data, "erm", tmp_path / "run", epochs=1)
    assert main(words) == 0
    assert main(words) == 0
    assert "is finished; nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_to_a_pool_reaches_its_workers_and_gives_the_code_of_the_signal(tmp_path, monkeypatch, name, code):
    """The worker stands for one that trains: it ends when it is asked to, with its state saved."""
    started = []

    def start(command, **more):
        worker = start_process(["sleep", "60"], **more)
        started.append(worker)
        signal.raise_signal(getattr(signal, name))
        return worker

    start_process = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    config = gather_config(flags={"data": {"name": "fashion-mnist-mini"}})
    plan = plan_comparison(config, ["erm"], 1, tmp_path)
    with pytest.raises(StoppedError, match="the same command resumes") as caught:
        runner.run_all(plan.runs, jobs=1, show=False)
    assert caught.value.exit_code == code
    assert started[0].poll() == -signal.SIGTERM


def test_a_stop_becomes_the_exit_code_of_the_command(monkeypatch, capsys):
    from classmargin.cli import main as module

    def stopped() -> None:
        raise StoppedError("stopped by signal 15; the same command goes on from here", 143)

    monkeypatch.setitem(module.VERBS, "audit", stopped)
    assert main(["audit"]) == 143
    assert capsys.readouterr().err == "classmargin: stopped by signal 15; the same command goes on from here\n"


def test_an_interruption_before_the_verb_ends_with_130_and_no_traceback(monkeypatch, capsys):
    from classmargin.cli import main as module

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "build_app", interrupted)
    assert main(["audit"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({}, 143),
        ({"LOCAL_RANK": "1"}, 0),
        ({"LOCAL_RANK": "1", "RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, 143),
        ({"SLURM_PROCID": "1"}, 143),
    ],
    ids=["alone", "helper of ours", "torchrun", "slurm"],
)
def test_a_helper_of_our_own_leaves_the_code_to_rank_0(environment, code, monkeypatch):
    for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert exit_code_of_rank(143) == code


def test_a_batch_size_that_a_later_stage_cannot_use_shows_before_the_first_step(tmp_path, capsys):
    """The second stage of DRO-LT (drl) draws four samples of each class."""
    data = write_features(tmp_path / "features.npz")
    words = train_words(data, "drl", tmp_path / "run", extra=("loop.batch_size=18",))
    assert main(words) == 2
    assert "multiple of samples_per_class=4" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoint").exists()
