import json

import numpy as np
import pytest
from scipy.stats import norm
from simulated_sets import predictions_with
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from classmargin.evaluation import Audit, audit, compare, compare_many
from classmargin.evaluation.comparison import pair_verdict
from classmargin.evaluation.headline_intervals import headline_differences
from classmargin.evaluation.headlines import HEADLINES
from classmargin.evaluation.paired_tests import ModelPair, benjamini_hochberg, class_differences
from classmargin.evaluation.release_gate import gate

CLASSES = 6
NAMES = tuple("abcdef")


def audit_of(labels, predictions, **options) -> Audit:
    return audit(labels, predictions=predictions, class_names=NAMES, **{"bootstrap": 0, **options})


@pytest.fixture
def models():
    """Labels and two models: the second is better in class "e", worse in class "b", equal elsewhere."""
    rng = np.random.default_rng(0)
    accuracy = np.array([0.9, 0.8, 0.7, 0.6, 0.4, 0.5])
    change = np.array([0.0, -0.3, 0.0, 0.0, 0.35, 0.0])
    n = np.full(CLASSES, 150)
    labels, first = predictions_with(accuracy, n, rng)
    _, second = predictions_with(accuracy + change, n, rng)
    return labels, first, second


def test_differences_are_those_of_the_accuracies(models):
    labels, first, second = models
    result = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=200)
    before, after = first == labels, second == labels
    difference, low, high = result.delta("overall")
    assert difference == pytest.approx(after.mean() - before.mean())
    assert low < difference < high
    for k, row in result.by_class.iterrows():
        inside = labels == k
        assert row["baseline"] == pytest.approx(before[inside].mean())
        assert row["difference"] == pytest.approx(after[inside].mean() - before[inside].mean())
        assert row["gained_samples"] == (after & ~before)[inside].sum()
        assert row["lost_samples"] == (before & ~after)[inside].sum()


def test_p_and_q_values_equal_statsmodels(models):
    labels, first, second = models
    result = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=10)
    expected = []
    for k in range(CLASSES):
        before, after = (first == labels)[labels == k], (second == labels)[labels == k]
        table = [
            [(before & after).sum(), (before & ~after).sum()],
            [(~before & after).sum(), (~before & ~after).sum()],
        ]
        expected.append(mcnemar(table, exact=True).pvalue)
    np.testing.assert_allclose(result.by_class["p_value"], expected, rtol=1e-9)
    np.testing.assert_allclose(result.by_class["q_value"], multipletests(expected, method="fdr_bh")[1], rtol=1e-9)


def test_who_gained_who_lost_and_what_is_noise(models):
    labels, first, second = models
    result = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=10)
    assert result.gained == ("e",)
    assert result.lost == ("b",)
    assert result.noise == ("a", "c", "d", "f")


def test_swapping_the_models_turns_every_sign(models):
    labels, first, second = models
    one, two = audit_of(labels, first), audit_of(labels, second)
    there, back = compare(one, two, bootstrap=2000), compare(two, one, bootstrap=2000)
    for name in HEADLINES:
        difference, low, high = there.delta(name)
        assert back.delta(name) == pytest.approx((-difference, -high, -low), abs=0.012)
    assert (back.gained, back.lost) == (there.lost, there.gained)


@pytest.mark.parametrize("ranking", ["crossfit", "pooled", "own", "baseline"])
def test_every_ranking_is_named_in_the_notes(models, ranking):
    labels, first, second = models
    result = compare(audit_of(labels, first), audit_of(labels, second), ranking=ranking, bootstrap=10)
    assert result.ranking == ranking
    assert result.notes[0].startswith("Thirds: ")
    assert ("flatters the candidate" in result.notes[0]) == (ranking == "baseline")


def test_own_thirds_are_those_of_the_audits(models):
    labels, first, second = models
    one, two = audit_of(labels, first, ranking="own"), audit_of(labels, second, ranking="own")
    result = compare(one, two, ranking="own", bootstrap=10).summary.set_index("metric")
    for name in HEADLINES:
        assert result.loc[name, "baseline"] == pytest.approx(getattr(one, name))
        assert result.loc[name, "candidate"] == pytest.approx(getattr(two, name))


