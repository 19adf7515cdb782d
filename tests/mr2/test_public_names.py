"""The names and signatures that others depend on, word for word."""

import inspect
import pickle

import pytest
import torch
from mr2_batches import random_batch

import classmargin
from classmargin import functional
from classmargin._types import LossTerms

POSITIONAL, KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
REQUIRED = inspect.Parameter.empty


def parameters(function, kind):
    """Return ``{name: default}`` of the parameters of one kind, in order."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.kind == kind and p.name not in ("self", "cls")}


def test_loss_takes_the_number_of_classes_and_the_rest_by_keyword():
    assert parameters(classmargin.MR2Loss, POSITIONAL) == {"num_classes": REQUIRED}


def test_loss_has_every_documented_keyword_with_its_default():
    assert parameters(classmargin.MR2Loss, KEYWORD) == {
        "feature_dim": None,
        "mean_margin": 1.0,
        "representation_weight": 1.0,
        "representation": "moments",
        "spread_slack": 1.0,
        "margin_source": "uniform",
        "margin_power": 1 / 3,
        "norm_order": 2.0,
        "ema_decay": 0.9,
        "label_smoothing": 0.1,
        "weight": None,
        "log_prior": None,
        "ignore_index": -100,
        "accumulate": 1,
    }


def test_calls_take_logits_labels_and_features():
    forward, terms = classmargin.MR2Loss.forward, classmargin.MR2Loss.terms
    assert parameters(forward, POSITIONAL) == {"logits": REQUIRED, "labels": REQUIRED, "features": None}
    assert parameters(forward, KEYWORD) == {"update_statistics": None}
    assert parameters(terms, POSITIONAL) == dict.fromkeys(("logits", "labels", "features"), REQUIRED)
    assert parameters(terms, KEYWORD) == {"update_statistics": None, "sample_weight": None}


def test_preset_takes_a_name_the_classes_and_overrides():
    signature = inspect.signature(classmargin.MR2Loss.preset)
    assert list(signature.parameters) == ["name", "num_classes", "feature_dim", "overrides"]
    assert signature.parameters["feature_dim"].default is None
    assert signature.parameters["overrides"].kind == inspect.Parameter.VAR_KEYWORD


def test_statistics_have_the_documented_signature():
    assert parameters(classmargin.ClassStatistics, POSITIONAL) == {"num_classes": REQUIRED}
    documented = {"feature_dim": None, "norm_order": 2.0, "ema_decay": 0.9, "estimator": "moments"}
    found = parameters(classmargin.ClassStatistics, KEYWORD)
    assert {name: found[name] for name in documented} == documented
    assert list(parameters(classmargin.ClassStatistics.update, POSITIONAL)) == ["features", "labels"]


@pytest.mark.parametrize(
    ("name", "positional", "keywords"),
    [
        (
            "margin_cross_entropy",
            ["logits", "labels", "class_margins"],
            {
                "log_prior": None,
                "weight": None,
                "label_smoothing": 0.0,
                "ignore_index": -100,
                "reduction": "mean",
            },
        ),
        (
            "representation_margin",
            ["features", "labels", "mean_spread"],
            {"temperature": 1.0, "reduction": "mean"},
        ),
        ("hard_representation_margin", ["features", "labels", "mean_spread"], {"reduction": "mean"}),
        ("class_margins", ["class_sqnorm", "mean_margin"], {"power": 1 / 3, "seen": None}),
        ("class_moments", ["features", "labels", "num_classes", "norm_order"], {}),
    ],
)
def test_functions_have_the_documented_signature(name, positional, keywords):
    function = getattr(functional, name)
    assert list(parameters(function, POSITIONAL)) == positional
    found = parameters(function, KEYWORD)
    assert {key: found[key] for key in keywords} == keywords
    assert list(found)[: len(keywords)] == list(keywords)


def test_first_two_arguments_are_those_of_cross_entropy():
    batch = random_batch(8, 4, 3)
    plain = torch.nn.CrossEntropyLoss()(batch.logits, batch.labels)
    loss = classmargin.MR2Loss(4, label_smoothing=0.0, representation_weight=0.0)
    torch.testing.assert_close(loss(batch.logits, batch.labels, batch.features), plain)


def test_terms_are_a_named_triple_of_scalars():
    terms = classmargin.MR2Loss(4).terms(*random_batch(8, 4, 3))
    assert isinstance(terms, LossTerms)
    assert terms._fields == ("total", "logit_margin", "representation_margin")
    assert all(term.shape == () for term in terms)


def test_attributes_have_the_documented_shapes():
    loss = classmargin.MR2Loss(4)
    loss(*random_batch(8, 4, 3))
    assert loss.class_margins.shape == (4,)
    assert loss.mean_spread.shape == ()
    assert isinstance(loss.statistics, classmargin.ClassStatistics)
    for name in ("class_sqnorm", "class_spread", "class_weight", "seen"):
        assert getattr(loss.statistics, name).shape == (4,), name
    assert loss.statistics.seen.dtype == torch.bool
    assert loss.statistics.mean_spread.shape == loss.collapse_ratio.shape == ()
    assert loss.statistics.class_mean.shape == (4, 3)


def test_constructor_stores_arguments_under_their_own_names():
    options = {"mean_margin": 1.5, "representation_weight": 0.2, "accumulate": 3, "representation": "pairs"}
    loss = classmargin.MR2Loss(4, **options)
    assert {name: getattr(loss, name) for name in options} == options


def test_top_level_names_and_functional_names_are_the_same_objects():
    from classmargin import mr2

    assert classmargin.MR2Loss is mr2.MR2Loss
    assert classmargin.ClassStatistics is mr2.ClassStatistics
    for name in functional.__all__:
        assert getattr(functional, name) is getattr(mr2, name, getattr(functional, name))
    assert pickle.loads(pickle.dumps(classmargin.MR2Loss)) is classmargin.MR2Loss


@pytest.mark.parametrize("name", classmargin.__all__)
def test_every_exported_name_exists(name):
    assert getattr(classmargin, name) is not None
    assert name in dir(classmargin)


@pytest.mark.parametrize("name", ["audit", "compare"])
def test_verbs_are_functions_and_not_the_modules_of_the_same_name(name):
    assert inspect.isfunction(getattr(classmargin, name))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="MR3Loss"):
        classmargin.MR3Loss


def test_package_ships_its_types():
    from pathlib import Path

    assert (Path(classmargin.__file__).parent / "py.typed").exists()
