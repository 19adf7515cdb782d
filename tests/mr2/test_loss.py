"""The whole objective (Eq. 4): loops in float64, its parts, its gradient, what it takes from cross-entropy."""

import itertools
import math

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, history, random_batch, random_batches, toy_batch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from classmargin.mr2 import MR2Loss, margin_cross_entropy

WEIGHT = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
PRIOR = torch.log_softmax(torch.linspace(2.0, -2.0, 5, dtype=torch.float64), 0)
FORMS = {
    "recommended": {},
    "paper": {
        "representation": "pairs",
        "margin_source": "sqnorm",
        "mean_margin": 2.0,
        "representation_weight": 0.5,
        "label_smoothing": 0.0,
    },
    "spread": {"margin_source": "spread", "margin_power": 0.5},
    "order three": {"margin_source": "sqnorm", "norm_order": 3.0},
    "weight and prior": {"weight": WEIGHT, "log_prior": PRIOR},
    "no pull": {"representation_weight": 0.0, "margin_source": "spread"},
}
every_form = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
both_representations = pytest.mark.parametrize("representation", ["moments", "pairs"])


def mixed(batch, share=0.3):
    """Return the batch after mixup with its own reverse: features, logits and labels."""
    mix = lambda x: (1 - share) * x + share * x.flip(0)
    return batch._replace(
        logits=mix(batch.logits.detach()).requires_grad_(),
        labels=mix(F.one_hot(batch.labels, batch.logits.shape[1]).to(batch.logits.dtype)),
        features=mix(batch.features.detach()).requires_grad_(),
    )


