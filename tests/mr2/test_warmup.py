"""Warm-up: margins stay at the mean and λ ramps up until the statistics mean something."""

import pytest
import torch
from mr2_batches import random_batches

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

STEPS = 4


def weights_and_margins(count, **options):
    """Return the λ in use and the margins after each of ``count`` steps."""
    loss = MR2Loss(5, mean_margin=2.0, representation_weight=0.8, **options)
    out = []
    for batch in random_batches(count, 24, 5, 3):
        terms = loss.terms(*batch)
        weight = (terms.total - terms.logit_margin) / terms.representation_margin
        out.append((weight.item(), loss.class_margins))
    return out


def test_weight_ramps_linearly_and_then_stays():
    weights = [weight for weight, _ in weights_and_margins(7, warmup_steps=STEPS)]
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8])


def test_margins_stay_at_the_mean_during_warmup_and_differ_after():
    margins = [margin for _, margin in weights_and_margins(7, warmup_steps=STEPS)]
    assert all(margin.tolist() == pytest.approx([2.0] * 5) for margin in margins[:STEPS])
    assert all(margin.std() > 0.01 for margin in margins[STEPS:])


def test_after_warmup_the_margins_are_those_without_warmup():
    with_warmup, without = weights_and_margins(7, warmup_steps=STEPS), weights_and_margins(7)
    torch.testing.assert_close(with_warmup[-1][1], without[-1][1])


def test_without_warmup_everything_counts_from_the_first_step():
    weight, margins = weights_and_margins(1)[0]
    assert weight == pytest.approx(0.8)
    assert margins.std() > 0.01


def test_steps_without_update_do_not_advance_the_warmup():
    loss = MR2Loss(5, representation_weight=0.8, warmup_steps=STEPS)
    batch = random_batches(1, 24, 5, 3)[0]
    values = [loss(*batch, update_statistics=False).item() for _ in range(10)]
    assert len(set(values)) == 1
    first = loss.terms(*batch)
    torch.testing.assert_close(first.total, first.logit_margin + 0.2 * first.representation_margin)


def test_warmup_goes_on_where_a_saved_state_left_it():
    batches = random_batches(7, 24, 5, 3)
    whole, part = (MR2Loss(5, warmup_steps=STEPS) for _ in range(2))
    straight = [whole(*batch).item() for batch in batches]
    for batch in batches[:2]:
        part(*batch)
    resumed = MR2Loss(5, warmup_steps=STEPS)
    resumed.load_state_dict(part.state_dict())
    assert [resumed(*batch).item() for batch in batches[2:]] == straight[2:]
