"""Margin cross-entropy (Eq. 1, 5): hand values, loops, and cross-entropy as the special case γ = 1."""

import itertools
import math

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import random_batch, toy_batch

from classmargin.mr2 import margin_cross_entropy

TOY_MARGINS = torch.tensor([1.669243, 1.837240, 2.493518], dtype=torch.float64)
PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()


def toy_value(scale=1.0, **options):
    logits, labels, _ = toy_batch()
    return margin_cross_entropy(logits, labels, TOY_MARGINS * scale, **options)


def test_toy_mean_for_mean_margin_one():
    assert toy_value(0.5).item() == pytest.approx(0.514279, abs=1e-6)


def test_toy_mean_for_mean_margin_two():
    assert toy_value().item() == pytest.approx(0.730988, abs=1e-6)


def test_toy_losses_per_sample():
    expected = [0.615765, 0.650731, 0.558845, 1.098612]
    assert toy_value(reduction="none").tolist() == pytest.approx(expected, abs=1e-6)


def test_log_prior_is_added_outside_the_division_by_the_margin():
    assert toy_value(log_prior=PRIOR).item() == pytest.approx(0.784328, abs=1e-6)


def test_log_prior_inside_the_division_would_be_another_number():
    logits, labels, _ = toy_batch()
    inside = margin_cross_entropy(logits + PRIOR, labels, TOY_MARGINS)
    assert inside.item() == pytest.approx(0.663757, abs=1e-6)


def test_margin_one_is_cross_entropy_on_the_toy_batch():
    logits, labels, _ = toy_batch()
    assert margin_cross_entropy(logits, labels, torch.ones(3)).item() == pytest.approx(0.520918, abs=1e-6)


def test_uniform_logits_give_the_logarithm_of_the_number_of_classes_for_any_margin():
    margins = torch.tensor([0.1, 1.0, 7.0, 30.0])
    losses = margin_cross_entropy(torch.full((4, 4), 2.5), torch.arange(4), margins, reduction="none")
    assert losses.tolist() == pytest.approx([math.log(4)] * 4)


@pytest.mark.parametrize(("margin", "value"), [(1.0, 1.313262), (2.0, 0.974077)])
def test_loss_falls_with_the_margin_where_the_true_logit_is_not_the_largest(margin, value):
    loss = margin_cross_entropy(torch.tensor([[0.0, 1.0]]), torch.tensor([0]), torch.full((2,), margin))
    assert loss.item() == pytest.approx(value, abs=1e-6)


def test_loss_grows_with_the_margin_where_the_true_logit_is_the_largest():
    values = [
        margin_cross_entropy(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), torch.full((2,), m)).item()
        for m in (0.5, 1.0, 2.0, 4.0)
    ]
    assert values == sorted(values)


@pytest.mark.parametrize(("size", "num_classes"), [(1, 2), (12, 5), (9, 40)])
def test_losses_equal_both_printed_forms(size, num_classes):
    logits, labels, _ = random_batch(size, num_classes, 2)
    margins = torch.linspace(0.4, 3.0, num_classes, dtype=torch.float64)
    losses = margin_cross_entropy(logits, labels, margins, reduction="none")
    torch.testing.assert_close(losses, naive.logit_margin_losses(logits, labels, margins.tolist()))
    torch.testing.assert_close(losses, naive.softmax_margin_losses(logits, labels, margins.tolist()))


def test_log_prior_equals_the_loop():
    logits, labels, _ = random_batch(10, 6, 2)
    margins, prior = (
        torch.linspace(0.4, 3.0, 6, dtype=torch.float64),
        torch.linspace(-4, -1, 6, dtype=torch.float64),
    )
    losses = margin_cross_entropy(logits, labels, margins, log_prior=prior, reduction="none")
    torch.testing.assert_close(losses, naive.logit_margin_losses(logits, labels, margins.tolist(), prior))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-2), (torch.bfloat16, 8e-2)]
)
def test_other_types_agree_with_float64(dtype, tolerance):
    logits, labels, _ = random_batch(12, 5, 2)
    margins = torch.linspace(0.4, 3.0, 5, dtype=torch.float64)
    low = margin_cross_entropy(logits.to(dtype), labels, margins)
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(margin_cross_entropy(logits, labels, margins).item(), rel=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("weighted", "smoothing", "soft", "ignored"),
    [
        c
        for c in itertools.product([False, True], [0.0, 0.1], [False, True], [False, True])
        if not (c[2] and c[3])
    ],
)
def test_margin_one_is_cross_entropy_with_every_combination_of_options(
    weighted, smoothing, soft, ignored, reduction
):
    logits, labels, _ = random_batch(16, 5, 2)
    weight = torch.linspace(0.5, 2.0, 5, dtype=torch.float64) if weighted else None
    if soft:
        labels = torch.softmax(random_batch(16, 5, 2, seed=1).logits.detach(), 1)
    if ignored:
        labels = labels.masked_fill(labels == 2, -100)
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    ours = margin_cross_entropy(logits, labels, torch.ones(5), **options)
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, **options))