# --- against loops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "num_classes", "options"),
    [
        (24, 5, {}),
        (12, 40, {}),
        (24, 5, {"label_smoothing": 0.0, "mean_margin": 2.0}),
        (60, 4, {"margin_source": "sqnorm", "norm_order": 3.0, "mean_margin": 2.0}),
        (60, 5, {"margin_source": "spread", "margin_power": 0.5, "ema_decay": 0.7}),
    ],
    ids=["recommended", "many classes", "no smoothing", "order three", "spread"],
)
def test_every_step_equals_the_loop_with_its_gradient(size, num_classes, options):
    loss = MR2Loss(num_classes, representation_weight=0.7, **options)
    margins = {name: options[name] for name in ("mean_margin", "norm_order") if name in options}
    if "margin_source" in options:
        margins |= {"source": options["margin_source"], "power": options.get("margin_power", 1 / 3)}
    batches = random_batches(4, size, num_classes, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        past = [*history(batches[: step - 1]), (batch.features, batch.labels)]
        logit, pull = naive.recommended_terms(
            past,
            batch.logits,
            num_classes,
            smoothing=options.get("label_smoothing", 0.1),
            decay=options.get("ema_decay", 0.9),
            **margins,
        )
        expected = (logit + 0.7 * pull, logit, pull)
        torch.testing.assert_close(tuple(terms), expected, rtol=1e-10, atol=1e-10)
        ours, theirs = gradients(terms.total, batch), gradients(expected[0], batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        assert theirs[1].abs().max() > 1e-4


def test_recommended_by_hand():
    """φ = (0, 2, 4, 10): mean 4, variance 14. Classes (0, 2) and (4, 10): means ∓3/√14, spreads 1/14 and 9/14.

    Equal logits give every pull the factor 1/2, and s̄ = 5/14.
    """
    features = torch.tensor([[0.0], [2.0], [4.0], [10.0]], dtype=torch.float64)
    logits = torch.zeros(4, 2, dtype=torch.float64)
    terms = MR2Loss(2, representation_weight=3.0).terms(logits, torch.tensor([0, 0, 1, 1]), features)
    pull = (math.log1p(math.exp((1 + 1 - 10) / 14)) + math.log1p(math.exp((9 + 9 - 10) / 14))) / 2 / 2
    assert terms.logit_margin.item() == pytest.approx(math.log(2))
    assert terms.representation_margin.item() == pytest.approx(pull)
    assert terms.total.item() == pytest.approx(math.log(2) + 3 * pull)


# --- parts --------------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("soft", [False, True])
def test_total_is_the_logit_term_plus_the_weighted_representation_term(options, soft):
    batch = random_batch(24, 5, 3)
    batch = mixed(batch) if soft else batch
    terms = MR2Loss(5, **options).terms(*batch)
    weight = options.get("representation_weight", 1.0)
    torch.testing.assert_close(terms.total, terms.logit_margin + weight * terms.representation_margin)
    assert (terms.representation_margin > 0) == (weight > 0)
    total = MR2Loss(5, **options)(*batch)
    torch.testing.assert_close(total, terms.total)
    torch.testing.assert_close(gradients(total, batch), gradients(terms.total, batch))


@both_representations
def test_each_part_has_its_own_gradient(representation):
    batch = random_batch(24, 5, 3)
    terms = MR2Loss(5, representation_weight=0.7, representation=representation).terms(*batch)
    logit = torch.autograd.grad(terms.logit_margin, batch.logits, retain_graph=True)[0]
    pull = torch.autograd.grad(terms.representation_margin, batch.features, retain_graph=True)[0]
    torch.testing.assert_close(gradients(terms.total, batch), (logit, 0.7 * pull))


def test_weight_zero_drops_the_representation_term():
    batch = random_batch(24, 5, 3)
    terms = MR2Loss(5, representation_weight=0.0).terms(*batch)
    assert terms.representation_margin.item() == 0.0
    torch.testing.assert_close(terms.total, F.cross_entropy(batch.logits, batch.labels, label_smoothing=0.1))
    assert gradients(terms.total, batch)[1].abs().max() == 0


def test_slack_zero_is_the_ablation_without_mean_spread():
    batch = random_batch(24, 5, 3)
    slack, none = (MR2Loss(5, spread_slack=s).terms(*batch).representation_margin for s in (1.0, 0.0))
    assert none > slack


def test_statistics_and_margins_are_constants_for_autograd():
    batch = random_batch(24, 5, 3)
    loss = MR2Loss(5, margin_source="spread")
    terms = loss.terms(*batch)
    assert not any(value.requires_grad for value in (loss.class_margins, loss.mean_spread, *loss.buffers()))
    # the logit term depends on the features only through γ, so it has no gradient there
    (gradient,) = torch.autograd.grad(terms.logit_margin, batch.features, allow_unused=True)
    assert gradient is None or gradient.abs().max() == 0


def test_statistics_move_before_they_are_used():
    for name in ("recommended", "paper"):
        loss = MR2Loss.preset(name, 3)
        first = loss.terms(*toy_batch()).total
        torch.testing.assert_close(first, loss.terms(*toy_batch(), update_statistics=False).total)


def test_the_pull_of_a_sample_counts_with_the_probability_of_its_class():
    batch = random_batch(20, 5, 3)
    pulls = [
        MR2Loss(5).terms(scale * F.one_hot(batch.labels, 5).double(), batch.labels, batch.features)
        for scale in (200.0, 0.0, -2000.0)
    ]
    full, fifth, none = (terms.representation_margin for terms in pulls)
    torch.testing.assert_close(fifth, full / 5)
    assert none.item() == 0.0
    assert all(terms.total.isfinite() for terms in pulls)
    terms = MR2Loss(5).terms(*batch)
    (of_logits,) = torch.autograd.grad(terms.representation_margin, batch.logits, allow_unused=True)
    assert of_logits is None or of_logits.abs().max() == 0


@pytest.mark.parametrize("soft", [False, True])
def test_a_class_without_statistics_is_not_pulled(soft):
    loss, generator = MR2Loss(3), torch.Generator().manual_seed(0)
    for _ in range(5):
        rows = torch.randn(32, 4, generator=generator)
        loss(torch.zeros(32, 3, requires_grad=True), torch.arange(32) % 2, rows)
    features, labels = torch.randn(8, 4, generator=generator), torch.tensor([2] * 8)
    targets = F.one_hot(labels, 3).float() if soft else labels
    alone = loss.terms(torch.zeros(8, 3), targets, features, update_statistics=False)
    assert alone.representation_margin.item() == 0.0
    assert loss.terms(torch.zeros(8, 3), 0 * labels, features, update_statistics=False).representation_margin > 0


def test_a_class_that_the_first_micro_batch_lacks_is_not_pulled_in_the_others():
    loss, generator = MR2Loss(3, accumulate=2), torch.Generator().manual_seed(0)
    for labels in (torch.arange(8) % 2, torch.full((8,), 2)):
        features = torch.randn(8, 4, generator=generator)
        terms = loss.terms(torch.zeros(8, 3, requires_grad=True), labels, features)
    assert loss.statistics.seen.tolist() == [True, True, False]
    assert terms.representation_margin.item() == 0.0


# --- gradients ----------------------------------------------------------------------------------------------------


def fixed(options, size=7, soft=False):
    """Return a function of logits and features with statistics held fixed, and a point to differentiate it at.

    The confidence is a constant for autograd, so the numbers of the logits are those of the logit term.
    """
    options = {
        name: value.double()[:3] if isinstance(value, torch.Tensor) else value for name, value in options.items()
    }
    loss = MR2Loss(3, **options)
    for batch in random_batches(2, 12, 3, 2):
        loss(*batch)
    batch = random_batch(size, 3, 2, seed=5)
    labels = torch.softmax(random_batch(size, 3, 2, seed=6).logits.detach(), 1) if soft else batch.labels
    terms = lambda z, x: loss.terms(z, labels, x, update_statistics=False)
    return (
        (lambda z: terms(z, batch.features.detach()).logit_margin),
        (lambda x: terms(batch.logits.detach(), x).total),
        batch,
    )


@every_form
@pytest.mark.parametrize("soft", [False, True])
def test_derivatives_pass_the_numerical_check_through_the_standardisation(options, soft):
    of_logits, of_features, batch = fixed(options, soft=soft)
    assert gradcheck(of_logits, batch.logits)
    assert gradcheck(of_features, batch.features)


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_second_derivatives_pass_the_numerical_check(name):
    of_logits, of_features, batch = fixed(FORMS[name])
    assert gradgradcheck(of_logits, batch.logits)
    assert gradgradcheck(of_features, batch.features)


def test_gradient_descent_on_the_features_makes_classes_compact_and_does_not_shrink_them():
    batch = random_batch(40, 4, 3)
    loss, features = MR2Loss(4), batch.features.detach().clone().requires_grad_()
    before, size = loss.terms(batch.logits, batch.labels, features), naive.total_variance(features.detach())
    for _ in range(100):
        terms = loss.terms(batch.logits, batch.labels, features)
        with torch.no_grad():
            features -= 2.0 * torch.autograd.grad(terms.total, features)[0]
    assert terms.representation_margin < 0.8 * before.representation_margin
    assert naive.total_variance(features.detach()) > 0.9 * size


@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)])
def test_value_does_not_depend_on_what_needs_a_gradient(needs):
    batch = random_batch(24, 5, 3)
    expected = MR2Loss(5)(*batch)
    parts = (batch.logits, batch.features)
    logits, features = (x.detach().clone().requires_grad_(need) for x, need in zip(parts, needs, strict=True))
    loss = MR2Loss(5)(logits, batch.labels, features)
    torch.testing.assert_close(loss, expected)
    for tensor, reference, need in zip((logits, features), gradients(expected, batch), needs, strict=True):
        if need:
            torch.testing.assert_close(torch.autograd.grad(loss, tensor)[0], reference)


