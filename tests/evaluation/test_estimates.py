"""Headline numbers of one model: values, notes, and intervals that cover."""

import numpy as np
import pytest
from simulated_sets import beta, coverage, gaussian, table_of

from classmargin.evaluation import AuditAccumulator, audit
from classmargin.evaluation.headline_intervals import AuditSettings, centred_interval, estimate_headlines
from classmargin.evaluation.headlines import HEADLINES


def estimates(right, n, **options):
    n = np.broadcast_to(n, np.shape(right)).copy()
    return estimate_headlines(
        table_of(np.asarray(right), n),
        AuditSettings(len(n), **{"ranking": "own", "bootstrap": 400, **options}),
    )


@pytest.mark.parametrize(("ranking", "sets"), [("own", 600), ("crossfit", 240)])
def test_intervals_cover(ranking, sets):
    found = coverage(gaussian(0.75, 0.12, 10, 100), ranking, sets=sets, truths=12, bootstrap=400)
    error = np.sqrt(0.05 * 0.95 / sets)  # of the simulation
    assert max(abs(value - 0.95) for value in found.values()) < 0.02 + 2 * error
    assert np.mean(list(found.values())) == pytest.approx(0.95, abs=0.01 + error)


SCENARIOS = {
    "CIFAR-100": gaussian(0.71, 0.12, 100, 100),
    "CIFAR-10": beta(0.90, 0.05, 10, 1000),
    "pets": beta(0.88, 0.08, 37, 100),
    "small": gaussian(0.75, 0.12, 10, 100),
    "equal classes": lambda rng: (np.full(60, 0.7), np.full(60, 60)),
    "unequal sizes": lambda rng: (np.clip(rng.normal(0.75, 0.12, 40), 0.05, 0.97), rng.integers(15, 200, 40)),
}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranking", ["own", "reference", "crossfit"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_intervals_cover_nominal_95_percent_within_93_to_97(name, ranking):
    found = coverage(SCENARIOS[name], ranking, sets=1500, truths=30, bootstrap=800)
    # Half a point for the simulation itself (its standard error is 0.6 points).
    assert {k: v for k, v in found.items() if not 0.925 <= v <= 0.975} == {}


def test_the_plain_percentile_interval_would_not_cover():
    # Why intervals are centred: ranking noise biases the copies once more, so their own quantiles miss.
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(200):
        accuracy = np.clip(rng.normal(0.7, 0.08, 90), 0.05, 0.95)
        observed = rng.binomial(25, accuracy) / 25
        hard = np.sort(rng.binomial(25, observed, size=(400, 90)) / 25, axis=1)[:, :30].mean(axis=1)
        expected = np.sort(rng.binomial(25, accuracy, size=(400, 90)) / 25, axis=1)[:, :30].mean()
        plain = np.quantile(hard, [0.025, 0.975])
        centred = centred_interval(np.sort(observed)[:30].mean(), hard, 0.95, proportion=True)
        hits.append([plain[0] <= expected <= plain[1], centred[0] <= expected <= centred[1]])
    assert np.mean(hits, axis=0)[0] < 0.5
    assert np.mean(hits, axis=0)[1] > 0.9


@pytest.mark.parametrize("ranking", ["own", "crossfit"])
def test_values_lie_inside_their_intervals(ranking):
    found = estimates(np.random.default_rng(0).binomial(40, 0.7, 12), 40, ranking=ranking)
    for name in HEADLINES:
        low, high = found.intervals[name]
        assert low <= found.values[name] <= high


def test_more_samples_narrow_the_intervals():
    few, many = (estimates([int(r * n) for r in (0.9, 0.7, 0.5, 0.3)], n) for n in (40, 4000))
    for name in HEADLINES:
        widths = [np.diff(found.intervals[name])[0] for found in (few, many)]
        assert widths[1] < 0.2 * widths[0]


