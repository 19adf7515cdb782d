"""The metrics are real torchmetrics and equal the audit."""

import copy
import importlib
import multiprocessing
import pickle
import sys

import numpy as np
import pytest
import torch
from toy_training import NUM_CLASSES, measured, run_rank, share

import classmargin
from classmargin.evaluation.class_metrics import gini
from classmargin.integrations import class_counts

torchmetrics = pytest.importorskip("torchmetrics")

from classmargin.integrations.torchmetrics import (  # noqa: E402
    ClassAccuracyGini,
    ClassTiers,
    WorstClassAccuracy,
)

METRICS = (ClassTiers, WorstClassAccuracy, ClassAccuracyGini)


def predictions(seed, samples=300, classes=7, present=None):
    """Return scores that are right more often for later classes, and labels (of the first ``present`` classes)."""
    random = np.random.default_rng(seed)
    labels = random.integers(present or classes, size=samples)
    scores = random.standard_normal((samples, classes))
    scores[np.arange(samples), labels] += 0.5 * labels
    return torch.from_numpy(scores), torch.from_numpy(labels)


def collection(classes=7):
    return torchmetrics.MetricCollection([metric(num_classes=classes) for metric in METRICS])


def of_audit(scores, labels):
    result = classmargin.audit(labels, logits=scores, ranking="own", bootstrap=0)
    tiers = {name: getattr(result, name) for name in ("easy", "medium", "hard")}
    return {**tiers, "WorstClassAccuracy": result.worst, "ClassAccuracyGini": result.disparity["gini"]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("present", [None, 5, 2, 1])
def test_values_equal_the_audit(seed, present):
    scores, labels = predictions(seed, present=present)
    metrics = collection()
    for rows in torch.arange(len(labels)).split(64):
        metrics.update(scores[rows], labels[rows])
    ours, expected = metrics.compute(), of_audit(scores, labels)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_equal(ours[name].item(), value)


def test_values_by_hand():
    # class accuracies 1, 1/2, 0: thirds of one class each; Gini = (-2·0 + 0·1/2 + 2·1) / (3 · 3/2)
    preds, target = torch.tensor([0, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2])
    tiers = ClassTiers(num_classes=3)(preds, target)
    assert {name: value.item() for name, value in tiers.items()} == {"easy": 1.0, "medium": 0.5, "hard": 0.0}
    assert WorstClassAccuracy(num_classes=3)(preds, target).item() == 0.0
    assert ClassAccuracyGini(num_classes=3)(preds, target).item() == pytest.approx(4 / 9)
    assert gini(np.array([1.0, 0.5, 0.0])) == pytest.approx(4 / 9)


@pytest.mark.parametrize("metric", METRICS)
def test_they_are_metrics(metric):
    made = metric(num_classes=3)
    assert isinstance(made, torchmetrics.Metric)
    assert made.higher_is_better is (metric is not ClassAccuracyGini)


def test_forward_returns_the_value_of_the_batch_and_keeps_the_total():
    metric = WorstClassAccuracy(num_classes=2)
    first = metric(torch.tensor([0, 1]), torch.tensor([0, 1]))
    second = metric(torch.tensor([1, 1]), torch.tensor([0, 1]))
    assert (first.item(), second.item(), metric.compute().item()) == (1.0, 0.0, 0.5)


def test_members_of_a_collection_share_their_counts():
    scores, labels = predictions(0)
    metrics = collection()
    metrics.update(scores, labels)
    metrics.update(scores, labels)
    assert len(metrics.compute_groups) == 1


def test_reset_starts_from_nothing():
    scores, labels = predictions(0)
    metric = ClassTiers(num_classes=7)
    metric.update(scores, labels)
    metric.reset()
    assert int(metric.counts.sum()) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_pickle_copy_and_state_keep_the_value(metric):
    scores, labels = predictions(0)
    made = metric(num_classes=7)
    made.persistent(True)
    made.update(scores, labels)
    loaded = metric(num_classes=7)
    loaded.persistent(True)
    loaded.load_state_dict(made.state_dict())
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), loaded):
        assert torch.equal(other.counts, made.counts)
        assert type(other) is metric


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
def test_two_processes_measure_as_one(tmp_path):
    """Forked, because importing torchmetrics anew takes longer than everything else here."""
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=run_rank, args=(measured, rank, str(tmp_path))) for rank in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0]
    inputs, labels = (torch.cat(parts) for parts in zip(*(share(step, None) for step in range(3)), strict=True))
    counted = labels != 3
    expected = of_audit(inputs[counted, :NUM_CLASSES], labels[counted])
    for rank in (0, 1):
        found = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert {name: value.item() for name, value in found.items()} == expected
    assert {name: value.item() for name, value in measured(None).items()} == expected


def test_rows_of_the_ignored_label_do_not_count():
    preds, target = torch.tensor([0, 1, 0]), torch.tensor([0, 1, -100])
    assert WorstClassAccuracy(num_classes=2, ignore_index=-100)(preds, target).item() == 1.0
    with pytest.raises(ValueError, match="labels must lie in"):
        WorstClassAccuracy(num_classes=2)(preds, target)


def test_scores_of_another_number_of_classes_are_refused():
    with pytest.raises(ValueError, match=r"scores must have shape \(B, 3\) or \(B,\), got \(2, 4\)"):
        ClassTiers(num_classes=3).update(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(TypeError, match="num_classes must be an int"):
        ClassTiers(num_classes=2.5)


def test_headlines_equal_the_audit():
    scores, labels = predictions(3)
    result = classmargin.audit(labels, logits=scores, ranking="own", bootstrap=0)
    ours = class_counts.headlines(class_counts.count_classes(scores, labels, 7))
    assert ours == pytest.approx({name: getattr(result, name) for name in ours}, rel=1e-14)


def test_nothing_counted_gives_no_number():
    nothing = torch.zeros(2, 3, dtype=torch.long)
    assert all(np.isnan(value) for value in class_counts.headlines(nothing).values())
    assert np.isnan(class_counts.accuracy_gini(nothing))


def test_missing_package_names_the_extra(without_package, monkeypatch):
    without_package("torchmetrics")
    monkeypatch.delitem(sys.modules, "classmargin.integrations.torchmetrics")
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[torchmetrics\]'"):
        importlib.import_module("classmargin.integrations.torchmetrics")


def test_example_of_the_metrics_runs(run_example):
    printed = run_example("torchmetrics_in_a_loop.py")
    assert "hard" in printed
    assert "Gini" in printed
