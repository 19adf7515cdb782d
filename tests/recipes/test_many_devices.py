"""Runs of two processes (gloo) for every command that trains, however they are started; and who gets which accelerator."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from classmargin.cli.main import main
from classmargin.recipes import launched_ranks, workers
from classmargin.recipes.gpu_hours import estimate
from classmargin.recipes.recipe import list_recipes
from classmargin.recipes.recipe_plan import plan_recipe
from classmargin.recipes.runner import run_all
from classmargin.recipes.workers import accelerator_shares, visible_accelerators
from classmargin.training.devices import launched_layout

COMMON = [
    "--backbone",
    "linear",
    "--epochs",
    "2",
    "--set",
    "loop.batch_size=40",
    "--set",
    "data.validation=0.3",
]
COMMON += ["--set", "machine.accelerator=cpu"]


def words_of(command, data, out):
    own = {
        "train": ["train", "--data", data, *COMMON],
        "compare-methods": ["compare-methods", "--data", data, *COMMON, "--seeds", "1"],
        "reproduce": ["reproduce", "table-long-tail", "--scale", "smoke", "--seeds", "1", "--rows", "mr2-la"],
        "sweep": ["sweep", "--data", data, *COMMON, "--search", "mean_margin=1,2"],
        "improve": ["improve", "--data", data, *COMMON, "--budget", "3 runs", "--remedies", "mr2"],
    }
    return [str(word) for word in [*own[command], "--out", out]]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_runs(out, count):
    """Every run is trained by two processes and has a result."""
    records = list(out.rglob("run.json"))
    assert len(records) == count
    for file in records:
        sessions = json.loads(file.read_text())["sessions"]
        assert [session["numerics"]["processes"] for session in sessions] == [2] * len(sessions)


# The reference and the trials of a sweep; the chosen one has a second session, which tests it. Improve screens with fewer epochs first.
RUNS = {"train": 1, "compare-methods": 2, "reproduce": 2, "sweep": 3, "improve": 4}


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_two_devices_work_for_every_command_that_trains(command, toy_features, tmp_path):
    words = words_of(command, toy_features, tmp_path / "out")
    process = [sys.executable, "-m", "classmargin", *words, "--devices", "2"]
    done = subprocess.run(process, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    check_runs(tmp_path / "out", RUNS[command])


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_every_command_trains_all_its_runs_under_torchrun(command, toy_features, tmp_path):
    words = words_of(command, toy_features, tmp_path / "out")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, "-m", "classmargin", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_runs(tmp_path / "out", RUNS[command])


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_every_command_trains_all_its_runs_under_slurm(command, toy_features, tmp_path):
    words = words_of(command, toy_features, tmp_path / "out")
    slurm = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
    }
    slurm |= {"SLURM_NODELIST": "127.0.0.1", "SLURM_NODEID": "0", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "classmargin", *words],
            env={**os.environ, **slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert told[1][0] == "", "one process speaks for all"
    check_runs(tmp_path / "out", RUNS[command])


def test_other_ranks_are_told_that_every_run_is_finished(monkeypatch):
    joined = []
    monkeypatch.setattr(launched_ranks, "are_launched", lambda: True)
    monkeypatch.setattr(launched_ranks, "join", lambda: joined.append(True))
    assert run_all([]) == {}
    assert joined, "they wait in the group for what rank 0 hands out"


# Accelerators


@pytest.mark.parametrize(
    ("accelerators", "jobs", "shares"),
    [
        ([str(n) for n in range(8)], 8, [str(n) for n in range(8)]),
        ([str(n) for n in range(8)], 4, ["0,1", "2,3", "4,5", "6,7"]),
        ([str(n) for n in range(8)], 1, ["0,1,2,3,4,5,6,7"]),
        (["2", "5"], 4, ["2", "5", "2", "5"]),
        ([], 2, []),
    ],
)
def test_accelerators_are_shared_equally(accelerators, jobs, shares):
    assert accelerator_shares(accelerators, jobs) == shares


def test_each_of_eight_jobs_gets_an_accelerator_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    assert visible_accelerators() == [str(number) for number in range(8)]
    given = []
    monkeypatch.setattr(workers, "LocalWorker", lambda environment: given.append(environment))
    with workers.starting_workers("local", 8, 1) as start_worker:
        for slot in range(8):
            start_worker(slot)
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in given] == list("01234567")


def test_workers_are_no_ranks_of_the_launcher_that_started_the_command(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MY_OWN", "kept")
    given = {}

    def start(_, *, env, **__):
        given.update(env)
        raise OSError("seen enough")

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    with pytest.raises(OSError, match="seen enough"):
        workers.LocalWorker({})
    environment = given
    assert "MY_OWN" in environment
    assert not {"RANK", "LOCAL_RANK", "MASTER_PORT", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"} & set(environment)


def test_a_worker_whose_input_is_closed_after_its_last_run_ends_in_peace():
    lines = [
        "import sys, time",
        "from classmargin.recipes import run_worker",
        "run_worker.train_task = lambda *_: {'kind': 'finished'}",
        "code = run_worker.main()",
        "time.sleep(0.5)  # as long as it takes to leave a group of processes",
        "sys.exit(code)",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines)], **pipes) as worker:
        worker.stdin.write(json.dumps({"run": {"config": {"machine": {"devices": 2}}}}) + "\n")
        worker.stdin.flush()
        assert json.loads(worker.stdout.readline()) == {"ended": {"kind": "finished"}}
        worker.stdin.close()
        assert worker.wait(timeout=600) == 0


@pytest.mark.parametrize(
    ("environment", "layout"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4"}, None),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}, (8, 2)),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "bash"}, None),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
    ],
)
def test_a_launcher_says_how_many_processes_there_are(environment, layout, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_NNODES", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched_layout() == layout


# What it will take


def test_a_dry_run_prints_runs_steps_and_hours_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path / "no data here"))
    words = ["reproduce", "table2-cifar100", "--scale", "paper", "--dry-run", "--format", "json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    # 300 epochs of 50 000 images in batches of 128.
    assert {row["steps"] for row in told["rows"]} == {"117 000"}
    assert [row["runs"] for row in told["rows"]] == [3] * 8
    hours = [float(row["hours"]) for row in told["rows"]]
    assert hours[0] == pytest.approx(3 * 117_000 * 0.012 / 3600, abs=0.06), "a small network waits for its launches"
    assert hours[-1] > 5 * hours[0]
    assert "A100" in told["basis"]
    assert not list(tmp_path.iterdir())


def test_hours_are_known_for_every_network_of_the_paper(tmp_path):
    for recipe in list_recipes():
        plan = plan_recipe(recipe, "paper", seeds=1, folder=tmp_path, must_run=False)
        found = [estimate(block.rows[0].runs[0].config) for block in plan.blocks]
        assert all(one.hours is not None and one.steps for one in found), recipe.name