def test_higher_confidence_widens_the_intervals():
    low, high = (estimates([36, 28, 20, 12], 40, confidence=c).intervals["hard"] for c in (0.8, 0.99))
    assert high[0] < low[0] < low[1] < high[1]


def test_the_seed_decides_everything_random():
    one, two, other = (estimates([36, 28, 20, 12], 40, ranking="crossfit", seed=s) for s in (1, 1, 2))
    assert one.values == two.values
    assert one.intervals == two.intervals
    assert one.intervals != other.intervals


def test_all_right_is_certain_of_the_value_but_not_of_the_limit():
    found = estimates([20, 20, 20], 20)
    assert found.values["worst"] == found.values["hard"] == 1.0
    assert found.values["gap"] == 0.0
    assert found.intervals["overall"][1] == 1.0
    assert 0.9 < found.intervals["overall"][0] < 0.96  # Wilson for 60 of 60: 0.940
    assert 0.8 < found.intervals["hard"][0] < 0.9  # Wilson for 20 of 20: 0.839
    assert found.intervals["gap"][0] < 0 < found.intervals["gap"][1]


def test_all_wrong_mirrors_all_right():
    right, wrong = estimates([20, 20, 20], 20), estimates([0, 0, 0], 20)
    for name in ("overall", "easy", "hard", "worst"):
        low, high = right.intervals[name]
        assert wrong.intervals[name] == pytest.approx((1 - high, 1 - low))


def test_one_class_has_no_hard_third():
    found = estimates([7], 10)
    assert found.values["overall"] == found.values["easy"] == found.values["worst"] == 0.7
    assert np.isnan(found.values["hard"])
    assert np.isnan(found.intervals["gap"]).all()
    assert any("at least three classes" in note for note in found.notes)


def test_one_sample_is_enough():
    found = estimates([1, 0, 0], [1, 0, 0])
    assert found.values["overall"] == 1.0
    assert found.intervals["overall"][0] == pytest.approx(0.2065, abs=1e-4)  # Wilson for 1 of 1


def test_no_bootstrap_leaves_intervals_out():
    found = estimates([36, 28, 20], 40, bootstrap=0)
    assert np.isnan(list(found.intervals.values())).all()
    assert found.values["overall"] == 0.7


def test_thirds_with_a_bias_say_in_which_direction():
    right = np.random.default_rng(0).binomial(40, 0.7, 30)
    own, crossfit, corrected = (estimates(right, 40, ranking=ranking) for ranking in ("own", "crossfit", "corrected"))
    assert corrected.values["gap"] < own.values["gap"]
    assert "lie too far apart" in own.notes[0]
    assert "lie too close together" in crossfit.notes[0]


def test_crossfitted_thirds_lie_too_close_together_and_estimated_ones_do_not():
    # With 20 samples per class the crossfitted gap is 8 points too small, and its note blamed the noise of the other ranking.
    rng, n = np.random.default_rng(0), 20
    gaps = []
    for seed in range(12):
        accuracy = np.sort(rng.beta(9, 3, 60))
        right = rng.binomial(n, accuracy)
        truth = accuracy[40:].mean() - accuracy[:20].mean()
        gaps.append(
            [
                estimates(right, n, ranking=ranking, bootstrap=0, seed=seed).values["gap"] - truth
                for ranking in ("crossfit", "corrected")
            ]
        )
    bias = np.mean(gaps, axis=0)
    assert bias[0] < -0.05
    assert abs(bias[1]) < 0.025


def test_notes_name_ranking_remainder_and_absent_classes():
    notes = " ".join(estimates([36, 28, 20, 0], [40, 40, 40, 0]).notes)
    assert "ranking='own'" in notes
    assert "to easy first, then to medium" in notes
    assert "1 of 4 classes have no samples" in notes
    few = estimates([36, 28, 20, 2], [40, 40, 40, 3], ranking="crossfit")
    assert any("1 classes with fewer than 4 samples" in note for note in few.notes)


