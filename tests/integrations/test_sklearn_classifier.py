"""MR2Classifier: what it minimises, what it accepts, and that it works where scikit-learn's own classifiers work."""

import pickle
import sys

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn_toys import blobs, objective, unit

import classmargin
from classmargin import MR2Classifier
from classmargin.functional import class_margins
from classmargin.integrations import sklearn_classifier
from classmargin.integrations.sklearn_parts import linear_head


@pytest.fixture(params=["newton", "lbfgs"])
def search(request, monkeypatch):
    """Both ways to the minimum."""
    monkeypatch.setattr(linear_head, "NEWTON_VARIABLES", 10_000 if request.param == "newton" else 0)
    return request.param


# --- what is minimised ---------------------------------------------------------------------------------------


def test_linear_fit_is_the_minimum(search):
    X, y = blobs()
    model = MR2Classifier(mean_margin=2.0, alpha=1e-3, tol=1e-10).fit(X, y)
    value, coef_gradient, intercept_gradient = objective(model, X, y)
    assert model.objective_ == pytest.approx(value, rel=1e-9)
    assert coef_gradient.abs().max() < 1e-4
    assert intercept_gradient.abs().max() < 1e-4


def test_smaller_tolerance_comes_nearer_to_the_minimum(monkeypatch):
    X, y = blobs()
    exact = MR2Classifier().fit(X, y).objective_  # by Newton's method
    monkeypatch.setattr(linear_head, "NEWTON_VARIABLES", 0)
    models = [MR2Classifier(tol=tol).fit(X, y) for tol in (1e-2, 1e-4, 1e-6)]
    above = [model.objective_ / exact - 1.0 for model in models]
    assert 0.0 <= above[2] < above[1] < above[0]
    assert above[1] < 0.1
    assert above[2] < 0.01
    assert models[0].n_iter_ < models[1].n_iter_ < models[2].n_iter_


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_equal_margins_give_logistic_regression(search):
    X, y = blobs()
    X = unit(X)  # every class has the same mean squared norm, so all margins are 1
    variance = ((X - X.mean(0)) ** 2).sum(1).mean()
    model = MR2Classifier(alpha=1e-2, tol=1e-12).fit(X, y)
    theirs = LogisticRegression(C=1 / (1e-2 * variance * len(y)), tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(model.class_margins_, 1.0)
    np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(X), atol=1e-4)


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_mean_margin_multiplies_the_weights_of_equal_margins():
    X, y = blobs()
    X = unit(X)
    one, two = MR2Classifier(1.0, alpha=4e-3).fit(X, y), MR2Classifier(2.0, alpha=1e-3).fit(X, y)
    np.testing.assert_allclose(two.coef_, 2.0 * one.coef_, atol=1e-5)
    np.testing.assert_allclose(two.predict_proba(X), one.predict_proba(X), atol=1e-5)


def test_margins_are_those_of_the_paper():
    X = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])  # the toy batch of the fact sheet
    model = MR2Classifier().fit(X, [0, 1, 2, 0])
    np.testing.assert_allclose(model.class_sqnorm_, [3.0, 4.0, 10.0])
    np.testing.assert_allclose(model.class_margins_, [0.834621, 0.918620, 1.246759], atol=1e-6)
    cubic = MR2Classifier(norm_order=3.0).fit(X, [0, 1, 2, 0])
    np.testing.assert_allclose(cubic.class_margins_, [0.820125, 0.939195, 1.240680], atol=1e-6)


def test_wide_classes_get_larger_margins():
    X, y = blobs()
    model = MR2Classifier(mean_margin=1.5).fit(X - X.mean(0), y)
    assert model.class_margins_.mean() == pytest.approx(1.5)
    sqnorm = torch.tensor([((X - X.mean(0))[y == k] ** 2).sum(1).mean() for k in range(4)])
    np.testing.assert_allclose(model.class_margins_, class_margins(sqnorm, 1.5))


def test_larger_features_give_the_same_predictions(search):
    X, y = blobs()
    small, large = MR2Classifier(tol=1e-9).fit(X, y), MR2Classifier(tol=1e-9).fit(100 * X, y)
    np.testing.assert_allclose(large.predict_proba(100 * X), small.predict_proba(X), atol=2e-3)


