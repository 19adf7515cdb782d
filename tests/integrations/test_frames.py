"""Frames in and out of an audit: pandas, polars, fairlearn."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score, zero_one_loss

import classmargin

NAMES = ["owl", "cat", "dog"]  # not in alphabetical order: order must come from class_names


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    return labels, rng.normal(size=(90, 3)) + 1.5 * np.eye(3)[labels]


@pytest.fixture(scope="module")
def plain(scores):
    labels, logits = scores
    return classmargin.audit(labels, logits=logits, class_names=NAMES, bootstrap=0)


def same(one, two):
    pd.testing.assert_frame_equal(one.by_class, two.by_class)
    assert one.class_names == two.class_names
    np.testing.assert_array_equal(one.predictions, two.predictions)


def text(labels):
    return [NAMES[k] for k in labels]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series,
        pl.Series,
        lambda values: pd.Series(values, dtype="category"),
        lambda values: pl.Series(values, dtype=pl.Categorical),
        lambda values: pl.Series(values, dtype=pl.Enum(NAMES)),
        lambda values: pd.DataFrame({"label": values}),
        lambda values: pl.DataFrame({"label": values}),
    ],
    ids=[
        "pandas",
        "polars",
        "pandas-category",
        "polars-categorical",
        "polars-enum",
        "pandas-frame",
        "polars-frame",
    ],
)
def test_columns_of_names_give_the_audit_of_their_numbers(scores, plain, column):
    labels, logits = scores
    same(classmargin.audit(column(text(labels)), logits=logits, class_names=NAMES, bootstrap=0), plain)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_columns_of_a_frame_of_logits_name_the_classes(scores, plain, frame):
    labels, logits = scores
    table = frame({name: logits[:, k] for k, name in enumerate(NAMES)})
    same(classmargin.audit(text(labels), logits=table, bootstrap=0), plain)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_columns_in_another_order_are_put_in_class_order(scores, plain, frame):
    labels, logits = scores
    table = frame({name: logits[:, NAMES.index(name)] for name in sorted(NAMES)})
    same(classmargin.audit(labels, logits=table, class_names=NAMES, bootstrap=0), plain)


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda logits: pl.from_numpy(logits)], ids=["pandas", "polars"])
def test_nameless_columns_give_class_numbers(scores, frame):
    labels, logits = scores
    result = classmargin.audit(pd.Series(labels), logits=frame(logits), bootstrap=0)
    assert result.class_names == ("0", "1", "2")


def test_one_frame_with_labels_and_predictions_is_enough(scores, plain):
    labels, logits = scores
    table = pl.DataFrame({"truth": text(labels), "guess": text(logits.argmax(1))})
    result = classmargin.audit(table["truth"], predictions=table["guess"], class_names=NAMES, bootstrap=0)
    np.testing.assert_array_equal(result.confusion, plain.confusion)


def test_names_without_class_names_are_refused():
    with pytest.raises(TypeError, match="names together with class_names"):
        classmargin.audit(["cat", "dog"], predictions=["cat", "cat"], num_classes=2)


def test_unknown_name_is_refused_with_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"labels must hold names of class_names, got 'dgo' \(did you mean 'dog'\?\)"):
        classmargin.audit(["cat", "dgo"], predictions=["cat", "cat"], class_names=["cat", "dog"])


def test_names_that_occur_twice_cannot_name_a_label():
    with pytest.raises(ValueError, match="without repetition"):
        classmargin.audit(["crane"], predictions=["crane"], class_names=["crane", "crane"])


def test_columns_and_class_names_must_name_the_same_classes(scores):
    labels, logits = scores
    table = pd.DataFrame(logits, columns=["owl", "cat", "cow"])
    with pytest.raises(ValueError, match=r"columns of logits and class_names .* 'cow' in only one"):
        classmargin.audit(labels, logits=table, class_names=NAMES)


def test_missing_values_are_refused(scores):
    labels, logits = scores
    with pytest.raises(TypeError, match="labels must hold numbers or text"):
        classmargin.audit([None, *text(labels)[1:]], logits=logits, class_names=NAMES)


# --- out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["by_class", "tiers", "correlations", "top_confusions"])
def test_polars_tables_hold_what_the_pandas_tables_hold(plain, table):
    ours = plain.top_confusions() if table == "top_confusions" else getattr(plain, table)
    theirs = plain.to_polars(table)
    assert isinstance(theirs, pl.DataFrame)
    assert theirs.columns == list(ours.columns)
    for name in ours.columns:
        pairs = zip(ours[name].tolist(), theirs[name].to_list(), strict=True)
        assert all(equal(list(left) if isinstance(left, tuple) else left, right) for left, right in pairs)


def equal(left, right):
    return left == right or (left != left and right != right)  # NaN stays NaN


def test_unknown_table_is_refused(plain):
    with pytest.raises(ValueError, match="table must be one of by_class"):
        plain.to_polars("classes")


def test_metric_frame_is_that_of_fairlearn(scores, plain):
    labels, logits = scores
    names, guesses = np.array(text(labels)), np.array(text(logits.argmax(1)))
    metrics = {"accuracy": accuracy_score, "error": zero_one_loss}
    ours = plain.to_metric_frame(metrics)
    theirs = MetricFrame(metrics=metrics, y_true=names, y_pred=guesses, sensitive_features=names)
    pd.testing.assert_frame_equal(ours.by_group, theirs.by_group, check_names=False)
    pd.testing.assert_series_equal(ours.difference(), theirs.difference())


def test_metric_frame_agrees_with_the_class_table(plain):
    by_group = plain.to_metric_frame().by_group
    table = plain.by_class.set_index("class_name").loc[by_group.index]
    np.testing.assert_allclose(by_group["accuracy"], table["accuracy"])
    np.testing.assert_array_equal(by_group["n"], table["n"])
    assert plain.to_metric_frame().overall["accuracy"] == pytest.approx(plain.overall)


def test_metric_frame_takes_other_groups(scores, plain):
    groups = pl.Series(["young", "old"] * 45)
    frame = plain.to_metric_frame(accuracy_score, sensitive_features=groups.to_list())
    right = np.asarray(plain.labels) == np.asarray(plain.predictions)
    assert frame.by_group["young"] == pytest.approx(right[::2].mean())


@pytest.mark.parametrize(("package", "method"), [("fairlearn", "to_metric_frame"), ("polars", "to_polars")])
def test_missing_package_is_named_with_its_extra(plain, without_package, package, method):
    without_package(package)
    with pytest.raises(ImportError, match=rf"pip install 'classmargin\[{package}\]'"):
        getattr(plain, method)()


def test_example_runs(run_example):
    printed = run_example("audit_frames.py")
    assert "difference between cameras" in printed
    assert "[('cat', " in printed