def test_backward_twice_over_one_graph_accumulates():
    batch = random_batch(24, 5, 3)
    total = MR2Loss(5)(*batch)
    total.backward(retain_graph=True)
    once = batch.features.grad.clone()
    total.backward()
    torch.testing.assert_close(batch.features.grad, 2 * once)


# --- evaluation ---------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("kind", ["hard", "soft", "ignored"])
@pytest.mark.parametrize("way", ["eval", "no_grad", "inference_mode", "eval without features"])
def test_evaluation_and_no_grad_give_plain_cross_entropy(options, kind, way):
    loss = MR2Loss(5, **options)
    loss(*random_batch(24, 5, 3, seed=7))
    batch = random_batch(24, 5, 3)
    if kind == "soft":
        batch = mixed(batch)
    if kind == "ignored":
        batch = batch._replace(labels=batch.labels.masked_fill(batch.labels == 2, -100))
    arguments = batch[:2] if "without" in way else batch
    if "eval" in way:
        found = loss.eval()(*arguments)
    else:
        with getattr(torch, way)():
            found = loss(*arguments)
    settings = {"label_smoothing": loss.label_smoothing, "weight": options.get("weight")}
    torch.testing.assert_close(
        found, F.cross_entropy(batch.logits, batch.labels, **settings).detach(), check_stride=False
    )