def test_equal_models_differ_by_nothing_but_are_not_certain_of_it(models):
    labels, first, _ = models
    result = compare(audit_of(labels, first), audit_of(labels, first), bootstrap=50)
    for name in HEADLINES:
        difference, low, high = result.delta(name)
        assert difference == 0
        assert -0.06 < low < 0 < high < 0.06
    assert result.gained == result.lost == ()
    assert "not clearly different" in result.verdict


def test_order_of_samples_does_not_matter_with_identities(models):
    labels, first, second = models
    order = np.random.default_rng(1).permutation(len(labels))
    ids = np.arange(len(labels)) * 3
    plain = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=20)
    mixed = compare(
        audit_of(labels, first, sample_id=ids),
        audit_of(labels[order], second[order], sample_id=ids[order]),
        bootstrap=20,
    )
    assert mixed.by_class.equals(plain.by_class)
    assert mixed.deltas == plain.deltas


def test_text_identities_pair_samples(models):
    labels, first, second = models
    ids = np.array([f"image {i}.png" for i in range(len(labels))])
    result = compare(
        audit_of(labels, first, sample_id=ids),
        audit_of(labels[::-1], second[::-1], sample_id=ids[::-1]),
        bootstrap=10,
    )
    assert result.delta("overall")[0] == pytest.approx((second == labels).mean() - (first == labels).mean())


def bad_pairs():
    labels = np.array([0, 1, 2, 3, 4, 5])
    base = audit_of(labels, labels)
    return {
        "got 6 and 5 samples": (base, audit_of(labels[:5], labels[:5])),
        r"2 of 6 labels differ \(give sample_id if only the order differs\)": (
            base,
            audit_of([1, 0, 2, 3, 4, 5], labels),
        ),
        "same class_names, got 6 and 7 classes": (base, audit(labels, predictions=labels, num_classes=7)),
        "class 1 is 'b' in one and 'x' in another": (
            base,
            audit(labels, predictions=labels, class_names=tuple("axcdef"), bootstrap=0),
        ),
        "sample_id must be given for all compared models or for none": (
            base,
            audit_of(labels, labels, sample_id=labels),
        ),
        "1 of 6 values of sample_id have no partner": (
            audit_of(labels, labels, sample_id=[1, 2, 3, 4, 5, 6]),
            audit_of(labels, labels, sample_id=[1, 2, 3, 4, 5, 7]),
        ),
    }


@pytest.mark.parametrize("message", bad_pairs())
def test_different_sample_sets_are_refused(message):
    with pytest.raises(ValueError, match=message):
        compare(*bad_pairs()[message])


@pytest.mark.parametrize("named", [0, 1])
def test_a_model_without_class_names_takes_those_of_the_other(models, named):
    labels, first, second = models
    audits = [audit(labels, predictions=p, num_classes=CLASSES, bootstrap=0) for p in (first, second)]
    audits[named] = audit_of(labels, (first, second)[named])
    assert compare(*audits, bootstrap=10).by_class["class_name"].tolist() == list(NAMES)
    assert gate(audits[1], audits[0]).by_class["class_name"].tolist() == list(NAMES)


def test_bad_arguments_are_refused_by_name(models):
    labels, first, _ = models
    one = audit_of(labels, first)
    with pytest.raises(TypeError, match="candidate must be an Audit or a non-empty list"):
        compare(one, [])
    with pytest.raises(ValueError, match="ranking must be one of crossfit"):
        compare(one, one, ranking="best")
    with pytest.raises(ValueError, match="bootstrap must be at least 1"):
        compare(one, one, bootstrap=0)
    with pytest.raises(ValueError, match="name must be one of overall"):
        compare(one, one, bootstrap=1).delta("median")
    with pytest.raises(ValueError, match="at least one candidate"):
        compare_many({"only": one})


