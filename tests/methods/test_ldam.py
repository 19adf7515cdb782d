from dataclasses import replace

import pytest
import torch

from classmargin.methods import Step, method_info, requirements_of
from classmargin.methods.ldam import frequency_margins

COSINES = torch.tensor([[0.5, 0.4, 0.3], [0.2, 0.3, 0.6]], dtype=torch.float64)
BATCH = Step(COSINES, COSINES, torch.tensor([0, 2]), torch.arange(2))


def test_margins_of_counts_100_10_1():
    margins = frequency_margins(torch.tensor([100, 10, 1]), 0.5)
    torch.testing.assert_close(margins, torch.tensor([0.158114, 0.281171, 0.5], dtype=torch.float64), rtol=0, atol=1e-6)


def test_value_of_counts_100_10_1(make):
    method = make("ldam", (100, 10, 1))
    one_by_one = [
        method.loss(replace(BATCH, logits=COSINES[i : i + 1], labels=BATCH.labels[i : i + 1]), True).total.item()
        for i in range(2)
    ]
    assert one_by_one == pytest.approx([1.946120, 6.050946], abs=1e-5)  # float32 margins times scale 30
    assert method.loss(BATCH, True).total.item() == pytest.approx(3.998533, abs=1e-5)


def test_value_on_balanced_data_is_not_cross_entropy(make):
    assert make("ldam", (5, 5, 5)).loss(BATCH, True).total.item() == pytest.approx(9.049769, abs=1e-6)


def test_deferred_weights_switch_on_at_their_share_of_the_epochs(make):
    method = make("ldam-drw", (100, 10, 1))  # 10 epochs: epochs 8 and 9 are weighted
    assert method.loss(replace(BATCH, epoch=7), True).total.item() == pytest.approx(3.998533, abs=1e-5)
    assert method.loss(replace(BATCH, epoch=8), True).total.item() == pytest.approx(6.010104, abs=1e-5)


def test_deferred_weights_do_nothing_on_balanced_data(make):
    plain, deferred = make("ldam", (5, 5, 5)), make("ldam-drw", (5, 5, 5))
    late = replace(BATCH, epoch=9)
    assert deferred.loss(late, True).total.item() == pytest.approx(plain.loss(late, True).total.item(), abs=1e-6)


def test_a_very_late_epoch_still_works(make):
    assert torch.isfinite(make("ldam-drw", (100, 10, 1)).loss(replace(BATCH, epoch=400), True).total)


def test_both_names_ask_for_a_cosine_head():
    assert requirements_of("ldam").head == requirements_of("ldam-drw").head == "cosine"


@pytest.mark.parametrize("name", ["ldam", "ldam-drw"])
def test_logits_of_a_linear_head_are_refused(make, toy, name):
    with pytest.raises(ValueError, match="logits must be cosines"):
        make(name).loss(toy, True)


def test_a_small_margin_for_balanced_data_is_searched(make):
    assert 0.1 in method_info("ldam").search["max_margin"]
    # s = 30, margin 0.1: the own cosine of 0.5 becomes 0.4, that of 0.6 becomes 0.5.
    expected = torch.nn.functional.cross_entropy(
        30 * torch.tensor([[0.4, 0.4, 0.3], [0.2, 0.3, 0.5]], dtype=torch.float64), BATCH.labels
    ).item()
    assert make("ldam", (5, 5, 5), max_margin=0.1).loss(BATCH, True).total.item() == pytest.approx(expected, abs=1e-5)
