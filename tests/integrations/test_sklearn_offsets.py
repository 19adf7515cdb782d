"""Class offsets on held-out scores: what they promise, and what they cost."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_toys import blobs

from classmargin import ClassOffsetClassifier
from classmargin.integrations.sklearn_offsets import best_offsets, right_samples


@pytest.fixture(scope="module")
def skewed():
    """Three classes, the last one rare: plain logistic regression hardly ever names it."""
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [300, 300, 40])
    return random.normal(size=(640, 2)) + np.array([[0, 0], [3, 0], [1.5, 0.8]])[y], np.array(["a", "b", "rare"])[y]


def accuracies(model, X, y):
    predictions = model.predict(X)
    return np.array([(predictions[y == label] == label).mean() for label in np.unique(y)])


@parametrize_with_checks([ClassOffsetClassifier(LogisticRegression(max_iter=500), cv=2)])
def test_meta_estimator_keeps_the_rules_of_scikit_learn(estimator, check):
    check(estimator)


def test_offsets_of_the_worst_class_lift_it_on_new_rows_and_cost_others(skewed):
    X, X_new, y, y_new = train_test_split(*skewed, test_size=0.5, stratify=skewed[1], random_state=0)
    plain = LogisticRegression().fit(X, y)
    model = ClassOffsetClassifier(LogisticRegression(), "worst", trade=1.0).fit(X, y)
    assert model.offsets_.argmax() == 2
    assert accuracies(model, X_new, y_new).min() > accuracies(plain, X_new, y_new).min() + 0.2
    assert model.score(X_new, y_new) < plain.score(X_new, y_new)  # a trade, not a gift


@pytest.mark.parametrize("objective", ["hard", "worst"])
def test_pareto_curve_goes_from_overall_to_the_objective(objective, skewed):
    model = ClassOffsetClassifier(LogisticRegression(), objective, trade=0.3).fit(*skewed)
    assert [point["trade"] for point in model.pareto_] == [0.0, 0.25, 0.3, 0.5, 0.75, 1.0]
    first, last = model.pareto_[0], model.pareto_[-1]
    assert first["overall"] >= last["overall"]
    assert last[objective] > first[objective]
    np.testing.assert_array_equal(model.offsets_, model.pareto_[2]["offsets"])


def test_points_of_the_curve_are_what_the_held_out_scores_say(skewed):
    X, y = skewed
    model = ClassOffsetClassifier(LogisticRegression(), "worst").fit(X, y)
    held_out = np.log(cross_val_predict(LogisticRegression(), X, y, cv=5, method="predict_proba"))
    labels = np.searchsorted(model.classes_, y)
    for point in model.pareto_:
        right = right_samples(held_out + point["offsets"], labels, 3)
        assert point["overall"] == pytest.approx(right.sum() / len(y))
        assert point["worst"] == pytest.approx((right / np.bincount(labels)).min())


def test_costs_make_the_dear_class_frequent(skewed):
    X, y = skewed
    cheap, dear = (
        ClassOffsetClassifier(LogisticRegression(), costs={"rare": cost}, trade=1.0).fit(X, y) for cost in (1.0, 20.0)
    )
    assert (dear.predict(X) == "rare").sum() > 2 * (cheap.predict(X) == "rare").sum()
    assert dear.pareto_[-1]["objective"] == pytest.approx(
        -(20.0 * (1 - dear.pareto_[-1]["worst"]) * 40) / 640, abs=0.25
    )


def test_offsets_are_a_maximum_class_by_class():
    """Against every offset of every class on a fine grid."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 4, 60)
    scores = random.normal(size=(60, 4)) + np.eye(4)[labels]
    counts = np.bincount(labels)

    def value(right):
        return np.sort(right / counts, axis=-1)[..., 0]

    offsets = best_offsets(scores, labels, value, np.zeros(4))
    reached = value(right_samples(scores + offsets, labels, 4))
    for k in range(4):
        for step in np.linspace(-3, 3, 301):
            moved = offsets + step * np.eye(4)[k]
            assert value(right_samples(scores + moved, labels, 4)) <= reached + 1e-12


def test_nothing_to_gain_leaves_offsets_at_zero():
    labels = np.array([0, 1, 2])
    assert not best_offsets(np.eye(3), labels, lambda right: right.sum(-1) / 3, np.zeros(3)).any()


def test_probabilities_are_those_of_the_estimator_times_the_offsets(skewed):
    X, y = skewed
    model = ClassOffsetClassifier(LogisticRegression()).fit(X, y)
    plain = LogisticRegression().fit(X, y).predict_proba(X) * np.exp(model.offsets_)
    np.testing.assert_allclose(model.predict_proba(X), plain / plain.sum(1, keepdims=True), rtol=1e-9)


def test_scores_without_probabilities_are_taken():
    X, y = blobs()
    model = ClassOffsetClassifier(RidgeClassifier(), "worst").fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert model.decision_function(X).shape == (240, 4)
    two = ClassOffsetClassifier(RidgeClassifier(), "worst").fit(X, y > 1)
    np.testing.assert_array_equal(two.predict(X), two.decision_function(X) > 0)


def test_sample_weights_reach_the_estimator_in_folds_and_at_the_end(skewed):
    X, y = skewed
    weight = np.where(y == "rare", 50.0, 1.0)
    heavy = ClassOffsetClassifier(LogisticRegression(), trade=0.0).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(heavy.estimator_.coef_, LogisticRegression().fit(X, y, sample_weight=weight).coef_)
    assert heavy.offsets_[2] < 0  # weights made the rare class too frequent for the overall accuracy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "best"}, "objective must be one of"),
        ({"trade": 1.5}, "trade must be"),
        ({"costs": {"z": 1.0}}, "costs must be given for classes of y.*got 'z'"),
        ({"costs": {"a": -1.0}}, "costs must be"),
    ],
)
def test_bad_arguments_are_named(options, message, skewed):
    with pytest.raises(ValueError, match=message):
        ClassOffsetClassifier(LogisticRegression(), **options).fit(*skewed)


def test_it_clones_and_serves_many_classes():
    X, y = load_digits(return_X_y=True)
    model = clone(ClassOffsetClassifier(LogisticRegression(C=1e-3, max_iter=500), cv=3)).fit(X[:900], y[:900])
    assert model.pareto_[-1]["hard"] >= model.pareto_[0]["hard"]
    assert model.score(X[900:], y[900:]) > 0.85
