"""An audit in the trackers: ten scalars, one table, the report; TensorBoard, W&B and MLflow for real where installed."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

import classmargin
from classmargin.integrations.trackers import COLUMNS, audit_scalars, class_rows, log_audit

NAMES = ["shirt", "coat | long", "=bag", "hat"]


@pytest.fixture(scope="module")
def result():
    random = np.random.default_rng(0)
    labels, scores = random.integers(4, size=200), random.standard_normal((200, 4))
    scores[np.arange(200), labels] += labels
    return classmargin.audit(labels, logits=scores, class_names=NAMES, bootstrap=0)


def test_ten_scalars_are_those_of_the_audit(result):
    scalars = audit_scalars(result)
    assert len(scalars) == 10
    assert scalars["hard"] == result.hard
    assert scalars["gini"] == result.disparity["gini"]
    assert scalars["ece"] == result.ece


def test_what_the_arrays_do_not_tell_is_left_out():
    result = classmargin.audit([0, 1, 2], predictions=[0, 1, 1], num_classes=3, bootstrap=0)
    assert "ece" not in audit_scalars(result)


def test_table_has_a_row_a_class_of_plain_values(result):
    rows = class_rows(result)
    assert [row[0] for row in rows] == NAMES
    assert [row[2] for row in rows] == result.by_class["accuracy"].tolist()
    assert {type(value) for row in rows for value in row} <= {str, int, float, type(None)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")
def test_tensorboard_gets_scalars_table_and_report(result, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        log_audit(result, writer, step=7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert len(events.Tags()["scalars"]) == 10
    (hard,) = events.Scalars("audit/hard")
    assert (hard.step, hard.value) == (7, pytest.approx(result.hard))
    table = events.Tensors("classes/text_summary")[0].tensor_proto.string_val[0].decode()
    assert len(table.splitlines()) == 2 + len(NAMES)
    assert "coat \\| long" in table
    assert "<html" in (tmp_path / "audit_report_7.html").read_text(encoding="utf-8")


class Run:
    """Stands for a W&B run: writes down every call."""

    id = "abc"

    def __init__(self):
        self.logged, self.artifacts = [], []

    def log(self, values, step):
        self.logged.append((values, step))

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)


class Recorded:
    def __init__(self, *args, **kwargs):
        self.args, self.kwargs, self.files = args, kwargs, []

    def add_file(self, path):
        self.files.append(Path(path).read_text(encoding="utf-8"))


def test_wandb_run_gets_one_call_of_numbers_and_the_report(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Table=Recorded, Artifact=Recorded))
    run = Run()
    log_audit(result, run, step=3)
    ((values, step),) = run.logged
    assert (step, len(values)) == (3, 11)
    assert values["classes"].kwargs["columns"] == list(COLUMNS)
    assert len(values["classes"].kwargs["data"]) == 4
    (artifact,) = run.artifacts
    assert artifact.kwargs == {"type": "report", "metadata": {"step": 3}}
    assert "<html" in artifact.files[0]


def test_mlflow_gets_metrics_a_table_and_the_report(result):
    calls = {}
    mlflow = types.SimpleNamespace(
        log_metrics=lambda values, step: calls.update(metrics=values, step=step),
        log_table=lambda table, name: calls.update(table=table, name=name),
        log_artifact=lambda path, artifact_path: calls.update(
            page=Path(path).read_text(encoding="utf-8"), place=artifact_path
        ),
    )
    log_audit(result, mlflow, step=12)
    assert (len(calls["metrics"]), calls["step"]) == (10, 12)
    assert calls["table"]["class_name"] == NAMES
    assert calls["name"] == "classes_00000012.json"
    assert "<html" in calls["page"]
    assert calls["place"] == "report_00000012"


@pytest.mark.slow
def test_real_wandb_offline_keeps_table_and_report(result, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="classmargin")
    log_audit(result, run, step=1)
    run.finish()
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert any(name.endswith(".wandb") for name in kept)
    assert any("classes" in name and name.endswith(".json") for name in kept)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a service with hundreds of packages of its own
def test_real_mlflow_keeps_metrics_table_and_report(result, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")  # undone afterwards
    mlflow.create_experiment("toy", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("toy")
    with mlflow.start_run() as run:
        log_audit(result, mlflow, step=1)
    stored = mlflow.get_run(run.info.run_id)
    assert stored.data.metrics["audit/hard"] == pytest.approx(result.hard)
    kept = {path.name for path in (tmp_path / "artifacts").rglob("*")}
    assert {"classes_00000001.json", "audit_report.html"} <= kept


def test_report_can_be_left_out(result, tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        log_audit(result, writer, report=False)
    assert not list(tmp_path.glob("*.html"))


def test_unknown_tracker_is_refused(result):
    with pytest.raises(TypeError, match="a W&B run or the module mlflow, got dict"):
        log_audit(result, {})
    with pytest.raises(ValueError, match="step must be at least 0"):
        log_audit(result, Run(), step=-1)


def test_missing_wandb_names_the_extra(result, without_package):
    without_package("wandb")
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[wandb\]'"):
        log_audit(result, Run())


def test_example_of_the_loggers_runs(run_example):
    assert "audit_report_0.html" in run_example("log_an_audit.py")
