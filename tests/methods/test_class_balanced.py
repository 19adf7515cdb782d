import pytest
import torch

from classmargin.methods.loss_parts import effective_number_weights


def test_weights_of_counts_100_10_1():
    weights = effective_number_weights(torch.tensor([100, 10, 1]), 0.9999)
    torch.testing.assert_close(
        weights, torch.tensor([0.027159, 0.270369, 2.702472], dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_mean_is_over_samples_and_not_divided_by_the_weights(make, toy):
    # (0.027159·0.407606 + 0.270369·0.407606 + 2.702472·0.169846 + 0.027159·1.098612) / 4
    assert make("class-balanced", (100, 10, 1)).loss(toy, True).total.item() == pytest.approx(0.152529, abs=1e-6)


def test_beta_zero_weights_all_classes_alike():
    assert effective_number_weights(torch.tensor([100, 10, 1]), 0.0).tolist() == [1, 1, 1]


def test_beta_near_one_is_inverse_frequency():
    weights = effective_number_weights(torch.tensor([100, 10, 1]), 1 - 1e-12)
    inverse = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    torch.testing.assert_close(weights, 3 * inverse / inverse.sum(), rtol=1e-6, atol=0)


def test_equal_counts_give_cross_entropy(make, toy):
    assert make("class-balanced", (7, 7, 7)).loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_focal_form_multiplies_both_weights(make, toy):
    plain = make("focal", focusing=1.0).loss(toy, True).total
    balanced = make("class-balanced", (7, 7, 7), focusing=1.0).loss(toy, True).total
    assert balanced.item() == pytest.approx(plain.item(), abs=1e-7)


def test_a_class_without_samples_has_a_finite_weight(make, toy):
    assert torch.isfinite(make("class-balanced", (6, 0, 1)).loss(toy, True).total)