def test_absent_classes_are_neither_gain_nor_loss(models):
    labels, first, second = models
    kept = labels != 2
    result = compare(audit_of(labels[kept], first[kept]), audit_of(labels[kept], second[kept]), bootstrap=20)
    row = result.by_class.iloc[2]
    assert (row["n"], row["outcome"]) == (0, "absent")
    assert np.isnan(row["q_value"])
    assert "c" not in result.gained + result.lost + result.noise
    assert any("1 of 6 classes have no samples" in note for note in result.notes)


def test_verdict_is_one_sentence_with_numbers(models):
    labels, first, second = models
    result = compare(audit_of(labels, first), audit_of(labels, second), names=("ERM", "MR2"), bootstrap=200)
    assert result.verdict.startswith("MR2 is ")
    assert "ERM" in result.verdict
    assert "1 of 6 classes gained, 1 lost, 4 are within noise (false discovery rate 5 %)." in result.verdict
    assert result.verdict.count(". ") == 0


def test_results_are_plain_json(models):
    labels, first, second = models
    one, two = (
        audit_of(labels[labels != 3], first[labels != 3]),
        audit_of(labels[labels != 3], second[labels != 3]),
    )
    text = json.dumps(compare(one, two, bootstrap=10).to_dict(), allow_nan=False)
    assert json.loads(text)["by_class"][3]["baseline"] is None


def runs_of(rng, accuracy, labels, count, noise=0.04):
    """Runs of one model: each has its own class accuracies; samples have a difficulty that all runs share."""
    difficulty = np.random.default_rng(99).random(len(labels))
    audits = []
    for _ in range(count):
        level = np.clip(accuracy + rng.normal(0, noise, CLASSES), 0, 1)
        own = rng.random(len(labels))
        right = np.where(rng.random(len(labels)) < 0.6, difficulty, own) < level[labels]
        audits.append(audit_of(labels, np.where(right, labels, (labels + 1) % CLASSES)))
    return audits


def test_several_runs_widen_the_intervals_by_the_noise_of_training():
    rng = np.random.default_rng(5)
    labels = np.repeat(np.arange(CLASSES), 400)
    accuracy = np.linspace(0.5, 0.9, CLASSES)
    base, new = runs_of(rng, accuracy, labels, 3), runs_of(rng, accuracy, labels, 3)
    single = compare(base[0], new[0], bootstrap=500)
    several = compare(base, new, bootstrap=500)
    assert several.runs == (3, 3)
    assert any("3 and 3 runs" in note for note in several.notes)
    assert any("not the noise of training" in note for note in single.notes)
    assert several.lost == several.gained == ()


def test_run_means_are_compared():
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(CLASSES), 100)
    base = runs_of(rng, np.full(CLASSES, 0.6), labels, 2)
    new = runs_of(rng, np.full(CLASSES, 0.8), labels, 3)
    result = compare(base, new, bootstrap=200)
    expected = np.mean([run.overall for run in new]) - np.mean([run.overall for run in base])
    assert result.delta("overall")[0] == pytest.approx(expected)
    assert result.delta("overall")[1] > 0


def test_two_level_intervals_cover():
    rng = np.random.default_rng(8)
    labels = np.repeat(np.arange(4), 80)
    hits = []
    for _ in range(200):
        difficulty = rng.normal(size=len(labels))
        columns = []
        for _ in range(6):  # three runs each of two equal models
            level = 0.6 + rng.normal(0, 0.15, 4)
            columns.append(0.7 * difficulty + 0.7 * rng.normal(size=len(labels)) < level[labels])
        pair = ModelPair(labels, np.stack(columns, axis=1), (3, 3), NAMES[:4], None)
        found = headline_differences(pair, ranking="pooled", confidence=0.95, bootstrap=200, seed=0)
        hits.append((found["low"] <= 0) & (found["high"] >= 0))
    coverage = dict(zip(HEADLINES, np.mean(hits, axis=0), strict=True))
    # Overall is linear and covers as promised; thirds and minima are cautious, because fewer runs rank with more noise.
    assert 0.92 <= coverage["overall"] <= 0.98
    assert min(coverage.values()) >= 0.92