def test_a_reference_must_rank_every_class_with_samples():
    with pytest.raises(ValueError, match="got NaN for class 1"):
        estimates([3, 3, 3], 5, ranking="reference", reference=[0.5, np.nan, 0.1])


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("ranking must be one of corrected, own, reference, crossfit", {"ranking": "best"}),
        ("go together", {"ranking": "reference"}),
        ("go together", {"reference": [0.1, 0.2, 0.3]}),
        (r"one accuracy per class \(3\)", {"ranking": "reference", "reference": [0.1]}),
        (r"accuracies in \[0, 1\]", {"ranking": "reference", "reference": [0.1, 2.0, 0.3]}),
        ("confidence must be > 0 and < 1", {"confidence": 1.0}),
        ("bootstrap must be at least 0", {"bootstrap": -1}),
        ("mean_margin must be > 0", {"mean_margin": 0.0}),
    ],
)
def test_bad_settings_are_refused_by_name(message, options):
    with pytest.raises(ValueError, match=message):
        AuditSettings(3, **options)


def test_classes_all_right_beside_classes_all_wrong_leave_the_overall_accuracy_uncertain():
    low, high = estimates([100, 100, 0], [100, 100, 100]).intervals["overall"]
    assert low < 0.64
    assert high > 0.69


@pytest.mark.parametrize("ranking", ["reference", "own"])
def test_intervals_of_thirds_cover_where_some_classes_have_few_samples(ranking):
    n = np.array([1000, 4] * 3)
    # Clearly apart, so that both rankings have the same thirds.
    truth = np.array([0.999, 0.95, 0.6, 0.6, 0.1, 0.02])
    options = {"ranking": ranking}
    if ranking == "reference":
        options["reference"] = np.linspace(0.9, 0.1, 6)
    rng = np.random.default_rng(0)
    inside = dict.fromkeys(("easy", "hard", "gap"), 0)
    for _ in range(200):
        found = estimates(rng.binomial(n, truth), n, bootstrap=200, **options).intervals
        goals = {"easy": truth[:2].mean(), "hard": truth[4:].mean()}
        for name, goal in (goals | {"gap": goals["easy"] - goals["hard"]}).items():
            inside[name] += found[name][0] <= goal <= found[name][1]
    assert min(inside.values()) >= 180, inside


def test_thirds_of_unequal_classes_keep_to_what_is_possible_for_their_mean():
    # Two hard classes, of 1000 samples (995 right) and of 4 (none right): their mean is far from the share of all samples.
    low, high = estimates([1000, 999, 999, 998, 995, 0], [1000] * 5 + [4]).intervals["hard"]
    assert 0.2 < low < 0.4975 < high < 0.8


def test_crossfit_intervals_do_not_depend_on_classes_that_are_left_out():
    with_few = estimates([100] * 6 + [1], [100] * 6 + [1], ranking="crossfit")
    without = estimates([100] * 6, [100] * 6, ranking="crossfit")
    assert with_few.intervals["hard"] == without.intervals["hard"]
    assert with_few.intervals["overall"] == pytest.approx(without.intervals["overall"], abs=1e-3)


def test_an_audit_that_ranks_must_name_the_same_classes():
    labels = np.repeat(np.arange(3), 10)
    reference = audit(labels, predictions=labels, class_names=["a", "b", "c"], bootstrap=0)
    options = {"predictions": labels, "ranking": "reference", "reference": reference, "bootstrap": 0}
    with pytest.raises(ValueError, match="class 0 is 'b' in one and 'a' in another"):
        audit(labels, class_names=["b", "c", "a"], **options)
    assert audit(labels, num_classes=3, **options).tiers["names"].tolist() == [("0",), ("1",), ("2",)]
    accumulator = AuditAccumulator(class_names=["b", "c", "a"])
    accumulator.update(labels, predictions=labels)
    with pytest.raises(ValueError, match="class 0 is 'b' in one and 'a' in another"):
        accumulator.compute(ranking="reference", reference=reference)
