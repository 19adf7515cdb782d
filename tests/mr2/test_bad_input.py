"""Bad input: ValueError or TypeError that names the argument, what was expected and what came."""

import math
import re

import pytest
import torch
from mr2_batches import random_batch, same_state, state

from classmargin.mr2 import (
    ClassStatistics,
    MR2Loss,
    class_margins,
    class_moments,
    hard_representation_margin,
    margin_cross_entropy,
    representation_margin,
)

LOGITS, LABELS, FEATURES = random_batch(8, 4, 3, dtype=torch.float32, gradients=False)
MARGINS = torch.ones(4)


def refused(error, *words):
    """Return a context that wants ``error`` with all ``words`` in its message, in this order."""
    return pytest.raises(error, match=".*".join(re.escape(word) for word in words))


CONSTRUCTOR = [
    ({"num_classes": 0}, ValueError, ("num_classes", "at least 1", "0")),
    ({"num_classes": 2.5}, TypeError, ("num_classes", "int", "2.5")),
    ({"num_classes": "4"}, TypeError, ("num_classes", "int", "str")),
    ({"feature_dim": 0}, ValueError, ("feature_dim", "at least 1", "0")),
    ({"feature_dim": 3.0}, TypeError, ("feature_dim", "int", "3.0")),
    ({"mean_margin": 0.0}, ValueError, ("mean_margin", "> 0", "0.0")),
    ({"mean_margin": -1.0}, ValueError, ("mean_margin", "> 0", "-1.0")),
    ({"mean_margin": math.inf}, ValueError, ("mean_margin", "finite", "inf")),
    ({"mean_margin": math.nan}, ValueError, ("mean_margin", "finite", "nan")),
    ({"mean_margin": "big"}, TypeError, ("mean_margin", "number", "str")),
    ({"representation_weight": -0.1}, ValueError, ("representation_weight", ">= 0", "-0.1")),
    ({"representation_weight": None}, TypeError, ("representation_weight", "number", "NoneType")),
    ({"norm_order": 0.5}, ValueError, ("norm_order", ">= 1", "0.5")),
    ({"norm_order": math.nan}, ValueError, ("norm_order", "nan")),
    ({"ema_decay": 1.0}, ValueError, ("ema_decay", "< 1", "1.0")),
    ({"ema_decay": -0.1}, ValueError, ("ema_decay", ">= 0", "-0.1")),
    (
        {"representation": "moment"},
        ValueError,
        ("representation", "moments, pairs", "'moment'", "did you mean 'moments'"),
    ),
    ({"representation": "batch"}, ValueError, ("representation", "moments, pairs", "'batch'")),
    ({"margin_source": "norm"}, ValueError, ("margin_source", "sqnorm", "'norm'")),
    ({"margin_power": "third"}, TypeError, ("margin_power", "number", "str")),
    ({"margin_power": -0.5}, ValueError, ("margin_power", ">= 0", "-0.5")),
    ({"accumulate": 0}, ValueError, ("accumulate", "at least 1", "0")),
    ({"accumulate": 1.5}, TypeError, ("accumulate", "int", "1.5")),
    ({"log_prior": torch.zeros(3)}, ValueError, ("log_prior", "(4,)", "(3,)")),
    ({"log_prior": torch.zeros(4, 1)}, ValueError, ("log_prior", "1 dimensions", "(4, 1)")),
    ({"log_prior": torch.zeros(4, dtype=torch.long)}, TypeError, ("log_prior", "floating point", "int64")),
    ({"log_prior": [0.0] * 4}, TypeError, ("log_prior", "Tensor", "list")),
    ({"weight": torch.ones(5)}, ValueError, ("weight", "(4,)", "(5,)")),
    ({"label_smoothing": 1.5}, ValueError, ("label_smoothing", "<= 1", "1.5")),
    ({"label_smoothing": -0.1}, ValueError, ("label_smoothing", ">= 0", "-0.1")),
    ({"ignore_index": 1.5}, TypeError, ("ignore_index", "int", "1.5")),
    ({"spread_slack": -1.0}, ValueError, ("spread_slack", ">= 0", "-1.0")),
]