def test_paired_intervals_cover_a_real_difference():
    rng = np.random.default_rng(9)
    labels = np.repeat(np.arange(9), 60)
    before, change = np.linspace(0.4, 0.9, 9), 0.06
    hits = []
    for _ in range(200):
        difficulty = rng.random(len(labels))
        noise = [np.where(rng.random(len(labels)) < 0.7, difficulty, rng.random(len(labels))) for _ in range(2)]
        correct = np.stack([noise[0] < before[labels], noise[1] < before[labels] + change], axis=1)
        pair = ModelPair(labels, correct, (1, 1), tuple("abcdefghi"), None)
        found = headline_differences(pair, ranking="crossfit", confidence=0.95, bootstrap=300, seed=0)
        # The same change in every class: all means change by it, whatever the ranking.
        hits.append(((found["low"] <= change) & (found["high"] >= change))[:4])
    coverage = np.mean(hits, axis=0)
    assert coverage.min() > 0.9
    assert coverage.max() < 0.99


def test_many_models_share_one_control_of_false_discoveries(models):
    labels, first, second = models
    audits = {"A": audit_of(labels, first), "B": audit_of(labels, second), "C": audit_of(labels, first)}
    result = compare_many(audits, bootstrap=50)
    assert result.names == ("A", "B", "C")
    together = np.concatenate([c.by_class["p_value"] for c in result.comparisons])
    expected = multipletests(together, method="fdr_bh")[1]
    np.testing.assert_allclose(np.concatenate([c.by_class["q_value"] for c in result.comparisons]), expected)
    assert set(result.summary["model"]) == {"A", "B", "C"}
    assert len(result.summary) == 3 * len(HEADLINES)
    assert result.verdict.startswith("Against A: ")
    pair = compare_many({name: audits[name] for name in "AB"}, bootstrap=50)
    assert pair.verdict == pair.comparisons[0].verdict


def test_a_class_from_nothing_to_all_in_every_run_has_gained():
    labels = np.repeat(np.arange(3), 100)
    worse, better = (
        audit(labels, predictions=predictions, num_classes=3, bootstrap=0)
        for predictions in (np.where(labels == 2, 0, labels), labels)
    )
    result = compare([worse, worse], [better, better], bootstrap=100)
    assert result.gained == ("2",)
    difference, low, high = result.delta("overall")
    assert low < difference - 0.02 < difference + 0.02 < high
    assert result.delta("hard")[1] < 0.97
    assert max(result.delta(name)[2] for name in HEADLINES) <= 1
    assert compare(worse, better, bootstrap=100).delta("hard")[1] < 0.97


def test_numbers_and_texts_that_name_the_same_samples_are_paired(models):
    labels, first, second = models
    numbers = np.arange(len(labels))
    left = audit_of(labels, first, sample_id=numbers)
    for texts in (numbers.astype(str), numbers.astype(np.bytes_)):
        right = audit_of(labels[::-1], second[::-1], sample_id=texts[::-1])
        found = compare(left, right, bootstrap=10).by_class
        plain = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=10).by_class
        np.testing.assert_array_equal(found["gained_samples"], plain["gained_samples"])
        np.testing.assert_array_equal(found["lost_samples"], plain["lost_samples"])


def test_notes_tell_of_classes_that_crossfit_leaves_out():
    labels = np.concatenate([np.repeat([0, 1, 2], 20), [3, 3, 4]])
    one = audit(labels, predictions=labels, num_classes=6, bootstrap=0)
    few = "2 classes with fewer than 4 samples are left out of the thirds."
    assert few in compare(one, one, bootstrap=10).notes
    assert few not in compare(one, one, bootstrap=10, ranking="pooled").notes
    two = audit([0, 1] * 20, predictions=[0, 1] * 20, num_classes=2, bootstrap=0)
    assert any("at least three classes" in note for note in compare(two, two, bootstrap=10).notes)


