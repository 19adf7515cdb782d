"""Exact statistics of frozen features, against NumPy on the whole set."""

import math

import numpy as np
import pytest
import torch

from classmargin.functional import margin_cross_entropy
from classmargin.mr2 import ClassStatistics, MR2Loss
from classmargin.mr2.whole_set import SETTLED


@pytest.fixture
def frozen():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (400,), generator=generator)
    labels[labels == 3] = 2  # one class never occurs
    features = torch.randn(400, 7, generator=generator) * (1 + labels.unsqueeze(1)) + 30.0
    return features, labels


def batches(features, labels, size=64):
    return [(features[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)]


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_fitted_statistics_equal_numpy_on_all_samples(frozen, order):
    features, labels = frozen
    statistics = ClassStatistics(5, norm_order=order, track_separation=True)
    statistics.fit(batches(features, labels))
    values, classes = features.double().numpy(), labels.numpy()
    means = {k: values[classes == k].mean(0) for k in (0, 1, 2, 4)}
    for k in means:
        rows = values[classes == k]
        room = min(((means[k] - means[other]) ** 2).sum() for other in means if other != k)
        assert float(statistics.class_separation[k]) == pytest.approx(room, rel=1e-5)
        spread = ((rows - rows.mean(0)) ** 2).sum(1).mean()
        power = (np.linalg.norm(rows, ord=order, axis=1) ** 2).mean()
        assert float(statistics.class_spread[k]) == pytest.approx(spread, rel=1e-5)
        assert float(statistics.class_sqnorm[k]) == pytest.approx(power, rel=1e-5)
        assert float(statistics.class_mean_sqnorm[k]) == pytest.approx((rows.mean(0) ** 2).sum(), rel=1e-5)
    total = ((values - values.mean(0)) ** 2).sum(1).mean()
    assert float(statistics.total_variance) == pytest.approx(total, rel=1e-5)
    assert statistics.seen.tolist() == [True, True, True, False, True]


def test_order_and_size_of_batches_do_not_matter(frozen):
    features, labels = frozen
    first, second = ClassStatistics(5), ClassStatistics(5)
    first.fit(batches(features, labels, 400))
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    second.fit(batches(features[shuffled], labels[shuffled], 13))
    torch.testing.assert_close(first.class_scalars, second.class_scalars)
    torch.testing.assert_close(first.class_mean, second.class_mean)


def test_fitting_ends_the_warm_up_and_sets_the_temperature(frozen):
    loss = MR2Loss(5, warmup_steps=1000)
    loss.fit_statistics(batches(*frozen))
    assert int(loss.statistics.updates) == SETTLED
    assert float(loss.scale.peak_variance) == pytest.approx(float(loss.statistics.total_variance))
    assert float(loss.class_margins.max()) > 1.005, "uniform during warm-up"


def test_fitting_again_forgets_the_scale_of_before(frozen):
    features, labels = frozen
    loss = MR2Loss(5)
    loss.fit_statistics(batches(10.0 * features, labels))
    loss.fit_statistics(batches(features, labels))
    assert float(loss.collapse_ratio) == 1.0
    assert float(loss.scale.peak_variance) == pytest.approx(float(loss.statistics.total_variance))


def test_fitting_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        ClassStatistics(3).fit([])


def test_fitting_numbers_that_are_none_is_refused(frozen):
    features, labels = frozen
    features[3, 2] = math.nan
    with pytest.raises(ValueError, match="finite"):
        ClassStatistics(5).fit(batches(features, labels))


def probe_step(options, features, labels):
    """Loss and gradient of one step with statistics that stay as they are."""
    loss = MR2Loss(5, representation_weight=0.0, **options)
    loss.fit_statistics(batches(features, labels))
    logits = torch.randn(400, 5, generator=torch.Generator().manual_seed(2)).requires_grad_()
    terms = loss.terms(logits, labels, features, update_statistics=False)
    terms.total.backward()
    return loss, logits, terms


@pytest.mark.parametrize(
    "options", [{}, {"mean_margin": 2.0}, {"margin_source": "uniform"}, {"label_smoothing": 0.1}]
)
def test_a_probe_step_is_margin_cross_entropy_and_leaves_the_state(frozen, options):
    features, labels = frozen
    loss, logits, terms = probe_step(options, features, labels)
    state = {name: value.clone() for name, value in loss.state_dict().items()}
    again = logits.detach().clone().requires_grad_()
    expected = margin_cross_entropy(
        again, labels, loss.class_margins, label_smoothing=options.get("label_smoothing", 0.0)
    )
    expected.backward()
    torch.testing.assert_close(terms.total, expected)
    torch.testing.assert_close(logits.grad, again.grad)
    assert float(terms.representation_margin) == 0.0
    loss.terms(logits, labels, features, update_statistics=False)
    for name, value in loss.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_probe_step_names_features_that_are_no_numbers_and_labels_out_of_range(frozen):
    features, labels = frozen
    loss, logits, _ = probe_step({}, features, labels)
    broken = features.clone()
    broken[3, 1] = math.nan
    with pytest.raises(ValueError, match="features must be finite"):
        loss(logits, labels, broken, update_statistics=False)
    wrong = labels.clone()
    wrong[0] = 5
    with pytest.raises(ValueError, match="labels"):
        loss(logits, wrong, features, update_statistics=False)


def test_a_probe_step_ignores_what_is_to_be_ignored(frozen):
    features, labels = frozen
    loss, logits, _ = probe_step({}, features, labels)
    ignoring = labels.clone()
    ignoring[:100] = -100
    part = loss(logits[100:], labels[100:], features[100:], update_statistics=False)
    torch.testing.assert_close(loss(logits, ignoring, features, update_statistics=False), part)


@pytest.mark.parametrize("name", ["plain", "paper", "release"])
def test_one_batch_of_all_samples_gives_the_same_statistics_in_every_preset(frozen, name):
    features, labels = frozen
    fitted, stepped = MR2Loss.preset(name, 5), MR2Loss.preset(name, 5)
    fitted.fit_statistics(iter(batches(features, labels)))  # an iterator can be read only once
    stepped(torch.zeros(400, 5, requires_grad=True), labels, features)
    for field in ("class_spread", "class_sqnorm"):
        torch.testing.assert_close(
            getattr(fitted.statistics, field), getattr(stepped.statistics, field), rtol=1e-4, atol=1e-4
        )
    torch.testing.assert_close(fitted.class_margins, stepped.class_margins, rtol=1e-4, atol=1e-5)
