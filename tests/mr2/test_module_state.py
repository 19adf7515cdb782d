"""A well-behaved nn.Module: state moves, saves, loads, copies, and changes only when it should."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from mr2_batches import MR2Batch, gradients, random_batch, same_state, state
from torch import nn
from torch.func import functional_call

from classmargin.mr2 import PRESETS, MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

CONFIGURATIONS = {
    "default": {},
    "memory": {"positives": "memory", "memory_size": 2},
    "moments": {"positives": "moments"},
    "batch estimator": {"estimator": "batch"},
    "relative spread": {"margin_source": "relative-spread"},
    "recommended": {**PRESETS["recommended"], "warmup_steps": 2},
    "warm-up": {"warmup_steps": 4},
    "order three": {"norm_order": 3.0},
    "weight and prior": {"weight": torch.linspace(0.5, 2.0, 5), "log_prior": torch.linspace(-2.0, -1.0, 5)},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
every_configuration_once = pytest.mark.parametrize("name", list(CONFIGURATIONS))


def batches(count=4, start=0) -> list[MR2Batch]:
    return [random_batch(24, 5, 3, seed, dtype=torch.float32) for seed in range(start, start + count)]


def trained(options, count=3):
    loss = MR2Loss(5, **options)
    for batch in batches(count):
        loss(*batch)
    return loss


def next_losses(loss, count=3):
    """Return the losses of the next batches, and so what the state means."""
    return [loss(*batch).item() for batch in batches(count, start=50)]


@every_configuration_once
def test_saved_and_loaded_state_is_bit_identical(name):
    loss = trained(CONFIGURATIONS[name])
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    restored = MR2Loss(5, **CONFIGURATIONS[name])
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert same_state(state(restored), state(loss))
    assert next_losses(restored) == next_losses(loss)
    assert same_state(state(restored), state(loss))


@pytest.mark.parametrize("name", ["default", "memory", "batch estimator"])
def test_float64_state_is_restored_bit_identically(name):
    loss, restored = (MR2Loss(5, **CONFIGURATIONS[name]) for _ in range(2))
    for seed in range(3):
        loss(*random_batch(24, 5, 3, seed))
    restored.load_state_dict(loss.state_dict())
    assert same_state(state(restored), state(loss))


@every_configuration_once
def test_feature_dim_may_come_from_the_constructor_the_first_batch_or_a_loaded_state(name):
    given, taken = MR2Loss(5, feature_dim=3, **CONFIGURATIONS[name]), MR2Loss(5, **CONFIGURATIONS[name])
    assert next_losses(given) == next_losses(taken)
    loaded = MR2Loss(5, **CONFIGURATIONS[name])
    loaded.load_state_dict(state(taken))
    assert loaded.statistics.feature_dim == 3
    assert same_state(state(loaded), state(given))


def test_state_of_another_feature_dim_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        MR2Loss(5, feature_dim=4).load_state_dict(trained({}).state_dict())


def test_state_of_another_number_of_classes_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        MR2Loss(6).load_state_dict(trained({}).state_dict())


def test_all_state_is_in_buffers_and_none_in_parameters():
    loss = trained(CONFIGURATIONS["memory"])
    assert list(loss.parameters()) == []
    assert set(dict(loss.named_buffers())) == set(loss.state_dict())


def test_statistics_are_saved_inside_a_larger_module():
    model = nn.ModuleDict({"network": nn.Linear(3, 5), "loss": MR2Loss(5)})
    model["loss"](*batches(1)[0])
    restored = nn.ModuleDict({"network": nn.Linear(3, 5), "loss": MR2Loss(5)})
    restored.load_state_dict(model.state_dict())
    assert next_losses(restored["loss"]) == next_losses(model["loss"])


@every_configuration
def test_validation_never_touches_the_state(options):
    loss = trained(options)
    before = state(loss)
    loss.eval()
    loss(*batches(1, 9)[0])
    loss.train()
    with torch.no_grad():
        loss(*batches(1, 9)[0])
    with torch.inference_mode():
        loss(*batches(1, 9)[0])
    assert same_state(state(loss), before)


@every_configuration
def test_update_statistics_false_leaves_the_state_bit_identical(options):
    loss = trained(options)
    before = state(loss)
    loss(*batches(1, 9)[0], update_statistics=False)
    assert same_state(state(loss), before)


@pytest.mark.parametrize("preset", ["recommended", "plain", "paper", "release"])
def test_evaluation_before_the_first_batch_gives_an_ordinary_loss(preset):
    """Some training loops try validation first; nothing is known then, so margins are equal."""
    loss = MR2Loss.preset(preset, 5).eval()
    batch = batches(1)[0]
    terms = loss.terms(*batch)
    assert not loss.statistics.seen.any()
    assert loss.class_margins.tolist() == pytest.approx([loss.mean_margin] * 5)
    expected = F.cross_entropy(batch.logits / loss.mean_margin, batch.labels)
    torch.testing.assert_close(terms.logit_margin, expected)
    assert terms.total < 100
    assert all(gradient.isfinite().all() for gradient in gradients(terms.total, batch))


@every_configuration
def test_update_statistics_true_updates_also_in_evaluation(options):
    trains, evaluates = trained(options), trained(options)
    batch = batches(1, 9)[0]
    trains(*batch)
    evaluates.eval()
    with torch.no_grad():
        evaluates(*batch, update_statistics=True)
    for name, value in state(trains).items():
        torch.testing.assert_close(state(evaluates)[name], value)


def test_statistics_move_once_per_call_and_in_place():
    loss = MR2Loss(5, feature_dim=3)
    places = {name: buffer.data_ptr() for name, buffer in loss.named_buffers()}
    for step, batch in enumerate(batches(3), 1):
        loss(*batch)
        assert loss.statistics.updates.item() == step
    assert {name: buffer.data_ptr() for name, buffer in loss.named_buffers()} == places


def test_a_second_pass_like_that_of_sam_sees_the_same_margins():
    loss = trained({})
    batch = batches(1, 9)[0]
    first = loss(*batch)
    margins = loss.class_margins
    second = loss(*batch, update_statistics=False)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(loss.class_margins, margins, rtol=0, atol=0)


@every_configuration
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_are_equal_and_independent(options, copier):
    loss = trained(options)
    twin = copier(loss)
    before = state(loss)
    ours = next_losses(twin)
    assert same_state(state(loss), before)
    assert next_losses(loss) == ours


@every_configuration
def test_double_moves_the_statistics_and_keeps_their_values(options):
    loss = trained(options)
    before = loss.class_margins
    loss.to(torch.float64)
    assert all(b.dtype == torch.float64 for b in loss.buffers() if b.is_floating_point())
    torch.testing.assert_close(loss.class_margins, before.double(), rtol=1e-6, atol=1e-6)
    batch = random_batch(24, 5, 3, seed=9)
    assert loss(*batch).dtype == torch.float64


def test_meta_device_moves_every_buffer():
    assert all(
        buffer.device.type == "meta" for buffer in trained(CONFIGURATIONS["memory"]).to("meta").buffers()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("positives", ["batch", "memory", "moments"])
def test_casting_a_whole_model_to_half_precision_does_not_break_the_loss(dtype, positives):
    """``model.half()`` reaches a loss kept inside the model."""
    loss = MR2Loss(5, positives=positives).to(dtype)
    for batch in batches(3):
        batch = batch._replace(
            logits=batch.logits.detach().to(dtype).requires_grad_(),
            features=(300 * batch.features.detach()).to(dtype).requires_grad_(),
        )
        total = loss(*batch)
        assert total.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients(total, batch))
    exact = MR2Loss(5)
    for batch in batches(3):
        exact(batch.logits, batch.labels, 300 * batch.features)
    torch.testing.assert_close(loss.class_margins.float(), exact.class_margins, rtol=0.05, atol=0.05)


def test_functional_call_uses_and_moves_the_given_buffers():
    loss, reference = MR2Loss(5, feature_dim=3), MR2Loss(5, feature_dim=3)
    buffers = {name: value.clone() for name, value in trained({}).state_dict().items()}
    reference.load_state_dict(buffers)
    untouched = state(loss)
    for batch in batches(3, 20):
        ours = functional_call(loss, buffers, tuple(batch))
        torch.testing.assert_close(ours, reference(*batch))
    assert same_state(state(loss), untouched)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(buffers[name], value)


def test_functional_gradient_equals_autograd():
    loss = trained({})
    buffers, batch = state(loss), batches(1, 20)[0]
    function = lambda z, x: functional_call(loss, buffers, (z, batch.labels, x), {"update_statistics": False})
    ours = torch.func.grad(function, argnums=(0, 1))(batch.logits.detach(), batch.features.detach())
    expected = gradients(loss(*batch, update_statistics=False), batch)
    torch.testing.assert_close(ours, expected)


def test_training_loop_interrupted_and_resumed_equals_the_straight_run():
    def run(loss, encoder, head, optimizer, steps):
        for step in steps:
            batch = random_batch(24, 5, 3, step, dtype=torch.float32, gradients=False)
            features = encoder(batch.features)
            optimizer.zero_grad()
            loss(head(features), batch.labels, features).backward()
            optimizer.step()

    def fresh():
        torch.manual_seed(0)
        encoder, head, loss = nn.Linear(3, 4), nn.Linear(4, 5), MR2Loss(5, positives="memory", warmup_steps=3)
        return (
            loss,
            encoder,
            head,
            torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1, momentum=0.9),
        )

    straight = fresh()
    run(*straight, range(8))
    first = fresh()
    run(*first, range(5))
    second = fresh()
    for target, source in zip(second, first, strict=True):
        target.load_state_dict(copy.deepcopy(source.state_dict()))
    run(*second, range(5, 8))
    for ours, expected in zip(second[:3], straight[:3], strict=True):
        assert same_state(state(ours), state(expected))


def test_printing_shows_the_arguments_that_matter():
    text = repr(MR2Loss(5, mean_margin=2.0, positives="memory", warmup_steps=7))
    for words in ("num_classes=5", "mean_margin=2", "positives='memory'", "warmup_steps=7", "ema_decay=0.9"):
        assert words in text
