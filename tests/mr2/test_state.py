"""A well-behaved nn.Module: state moves, saves, loads, copies, and changes only when it should."""

import copy
import io
import pickle

import pytest
import torch
from mr2_batches import MR2Batch, gradients, random_batch, same_state, state
from torch import nn
from torch.func import functional_call

from classmargin.mr2 import MR2Loss

CONFIGURATIONS = {
    "recommended": {},
    "paper": {"representation": "pairs", "margin_source": "sqnorm", "mean_margin": 2.0},
    "release": {"representation": "released", "margin_source": "sqnorm", "norm_order": 5.0},
    "spread": {"margin_source": "spread"},
    "weight and prior": {"weight": torch.linspace(0.5, 2.0, 5), "log_prior": torch.linspace(-2.0, -1.0, 5)},
    "accumulating": {"accumulate": 2, "margin_source": "spread"},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)


def batches(count=4, start=0) -> list[MR2Batch]:
    return [random_batch(24, 5, 3, seed, dtype=torch.float32) for seed in range(start, start + count)]


def trained(options, count=3):
    loss = MR2Loss.build(5, **options)
    for batch in batches(count):
        loss(*batch)
    return loss


def next_losses(loss, count=3):
    """Return the losses of the next batches, and so what the state means."""
    return [loss(*batch).item() for batch in batches(count, start=50)]


# --- saving, loading, copying -------------------------------------------------------------------------------------


@every_configuration
@pytest.mark.parametrize("weights_of", ["file", "memory"])
def test_saved_loaded_and_continued_is_bit_identical(options, weights_of):
    loss, restored = trained(options), MR2Loss.build(5, **options)
    saved = loss.state_dict()
    if weights_of == "file":
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    restored.load_state_dict(saved)
    assert same_state(state(restored), state(loss))
    assert next_losses(restored) == next_losses(loss)
    assert same_state(state(restored), state(loss))


@every_configuration
def test_float64_state_is_restored_bit_identically(options):
    loss, restored = MR2Loss.build(5, **options), MR2Loss.build(5, **options)
    for seed in range(3):
        loss(*random_batch(24, 5, 3, seed))
    restored.load_state_dict(loss.state_dict())
    assert restored.statistics.averages.dtype == torch.float64
    assert torch.equal(restored.statistics.averages, loss.statistics.averages)


@every_configuration
def test_feature_dim_may_come_from_the_constructor_the_first_batch_or_a_loaded_state(options):
    given, taken = MR2Loss.build(5, feature_dim=3, **options), MR2Loss.build(5, **options)
    assert next_losses(given) == next_losses(taken)
    loaded = MR2Loss.build(5, **options)
    loaded.load_state_dict(state(taken))
    assert same_state(state(loaded), state(given))


@every_configuration
@pytest.mark.parametrize("feature_dim", [None, 3])
def test_a_state_from_before_the_first_batch_starts_anew(options, feature_dim):
    loss, fresh = (MR2Loss.build(5, feature_dim=feature_dim, **options) for _ in range(2))
    beginning = copy.deepcopy(loss.state_dict())
    next_losses(loss)
    loss.load_state_dict(beginning)
    assert next_losses(loss) == next_losses(fresh)
    assert same_state(state(loss), state(fresh))


def test_a_state_without_size_fits_a_loss_that_knows_its_own():
    sized = MR2Loss(5, feature_dim=3)
    sized.load_state_dict(MR2Loss(5).state_dict())
    assert next_losses(sized) == next_losses(MR2Loss(5))


@pytest.mark.parametrize("other", [{"num_classes": 5, "feature_dim": 4}, {"num_classes": 6}])
def test_state_of_another_size_is_refused(other):
    with pytest.raises(RuntimeError, match="size mismatch"):
        MR2Loss(**other).load_state_dict(trained({}).state_dict())


def test_all_state_is_in_buffers_and_none_in_parameters():
    loss = trained({})
    assert list(loss.parameters()) == []
    assert set(dict(loss.named_buffers())) == set(loss.state_dict())