def test_far_away_features_lose_no_digits_in_float32(monkeypatch):
    monkeypatch.setattr(linear_head, "NEWTON_VARIABLES", 0)
    X, y = blobs(dtype=np.float32)
    near = MR2Classifier().fit(X - X.mean(0), y)
    far = MR2Classifier().fit(X + np.float32(1000), y)
    assert far.score(X + np.float32(1000), y) == pytest.approx(near.score(X - X.mean(0), y), abs=0.02)


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_without_intercept_there_is_none(search):
    X, y = blobs()
    for model in (MR2Classifier(fit_intercept=False), MR2Classifier(fit_intercept=False, cosine=True)):
        np.testing.assert_array_equal(model.fit(X, y).intercept_, 0.0)


# --- weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"cosine": True, "norm_order": 3.0}], ids=["linear", "cosine"])
def test_weights_count_rows(options):
    X, y = blobs(rows=80)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    weighted = MR2Classifier(**options).fit(X, y, sample_weight=weight)
    repeated = MR2Classifier(**options).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(weighted.class_margins_, repeated.class_margins_)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("hidden", [None, (4,)])
def test_balanced_weights_count_rows_by_their_weight(hidden):
    X, y = blobs(rows=80)
    weight = np.random.default_rng(0).integers(0, 4, len(y)) * (y != 3)  # nothing is left of class 3
    options = {"class_weight": "balanced", "hidden": hidden, "epochs": 50, "random_state": 0}
    weighted = MR2Classifier(**options).fit(X, y, sample_weight=weight)
    by_hand = weight * np.where(y == 3, 0.0, 1.0 / np.bincount(y, weights=weight).clip(1)[y])
    plain = MR2Classifier(**{**options, "class_weight": None}).fit(X, y, sample_weight=by_hand)
    np.testing.assert_allclose(weighted.predict_proba(X), plain.predict_proba(X), atol=1e-6)


def test_class_weights_are_weights_of_their_rows():
    X, y = blobs()
    by_class = MR2Classifier(class_weight={0: 5.0}).fit(X, y)
    by_row = MR2Classifier().fit(X, y, sample_weight=np.where(y == 0, 5.0, 1.0))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, atol=1e-6)


def test_balanced_weights_help_the_rare_class():
    X, y = blobs(rows=600)
    keep = (y != 2) | (np.arange(600) % 10 == 0)
    plain, balanced = (
        MR2Classifier(class_weight=weight, alpha=1e-2).fit(X[keep], y[keep]) for weight in (None, "balanced")
    )
    assert (balanced.predict(X[y == 2]) == 2).mean() > (plain.predict(X[y == 2]) == 2).mean()


# --- hidden layer --------------------------------------------------------------------------------------------


