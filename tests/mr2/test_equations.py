"""Every equation: hand values, loops in float64, limits, and cross-entropy as the special case γ = 1."""

import itertools
import math

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mr2_batches import random_batch, toy_batch

from classmargin.mr2 import (
    class_margins,
    class_moments,
    hard_representation_margin,
    margin_cross_entropy,
    representation_margin,
)
from classmargin.mr2.equations import (
    MOST_PAIRED_ROWS,
    moment_losses,
    squared_norm,
)
from classmargin.mr2.standardize import centre, standardize
from classmargin.mr2.standardize import distances as distances_to

# --- class margins (Eq. 1, 14, 17) --------------------------------------------------------------------------------

TOY = torch.tensor([3.0, 4.0, 10.0], dtype=torch.float64)
positive = st.floats(1e-6, 1e6)
statistics = st.lists(positive, min_size=1, max_size=40).map(lambda v: torch.tensor(v, dtype=torch.float64))


def near(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0.0, atol=tolerance)


def test_toy_margins():
    near(class_margins(TOY, 1.0), [0.834621, 0.918620, 1.246759])
    near(class_margins(TOY, 2.0), [1.669243, 1.837240, 2.493518])


def test_toy_margins_of_order_three():
    statistic = class_moments(toy_batch().features, toy_batch().labels, 3, norm_order=3.0).class_sqnorm
    near(statistic, [2.663374, 4.0, 9.220873])
    near(class_margins(statistic, 1.0), [0.820125, 0.939195, 1.240680])


@given(statistics, st.floats(0.1, 5.0), st.sampled_from([1 / 3, 0.5, 1.0]))
def test_margins_equal_the_loop(statistic, mean_margin, power):
    expected = naive.class_margins(dict(enumerate(statistic.tolist())), len(statistic), mean_margin, power)
    torch.testing.assert_close(
        class_margins(statistic, mean_margin, power=power), torch.tensor(expected, dtype=torch.float64)
    )