@pytest.mark.parametrize(("options", "error", "words"), CONSTRUCTOR, ids=[str(case[0]) for case in CONSTRUCTOR])
def test_constructor_refuses(options, error, words):
    with refused(error, *words):
        MR2Loss(**{"num_classes": 4, **options})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [case for case in CONSTRUCTOR if case[0].keys() <= {"num_classes", "feature_dim", "norm_order", "ema_decay"}],
    ids=str,
)
def test_statistics_refuse_the_same(options, error, words):
    with refused(error, *words):
        ClassStatistics(**{"num_classes": 4, **options})


def test_unknown_estimator_names_the_known_ones():
    with refused(ValueError, "estimator", "moments, batch", "'moment'", "did you mean 'moments'"):
        ClassStatistics(4, estimator="moment")


@pytest.mark.parametrize("name", ["papers", "plain"])
def test_unknown_preset_names_the_known_ones(name):
    with refused(ValueError, "preset", "recommended, paper, release", repr(name)):
        MR2Loss.preset(name, 4)


@pytest.mark.parametrize("gone", ["positives", "temperature", "warmup_steps", "estimator", "margin_limits"])
def test_arguments_of_version_0_4_are_refused(gone):
    with pytest.raises(TypeError, match=gone):
        MR2Loss(4, **{gone: 1})


def test_unknown_override_is_refused():
    with pytest.raises(TypeError, match="mean_margins"):
        MR2Loss.preset("paper", 4, mean_margins=2.0)


CALLS = [
    ({"logits": LOGITS[:, :3]}, ValueError, ("logits", "4 columns", "(8, 3)")),
    ({"logits": LOGITS[0]}, ValueError, ("logits", "2 dimensions", "(4,)")),
    ({"logits": LOGITS.long()}, TypeError, ("logits", "floating point", "int64")),
    ({"logits": LOGITS.tolist()}, TypeError, ("logits", "Tensor", "list")),
    ({"features": FEATURES[:5]}, ValueError, ("features", "8 rows", "(5, 3)")),
    ({"features": FEATURES[:, :2]}, ValueError, ("features", "3 columns", "(8, 2)")),
    ({"features": FEATURES[:, 0]}, ValueError, ("features", "2 dimensions", "(8,)")),
    ({"features": FEATURES.long()}, TypeError, ("features", "floating point", "int64")),
    ({"features": FEATURES.numpy()}, TypeError, ("features", "Tensor", "ndarray")),
    ({"labels": LABELS[:7]}, ValueError, ("labels", "(8,)", "(7,)")),
    ({"labels": LABELS.unsqueeze(1)}, ValueError, ("labels", "(8,)", "(8, 1)")),
    ({"labels": LABELS + 4}, ValueError, ("labels", "[0, 4)", "ignore_index=-100")),
    ({"labels": LABELS - 9}, ValueError, ("labels", "[0, 4)")),
    ({"labels": LABELS.float()}, ValueError, ("labels", "(8, 4)", "(8,)")),
    ({"labels": torch.rand(8, 5)}, ValueError, ("labels", "(8, 4)", "(8, 5)")),
    ({"labels": LABELS.bool()}, TypeError, ("labels", "integer", "bool")),
    ({"labels": LABELS.tolist()}, TypeError, ("labels", "Tensor", "list")),
]


def probabilities(*rows):
    """Return eight rows that are uniform but for the first few."""
    labels = torch.full((8, 4), 0.25)
    labels[: len(rows)] = torch.tensor(rows)
    return labels


PROBABILITIES = {
    "negative": (probabilities([1.5, -0.5, 0.0, 0.0]), ("-0.5", "sums from 1 to 1")),
    "a zero row": (probabilities([0.0, 0.0, 0.0, 0.0]), ("sums from 0 to 1",)),
    "several labels": (
        probabilities([1.0, 0.0, 1.0, 0.0]),
        ("sums from 1 to 2", "several independent labels"),
    ),
    "logits": (LOGITS, ("smallest entry of -",)),
    "NaN": (probabilities([math.nan] * 4), ("nan",)),
    "a sum of 0.99": (probabilities([0.24, 0.25, 0.25, 0.25]), ("sums from 0.99 to 1",)),
}
REFUSED_PROBABILITIES = [
    ({"labels": labels}, ValueError, ("labels given as probabilities", "rows >= 0 that sum to 1", *words))
    for labels, words in PROBABILITIES.values()
]