def test_hidden_layer_learns_what_no_line_can():
    X = np.random.default_rng(0).normal(size=(400, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    assert MR2Classifier().fit(X, y).score(X, y) < 0.7
    model = MR2Classifier(hidden=(32,), learning_rate=0.02, batch_size=64, random_state=0, epochs=30).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.hidden_coef_.shape == (32, 2)
    assert model.features(X).shape == (400, 32)


@pytest.mark.parametrize("cosine", [False, True])
def test_network_and_its_arrays_agree(cosine):
    X, y = blobs()
    model = MR2Classifier(hidden=(8,), cosine=cosine, norm_order=3.0, random_state=0, epochs=3).fit(X, y)
    with torch.no_grad():
        features, logits = model._trainer.network(torch.from_numpy(X))
    np.testing.assert_allclose(model.features(X), features, atol=1e-10)
    np.testing.assert_allclose(model.decision_function(X), logits, atol=1e-9)


def test_representation_margin_makes_classes_compact():
    X, y = blobs(rows=400)

    def spread(weight):
        model = MR2Classifier(
            hidden=(16,),
            representation_weight=weight,
            random_state=0,
            learning_rate=0.01,
            batch_size=20,  # 600 steps, a third of them warm-up
            epochs=30,
        )
        features = model.fit(X, y).features(X)
        within = sum(((features[y == k] - features[y == k].mean(0)) ** 2).sum() for k in range(4))
        return within / ((features - features.mean(0)) ** 2).sum()

    assert spread(3.0) < 0.8 * spread(0.0)


def test_random_state_repeats_a_network():
    X, y = blobs(rows=100)
    one, same, other = (MR2Classifier(hidden=(8,), random_state=seed, epochs=2).fit(X, y) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.coef_, same.coef_)
    assert not np.array_equal(one.coef_, other.coef_)


def test_hidden_layer_stops_early_when_nothing_moves():
    X, y = blobs(rows=60)
    model = MR2Classifier(hidden=(4,), tol=0.9, epochs=1000, random_state=0).fit(X, y)
    assert 1 < model.n_iter_ < 1000


def test_few_rows_are_seen_as_often_as_makes_enough_batches(monkeypatch):
    monkeypatch.setattr(sklearn_classifier, "LEAST_BATCHES", 63)
    X, y = blobs(rows=60)
    for batch_size, epochs in ((60, 63), (30, 32), (10, 30)):
        model = MR2Classifier(hidden=(4,), batch_size=batch_size, tol=0.0, random_state=0).fit(X, y)
        assert model.n_iter_ == epochs


@pytest.mark.slow
def test_hidden_layer_learns_from_few_rows_with_its_defaults():
    """89 rows are one batch an epoch; 30 of them would be 30 steps, and 81 % right."""
    X, y = load_wine(return_X_y=True)
    model = MR2Classifier(hidden=(16,), random_state=0).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.93


# --- partial_fit ---------------------------------------------------------------------------------------------


def test_statistics_of_parts_are_those_of_the_whole():
    X, y = blobs()
    model = MR2Classifier()
    for part in np.array_split(np.arange(len(y)), 5):
        model.partial_fit(X[part], y[part], classes=[0, 1, 2, 3])
    np.testing.assert_allclose(model.class_margins_, MR2Classifier().fit(X, y).class_margins_)
    assert model.n_iter_ == 5


@pytest.mark.parametrize(
    "options",
    [{}, {"cosine": True, "norm_order": 3.0}, {"hidden": (16,)}, {"hidden": (16,), "cosine": True}],
    ids=["linear", "cosine", "hidden", "hidden-cosine"],
)
def test_many_parts_lead_to_a_good_classifier(options):
    X, y = blobs()
    model = MR2Classifier(learning_rate=0.05, batch_size=32, random_state=0, **options)
    for _ in range(15):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])
    assert model.score(X, y) > 0.85


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
@pytest.mark.parametrize("options", [{}, {"cosine": True}], ids=["linear", "cosine"])
def test_partial_fit_goes_on_from_fit(options):
    X, y = blobs()
    model = MR2Classifier(learning_rate=1e-6, **options).fit(X, y)
    before = model.decision_function(X)
    model.partial_fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), before, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"hidden": (8,)}], ids=["linear", "hidden"])
def test_pickled_half_way_ends_the_same(options):
    X, y = blobs()
    model = MR2Classifier(random_state=0, **options).partial_fit(X, y, classes=np.arange(4))
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.partial_fit(X, y).coef_, model.partial_fit(X, y).coef_)


def test_parts_may_come_in_another_precision():
    X, y = blobs()
    model = MR2Classifier(hidden=(8,)).partial_fit(X, y, classes=np.arange(4))
    assert model.partial_fit(X.astype(np.float32), y).coef_.dtype == np.float64


def test_training_leaves_the_random_state_of_torch_alone():
    X, y = blobs(rows=50)
    before = torch.get_rng_state()
    MR2Classifier(hidden=(8,), epochs=1).fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_learning_rate_may_change_between_parts_and_the_network_may_not():
    X, y = blobs()
    model = MR2Classifier(hidden=(8,), random_state=0).partial_fit(X, y, classes=np.arange(4))
    before = model.coef_.copy()
    model.set_params(learning_rate=1e-12).partial_fit(X, y)
    np.testing.assert_allclose(model.coef_, before, atol=1e-9)
    with pytest.raises(ValueError, match=r"hidden must stay as it was in the first call, \(8,\), got None"):
        model.set_params(hidden=None).partial_fit(X, y)


