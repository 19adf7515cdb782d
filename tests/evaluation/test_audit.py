import json

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, recall_score

from classmargin.evaluation import Audit, audit
from classmargin.evaluation.class_metrics import calibration_error
from classmargin.evaluation.headlines import HEADLINES
from classmargin.functional import class_margins, class_moments


def full(toy, **options) -> Audit:
    return audit(toy.labels, **toy.arrays, **{"bootstrap": 200, **options})


def test_hand_values():
    labels = np.repeat([0, 1, 2], 10)
    predictions = labels.copy()
    predictions[[0, 10, 11, 12, 20, 21, 22, 23, 24]] = [1, 0, 0, 2, 0, 0, 0, 0, 1]
    result = audit(labels, predictions=predictions, class_names=["cat", "dog", "fox"], ranking="own", bootstrap=200)
    assert (result.overall, result.easy, result.medium, result.hard) == pytest.approx((0.7, 0.9, 0.7, 0.5))
    assert (result.worst, result.gap) == pytest.approx((0.5, 0.4))
    assert result.disparity["worst_class"] == "fox"
    assert result.tiers["names"].tolist() == [("cat",), ("dog",), ("fox",)]
    assert result.by_class["nearest_by_confusion"].tolist() == ["dog", "cat", "cat"]
    assert result.by_class["confusion_share"].tolist() == pytest.approx([0.1, 0.2, 0.4])
    top = result.top_confusions(2)
    assert top.to_dict(orient="records")[0] == {"truth": "fox", "predicted": "cat", "count": 4, "share": 0.4}
    for name in HEADLINES:
        low, high = result.interval(name)
        assert low <= getattr(result, name) <= high


def test_predictions_that_contradict_the_scores_are_counted_in_a_note():
    labels, scores = [0, 1, 2, 0], [[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.9, 0.1, 0.0]]
    words = "predictions are not the class with the largest score"
    equals = audit(labels, probabilities=scores, predictions=[1, 1, 2, 0], bootstrap=0)
    assert not any(words in note for note in equals.notes)
    other = audit(labels, probabilities=scores, predictions=[0, 2, 0, 0], bootstrap=0)
    assert any(f"2 of 4 {words}" in note for note in other.notes)
    assert other.overall == 0.5


def test_class_table_equals_scikit_learn_and_the_method(toy):
    result = full(toy)
    frame, predictions = result.by_class, toy.logits.argmax(axis=1)
    assert frame["class_name"].tolist() == list("0123456")
    np.testing.assert_allclose(frame["recall"], recall_score(toy.labels, predictions, average=None))
    np.testing.assert_allclose(frame["accuracy"], frame["recall"])
    np.testing.assert_allclose(frame["precision"], precision_score(toy.labels, predictions, average=None))
    moments = class_moments(torch.from_numpy(toy.features), torch.from_numpy(toy.labels), 7, 2.0)
    np.testing.assert_allclose(frame["spread"], moments.class_spread, rtol=1e-9)
    np.testing.assert_allclose(frame["margin"], class_margins(moments.class_sqnorm, 1.0), rtol=1e-9)
    assert frame["margin"].mean() == pytest.approx(1.0)
    for k in range(7):
        inside = toy.labels == k
        ordered = np.sort(np.delete(toy.probabilities[inside], k, axis=1), axis=1)
        margin = toy.probabilities[inside, k] - ordered[:, -1]
        top = toy.probabilities[inside].max(axis=1)
        wrong = predictions[inside] != k
        assert frame["output_margin"][k] == pytest.approx(margin.mean())
        assert frame["low_confidence"][k] == pytest.approx((top < 0.5).mean())
        assert frame["confidently_wrong"][k] == pytest.approx((wrong & (top >= 0.8)).mean())
        assert frame["ece"][k] == pytest.approx(calibration_error(top, ~wrong))