@pytest.mark.parametrize("name", ["recommended", "paper"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    CALLS + REFUSED_PROBABILITIES,
    ids=[f"{c[2][0]}-{c[2][1]}-{i}" for i, c in enumerate(CALLS)] + list(PROBABILITIES),
)
def test_call_refuses_and_leaves_the_state_alone(change, error, words, name):
    loss = MR2Loss.preset(name, 4)
    loss(LOGITS, LABELS, FEATURES)
    before = state(loss)
    for call in (loss, loss.terms):
        with refused(error, *words):
            call(**{"logits": LOGITS, "labels": LABELS, "features": FEATURES, **change})
    assert same_state(state(loss), before)


def test_training_without_features_says_what_they_are():
    with refused(ValueError, "features must be given in training", "None", "input of the classification head"):
        MR2Loss(4)(LOGITS, LABELS)


@pytest.mark.parametrize("change", [case for case in CALLS + REFUSED_PROBABILITIES if "features" not in case[0]])
def test_evaluation_refuses_bad_logits_and_labels_too(change):
    options, error, words = change
    with refused(error, *words):
        MR2Loss(4).eval()(**{"logits": LOGITS, "labels": LABELS, **options})


@pytest.mark.parametrize("change", PROBABILITIES)
def test_functions_and_statistics_refuse_what_are_no_probabilities(change):
    labels, words = PROBABILITIES[change]
    for call in (
        lambda: margin_cross_entropy(LOGITS, labels, MARGINS),
        lambda: class_moments(FEATURES, labels, 4),
        lambda: ClassStatistics(4).update(FEATURES, labels),
    ):
        with refused(ValueError, "labels", "rows >= 0 that sum to 1", *words):
            call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_probabilities_rounded_to_their_type_are_taken(dtype):
    labels = torch.softmax(LOGITS.double(), 1).to(dtype)
    assert MR2Loss(4)(LOGITS, labels, FEATURES).isfinite()


@pytest.mark.parametrize("options", [{}, {"weight": MARGINS}, {"representation": "pairs"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_every_integer_type_of_labels_works(dtype, options):
    logits, labels, features = random_batch(8, 4, 3, dtype=torch.float32)
    ours = MR2Loss(4, **options)(logits, labels.to(dtype), features)
    torch.testing.assert_close(ours, MR2Loss(4, **options)(logits, labels, features))
    evaluated = MR2Loss(4, **options).eval()(logits, labels.to(dtype))
    torch.testing.assert_close(evaluated, MR2Loss(4, **options).eval()(logits, labels))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize(
    "call",
    [
        lambda y: margin_cross_entropy(LOGITS, y, MARGINS),
        lambda y: representation_margin(FEATURES, y, 0.1),
        lambda y: hard_representation_margin(FEATURES, y, 0.1),
        lambda y: class_moments(FEATURES, y, 4, 2.0).class_sqnorm,
    ],
    ids=["margin_cross_entropy", "representation_margin", "hard_representation_margin", "class_moments"],
)
def test_functions_take_every_integer_type_of_labels(call, dtype):
    torch.testing.assert_close(call(LABELS.to(dtype)), call(LABELS))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"labels": LABELS + 4}, ValueError, ("labels", "[0, 4)")),
        ({"labels": LABELS[:7]}, ValueError, ("labels", "(8,)", "(7,)")),
        ({"features": FEATURES.long()}, TypeError, ("features", "floating point", "int64")),
        ({"features": FEATURES[0]}, ValueError, ("features", "2 dimensions", "(3,)")),
        ({"features": FEATURES[:, :2]}, ValueError, ("features", "3 columns", "2")),
    ],
)
def test_statistics_update_refuses(options, error, words):
    statistics = ClassStatistics(4, feature_dim=3)
    statistics.update(FEATURES, LABELS)
    before = state(statistics)
    with refused(error, *words):
        statistics.update(**{"features": FEATURES, "labels": LABELS, **options})
    assert same_state(state(statistics), before)