def test_a_class_may_come_later():
    X, y = blobs()
    model = MR2Classifier().partial_fit(X[y < 3], y[y < 3], classes=[0, 1, 2, 3])
    assert model.class_margins_[3] == 1.0  # not seen: the mean margin
    assert model.partial_fit(X, y).class_margins_[3] != 1.0


# --- with the rest of scikit-learn -----------------------------------------------------------------------------


def test_text_labels_pipeline_grid_and_cross_validation():
    X, y = blobs()
    y = np.array(["owl", "cat", "dog", "cow"])[y]
    pipeline = make_pipeline(StandardScaler(), MR2Classifier())
    grid = {"mr2classifier__mean_margin": np.array([1.0, 2.0]), "mr2classifier__norm_order": [2, 3]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.8
    assert set(cross_val_predict(pipeline, X, y, cv=3)) <= {"owl", "cat", "dog", "cow"}
    assert search.predict_proba(X).shape == (240, 4)


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_grid_over_the_kinds_of_classifier():
    X, y = blobs()
    grid = [
        {"cosine": [False, True], "norm_order": [2, 3]},
        {"hidden": [(8,)], "learning_rate": [0.02], "epochs": [20]},
    ]
    search = GridSearchCV(MR2Classifier(), grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 5
    assert search.best_score_ > 0.8


def test_pickle_and_clone():
    X, y = blobs()
    model = MR2Classifier(mean_margin=2.0, hidden=(8,), epochs=2, random_state=0).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")


def test_names_of_columns_are_kept():
    import pandas as pd

    X, y = blobs()
    model = MR2Classifier().fit(pd.DataFrame(X, columns=list("abcdef")), y)
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.n_features_in_ == 6


@pytest.mark.parametrize(("given", "kept"), [("float16", "float32"), ("float32", "float32"), ("int64", "float64")])
def test_precision_follows_the_features(given, kept):
    X, y = blobs()
    model = MR2Classifier().fit(X.astype(given), y)
    assert model.coef_.dtype == kept
    assert model.decision_function(X.astype(given)).dtype == kept


def test_probabilities_are_those_of_logits_over_the_mean_margin():
    X, y = blobs()
    model = MR2Classifier(mean_margin=2.0).fit(X, y)
    expected = torch.softmax(torch.from_numpy(model.decision_function(X)) / 2.0, 1)
    np.testing.assert_allclose(model.predict_proba(X), expected)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), expected)


def test_two_classes_have_one_score():
    X, y = blobs()
    model = MR2Classifier().fit(X[y < 2], y[y < 2])
    score = model.decision_function(X)
    assert score.shape == (240,)
    np.testing.assert_array_equal(model.predict(X), (score > 0).astype(int))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-score)))


def test_audit_takes_scores_features_and_weights():
    X, y = blobs()
    model = MR2Classifier().fit(X, y)
    result = classmargin.audit(
        y,
        logits=model.decision_function(X),
        features=model.features(X),
        classifier_weight=model.coef_,
        bootstrap=0,
    )
    assert result.overall == pytest.approx(model.score(X, y))
    np.testing.assert_allclose(result.by_class["margin"], model.class_margins_, rtol=1e-5)


# --- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean_margin": 0.0}, "mean_margin must be > 0"),
        ({"norm_order": 0.5}, "norm_order must be >= 1"),
        ({"alpha": -1.0}, "alpha must be >= 0"),
        ({"hidden": 512}, r"hidden must be None or a tuple with one layer size such as \(512,\), got 512"),
        ({"hidden": (8, 8)}, "hidden must be None or a tuple with one layer size"),
        ({"scale": 3.0}, "scale is the factor of cosines and needs cosine=True"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"device": "abacus"}, "device must be 'auto' or a device that torch can use here, got 'abacus'"),
    ],
)
def test_bad_parameters_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        MR2Classifier(**options).fit(*blobs(rows=20))


