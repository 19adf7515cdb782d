from __future__ import annotations

import numpy as np
import pytest

from classmargin.evaluation.auditing import audit
from classmargin.evaluation.samples import MOST_TYPICAL, flipped_samples

NAMES = ["cat", "dog", "elk"]


@pytest.fixture(scope="module")
def small():
    probabilities = np.array(
        [
            [0.9, 0.1, 0.0],  # cat, right
            [0.2, 0.7, 0.1],  # cat, taken for a dog
            [0.05, 0.05, 0.9],  # cat, surely an elk
            [0.3, 0.6, 0.1],  # dog, right
            [0.8, 0.15, 0.05],  # dog, taken for a cat
            [0.0, 0.0, 1.0],  # elk, right
        ]
    )
    return audit(
        [0, 0, 0, 1, 1, 2],
        probabilities=probabilities,
        class_names=NAMES,
        sample_id=list("uvwxyz"),
        bootstrap=0,
    )


def test_errors_of_a_class_come_most_confident_first_with_all_that_is_known(small):
    found = small.samples_of("cat")
    assert found.columns.tolist() == [
        *("sample_id", "class_name", "kind", "rank", "predicted", "probability", "true_probability"),
        *("second_choice", "second_probability", "position"),
    ]
    assert found["sample_id"].tolist() == ["w", "v"]
    assert found["rank"].tolist() == [1, 2]
    assert found.iloc[1][["class_name", "predicted", "second_choice"]].tolist() == ["cat", "dog", "cat"]
    values = found.iloc[1][["probability", "true_probability", "second_probability"]].tolist()
    assert values == pytest.approx([0.7, 0.2, 0.2])


def test_a_pair_of_classes_is_one_cell_of_the_confusion_matrix(small):
    for i, truth in enumerate(NAMES):
        for j, predicted in enumerate(NAMES):
            if i != j:
                assert len(small.samples_of(truth, predicted=predicted)) == small.confusion[i, j]


def test_errors_of_all_classes_are_sorted_together(small):
    assert small.samples_of()["sample_id"].tolist() == ["w", "y", "v"]
    assert small.samples_of(top=1)["sample_id"].tolist() == ["w"]


def test_unknown_classes_and_kinds_are_refused_with_a_hint(small):
    with pytest.raises(ValueError, match=r"class_name must be one of the class names, got 'cats'.*'cat'"):
        small.samples_of("cats")
    with pytest.raises(ValueError, match="kind"):
        small.samples_of("cat", kind="doubted")


def test_samples_of_a_larger_set_are_those_of_a_loop(toy):
    result = audit(toy.labels, probabilities=toy.probabilities, bootstrap=0)
    frame = result.samples
    for k, name in enumerate(result.class_names):
        wrong = [n for n in np.flatnonzero(result.labels == k) if result.predictions[n] != k]
        wrong.sort(key=lambda n: (-toy.probabilities[n].max(), n))
        assert result.samples_of(name)["position"].tolist() == wrong
        typical = frame[(frame["class_name"] == name) & (frame["kind"] == "typical")]
        assert len(typical) == min(MOST_TYPICAL, result.confusion[k, k])
        assert (typical["predicted"] == name).all()
    doubted = frame[frame["kind"] == "doubted label"]
    assert len(doubted) == result.by_class["label_issues"].sum()
    for _, rows in doubted.groupby("class_name"):
        assert rows["true_probability"].is_monotonic_increasing
        assert rows["rank"].tolist() == list(range(1, len(rows) + 1))


def test_predictions_alone_name_the_errors_without_probabilities():
    result = audit([0, 1, 1], predictions=[0, 0, 1], class_names=["a", "b"], bootstrap=0)
    assert result.samples["sample_id"].tolist() == [1]
    assert result.samples["kind"].tolist() == ["error"]
    assert np.isnan(result.samples["probability"]).all()


def test_predictions_beyond_the_kept_candidates_have_no_probability():
    probabilities = np.linspace(2, 1, 20)[None] / 30
    result = audit([3], probabilities=probabilities, predictions=[19], bootstrap=0)
    assert np.isnan(result.samples["probability"].iloc[0])
    assert result.samples["second_choice"].iloc[0] == "0"


def test_flipped_samples_are_matched_by_identity():
    old = audit([0, 1, 1], predictions=[0, 0, 1], class_names=["a", "b"], sample_id=["x", "y", "z"], bootstrap=0)
    new = audit([1, 1, 0], predictions=[0, 1, 0], class_names=["a", "b"], sample_id=["z", "y", "x"], bootstrap=0)
    found = flipped_samples(old, new)
    assert found[["sample_id", "class_name", "change", "baseline", "candidate"]].to_numpy().tolist() == [
        ["z", "b", "right→wrong", "b", "a"],
        ["y", "b", "wrong→right", "a", "b"],
    ]


def test_flips_per_class_are_the_counts_of_the_comparison(toy):
    from classmargin.evaluation.comparison import compare

    rng = np.random.default_rng(0)
    other = np.where(
        rng.random(len(toy.labels)) < 0.3,
        toy.labels,
        rng.integers(0, toy.probabilities.shape[1], len(toy.labels)),
    )
    old = audit(toy.labels, probabilities=toy.probabilities, bootstrap=0)
    new = audit(toy.labels, probabilities=toy.probabilities, predictions=other, bootstrap=0)
    frame = compare(old, new, bootstrap=20).by_class.set_index("class_name")
    flips = flipped_samples(old, new).groupby(["class_name", "change"]).size().unstack(fill_value=0)
    for name, row in flips.iterrows():
        assert row["right→wrong"] == frame.loc[name, "lost_samples"]
        assert row["wrong→right"] == frame.loc[name, "gained_samples"]


def test_injected_label_errors_are_ranked_first():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 10, 2000)
    logits = rng.normal(size=(2000, 10))
    logits[np.arange(2000), true] += 4
    flipped = rng.random(2000) < 0.05
    labels = np.where(flipped, (true + rng.integers(1, 10, 2000)) % 10, true)
    found = audit(labels, logits=logits, bootstrap=0).samples_of(kind="doubted label", top=int(flipped.sum()))
    assert flipped[found["position"].to_numpy()].mean() > 0.9
