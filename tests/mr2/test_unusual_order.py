"""What users do in another order than expected: evaluate first, load an empty state, go on elsewhere, meet a class late."""

import copy

import pytest
import torch
import torch.nn.functional as F
from mr2_batches import random_batch, same_state, state

from classmargin.mr2 import PRESETS, MR2Loss

CONFIGURATIONS = {**PRESETS, "memory": {"positives": "memory", "memory_size": 2}}
every_configuration = pytest.mark.parametrize("name", list(CONFIGURATIONS))


def make(name, **options):
    return MR2Loss(5, **{**CONFIGURATIONS[name], **options})


def batch(seed=0, dtype=torch.float32):
    return random_batch(24, 5, 3, seed, dtype=dtype)


@every_configuration
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_evaluation_before_the_first_step_changes_nothing(name, mode):
    evaluated, fresh = make(name), make(name)
    with mode():
        evaluated.eval()(*batch(1))
    evaluated.train()
    for seed in range(3):
        assert evaluated(*batch(seed)).item() == fresh(*batch(seed)).item()
    assert same_state(state(evaluated), state(fresh))


@every_configuration
@pytest.mark.parametrize("feature_dim", [None, 3])
def test_a_state_from_before_the_first_batch_starts_anew(name, feature_dim):
    loss, fresh = make(name, feature_dim=feature_dim), make(name, feature_dim=feature_dim)
    beginning = copy.deepcopy(loss.state_dict())
    for seed in range(3):
        loss(*batch(seed))
    loss.load_state_dict(beginning)
    for seed in range(3, 6):
        assert loss(*batch(seed)).item() == fresh(*batch(seed)).item()
    assert same_state(state(loss), state(fresh))


def test_a_state_without_size_fits_a_loss_that_knows_its_own():
    sized = MR2Loss(5, feature_dim=3)
    sized.load_state_dict(MR2Loss(5).state_dict())
    assert sized(*batch()).item() == MR2Loss(5)(*batch()).item()


def test_the_peak_is_found_where_it_used_to_be_saved():
    loss = make("plain")
    loss(*batch())
    saved = {key.replace("scale.peak_variance", "peak_variance"): v for key, v in loss.state_dict().items()}
    assert "peak_variance" in saved
    restored = make("plain")
    restored.load_state_dict(saved)
    assert same_state(state(restored), state(loss))
    assert "peak_variance" in saved, "the caller's dictionary is the caller's"


def test_targets_that_require_grad_leave_no_graph_in_the_statistics():
    loss = make("recommended", warmup_steps=0)
    logits, _, features = batch()
    targets = torch.randn(24, 5, requires_grad=True)
    loss(logits, targets.softmax(1), features).backward()
    assert targets.grad.abs().sum() > 0
    assert not any(buffer.requires_grad for buffer in loss.buffers())
    copy.deepcopy(loss)(*batch(1)).backward()


@pytest.mark.parametrize("soft", [False, True])
def test_a_class_without_statistics_is_not_pulled(soft):
    loss = MR2Loss(3, positives="moments", representation_weight=1.0)
    generator = torch.Generator().manual_seed(0)
    known = torch.arange(32) % 2
    for _ in range(5):
        features = torch.randn(32, 4, generator=generator) + 20.0
        loss(torch.zeros(32, 3, requires_grad=True), known, features)
    features = (torch.randn(8, 4, generator=generator) + 20.0).requires_grad_()
    labels = torch.tensor([0, 2] * 4)
    targets = F.one_hot(labels, 3).float() if soft else labels
    terms = loss.terms(torch.zeros(8, 3, requires_grad=True), targets, features, update_statistics=False)
    (gradient,) = torch.autograd.grad(terms.representation_margin, features)
    assert gradient[labels == 2].abs().max() == 0.0
    assert gradient[labels == 0].abs().min(1).values.max() > 0.0
    alone = loss.terms(torch.zeros(4, 3), targets[1::2], features[1::2], update_statistics=False)
    assert alone.representation_margin.item() == 0.0


def test_class_weights_of_zero_with_smoothing_are_those_of_cross_entropy():
    weight = torch.tensor([0.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    options = {"margin_source": "uniform", "representation_weight": 0.0, "weight": weight}
    logits, labels, features = batch(dtype=torch.float64)
    ours = MR2Loss(5, label_smoothing=0.2, **options)(logits, labels, features)
    expected = F.cross_entropy(logits, labels, weight, label_smoothing=0.2)
    torch.testing.assert_close(ours, expected)


def test_meta_tensors_pass():
    loss = MR2Loss(5, feature_dim=3).to("meta")
    logits, labels, features = (part.to("meta") for part in batch())
    assert loss(logits, labels, features).shape == ()