def test_statistics_are_saved_inside_a_larger_module():
    model, restored = (nn.ModuleDict({"network": nn.Linear(3, 5), "loss": MR2Loss(5)}) for _ in range(2))
    model["loss"](*batches(1)[0])
    restored.load_state_dict(model.state_dict())
    assert next_losses(restored["loss"]) == next_losses(model["loss"])


@every_configuration
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_are_equal_and_independent(options, copier):
    loss = trained(options)
    twin, before = copier(loss), state(loss)
    ours = next_losses(twin)
    assert same_state(state(loss), before)
    assert next_losses(loss) == ours


def test_training_interrupted_and_resumed_equals_the_straight_run():
    def run(loss, encoder, head, optimizer, steps):
        for step in steps:
            batch = random_batch(24, 5, 3, step, dtype=torch.float32, gradients=False)
            features = encoder(batch.features)
            optimizer.zero_grad()
            loss(head(features), batch.labels, features).backward()
            optimizer.step()

    def fresh():
        torch.manual_seed(0)
        encoder, head, loss = nn.Linear(3, 4), nn.Linear(4, 5), MR2Loss(5, margin_source="spread")
        parameters = [*encoder.parameters(), *head.parameters()]
        return loss, encoder, head, torch.optim.SGD(parameters, 0.1, momentum=0.9)

    straight, first, second = fresh(), fresh(), fresh()
    run(*straight, range(8))
    run(*first, range(5))
    for target, source in zip(second, first, strict=True):
        target.load_state_dict(copy.deepcopy(source.state_dict()))
    run(*second, range(5, 8))
    for ours, expected in zip(second[:3], straight[:3], strict=True):
        assert same_state(state(ours), state(expected))


# --- when the state moves -----------------------------------------------------------------------------------------


@every_configuration
def test_validation_never_touches_the_state(options):
    loss = trained(options)
    before, batch = state(loss), batches(1, 9)[0]
    for call in (loss, loss.terms):
        loss.eval()
        call(*batch)
        loss.train()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                call(*batch)
    loss(*batch, update_statistics=False)
    assert same_state(state(loss), before)


@every_configuration
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_evaluation_before_the_first_step_changes_nothing(options, mode):
    evaluated, fresh = MR2Loss.build(5, **options), MR2Loss.build(5, **options)
    with mode():
        evaluated.eval()(*batches(1)[0])
        evaluated.terms(*batches(1)[0])
    evaluated.train()
    assert next_losses(evaluated) == next_losses(fresh)
    assert same_state(state(evaluated), state(fresh))


@pytest.mark.parametrize("name", ["recommended", "paper", "release", "spread"])
def test_update_statistics_true_updates_also_in_evaluation(name):
    trains, evaluates = (trained(CONFIGURATIONS[name]) for _ in range(2))
    batch = batches(1, 9)[0]
    trains(*batch)
    evaluates.eval()
    with torch.no_grad():
        evaluates.terms(*batch, update_statistics=True)
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
    loss, batch = trained({"margin_source": "spread"}), batches(1, 9)[0]
    first, margins = loss(*batch), loss.class_margins
    torch.testing.assert_close(first, loss(*batch, update_statistics=False))
    assert torch.equal(loss.class_margins, margins)


@pytest.mark.parametrize("preset", ["recommended", "paper", "release"])
def test_accumulation_moves_the_statistics_once_per_optimiser_step(preset):
    accumulating, once = MR2Loss.preset(preset, 5, accumulate=3), MR2Loss.preset(preset, 5)
    for step, batch in enumerate(batches(9)):
        accumulating(*batch)
        if step % 3 == 0:
            once(*batch)
        assert accumulating.statistics.updates.item() == step // 3 + 1
        assert torch.equal(accumulating.statistics.averages, once.statistics.averages)
    assert accumulating.calls.item() == 9