FUNCTIONS = [
    (margin_cross_entropy, (LOGITS, LABELS, MARGINS[:3]), {}, ValueError, ("class_margins", "(4,)", "(3,)")),
    (margin_cross_entropy, (LOGITS, LABELS, [1.0] * 4), {}, TypeError, ("class_margins", "Tensor", "list")),
    (
        margin_cross_entropy,
        (LOGITS, LABELS, MARGINS),
        {"reduction": "avg"},
        ValueError,
        ("reduction", "mean", "'avg'"),
    ),
    (
        margin_cross_entropy,
        (LOGITS, LABELS, MARGINS),
        {"log_prior": MARGINS[:2]},
        ValueError,
        ("log_prior", "(4,)", "(2,)"),
    ),
    (
        margin_cross_entropy,
        (LOGITS, LABELS, MARGINS),
        {"weight": MARGINS[:2]},
        ValueError,
        ("weight", "(4,)", "(2,)"),
    ),
    (
        margin_cross_entropy,
        (LOGITS, LABELS, MARGINS),
        {"label_smoothing": 2.0},
        ValueError,
        ("label_smoothing", "<= 1", "2.0"),
    ),
    (margin_cross_entropy, (LOGITS, LABELS + 4, MARGINS), {}, ValueError, ("labels", "[0, 4)")),
    (
        margin_cross_entropy,
        (LOGITS.int(), LABELS, MARGINS),
        {},
        TypeError,
        ("logits", "floating point", "int32"),
    ),
    (margin_cross_entropy, (LOGITS, LABELS[:2], MARGINS), {}, ValueError, ("labels", "(8,)", "(2,)")),
    (
        representation_margin,
        (FEATURES.int(), LABELS, 0.1),
        {},
        TypeError,
        ("features", "floating point", "int32"),
    ),
    (representation_margin, (FEATURES, LABELS[:2], 0.1), {}, ValueError, ("labels", "(8,)", "(2,)")),
    (
        representation_margin,
        (FEATURES, LABELS, 0.1),
        {"temperature": 0.0},
        ValueError,
        ("temperature", "> 0", "0.0"),
    ),
    (
        representation_margin,
        (FEATURES, LABELS, 0.1),
        {"reduction": "avg"},
        ValueError,
        ("reduction", "mean", "'avg'"),
    ),
    (
        hard_representation_margin,
        (FEATURES[0], LABELS, 0.1),
        {},
        ValueError,
        ("features", "2 dimensions", "(3,)"),
    ),
    (
        hard_representation_margin,
        (FEATURES, LABELS, 0.1),
        {"reduction": "avg"},
        ValueError,
        ("reduction", "mean", "'avg'"),
    ),
    (class_margins, (MARGINS, 0.0), {}, ValueError, ("mean_margin", "> 0", "0.0")),
    (class_margins, (MARGINS.int(), 1.0), {}, TypeError, ("class_sqnorm", "floating point", "int32")),
    (class_margins, (LOGITS, 1.0), {}, ValueError, ("class_sqnorm", "1 dimensions", "(8, 4)")),
    (class_margins, (MARGINS, 1.0), {"power": -1.0}, ValueError, ("power", ">= 0", "-1.0")),
    (class_moments, (FEATURES.int(), LABELS, 4, 2.0), {}, TypeError, ("features", "floating point", "int32")),
    (class_moments, (FEATURES, LABELS, 2, 2.0), {}, ValueError, ("labels", "[0, 2)")),
    (class_moments, (FEATURES, LABELS, 4, 0.9), {}, ValueError, ("norm_order", ">= 1", "0.9")),
]


@pytest.mark.parametrize(
    ("function", "arguments", "options", "error", "words"),
    FUNCTIONS,
    ids=[f"{case[0].__name__}-{case[4][0]}-{i}" for i, case in enumerate(FUNCTIONS)],
)
def test_functions_refuse(function, arguments, options, error, words):
    with refused(error, *words):
        function(*arguments, **options)