def test_evaluation_has_the_gradient_of_cross_entropy():
    batch = random_batch(24, 5, 3)
    found = MR2Loss(5).eval()(batch.logits, batch.labels)
    expected = F.cross_entropy(batch.logits, batch.labels, label_smoothing=0.1)
    mine, theirs = (torch.autograd.grad(value, batch.logits)[0] for value in (found, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
def test_terms_are_given_at_any_time(name):
    batch, loss = random_batch(24, 5, 3), MR2Loss.preset(name, 5)
    first = loss.eval().terms(*batch)
    assert not loss.statistics.seen.any()
    assert all(term.isfinite() for term in first)
    expected = loss.train().terms(*batch)
    with torch.no_grad():
        torch.testing.assert_close(tuple(loss.terms(*batch)), tuple(expected))
    torch.testing.assert_close(tuple(loss.eval().terms(*batch)), tuple(expected))


def test_evaluation_before_the_first_batch_pulls_nothing():
    terms = MR2Loss(5).eval().terms(*random_batch(24, 5, 3))
    assert terms.representation_margin.item() == 0.0


# --- what cross-entropy takes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weighted", "smoothing", "kind", "prior"),
    list(itertools.product([False, True], [0.0, 0.1], ["hard", "soft", "ignored"], [False, True])),
)
def test_uniform_margins_of_one_are_cross_entropy_in_every_combination(weighted, smoothing, kind, prior):
    batch = random_batch(24, 5, 3)
    if kind == "soft":
        batch = mixed(batch)
    if kind == "ignored":
        batch = batch._replace(labels=batch.labels.masked_fill(batch.labels == 2, -100))
    options = {"weight": WEIGHT if weighted else None, "label_smoothing": smoothing}
    ours = MR2Loss(5, log_prior=PRIOR if prior else None, **options).terms(*batch).logit_margin
    expected = F.cross_entropy(batch.logits + PRIOR if prior else batch.logits, batch.labels, **options)
    torch.testing.assert_close(ours, expected)
    mine, theirs = (torch.autograd.grad(value, batch.logits)[0] for value in (ours, expected))
    torch.testing.assert_close(mine, theirs)


@both_representations
@pytest.mark.parametrize("options", [{"weight": WEIGHT}, {"label_smoothing": 0.2}, {"log_prior": PRIOR}], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_logit_term_is_the_function_with_the_current_margins(options, soft, representation):
    batch = mixed(random_batch(24, 5, 3)) if soft else random_batch(24, 5, 3)
    options = {"label_smoothing": 0.0, **options}
    loss = MR2Loss(5, mean_margin=2.0, margin_source="sqnorm", representation=representation, **options)
    ours = loss.terms(*batch).logit_margin
    assert loss.class_margins.std() > 0.01
    expected = margin_cross_entropy(batch.logits, batch.labels, loss.class_margins, **options)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("options", [{"weight": WEIGHT}, {"label_smoothing": 0.2}], ids=str)
def test_weight_and_smoothing_of_the_logit_term_do_not_touch_the_representation_term(options):
    batch = random_batch(24, 5, 3)
    found = MR2Loss(5, **options).terms(*batch).representation_margin
    torch.testing.assert_close(found, MR2Loss(5).terms(*batch).representation_margin)


@both_representations
def test_one_hot_soft_labels_equal_hard_labels(representation):
    hard, soft = (MR2Loss(5, representation=representation, margin_source="sqnorm") for _ in range(2))
    for batch in random_batches(3, 24, 5, 3):
        one_hot = batch._replace(labels=F.one_hot(batch.labels, 5).double())
        expected, ours = hard(*batch), soft(*one_hot)
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(gradients(ours, batch), gradients(expected, batch))
    torch.testing.assert_close(soft.statistics.averages, hard.statistics.averages)


def test_pairs_of_mixed_samples_count_with_the_probability_of_a_common_class():
    """Two samples, each half class 0 and half something else: the pair counts one quarter."""
    features = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    loss = MR2Loss(3, representation="pairs", spread_slack=0.0)
    term = loss.terms(torch.zeros(2, 3, dtype=torch.float64), labels, features).representation_margin
    assert term.item() == pytest.approx(math.log1p(0.25 * math.exp(4.0)))


def test_targets_that_require_grad_leave_no_graph_in_the_statistics():
    loss, (logits, _, features) = MR2Loss(5), random_batch(24, 5, 3)
    targets = torch.randn(24, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss(logits, targets.softmax(1), features).backward()
    assert not any(buffer.requires_grad for buffer in loss.buffers())
    loss(*random_batch(24, 5, 3, seed=1)).backward()


def test_a_real_class_can_be_the_one_ignored():
    loss, reference = MR2Loss(5, ignore_index=2), MR2Loss(5)
    batch = random_batch(24, 5, 3)
    keep = batch.labels != 2
    expected = reference(batch.logits[keep], batch.labels[keep], batch.features[keep])
    torch.testing.assert_close(loss(*batch), expected)
    assert not loss.statistics.seen[2]


def test_class_of_weight_zero_has_no_gradient_on_the_logits():
    weight = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    batch = random_batch(24, 5, 3)
    of_logits, _ = gradients(MR2Loss(5, weight=weight, label_smoothing=0.0)(*batch), batch)
    assert of_logits[batch.labels == 0].abs().max() == 0
    assert of_logits[batch.labels == 1].abs().min() > 0


def test_uniform_weights_and_priors_change_nothing():
    batch = random_batch(24, 5, 3)
    flat = {"weight": torch.full((5,), 3.0), "log_prior": torch.full((5,), -1.6)}
    torch.testing.assert_close(MR2Loss(5, **flat)(*batch), MR2Loss(5)(*batch))


def test_log_prior_and_weight_are_copied_from_the_caller():
    prior = PRIOR.clone()
    loss = MR2Loss(5, log_prior=prior)
    prior.zero_()
    torch.testing.assert_close(loss.log_prior, PRIOR)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"margin_source": "spread"}], ids=str)