@given(statistics, st.floats(0.1, 5.0), st.floats(1e-5, 1e5))
def test_margins_average_to_mean_margin_and_do_not_depend_on_the_unit(statistic, mean_margin, unit):
    margins = class_margins(statistic, mean_margin)
    assert margins.mean().item() == pytest.approx(mean_margin, rel=1e-12)
    torch.testing.assert_close(class_margins(statistic * unit, mean_margin), margins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_statistics_give_equal_margins(dtype):
    for value in (0.0, 0.3, 1e30):
        margins = class_margins(torch.full((7,), value, dtype=dtype), 2.0)
        assert margins.dtype == dtype
        assert margins.tolist() == pytest.approx([2.0] * 7)


def test_power_zero_gives_uniform_margins_and_larger_powers_wider_ones():
    assert class_margins(TOY, 1.5, power=0.0).tolist() == pytest.approx([1.5] * 3)
    wide, wider = class_margins(TOY, 1.0, power=0.2), class_margins(TOY, 1.0, power=0.8)
    assert wide.diff().min() > 0
    assert wider.std() > wide.std()


def test_unseen_classes_are_left_out_and_get_the_mean_margin():
    seen = torch.tensor([True, True, False, True])
    margins = class_margins(torch.tensor([3.0, 4.0, 0.0, 10.0], dtype=torch.float64), 2.0, seen=seen)
    near(margins, [1.669243, 1.837240, 2.0, 2.493518])
    assert class_margins(torch.zeros(3), 2.0, seen=torch.zeros(3, dtype=torch.bool)).tolist() == [2.0] * 3


@pytest.mark.parametrize("statistic", [[1e-38, 1e-30, 1e-20], [1e38, 1.0, 1e-38], [3e38] * 3, [0.0, 1.0, 2.0]])
def test_margins_of_extreme_statistics_are_positive_with_the_right_mean(statistic):
    margins = class_margins(torch.tensor(statistic), 2.0, power=1.0)
    assert margins.min() > 0
    assert margins.mean().item() == pytest.approx(2.0, rel=1e-4)


# --- margin cross-entropy (Eq. 1, 5) ------------------------------------------------------------------------------

TOY_MARGINS = torch.tensor([1.669243, 1.837240, 2.493518], dtype=torch.float64)
MARGINS = torch.linspace(0.4, 3.0, 5, dtype=torch.float64)
PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()


def test_toy_cross_entropy():
    logits, labels, _ = toy_batch()
    each = margin_cross_entropy(logits, labels, TOY_MARGINS, reduction="none")
    near(each, [0.615765, 0.650731, 0.558845, 1.098612])
    near(margin_cross_entropy(logits, labels, TOY_MARGINS), 0.730988)
    near(margin_cross_entropy(logits, labels, TOY_MARGINS / 2), 0.514279)
    near(margin_cross_entropy(logits, labels, torch.ones(3)), 0.520918)


def test_log_prior_is_added_outside_the_division_by_the_margin():
    logits, labels, _ = toy_batch()
    near(margin_cross_entropy(logits, labels, TOY_MARGINS, log_prior=PRIOR), 0.784328)
    near(margin_cross_entropy(logits + PRIOR, labels, TOY_MARGINS), 0.663757)


def test_uniform_logits_give_the_logarithm_of_the_number_of_classes_for_any_margin():
    margins = torch.tensor([0.1, 1.0, 7.0, 30.0])
    losses = margin_cross_entropy(torch.full((4, 4), 2.5), torch.arange(4), margins, reduction="none")
    assert losses.tolist() == pytest.approx([math.log(4)] * 4)


@pytest.mark.parametrize(("logits", "values"), [([0.0, 1.0], [1.313262, 0.974077]), ([3.0, 1.0], [0.126928, 0.313262])])
def test_loss_grows_with_the_margin_only_where_the_true_logit_is_the_largest(logits, values):
    for margin, value in zip((1.0, 2.0), values, strict=True):
        loss = margin_cross_entropy(torch.tensor([logits]), torch.tensor([0]), torch.full((2,), margin))
        assert loss.item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("size", "num_classes"), [(1, 2), (12, 5), (9, 40)])
def test_losses_equal_both_printed_forms(size, num_classes):
    logits, labels, _ = random_batch(size, num_classes, 2)
    margins = torch.linspace(0.4, 3.0, num_classes, dtype=torch.float64)
    prior = torch.linspace(-4, -1, num_classes, dtype=torch.float64)
    losses = margin_cross_entropy(logits, labels, margins, reduction="none")
    torch.testing.assert_close(losses, naive.logit_margin_losses(logits, labels, margins.tolist()))
    torch.testing.assert_close(losses, naive.softmax_margin_losses(logits, labels, margins.tolist()))
    losses = margin_cross_entropy(logits, labels, margins, log_prior=prior, reduction="none")
    torch.testing.assert_close(losses, naive.logit_margin_losses(logits, labels, margins.tolist(), prior))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["hard", "soft", "ignored"])
@pytest.mark.parametrize(("weighted", "smoothing"), list(itertools.product([False, True], [0.0, 0.1])))
def test_margin_one_is_cross_entropy_with_every_combination_of_options(weighted, smoothing, kind, reduction):
    logits, labels, _ = random_batch(16, 5, 2)
    weight = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], dtype=torch.float64) if weighted else None
    if kind == "soft":
        labels = torch.softmax(random_batch(16, 5, 2, seed=1).logits.detach(), 1)
    if kind == "ignored":
        labels = labels.masked_fill(labels == 2, -100)
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    ours = margin_cross_entropy(logits, labels, torch.ones(5), **options)
    expected = F.cross_entropy(logits, labels, **options)
    torch.testing.assert_close(ours, expected)
    mine, theirs = (torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, expected))
    torch.testing.assert_close(mine, theirs)


def test_another_ignore_index_may_be_a_real_class():
    logits, labels, _ = random_batch(16, 5, 2)
    ours = margin_cross_entropy(logits, labels, torch.ones(5), ignore_index=3)
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, ignore_index=3))