def test_another_ignore_index_may_be_a_real_class():
    logits, labels, _ = random_batch(16, 5, 2)
    ours = margin_cross_entropy(logits, labels, torch.ones(5), ignore_index=3)
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, ignore_index=3))


def test_reductions_agree_with_one_another():
    logits, labels, _ = random_batch(16, 5, 2)
    margins = torch.linspace(0.4, 3.0, 5, dtype=torch.float64)
    mean, total, each = (
        margin_cross_entropy(logits, labels, margins, reduction=r) for r in ("mean", "sum", "none")
    )
    torch.testing.assert_close(each.sum(), total)
    torch.testing.assert_close(each.mean(), mean)


def test_one_hot_soft_labels_equal_hard_labels():
    logits, labels, _ = random_batch(16, 5, 2)
    margins = torch.linspace(0.4, 3.0, 5, dtype=torch.float64)
    soft = margin_cross_entropy(logits, F.one_hot(labels, 5).double(), margins, reduction="none")
    torch.testing.assert_close(soft, margin_cross_entropy(logits, labels, margins, reduction="none"))


def test_mixed_labels_use_the_mix_of_the_margins():
    logits = torch.tensor([[1.0, -0.5, 2.0]], dtype=torch.float64)
    mix = torch.tensor([[0.3, 0.0, 0.7]], dtype=torch.float64)
    margin = 0.3 * 0.5 + 0.7 * 2.0
    log_probability = torch.log_softmax(logits / margin, 1)
    expected = -(0.3 * log_probability[0, 0] + 0.7 * log_probability[0, 2])
    ours = margin_cross_entropy(logits, mix, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(ours, expected)


def test_label_smoothing_keeps_the_margin_of_the_true_class():
    logits, labels = torch.tensor([[1.0, -0.5, 2.0]]), torch.tensor([1])
    margins = torch.tensor([0.5, 1.5, 2.0])
    ours = margin_cross_entropy(logits, labels, margins, label_smoothing=0.2)
    torch.testing.assert_close(ours, F.cross_entropy(logits / 1.5, labels, label_smoothing=0.2))


def test_ignored_rows_change_neither_value_nor_gradient():
    logits, labels, _ = random_batch(8, 4, 2)
    margins = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    gone = labels.clone()
    gone[[1, 5]] = -100
    keep = gone != -100
    loss = margin_cross_entropy(logits, gone, margins)
    torch.testing.assert_close(loss, margin_cross_entropy(logits[keep], labels[keep], margins))
    assert torch.autograd.grad(loss, logits)[0][[1, 5]].abs().max() == 0


@pytest.mark.parametrize("labels", [torch.full((3,), -100), torch.zeros(0, dtype=torch.long)])
def test_no_counting_row_gives_a_zero_that_keeps_the_graph(labels):
    logits = torch.randn(len(labels), 4, requires_grad=True)
    loss = margin_cross_entropy(logits, labels, torch.ones(4))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, logits)[0].abs().sum() == 0


def test_huge_logits_and_tiny_margins_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float16, requires_grad=True)
    loss = margin_cross_entropy(logits, torch.tensor([1]), torch.tensor([1.0, 0.05, 1.0]))
    assert loss.item() == pytest.approx(2e4 / 0.05, rel=1e-3)
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_gradient_passes_the_numerical_check():
    logits, labels, _ = random_batch(5, 4, 2)
    margins = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    soft = torch.softmax(random_batch(5, 4, 2, seed=3).logits.detach(), 1)
    for target in (labels, soft):
        function = lambda z: margin_cross_entropy(z, target, margins, label_smoothing=0.1)
        assert torch.autograd.gradcheck(function, logits)
        assert torch.autograd.gradgradcheck(function, logits)
