import pytest
import torch


def test_value_on_the_toy_batch(make, toy):
    assert make("erm").loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_uniform_logits_give_ln_k(make, toy):
    from dataclasses import replace

    uniform = replace(toy, logits=torch.zeros_like(toy.logits))
    assert make("erm").loss(uniform, True).total.item() == pytest.approx(1.0986123, abs=1e-6)


def test_label_smoothing_is_that_of_torch(make, toy):
    expected = torch.nn.functional.cross_entropy(toy.logits, toy.labels, label_smoothing=0.1)
    assert make("erm", label_smoothing=0.1).loss(toy, True).total == expected


def test_label_smoothing_of_one_is_refused(make):
    with pytest.raises(ValueError, match=r"label_smoothing must be >= 0 and < 1, got 1"):
        make("erm", label_smoothing=1.0)