@pytest.mark.parametrize("shape", [(60, 20), (40, 300)], ids=["long", "wide"])
@pytest.mark.parametrize("norm_order", [2.0, 3.0, np.inf])
def test_sparse_rows_give_the_classifier_of_dense_ones(shape, norm_order):
    random = np.random.default_rng(0)
    X, y = random.random(shape) * (random.random(shape) < 0.2), random.integers(0, 3, shape[0])
    weight = random.integers(0, 3, shape[0])
    options = {"alpha": 1e-2, "norm_order": norm_order, "tol": 1e-10}
    dense = MR2Classifier(**options).fit(X, y, weight)
    thin = MR2Classifier(**options).fit(sparse.csr_array(X), y, weight)
    np.testing.assert_allclose(thin.class_margins_, dense.class_margins_, rtol=1e-12)
    np.testing.assert_allclose(thin.coef_, dense.coef_, atol=2e-4)
    np.testing.assert_allclose(thin.predict_proba(sparse.csc_array(X)), dense.predict_proba(X), atol=1e-4)


def test_wide_sparse_rows_are_never_made_dense(monkeypatch):
    """A million columns: dense they would take 240 MB, and the second moments of columns 8 TB."""
    from sklearn.feature_extraction.text import HashingVectorizer

    words = ["late", "card", "lost", "bank", "rate", "fee"]
    texts = [f"{words[i % 3]} {words[3 + i % 3]} number {i}" for i in range(30)]
    X = HashingVectorizer(n_features=2**20, norm=None).transform(texts)
    to_array = type(X).toarray

    def small_only(matrix, *args, **kwargs):
        assert max(matrix.shape) <= 30, f"{matrix.shape} made dense"
        return to_array(matrix, *args, **kwargs)

    monkeypatch.setattr(type(X), "toarray", small_only)
    y = [i % 3 for i in range(30)]
    assert MR2Classifier(alpha=1e-3).fit(X, y).score(X, y) == 1.0


def test_sparse_rows_of_no_direction_are_fitted():
    model = MR2Classifier().fit(sparse.csr_array((4, 9)), [0, 0, 1, 0])
    assert not model.coef_.any()
    np.testing.assert_allclose(model.predict_proba(sparse.csr_array((1, 9))), [[0.75, 0.25]], atol=1e-3)


def test_sparse_rows_beyond_the_bound_are_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr("classmargin.integrations.sklearn_parts.rows.MOST_BYTES", 100)
    X, y = blobs(rows=20)
    with pytest.raises(ValueError, match=r"20 rows and 6 columns.*TruncatedSVD"):
        MR2Classifier().fit(sparse.csr_array(X), y)


@pytest.mark.parametrize("options", [{"cosine": True, "norm_order": 3.0}, {"hidden": (4,)}])
def test_sparse_rows_are_refused_where_all_columns_are_needed(options):
    X, y = blobs(rows=20)
    with pytest.raises(TypeError, match=r"dense data is required.*toarray"):
        MR2Classifier(**options).fit(sparse.csr_array(X), y)


def test_partial_fit_takes_sparse_rows():
    X, y = blobs()
    dense, thin = (
        MR2Classifier(random_state=0).partial_fit(rows, y, classes=range(4)) for rows in (X, sparse.csr_array(X))
    )
    np.testing.assert_array_equal(thin.coef_, dense.coef_)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("options", [{}, {"cosine": True}], ids=["unit rows", "cosine"])
def test_uniform_margins_are_told(options, dtype):
    X, y = blobs(rows=60)
    X = (X if options else unit(X)).astype(dtype)
    with pytest.warns(UserWarning, match=r"uniform margins .* one length. Give norm_order=3"):
        model = MR2Classifier(alpha=1e-2, **options).fit(X, y)
    np.testing.assert_allclose(model.class_margins_, 1.0, rtol=1e-3)
    other = MR2Classifier(alpha=1e-2, norm_order=3.0, **options).fit(X, y)  # a warning would be an error
    assert np.ptp(other.class_margins_) > 1e-2