def test_one_hot_soft_labels_equal_hard_labels():
    logits, labels, _ = random_batch(16, 5, 2)
    soft = margin_cross_entropy(logits, F.one_hot(labels, 5).double(), MARGINS, reduction="none")
    torch.testing.assert_close(soft, margin_cross_entropy(logits, labels, MARGINS, reduction="none"))


def test_mixed_labels_use_the_mix_of_the_margins():
    logits = torch.tensor([[1.0, -0.5, 2.0]], dtype=torch.float64)
    mix = torch.tensor([[0.3, 0.0, 0.7]], dtype=torch.float64)
    log_probability = torch.log_softmax(logits / (0.3 * 0.5 + 0.7 * 2.0), 1)
    expected = -(0.3 * log_probability[0, 0] + 0.7 * log_probability[0, 2])
    ours = margin_cross_entropy(logits, mix, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(ours, expected)


def test_label_smoothing_keeps_the_margin_of_the_true_class():
    logits, labels = torch.tensor([[1.0, -0.5, 2.0]]), torch.tensor([1])
    ours = margin_cross_entropy(logits, labels, torch.tensor([0.5, 1.5, 2.0]), label_smoothing=0.2)
    torch.testing.assert_close(ours, F.cross_entropy(logits / 1.5, labels, label_smoothing=0.2))


def test_ignored_rows_change_neither_value_nor_gradient():
    logits, labels, _ = random_batch(8, 5, 2)
    gone = labels.clone()
    gone[[1, 5]] = -100
    keep = gone != -100
    loss = margin_cross_entropy(logits, gone, MARGINS)
    torch.testing.assert_close(loss, margin_cross_entropy(logits[keep], labels[keep], MARGINS))
    assert torch.autograd.grad(loss, logits)[0][[1, 5]].abs().max() == 0


@pytest.mark.parametrize("labels", [torch.full((3,), -100), torch.zeros(0, dtype=torch.long)])
def test_no_counting_row_gives_a_zero_that_keeps_the_graph(labels):
    logits = torch.ones(len(labels), 4, requires_grad=True)
    loss = margin_cross_entropy(logits, labels, torch.ones(4))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, logits)[0].abs().sum() == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-2), (torch.bfloat16, 8e-2)])
def test_lower_types_agree_with_float64(dtype, tolerance):
    logits, labels, _ = random_batch(12, 5, 2)
    low = margin_cross_entropy(logits.to(dtype), labels, MARGINS)
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(margin_cross_entropy(logits, labels, MARGINS).item(), rel=tolerance)


def test_huge_logits_and_tiny_margins_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float16, requires_grad=True)
    loss = margin_cross_entropy(logits, torch.tensor([1]), torch.tensor([1.0, 0.05, 1.0]))
    assert loss.item() == pytest.approx(2e4 / 0.05, rel=1e-3)
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_cross_entropy_gradients_pass_the_numerical_check():
    logits, labels, _ = random_batch(5, 5, 2)
    for target in (labels, torch.softmax(random_batch(5, 5, 2, seed=3).logits.detach(), 1)):
        function = lambda z, target=target: margin_cross_entropy(z, target, MARGINS, label_smoothing=0.1)
        assert torch.autograd.gradcheck(function, logits)
        assert torch.autograd.gradgradcheck(function, logits)


# --- representation margin over pairs (Eq. 2, 3) ------------------------------------------------------------------

LAYOUTS = {
    "all different": list(range(9)),
    "few pairs": [0, 1, 2, 0, 3, 4, 1, 5, 6],
    "many pairs": [0, 1, 2] * 9,
    "very uneven": [0] * 30 + list(range(1, 31)) + [1],
    "one class": [4] * 11,
    "one sample": [3],
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
both_forms = pytest.mark.parametrize("form", [representation_margin, hard_representation_margin])


def laid_out(layout):
    labels = torch.tensor(LAYOUTS[layout])
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(labels), 3, dtype=torch.float64, generator=generator).requires_grad_(), labels


