"""A finished run's report reaches the trackers it logged to; a tracker that fails costs nothing else."""

import os
import shutil
from types import SimpleNamespace

import pytest

from classmargin.recipes import train_run
from classmargin.training.metric_logs import SERVICES, Evaluation, send_run_report, wandb_run_id
from classmargin.training.run_folder import RunFolder


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.html").write_text("<html>report</html>", encoding="utf-8")
    return folder


def train(folder, name):
    """Log as a training run does."""
    logger = SERVICES[name](folder, ["a", "b"], {"loop": {"seed": 3}}, 0)
    logger.log(Evaluation(1, 10, {"overall": 0.5}, [0.25, 0.75]))
    logger.close()


def send(folder, name):
    lines = []
    sent = send_run_report([name], folder, folder / "report.html", lines.append)
    return sent, lines


def test_tensorboard_is_told_where_the_report_is(run_folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(run_folder, "tensorboard")
    assert send(run_folder, "tensorboard") == (["tensorboard"], [])
    events = EventAccumulator(str(run_folder / "tensorboard"))
    events.Reload()
    assert "report/text_summary" in events.Tags()["tensors"]


def test_training_sends_the_report_at_its_end(run_folder, monkeypatch):
    calls = []
    monkeypatch.setattr(train_run, "send_run_report", lambda *given: calls.append(given))
    monkeypatch.setattr(train_run, "finish_run", lambda *given, **options: None)
    run = RunFolder(run_folder)

    def finish(*loggers):
        machine, method = SimpleNamespace(loggers=loggers, report=False), SimpleNamespace(options={})
        session = SimpleNamespace(config=SimpleNamespace(machine=machine, method=method))
        train_run._finish(session, run, {}, {})

    finish()
    finish("wandb")
    run.report_file.unlink()
    finish("wandb")
    assert [given[:3] for given in calls] == [(("wandb",), run_folder, run_folder / "report.html")]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_tracker_costs_a_line_and_nothing_else(run_folder, name, without_package):
    without_package(name)
    sent, (line,) = send(run_folder, name)
    assert sent == []
    assert f"report.html was not sent to {name}" in line
    assert f"classmargin[{name}]" in line


def test_newest_wandb_run_of_the_folder_is_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="no W&B run in"):
        wandb_run_id(tmp_path)
    for day, name, again in (("01", "old11", ""), ("02", "new22", ""), ("02", "new22", "-1")):
        place = tmp_path / "wandb" / f"offline-run-202601{day}_000000-{name}{again}"
        place.mkdir(parents=True)
        (place / f"run-{name}.wandb").touch()
        assert wandb_run_id(tmp_path) == name


@pytest.mark.slow
def test_real_wandb_keeps_the_report_under_the_same_run(run_folder):
    pytest.importorskip("wandb")
    train(run_folder, "wandb")
    before = wandb_run_id(run_folder)
    assert send(run_folder, "wandb") == (["wandb"], [])
    assert wandb_run_id(run_folder) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a service with hundreds of packages of its own
def test_real_mlflow_keeps_each_run_and_its_report_in_its_own_folder(run_folder, monkeypatch):
    """Two runs of one process, as compare-methods makes them: the second must not find the first one's place."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(run_folder.parent)
    second = run_folder.with_name("second")
    shutil.copytree(run_folder, second)
    for folder in (run_folder, second):
        train(folder, "mlflow")
        assert send(folder, "mlflow") == (["mlflow"], [])
    for folder in (run_folder, second):
        client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("classmargin")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.run_name == folder.name
        assert run.info.status == "FINISHED"
        assert run.data.metrics["overall"] == 0.5
        assert run.data.params == {"loop.seed": "3"}
        kept = {path.name: path for path in folder.rglob("mlflow-artifacts/**/*.*")}
        assert kept.keys() == {"report.html", "class_accuracy_00000010.json"}
        assert kept["report.html"].read_text() == "<html>report</html>"
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert {path.name for path in run_folder.parent.iterdir()} == {"run", "second"}  # no mlruns/ here