def test_sample_weights_equal_repeated_rows(soft, options):
    weighted, repeated = MR2Loss(5, **options), MR2Loss(5, **options)
    for batch in random_batches(3, 60, 5, 3):  # a class of one sample has spread 0 up to rounding
        batch = mixed(batch) if soft else batch
        times = torch.arange(60) % 4
        terms = weighted.terms(*batch, sample_weight=times.double())
        expected = repeated.terms(*(part.repeat_interleave(times, 0) for part in batch))
        torch.testing.assert_close(tuple(terms), tuple(expected))
        torch.testing.assert_close(gradients(terms.total, batch), gradients(expected.total, batch))
    torch.testing.assert_close(weighted.statistics.averages, repeated.statistics.averages)


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_sample_weights_of_one_change_nothing_and_of_zero_drop_the_row(name):
    batch, keep = random_batch(20, 5, 3), torch.arange(20) % 4 > 0
    make = lambda: MR2Loss.preset(name, 5)
    ones = make().terms(*batch, sample_weight=torch.ones(20)).total
    torch.testing.assert_close(ones, make()(*batch))
    dropped = make().terms(*batch, sample_weight=keep.double()).total
    torch.testing.assert_close(dropped, make()(*(part[keep] for part in batch)))


# --- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_of_logits_and_features_may_differ(dtype):
    batch = random_batch(24, 5, 3)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    for name in ("recommended", "paper"):
        loss = MR2Loss.preset(name, 5)(batch.logits.to(dtype), batch.labels, batch.features.to(other))
        torch.testing.assert_close(loss.double(), MR2Loss.preset(name, 5)(*batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_float32_on_the_same_numbers(dtype, name):
    low, exact = MR2Loss.preset(name, 5), MR2Loss.preset(name, 5)
    for batch in random_batches(3, 24, 5, 8):
        cast = lambda b, kind: b._replace(
            logits=b.logits.detach().to(kind).requires_grad_(),
            features=b.features.detach().to(kind).requires_grad_(),
        )
        half = cast(batch, dtype)
        single = cast(half, torch.float32)
        ours, expected = low(*half), exact(*single)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(gradients(ours, half), gradients(expected, single), strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.float(), theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
def test_autocast_changes_nothing_for_float32_inputs(name):
    plain, cast = MR2Loss.preset(name, 5), MR2Loss.preset(name, 5)
    for batch in random_batches(3, 24, 5, 8, dtype=torch.float32):
        expected = plain(*batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = cast(*batch)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradients(ours, batch), gradients(expected, batch), rtol=1e-5, atol=1e-6)


def test_training_step_under_autocast_reaches_every_parameter():
    torch.manual_seed(0)
    encoder, head, loss = nn.Linear(6, 8), nn.Linear(8, 5), MR2Loss(5)
    batch = random_batch(24, 5, 6, dtype=torch.float32, gradients=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = encoder(batch.features)
        assert features.dtype == torch.bfloat16
        total = loss(head(features), batch.labels, features)
    total.backward()
    for parameter in [*encoder.parameters(), *head.parameters()]:
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0
    assert loss.statistics.class_spread.dtype == torch.float32