def test_spread_explains_accuracy_on_data_made_so(toy):
    found = full(toy).correlations.set_index(["x", "measure"])
    assert found.loc[("spread", "spearman"), "value"] < -0.5
    assert found.loc[("spread", "pearson"), "high"] > found.loc[("spread", "pearson"), "low"]


def test_geometry_has_margins_of_every_third(toy):
    result = full(toy)
    thirds = [result.geometry[f"output_margin_{tier}"] for tier in ("easy", "medium", "hard")]
    assert thirds == sorted(thirds, reverse=True)
    np.testing.assert_allclose(thirds, result.tiers["output_margin"])
    assert result.geometry["output_margin"] == pytest.approx(result.by_class["output_margin"].mean())
    assert all(value is not None for value in result.geometry.values())


def test_columns_and_keys_do_not_depend_on_what_is_given(toy):
    much, little = full(toy), audit(toy.labels, predictions=toy.labels, num_classes=7, bootstrap=50)
    assert little.by_class.columns.tolist() == much.by_class.columns.tolist()
    assert little.geometry.keys() == much.geometry.keys()
    assert little.to_dict().keys() == much.to_dict().keys()
    assert set(little.geometry.values()) == {None}
    assert little.by_class["spread"].isna().all()
    assert little.bounds is None
    assert little.feature_sample is None
    assert np.isnan(little.ece)


def test_margins_follow_the_mean_and_the_norm(toy):
    assert full(toy, mean_margin=2.0).by_class["margin"].mean() == pytest.approx(2.0)
    other = full(toy, norm_order=5.0).by_class["sqnorm"]
    assert (other < full(toy).by_class["sqnorm"]).all()


def test_relabelling_classes_relabels_the_audit(toy):
    order = np.random.default_rng(0).permutation(7)
    place = np.argsort(order)
    other = audit(
        place[toy.labels],
        logits=toy.logits[:, order],
        features=toy.features,
        classifier_weight=toy.weight[order],
        bootstrap=0,
    )
    result = full(toy, bootstrap=0)
    for name in ("accuracy", "precision", "spread", "margin", "ece", "label_issues", "nearest_angle"):
        np.testing.assert_allclose(other.by_class[name], result.by_class[name].to_numpy()[order], rtol=1e-9)
    for name in HEADLINES:
        assert getattr(other, name) == pytest.approx(getattr(result, name))


def test_order_of_samples_does_not_matter(toy):
    order = np.random.default_rng(0).permutation(600)
    mixed = audit(
        toy.labels[order],
        logits=toy.logits[order],
        features=toy.features[order],
        classifier_weight=toy.weight,
        bootstrap=100,
    )
    result = full(toy, bootstrap=100)
    assert mixed.intervals == result.intervals
    np.testing.assert_allclose(mixed.by_class["spread"], result.by_class["spread"])


def test_probabilities_give_the_audit_of_their_logits(toy):
    one, two = full(toy), audit(toy.labels, probabilities=toy.probabilities, bootstrap=200)
    assert two.ece == pytest.approx(one.ece)
    assert two.intervals == one.intervals
    assert two.bounds is None


def test_given_predictions_win_over_the_largest_score(toy):
    result = audit(toy.labels, logits=toy.logits, predictions=toy.labels, bootstrap=0)
    assert result.overall == 1.0
    assert result.ece > 0


def test_reference_ranking_takes_another_audit(toy):
    other = audit(toy.labels, predictions=(toy.labels + (toy.labels < 5)) % 7, num_classes=7, bootstrap=0)
    result = full(toy, ranking="reference", reference=other)
    assert result.by_class["tier"].tolist() == ["easy", "medium", "medium", "hard", "hard", "easy", "easy"]
    expected = result.by_class.groupby("tier")["accuracy"].mean()
    assert (result.easy, result.hard) == pytest.approx((expected["easy"], expected["hard"]))
    assert {"5", "6"} <= set(result.tiers["names"][0])
    assert "reference" in result.notes[0]


