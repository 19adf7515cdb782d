from dataclasses import replace

import pytest
import torch
from torch import nn

from classmargin._types import ModelOutput
from classmargin.methods import requirements_of

NEAR = torch.tensor([[1, 1], [0, 2], [3, 1]], dtype=torch.float64)
FAR = torch.tensor([[0, 0], [0, 2], [2, 1]], dtype=torch.float64)


def scored(toy, means):
    distances = 0.5 * (toy.features[:, None] - means).square().sum(-1)
    return replace(toy, logits=-distances)


def test_values_with_means_near_the_features(make, toy):
    loss = make("lgm", start_margin=0.3).loss(scored(toy, NEAR), True)
    assert loss.parts["classification"].item() == pytest.approx(0.391406, abs=1e-6)
    assert loss.parts["likelihood"].item() == pytest.approx(0.25, abs=1e-9)
    assert loss.total.item() == pytest.approx(0.416406, abs=1e-6)


def test_values_with_means_elsewhere(make, toy):
    method = make("lgm", start_margin=0.3)
    each = [
        method.loss(
            replace(scored(toy, FAR), logits=scored(toy, FAR).logits[i : i + 1], labels=toy.labels[i : i + 1]),
            True,
        ).parts["classification"]
        for i in range(4)
    ]
    assert [e.item() for e in each] == pytest.approx([0.621611, 0.196734, 0.025486, 3.263098], abs=1e-6)
    assert method.loss(scored(toy, FAR), True).total.item() == pytest.approx(1.114232, abs=1e-6)


def test_predictions_are_distances_without_margin(make, toy):
    scores = make("lgm").predict(ModelOutput(toy.features, scored(toy, NEAR).logits))
    assert scores.argmax(dim=1).tolist() == [0, 1, 2, 0]
    assert torch.equal(scores, scored(toy, NEAR).logits)


def test_margin_doubles_from_start_to_its_final_value(make):
    method = make("lgm")  # 10 epochs of 4 steps: doubling every 40/24 steps
    assert [method.margin_at(step) for step in (0, 1, 2, 3, 4, 39)] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


def test_logits_of_a_linear_head_are_refused(make, toy):
    with pytest.raises(ValueError, match="head 'gaussian'"):
        make("lgm").loss(toy, True)


def test_the_gaussian_head_is_declared():
    assert requirements_of("lgm").head == "gaussian"


def test_no_margin_and_no_likelihood_is_cross_entropy_on_distances(make, toy):
    step = scored(toy, FAR)
    loss = make("lgm", margin=0.0, start_margin=0.0, likelihood_weight=0.0).loss(step, True).total
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(step.logits, step.labels))


@pytest.mark.parametrize(
    ("encoder", "warns"),
    [
        (nn.Linear(3, 2), True),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), False),
        (nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), False),
        (nn.Flatten(), False),
        (nn.Linear(3, 2).requires_grad_(False), False),
    ],
)
def test_an_encoder_that_learns_without_normalisation_is_warned_about(make, caplog, encoder, warns):
    class Context:
        model = nn.Module()

    Context.model.encoder = encoder
    make("lgm").on_stage_start(Context())
    assert ("collapse" in caplog.text) == warns