def test_toy_representation_margins():
    _, labels, features = toy_batch()
    near(representation_margin(features, labels, 1 / 3, reduction="none"), [3.368386, 0.0, 0.0, 3.368386])
    near(representation_margin(features, labels, 1 / 3), 1.684193)
    near(representation_margin(features, labels, 0.0, reduction="none"), [4.018150, 0.0, 0.0, 4.018150])
    near(hard_representation_margin(features, labels, 1 / 3, reduction="none"), [10 / 3, 0, 0, 10 / 3], 1e-12)


def test_toy_gradient():
    features = toy_batch().features.requires_grad_()
    (gradient,) = torch.autograd.grad(representation_margin(features, toy_batch().labels, 1 / 3), features)
    near(gradient[0], [0.0, -1.931110])


def test_mean_pair_distance_is_twice_the_spread_only_with_self_pairs():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    labels = torch.zeros(3, dtype=torch.long)
    distances = (points[:, None] - points[None]).square().sum(2)
    spread = class_moments(points, labels, 1).class_spread.item()
    assert spread == pytest.approx(1.111111, abs=1e-6)
    assert distances.mean().item() == pytest.approx(2 * spread)
    assert (distances.sum() / 6).item() == pytest.approx(3.333333, abs=1e-6)
    # and the loss leaves self-pairs out: at huge temperature ln(1 + n exp(D/τ)) counts n = 2 pairs a row, not 3
    losses = representation_margin(points, labels, 0.0, temperature=1e12, reduction="none")
    assert losses.tolist() == pytest.approx([math.log(3)] * 3)


@every_layout
@pytest.mark.parametrize("temperature", [1.0, 7.5])
def test_values_and_gradients_equal_the_loop(layout, temperature):
    features, labels = laid_out(layout)
    ours = representation_margin(features, labels, 0.4, temperature=temperature, reduction="none")
    loop = naive.representation_margin_losses(features, labels, 0.4, temperature)
    torch.testing.assert_close(ours, loop)
    weights = torch.linspace(0.5, 2.0, len(labels), dtype=torch.float64)
    mine, theirs = (torch.autograd.grad((weights * x).sum(), features)[0] for x in (ours, loop))
    torch.testing.assert_close(mine, theirs)
    low = representation_margin(features.float(), labels, 0.4, temperature=temperature, reduction="none")
    torch.testing.assert_close(low.double(), ours, atol=1e-5, rtol=1e-5)


@every_layout
def test_hard_form_equals_the_loop(layout):
    features, labels = laid_out(layout)
    ours = hard_representation_margin(features, labels, 0.4, reduction="none")
    torch.testing.assert_close(ours, naive.hard_representation_margin_losses(features, labels, 0.4))


@both_forms
def test_reductions_agree_with_one_another(form):
    _, labels, features = random_batch(12, 4, 3)
    mean, total, each = (form(features, labels, 0.1, reduction=r) for r in ("mean", "sum", "none"))
    torch.testing.assert_close(each.sum(), total)
    torch.testing.assert_close(each.mean(), mean)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6), st.floats(0.0, 5.0))
def test_soft_form_lies_between_the_hard_form_and_the_hard_form_plus_a_logarithm(seed, size, classes, spread):
    _, labels, features = random_batch(size, classes, 3, seed)
    soft = representation_margin(features, labels, spread, reduction="none")
    hard = hard_representation_margin(features, labels, spread, reduction="none")
    classmates = torch.bincount(labels, minlength=classes)[labels]
    assert (soft >= hard - 1e-9).all()
    assert (soft <= hard + classmates.double().log() + 1e-9).all()


def test_pair_form_is_scale_free_only_at_a_relative_temperature():
    _, labels, features = random_batch(12, 4, 3)
    base = representation_margin(features, labels, 0.2)
    assert representation_margin(30 * features, labels, 900 * 0.2) > 100 * base
    relative = representation_margin(30 * features, labels, 900 * 0.2, temperature=900.0)
    torch.testing.assert_close(relative, base)