def test_absent_classes_are_shown_and_left_out():
    result = audit([0, 0, 2], predictions=[0, 1, 2], num_classes=4, bootstrap=50)
    assert result.by_class["n"].tolist() == [2, 0, 1, 0]
    assert result.by_class["tier"].tolist() == ["medium", "absent", "easy", "absent"]
    assert result.by_class["verdict"][1] == "absent: no samples"
    assert result.overall == pytest.approx(2 / 3)
    assert result.disparity["mean_class_accuracy"] == 0.75
    assert any("2 of 4 classes have no samples" in note for note in result.notes)


@pytest.mark.parametrize(("right", "value"), [(True, 1.0), (False, 0.0)])
def test_all_right_and_all_wrong_audit_without_a_warning(toy, right, value):
    predictions = toy.labels if right else (toy.labels + 1) % 7
    result = audit(
        toy.labels,
        predictions=predictions,
        num_classes=7,
        features=toy.features,
        ranking="own",
        bootstrap=100,
    )
    assert result.overall == result.hard == result.worst == value
    low, high = result.interval("hard")
    assert low < high
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.to_markdown()


def test_one_class_and_one_sample():
    result = audit(
        [0],
        logits=[[1.0]],
        features=[[2.0, 1.0]],
        classifier_weight=[[1.0, 0.0]],
        ranking="own",
        bootstrap=50,
    )
    assert result.overall == result.worst == 1.0
    assert np.isnan(result.hard)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["hard"] is None
    assert "–" in result.to_markdown()


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("logits must be finite", {"logits": [[np.nan, 1.0], [0.0, 1.0]]}),
        ("features must be finite", {"logits": np.zeros((2, 2)), "features": [[1.0], [np.inf]]}),
        ("probabilities must lie", {"probabilities": [[0.9, 0.3], [0.5, 0.5]]}),
        ("labels must lie", {"logits": np.zeros((2, 1))}),
        ("norm_order must be >= 1", {"logits": np.zeros((2, 2)), "norm_order": 0.5}),
        ("seed must be at least 0", {"logits": np.zeros((2, 2)), "seed": -1}),
    ],
)
def test_bad_input_is_refused_by_name(message, arguments):
    with pytest.raises(ValueError, match=message):
        audit([0, 1], **arguments)


def test_interval_names_its_choices(toy):
    with pytest.raises(ValueError, match="name must be one of overall, easy, medium, hard, worst, gap"):
        full(toy, bootstrap=0).interval("median")


def test_audits_cannot_be_changed(toy):
    with pytest.raises(AttributeError):
        full(toy, bootstrap=0).overall = 1.0


def test_plain_values_hold_everything_a_machine_needs(toy):
    data = json.loads(json.dumps(full(toy).to_dict(), allow_nan=False))
    assert data["num_classes"] == 7
    assert len(data["by_class"]) == 7
    assert data["intervals"]["hard"][0] < data["hard"] < data["intervals"]["hard"][1]
    assert data["bounds"]["terms"]["total"] > 0
    assert data["top_confusions"][0]["count"] > 0


def test_markdown_shows_the_worst_classes_and_escapes_names(toy):
    names = ["<b>x</b>", "a|b", "c`d", "e_f", "g*h", "i\nj", "k"]
    text = full(toy, class_names=names).to_markdown(top=7)
    assert "<b>" not in text
    assert "&lt;b>x&lt;/b>" in text
    assert "a\\|b" in text
    assert "i j" in text
    lagging = int(full(toy).by_class["lags"].sum())
    assert lagging > 1
    assert f"and {lagging - 1} more class" in full(toy).to_markdown(top=1)


def test_feature_sample_leads_back_to_the_samples(toy):
    sample = full(toy).feature_sample
    np.testing.assert_allclose(sample.features, toy.features[sample.index].astype(np.float32))
    np.testing.assert_array_equal(sample.labels, toy.labels[sample.index])
    np.testing.assert_array_equal(sample.correct, (toy.logits.argmax(axis=1) == toy.labels)[sample.index])