@pytest.mark.parametrize(
    ("weight", "message"), [(-1.0, "must not be negative"), (0.0, "got only zero weights"), (np.nan, "NaN")]
)
def test_bad_weights_are_refused(weight, message):
    X, y = blobs(rows=20)
    with pytest.raises(ValueError, match=message):
        MR2Classifier().fit(X, y, sample_weight=np.full(20, weight))


def test_partial_fit_says_what_it_needs():
    X, y = blobs(rows=20)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        MR2Classifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="needs all data at once"):
        MR2Classifier(class_weight="balanced").partial_fit(X, y, classes=np.arange(4))
    model = MR2Classifier().partial_fit(X, y, classes=np.arange(4))
    with pytest.raises(ValueError, match="got 7 besides"):
        model.partial_fit(X, np.full(20, 7))
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X, y, classes=[0, 1])


def test_too_few_epochs_are_told(monkeypatch):
    monkeypatch.setattr(linear_head, "NEWTON_VARIABLES", 0)
    with pytest.warns(ConvergenceWarning, match="stopped after 2 passes"):
        MR2Classifier(epochs=2).fit(*blobs())


def test_missing_package_is_named_with_its_extra(without_package, monkeypatch):
    without_package("sklearn")
    monkeypatch.delitem(sys.modules, "classmargin.integrations.sklearn_classifier")
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[sklearn\]'"):
        _ = classmargin.MR2Classifier


def test_example_runs(run_example):
    printed = run_example("sklearn_embeddings.py")
    assert "accuracy" in printed
    assert "hard third" in printed


@pytest.mark.parametrize("unit", [1e-8, 1e-6, 1e7, 1e8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_unit_of_the_features_does_not_matter(unit, dtype):
    X, y = blobs()
    one, other = (MR2Classifier().fit(part.astype(dtype), y) for part in (X, X * unit))
    assert other.objective_ == pytest.approx(one.objective_, rel=1e-4)
    np.testing.assert_allclose(other.coef_ * unit, one.coef_, rtol=1e-2, atol=1e-2 * abs(one.coef_).max())


@pytest.mark.parametrize("unit", [1e-8, 1e20])
def test_the_unit_of_the_features_does_not_matter_to_a_network(unit):
    X, y = blobs()
    one, other = (
        MR2Classifier(hidden=(8,), random_state=0, epochs=30).fit(part.astype(np.float32), y) for part in (X, X * unit)
    )
    assert other.score(X * unit, y) == pytest.approx(one.score(X, y), abs=0.02)


def test_a_network_is_not_stopped_because_confidence_raises_the_pull():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 6))
    y = (X[:, 0] > 0) + 2 * (X[:, 1] * X[:, 2] > 0)
    stopped, whole = (MR2Classifier(hidden=(64,), tol=tol, epochs=150, random_state=0).fit(X, y) for tol in (1e-4, 0.0))
    assert stopped.n_iter_ > 100
    assert stopped.objective_ == pytest.approx(whole.objective_, rel=0.05)


@pytest.mark.parametrize("hidden", [None, (8,)])
def test_weights_count_from_call_to_call_of_partial_fit(hidden):
    """A call that holds rows of one class must not lose what its weight says against the others."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), np.arange(400) % 2
    shares = []
    for weight in (1.0, 20.0):
        model = MR2Classifier(hidden=hidden, random_state=0, class_weight={0: 1.0, 1: weight})
        for row in range(400):
            model.partial_fit(X[row : row + 1], y[row : row + 1], classes=[0, 1])
        shares.append((model.predict(X) == 1).mean())
    assert shares[1] > shares[0] + 0.3


def test_negative_class_weights_are_refused():
    X, y = blobs()
    with pytest.raises(ValueError, match="class_weight must not be negative"):
        MR2Classifier(class_weight={k: 1.0 - 2.0 * (k == 0) for k in range(4)}).fit(X, y)


def test_parameters_set_after_fit_wait_for_the_next_one():
    X, y = blobs()
    model = MR2Classifier(mean_margin=1.0).fit(X, y)
    before = model.predict_proba(X)
    model.set_params(mean_margin=5.0, cosine=True)
    np.testing.assert_array_equal(model.predict_proba(X), before)
