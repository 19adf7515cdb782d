import numpy as np
import pytest

from classmargin.evaluation import audit
from classmargin.evaluation.audit_from_evidence import class_groups
from classmargin.theory import class_risk_bounds, risk_bound


@pytest.mark.parametrize("norm_order", [2.0, 3.0, 1.0])
def test_bounds_are_those_of_the_theory_on_all_samples_at_once(toy, norm_order, monkeypatch):
    monkeypatch.setattr(
        "classmargin.evaluation.audit_from_evidence.class_groups", lambda labels: class_groups(labels, rows=100)
    )
    result = audit(toy.labels, **toy.arrays, bootstrap=0, norm_order=norm_order)
    margins = result.by_class["margin"].to_numpy(copy=True)
    conjugate = np.inf if norm_order == 1 else norm_order / (norm_order - 1)
    reach = float(np.linalg.norm(toy.weight, ord=conjugate, axis=1).max())
    options = {"weight_bound": reach, "norm_order": norm_order, "delta": 0.05}
    total = risk_bound(toy.logits, toy.labels, toy.features, margins, **options)
    for name in ("empirical", "complexity", "confidence", "total"):
        assert result.bounds["terms"][name] == pytest.approx(getattr(total, name), rel=1e-9)
    by_class = class_risk_bounds(toy.logits, toy.labels, toy.features, margins, **options)
    np.testing.assert_allclose(result.bounds["by_class"]["bound"], by_class.total, rtol=1e-9)
    np.testing.assert_allclose(result.bounds["by_class"]["complexity"], by_class.complexity, rtol=1e-9)


def test_bounds_hold_here_and_say_that_they_are_usually_vacuous(toy):
    bounds = audit(toy.labels, **toy.arrays, bootstrap=0).bounds
    frame = bounds["by_class"]
    assert (frame["bound"] >= frame["error"]).all()
    assert "usually vacuous" in bounds["statement"]
    assert "rank correlation" in bounds["statement"]


def test_absent_classes_have_no_bound(toy):
    kept = toy.labels != 3
    arrays = {"logits": toy.logits[kept], "features": toy.features[kept], "classifier_weight": toy.weight}
    frame = audit(toy.labels[kept], **arrays, bootstrap=0).bounds["by_class"]
    assert frame["bound"].isna().tolist() == [k == 3 for k in range(7)]


@pytest.mark.parametrize("missing", ["logits", "features", "classifier_weight"])
def test_without_logits_features_or_head_there_are_no_bounds(toy, missing):
    arrays = {name: value for name, value in toy.arrays.items() if name != missing}
    if missing == "logits":
        arrays["probabilities"] = toy.probabilities
    assert audit(toy.labels, **arrays, bootstrap=0).bounds is None


def test_a_head_of_zeros_has_no_bounds(toy):
    arrays = {**toy.arrays, "classifier_weight": np.zeros_like(toy.weight)}
    assert audit(toy.labels, **arrays, bootstrap=0).bounds is None


def test_groups_hold_whole_classes_and_every_row_once(toy):
    groups = list(class_groups(toy.labels, rows=150))
    np.testing.assert_array_equal(np.sort(np.concatenate(groups)), np.arange(600))
    owners = [set(toy.labels[group]) for group in groups]
    assert sum(len(owner) for owner in owners) == len(set.union(*owners))
    assert all(len(group) >= 150 for group in groups[:-1])


def test_masked_logits_have_no_bounds_and_the_notes_say_so(toy):
    arrays = {"features": toy.features, "classifier_weight": toy.weight, "bootstrap": 0}
    masked = toy.logits.copy()
    masked[toy.labels != 1, 1] = -np.inf
    found = audit(toy.labels, logits=masked, **arrays)
    assert found.bounds is None
    assert any(note.startswith("Bounds are left out") for note in found.notes)
    plain = audit(toy.labels, logits=toy.logits, **arrays)
    assert not any(note.startswith("Bounds are left out") for note in plain.notes)


@pytest.mark.parametrize("kind", [">f4", "longdouble"])
def test_types_that_torch_does_not_know_have_bounds_too(toy, kind):
    arrays = {"logits": toy.logits, "features": toy.features, "classifier_weight": toy.weight}
    expected = audit(toy.labels, **arrays, bootstrap=0).bounds["terms"]
    found = audit(toy.labels, **{name: array.astype(kind) for name, array in arrays.items()}, bootstrap=0)
    assert found.bounds["terms"] == pytest.approx(expected, rel=1e-5)