def test_all_micro_batches_of_a_step_see_the_same_margins():
    loss, seen = MR2Loss(5, accumulate=4, margin_source="spread"), []
    for batch in batches(8):
        loss(*batch)
        seen.append(loss.class_margins)
    assert all(torch.equal(margins, seen[0]) for margins in seen[:4])
    assert all(torch.equal(margins, seen[4]) for margins in seen[4:])
    assert not torch.equal(seen[0], seen[4])


@pytest.mark.parametrize("stop", [1, 2, 4, 5])
def test_the_place_inside_an_accumulation_is_saved(stop):
    straight, first, second = (MR2Loss(5, accumulate=3, margin_source="spread") for _ in range(3))
    expected = [straight(*batch).item() for batch in batches(8)]
    found = [first(*batch).item() for batch in batches(stop)]
    second.load_state_dict(first.state_dict())
    found += [second(*batch).item() for batch in batches(8 - stop, start=stop)]
    assert found == expected
    assert same_state(state(second), state(straight))


def test_evaluation_does_not_count_as_a_micro_batch():
    loss = MR2Loss(5, accumulate=2)
    loss(*batches(1)[0])
    loss.eval()(*batches(1)[0])
    loss.train()(*batches(1)[0], update_statistics=False)
    assert loss.calls.item() == 1


# --- types and devices --------------------------------------------------------------------------------------------


@every_configuration
def test_double_moves_the_statistics_and_keeps_their_values(options):
    loss = trained(options)
    before = loss.class_margins
    loss.to(torch.float64)
    assert all(b.dtype == torch.float64 for b in loss.buffers() if b.is_floating_point())
    torch.testing.assert_close(loss.class_margins, before.double(), rtol=1e-6, atol=1e-6)
    assert loss(*random_batch(24, 5, 3, seed=9)).dtype == torch.float64


def test_meta_device_moves_every_buffer():
    assert all(buffer.device.type == "meta" for buffer in trained({}).to("meta").buffers())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["recommended", "paper", "release", "spread"])
def test_casting_a_whole_model_to_half_precision_does_not_break_the_loss(dtype, name):
    """``model.half()`` reaches a loss kept inside the model."""
    loss, exact = MR2Loss.build(5, **CONFIGURATIONS[name]).to(dtype), MR2Loss.build(5, **CONFIGURATIONS[name])
    for batch in batches(3):
        half = batch._replace(
            logits=batch.logits.detach().to(dtype).requires_grad_(),
            features=(300 * batch.features.detach()).to(dtype).requires_grad_(),
        )
        total = loss(*half)
        assert total.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients(total, half))
        exact(batch.logits, batch.labels, 300 * batch.features)
    assert loss.statistics.averages.dtype == torch.float32
    torch.testing.assert_close(loss.class_margins, exact.class_margins, rtol=0.05, atol=0.05)


# --- functional use -----------------------------------------------------------------------------------------------


def test_functional_call_uses_and_moves_the_given_buffers():
    loss, reference = MR2Loss(5, feature_dim=3), MR2Loss(5, feature_dim=3)
    buffers = {name: value.clone() for name, value in trained({}).state_dict().items()}
    reference.load_state_dict(buffers)
    untouched = state(loss)
    for batch in batches(3, 20):
        torch.testing.assert_close(functional_call(loss, buffers, tuple(batch)), reference(*batch))
    assert same_state(state(loss), untouched)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(buffers[name], value)


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_functional_gradient_equals_autograd(name):
    loss = trained(CONFIGURATIONS[name])
    buffers, batch = state(loss), batches(1, 20)[0]
    function = lambda z, x: functional_call(loss, buffers, (z, batch.labels, x), {"update_statistics": False})
    ours = torch.func.grad(function, argnums=(0, 1))(batch.logits.detach(), batch.features.detach())
    torch.testing.assert_close(ours, gradients(loss(*batch, update_statistics=False), batch))


def test_printing_shows_the_arguments_that_matter():
    text = repr(MR2Loss(5, mean_margin=2.0, margin_source="spread"))
    for words in (
        "num_classes=5",
        "mean_margin=2",
        "margin_source='spread'",
        "ema_decay=0.9",
        "label_smoothing=0.1",
    ):
        assert words in text
