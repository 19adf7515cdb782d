"""Metrics beside accuracy in the class table, and the costs of mistakes."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from classmargin.evaluation import audit
from classmargin.evaluation.class_metrics import class_calibration_error, class_calibration_limits
from classmargin.evaluation.prediction_files import read_costs


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 40)
    return labels, rng.normal(size=(320, 8)) + 1.5 * np.eye(8)[labels]


def test_f1_and_top_five_equal_their_definitions(scores):
    labels, logits = scores
    frame = audit(labels, logits=logits).by_class
    np.testing.assert_allclose(frame["f1"], f1_score(labels, logits.argmax(axis=1), average=None))
    among = (np.argsort(-logits, axis=1)[:, :5] == labels[:, None]).any(axis=1)
    np.testing.assert_allclose(frame["top5"], [among[labels == k].mean() for k in range(8)])
    for name in ("precision", "f1", "top5", "ece"):
        assert (frame[f"{name}_low"] <= frame[name]).all()
        assert (frame[name] <= frame[f"{name}_high"]).all()


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("n", [20, 200])
def test_limits_of_calibration_errors_hold_the_true_error(calibrated, n):
    rng, classes = np.random.default_rng(0), 400
    confidence = rng.choice([0.55, 0.75, 0.95], classes * n)
    correct = rng.random(classes * n) < (confidence if calibrated else confidence - 0.1)
    truth = 0.0 if calibrated else 0.1
    labels = np.repeat(np.arange(classes), n)
    observed = class_calibration_error(confidence, correct, labels, classes)
    low, high = class_calibration_limits(confidence, correct, labels, classes, 1.96)
    assert np.mean((low <= truth + 1e-9) & (truth <= high)) >= 0.93
    assert (low <= observed + 1e-9).all()
    assert (observed <= high + 1e-9).all()
    # The observed error alone would call every calibrated class uncalibrated.
    assert not calibrated or (observed > 0).all()


def test_top_five_of_five_classes_says_nothing():
    assert audit([0, 1], logits=np.eye(2), bootstrap=0).by_class["top5"].isna().all()


def test_costs_of_one_are_the_error_rate(scores):
    labels, logits = scores
    frame = audit(labels, logits=logits, costs=1 - np.eye(8), bootstrap=0).by_class
    np.testing.assert_allclose(frame["cost"], 1 - frame["accuracy"])
    np.testing.assert_allclose(frame["cost_low"], 1 - frame["high"])


def test_costs_need_a_row_and_a_column_for_every_class():
    with pytest.raises(ValueError, match=r"costs must be finite.*got shape \(2, 2\)"):
        audit([0, 1, 2], predictions=[0, 1, 2], num_classes=3, costs=np.ones((2, 2)), bootstrap=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a,b\na,0,1\n", "not so 'b'"),
        (",a,b\na,0,1\nb,1,0\nb,2,0\n", "not so 'b'"),
        (",a,b\na,0\nb,1,0\n", "must be numbers"),
        (",a,b\na,0,x\nb,1,0\n", "must be numbers"),
        (",a,b\na,0,inf\nb,1,0\n", "finite"),
    ],
)
def test_bad_tables_of_costs_are_refused(tmp_path, text, message):
    file = tmp_path / "costs.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_costs(file, ["a", "b"])


def _bayes(classes, seed, noisy):
    """Scores of a Bayes-optimal classifier of normal classes; in the noisy ones a fifth of the labels is wrong."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, 20))
    labels = np.repeat(np.arange(classes), 100)
    truth = labels.copy()
    for k in range(noisy):
        truth[np.flatnonzero(labels == k)[:20]] = rng.integers(noisy, classes, 20)
    features = means[truth] + rng.normal(size=(len(labels), 20))
    return labels, features @ means.T - (means**2).sum(axis=1) / 2


def test_right_labels_of_hard_classes_are_not_doubted_and_wrong_ones_are():
    named = [
        audit(labels, logits=logits, bootstrap=0).by_class["verdict"].str.contains("label noise")
        for labels, logits in (_bayes(60, seed, 6) for seed in range(2))
    ]
    assert np.mean([each[6:].mean() for each in named]) <= 0.05
    assert np.mean([each[:6].mean() for each in named]) >= 0.9
