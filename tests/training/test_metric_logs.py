"""Loggers: files always, services by name, at most ten scalars and one table an evaluation."""

from __future__ import annotations

import csv
import json
import sys
import types

import pytest
import torch

from classmargin.methods.base import MethodLoss
from classmargin.training.metric_logs import (
    SERVICES,
    Evaluation,
    LogFiles,
    LossMeter,
    csv_line,
    few_scalars,
    json_line,
)
from classmargin.training.run_progress import words_of

NAMES = ["shirt", 'coat, "long"']


def evaluation(step: int, **extra: float) -> Evaluation:
    return Evaluation(step // 10, step, {"overall": 0.5, "loss": 1.25, **extra}, [0.25, 0.75])


def service_logger(folder, name: str):
    return SERVICES[name](folder, NAMES, {"loop": {"seed": 3}}, 0)


def test_files_hold_every_evaluation(tmp_path):
    logger = LogFiles(tmp_path, NAMES)
    logger.log(evaluation(10))
    logger.log(evaluation(20))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert records[1] == {
        "epoch": 2,
        "step": 20,
        "overall": 0.5,
        "loss": 1.25,
        "class_accuracy": [0.25, 0.75],
    }
    with (tmp_path / "class_accuracy.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["epoch", "step", *NAMES],
            ["1", "10", "0.25", "0.75"],
            ["2", "20", "0.25", "0.75"],
        ]


def test_csv_columns_stay_when_the_parts_of_the_loss_change(tmp_path):
    logger = LogFiles(tmp_path, NAMES)
    logger.log(evaluation(10, margin=3.0))
    logger.log(evaluation(20, contrast=4.0))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["margin"] for row in rows] == ["3.0", ""]
    assert rows[1]["loss"] == "1.25"


def test_numbers_that_json_lacks_become_null(tmp_path):
    logger = LogFiles(tmp_path, NAMES)
    logger.log(Evaluation(1, 1, {"loss": float("nan")}, [float("nan"), 1.0]))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["class_accuracy"] == [None, 1.0]


def test_logs_can_be_cut_back(tmp_path):
    files = LogFiles(tmp_path, NAMES)
    files.log(evaluation(10))
    lengths = files.lengths()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    files.log(evaluation(20))
    files.cut(lengths)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    files.cut({})
    assert (tmp_path / "metrics.csv").read_bytes() == b""


def test_records_and_cells_of_the_log_are_valid_json_and_csv():
    assert json_line({"epoch": 1, "loss": float("nan")}) == '{"epoch": 1, "loss": null}\n'
    assert csv_line(["shirt, white", 0.5]) == '"shirt, white",0.5\r\n'


def test_the_meter_means_over_steps_and_leaves_out_parts_that_repeat_the_total():
    meter = LossMeter()
    for total in (1.0, 3.0):
        parts = {"margin": torch.tensor(1.5), "repeated": torch.tensor(total)}
        meter.add(MethodLoss(torch.tensor(total), parts))
    assert meter.means() == {"loss": 2.0, "margin": 1.5}


def test_the_words_of_the_progress_name_epoch_losses_and_accuracies():
    words = words_of(2, 5, {"loss": 0.51}, {"overall": 0.8, "hard": 0.65})
    assert words == "epoch 3/5 loss 0.510 | overall 80.0 hard 65.0"


def test_at_most_ten_scalars():
    accuracies = dict.fromkeys(["overall", "easy", "medium", "hard", "worst", "gap"], 0.5)
    scalars = few_scalars(accuracies, {"loss": 1.0, **{f"part{i}": 0.1 for i in range(9)}}, 0.1)
    assert len(scalars) == 10
    assert list(scalars)[6:8] == ["learning_rate", "loss"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_scalars_and_one_table(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = service_logger(tmp_path, "tensorboard")
    logger.log(evaluation(10))
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"overall", "loss"}
    assert events.Scalars("loss")[0].value == 1.25
    assert events.Tags()["tensors"] == ["class accuracy/text_summary"]


class Service(types.ModuleType):
    """Stands for a service's package: writes down every call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_wandb_is_offline_by_default_and_gets_scalars_and_one_table(tmp_path, monkeypatch):
    service = Service("wandb")
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    logger = service_logger(tmp_path, "wandb")
    logger.log(evaluation(10))
    logger.close()
    names = [name for name, _, _ in service.calls]
    assert names == ["init", "Table", "log", "finish"]
    assert service.calls[0][2]["mode"] == "offline"
    logged = service.calls[2]
    assert logged[1][0]["loss"] == 1.25
    assert logged[2] == {"step": 10}
    assert service.calls[1][2]["data"] == [["shirt", 0.25], ['coat, "long"', 0.75]]


def mlflow_service() -> Service:
    service = Service("mlflow")
    service.get_experiment_by_name = lambda name: None
    service.info = types.SimpleNamespace(run_id="abc")
    service.entities = types.SimpleNamespace(Param=lambda *given: given, Metric=lambda *given: given)
    return service


def test_mlflow_stays_in_the_run_folder_by_default(tmp_path, monkeypatch):
    service = mlflow_service()
    monkeypatch.setitem(sys.modules, "mlflow", service)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = service_logger(tmp_path, "mlflow")
    logger.log(evaluation(10))
    logger.close()
    calls = {name: (args, kwargs) for name, args, kwargs in service.calls}
    batches = [kwargs for name, _, kwargs in service.calls if name == "log_batch"]
    assert str(tmp_path) in calls["MlflowClient"][1]["tracking_uri"]
    assert str(tmp_path) in calls["create_experiment"][1]["artifact_location"]
    assert batches[0] == {"params": [("loop.seed", "3")]}
    logged = [(name, value, step) for name, value, _, step in batches[1]["metrics"]]
    assert logged == [("overall", 0.5, 10), ("loss", 1.25, 10)]
    assert calls["log_table"][0][1]["accuracy"] == [0.25, 0.75]
    assert calls["set_terminated"][0] == ("abc",)
    assert (tmp_path / "mlflow_run_id.txt").read_text() == "abc\n"


def test_mlflow_of_the_user_is_used_and_never_switched(tmp_path, monkeypatch):
    """Two runs of one process: neither may find the place of the other in the environment."""
    service = mlflow_service()
    monkeypatch.setitem(sys.modules, "mlflow", service)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    service_logger(tmp_path, "mlflow")
    calls = {name: (args, kwargs) for name, args, kwargs in service.calls}
    assert calls["MlflowClient"][1] == {"tracking_uri": None}
    assert calls["create_experiment"][1] == {"artifact_location": None}
    assert not {"set_tracking_uri", "set_experiment", "start_run", "end_run"} & calls.keys()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_without_validation_samples_a_service_gets_the_scalars_and_no_table(tmp_path, monkeypatch, name):
    service = mlflow_service()
    service.SummaryWriter = lambda *args, **kwargs: service
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), service)
    logger = service_logger(tmp_path, name)
    service.calls.clear()
    logger.log(Evaluation(1, 10, {"loss": 1.25}, []))
    sent = {"tensorboard": "add_scalar", "wandb": "log", "mlflow": "log_batch"}[name]
    ((called, args, kwargs),) = service.calls
    assert called == sent
    (metric,) = kwargs.get("metrics", [args])
    assert 1.25 in metric or {"loss": 1.25} in metric


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_service_names_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'classmargin\[{name}\]'"):
        service_logger(tmp_path, name)