def test_a_clear_gain_is_named_although_an_unsure_one_is_larger():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 1000)

    def model(right):
        return audit(labels, predictions=np.where(right, labels, (labels + 1) % 3), num_classes=3, bootstrap=0)

    right = rng.random(3000) < 0.7
    better = right.copy()
    better[np.flatnonzero(~right)[::25]] = True
    unsure = [model(rng.random(3000) < accuracy) for accuracy in (0.7, 0.78)]
    found = compare_many({"A": model(right), "B": unsure, "C": model(better)}, bootstrap=200)
    assert found.comparisons[0].delta("overall")[0] > found.comparisons[1].delta("overall")[0]
    assert "C has the largest clear gain overall" in found.verdict
    # Notes that hold for one pair only say so.
    assert any(note.startswith("C: Class p-values: exact McNemar test") for note in found.notes)
    assert any(note.startswith("B: 1 and 2 runs") for note in found.notes)
    assert any(note.startswith("Thirds: ") for note in found.notes)


def test_thirds_with_a_small_class_are_not_certain_that_nothing_changed():
    labels = np.repeat(np.arange(CLASSES), [1000, 8] * (CLASSES // 2))
    one = audit_of(labels, labels)
    for ranking in ("crossfit", "pooled"):
        result = compare(one, one, bootstrap=50, ranking=ranking)
        # As if each third had 4 / (1 / 1000 + 1 / 8) = 32 samples.
        assert result.delta("easy") == pytest.approx((0, -0.108, 0.108), abs=1e-3)
        assert result.delta("gap")[2] == pytest.approx(0.108 * np.sqrt(2), abs=1e-3)
        assert result.delta("overall")[2] < 0.002


@pytest.mark.parametrize("names", [("A",), "AB", ("A", "B", "C")])
def test_two_models_have_two_names(models, names):
    labels, first, second = models
    with pytest.raises(ValueError, match="names must be those of the baseline and of the candidate"):
        compare(audit_of(labels, first), audit_of(labels, second), names=names, bootstrap=10)


def test_one_run_against_several_keeps_its_level():
    # Without a run variance of its own, one run against five named a class in 23 of 100 comparisons of equal methods.
    rng, wrong = np.random.default_rng(0), 0
    labels = np.repeat(np.arange(10), 60)
    for _ in range(80):
        runs = 0.8 + rng.normal(0, 0.06, (6, 10))  # equal methods whose classes move from run to run
        correct = rng.random((len(labels), 6)) < np.clip(runs, 0, 1).T[labels]
        p_values = class_differences(labels, correct, (1, 5), 10).p_value
        wrong += benjamini_hochberg(p_values).min() <= 0.05
    assert wrong <= 9


def test_intervals_of_several_candidates_hold_for_all_of_them_at_once(models):
    labels, first, second = models
    alone = compare(audit_of(labels, first), audit_of(labels, second), bootstrap=300, ranking="pooled")
    candidates = {str(k): audit_of(labels, second if k % 2 else first) for k in range(1, 11)}
    several = compare_many({"A": audit_of(labels, first), **candidates}, bootstrap=300, ranking="pooled")
    together = several.comparisons[0]
    assert several.ranked["overall"].is_monotonic_decreasing
    # Bonferroni: the two-sided normal quantile of 1 - 0.05 / 10 in place of that of 0.95.
    for name in HEADLINES:
        widths = [np.ptp(found.delta(name)[1:]) for found in (alone, together)]
        assert widths[1] / widths[0] == pytest.approx(norm.ppf(0.9975) / norm.ppf(0.975), rel=1e-6)


def test_words_do_not_change_where_zero_only_just_leaves_the_interval():
    counts = {"gained": 0, "lost": 0, "noise": 3}
    words = {
        low: pair_verdict(("A", "B"), dict.fromkeys(("overall", "hard"), (0.005, low, 0.01)), counts, 0.95, 0.05)
        for low in (-0.0002, 0.0, 0.0002, 0.003, -0.005)
    }
    near = "B is possibly better (near the noise) than A"
    assert all(words[low].startswith(near) for low in (-0.0002, 0.0, 0.0002))
    assert words[0.003].startswith("B is better than A")
    assert words[-0.005].startswith("B is not clearly different from A")