def test_large_temperature_counts_pairs_and_a_small_one_gives_the_hard_form():
    _, labels, features = random_batch(12, 4, 3)
    losses = representation_margin(features, labels, 0.2, temperature=1e15, reduction="none")
    torch.testing.assert_close(losses, torch.bincount(labels, minlength=4)[labels].double().log())
    losses = 1e-6 * representation_margin(features, labels, 0.2, temperature=1e-6, reduction="none")
    hard = hard_representation_margin(features, labels, 0.2, reduction="none")
    torch.testing.assert_close(losses, hard, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_small_distances_survive_far_from_the_origin(offset):
    labels = torch.tensor([0, 0, 1, 1] * 8)
    small = torch.randn(32, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1
    shifted = (small * 1024).round() / 1024 + offset  # exact in float32
    exact = representation_margin(shifted, labels, 0.0, reduction="none")
    float32 = representation_margin(shifted.float(), labels, 0.0, reduction="none")
    torch.testing.assert_close(float32.double(), exact, atol=1e-4, rtol=1e-4)


@both_forms
@pytest.mark.parametrize("labels", [torch.arange(9), torch.tensor([3]), torch.zeros(0, dtype=torch.long)])
def test_no_classmates_give_a_zero_that_keeps_the_graph(form, labels):
    features = torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = form(features, labels, 0.1)
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, features)[0].abs().sum() == 0


@every_layout
def test_identical_features_have_a_finite_loss_and_no_gradient(layout):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.ones(len(labels), 3, requires_grad=True)
    loss = representation_margin(features, labels, 0.0)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, features)[0].abs().max() < 1e-6


@pytest.mark.parametrize("layout", ["few pairs", "one class"])
def test_pair_gradients_pass_the_numerical_check(layout):
    features, labels = laid_out(layout)
    function = lambda x: representation_margin(x, labels, 0.3, temperature=2.0)
    assert torch.autograd.gradcheck(function, features)
    assert torch.autograd.gradgradcheck(function, features)


@both_forms
def test_more_pairs_than_fit_are_refused_with_the_way_out(form):
    rows = MOST_PAIRED_ROWS + 1
    with pytest.raises(ValueError, match=rf"features must have at most {rows - 1} rows .* got {rows}.*moments"):
        form(torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.long), 0.1)


# --- standardised features and the closed form --------------------------------------------------------------------


def centred(features):
    return centre(features, torch.ones_like(features[:, :1]).T)


def standardized(features):
    return standardize(centred(features))[0]


def test_standardised_features_equal_the_loop():
    features = random_batch(12, 4, 3).features.detach()
    torch.testing.assert_close(standardized(features), naive.standardized(features))


def test_standardised_features_have_mean_zero_and_total_variance_one():
    rows = standardized(random_batch(12, 4, 3).features * 7.0 - 3.0).detach()
    near(rows.mean(0), [0.0] * 3, 1e-12)
    near(rows.square().sum(1).mean(), 1.0, 1e-12)


def test_rows_of_weight_zero_count_in_neither_mean_nor_variance():
    features = random_batch(12, 4, 3).features.detach()
    weights = torch.stack([(torch.arange(12) % 3 > 0).double(), torch.arange(12).double()])
    counted = weights[0] > 0
    whole, part = centre(features, weights), centre(features[counted], weights[:, counted])
    torch.testing.assert_close((whole.mean, whole.variance), (part.mean, part.variance))
    torch.testing.assert_close(whole.shares[0][counted], part.shares[0])
    torch.testing.assert_close(whole.shares[1], weights[0] / 66)


def distances(features, points):
    """‖φ̃ - points‖² of each row."""
    batch = centred(features)
    return distances_to(features, *standardize(batch), batch.shares[0], points.clone())


def test_distances_of_standardised_features_equal_the_loop_with_their_gradient():
    features, points = random_batch(12, 4, 3).features, random_batch(12, 4, 3, seed=7).features.detach()
    ours, loop = distances(features, points), (naive.standardized(features) - points).square().sum(1)
    torch.testing.assert_close(ours, loop)
    weights = torch.linspace(-1, 2, 12, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad((weights * x).sum(), features)[0] for x in (ours, loop))
    torch.testing.assert_close(mine, theirs)


def test_distances_of_standardised_features_pass_the_numerical_check():
    features, points = random_batch(6, 3, 2).features, random_batch(6, 3, 2, seed=3).features.detach()
    assert torch.autograd.gradcheck(lambda x: distances(x, points), features)
    assert torch.autograd.gradgradcheck(lambda x: distances(x, points), features)


def test_gradients_that_will_be_differentiated_are_the_same_under_autocast_and_vectorised():
    features, points = random_batch(6, 3, 2).features.detach(), random_batch(6, 3, 2, seed=3).features.detach()
    small = features.float().requires_grad_()
    value = distances(small, points.float()).sum()
    plain = torch.autograd.grad(value, small, retain_graph=True)[0]
    with torch.autocast("cpu", torch.bfloat16):
        again = torch.autograd.grad(value, small, create_graph=True)[0]
    torch.testing.assert_close(again, plain)
    jacobian = torch.func.jacrev(lambda x: distances(x, points))(features)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: distances(x, points), features))


def test_neither_a_shift_nor_a_common_factor_of_the_features_has_a_gradient():
    features, points = random_batch(12, 4, 3).features, random_batch(12, 4, 3, seed=7).features.detach()
    gradient = torch.autograd.grad(distances(features, points).pow(2).sum(), features)[0]
    near(gradient.sum(0), [0.0] * 3, 1e-9)
    near((gradient * features.detach()).sum(), 0.0, 1e-9)


def test_second_derivatives_over_several_processes_are_refused():
    features = random_batch(6, 3, 2).features
    batch = centred(features)
    ours = distances_to(features, *standardize(batch), batch.shares[0], torch.zeros(6, 2), synchronize=True)
    with pytest.raises(NotImplementedError, match="a single process"):
        torch.autograd.grad(ours.sum(), features, create_graph=True)


def test_distances_of_equal_rows_are_those_of_the_origin_and_pull_nothing():
    features = torch.full((5, 3), 7.3, requires_grad=True)
    ours = distances(features, torch.ones(5, 3))
    near(ours.detach(), [3.0] * 5)
    assert torch.autograd.grad(ours.sum(), features)[0].abs().sum() == 0.0


def test_moment_form_by_hand():
    """‖(2, 1) - (1, 0)‖² + 0.5 - 2 · 0.75 = 1, and ln(1 + e) = 1.313262."""
    points, means = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    distance = (points - means).square().sum(1)
    near(moment_losses(distance, torch.tensor([0.5]), 0.75), [1.313262])


def test_moment_form_lies_below_the_mean_of_the_pair_form_over_the_classmate():
    """Jensen: one average classmate against the average over classmates, one at a time."""
    rows = random_batch(9, 1, 3).features.detach()
    pairs = (rows[:, None] - rows[None]).square().sum(2)
    table = class_moments(rows, torch.zeros(9, dtype=torch.long), 1)
    ours = moment_losses((rows - table.mean).square().sum(1), table.class_spread, 0.3)
    assert (ours <= F.softplus(pairs - 0.6).mean(1) + 1e-12).all()
    torch.testing.assert_close(pairs.mean(1), (rows - table.mean).square().sum(1) + table.class_spread)


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, 3.0, 9.0, math.inf])
def test_squared_norms_equal_the_loop_and_do_not_overflow(order):
    rows = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e10, 1e10, -1e10]])
    expected = [naive.lp_norm(row, order) ** 2 for row in rows.tolist()]
    assert squared_norm(rows, order).tolist() == pytest.approx(expected, rel=1e-5)
