"""The loop on toy parts: hooks, state, accumulation, averages, divergence, interruption."""

from __future__ import annotations

import json
import signal

import pytest
import torch

from classmargin.methods.base import Method, MethodLoss, Stage
from classmargin.training.stopping import DivergedError, StoppedError, StopRequest
from trees import same


def final_state(loop) -> dict:
    return {
        "network": dict(loop.network.state_dict()),
        "method": dict(loop.method.state_dict()),
        "optimizer": loop.optimizer.state_dict(),
    }


def test_training_learns_the_toy_classes(toy):
    loop = toy.loop(loop={"epochs": 12})
    loop.run()
    assert loop._last.overall >= 0.9


def test_same_seed_gives_the_same_weights_and_metrics(toy):
    first, second = toy.loop("a"), toy.loop("b")
    first.run()
    second.run()
    assert same(final_state(first), final_state(second))
    assert (toy.folder / "a/metrics.jsonl").read_bytes() == (toy.folder / "b/metrics.jsonl").read_bytes()


def test_another_seed_gives_other_weights(toy):
    first, second = toy.loop("a"), toy.loop("b", loop={"seed": 6})
    first.run()
    second.run()
    assert not same(final_state(first), final_state(second))


class Cut(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("cut_at", [1, 2, 4, 5, 8, 11])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"loop": {"ema_decay": 0.9, "select": "overall", "checkpoint_steps": 1}},
        {"loop": {"swa_start": 0.3, "checkpoint_steps": 1}},
    ],
    ids=["plain", "averaged", "averaged epochs"],
)
def test_a_cut_run_ends_bit_identical_to_an_uncut_one(toy, cut_at, extra):
    whole = toy.loop("whole", **extra)
    expected = whole.run()
    cut = toy.loop("cut", **extra)

    def after_step():
        if cut.position.global_step + 1 == cut_at:
            raise Cut
        type(cut.weights).after_step(cut.weights)

    cut.weights.after_step = after_step
    with pytest.raises(Cut):
        cut.run()
    resumed = toy.loop("cut", **extra)
    result = resumed.run()
    assert same(final_state(whole), final_state(resumed))
    assert same(dict(expected.state_dict()), dict(result.state_dict()))
    for name in ("metrics.jsonl", "metrics.csv", "class_accuracy.csv"):
        assert (toy.folder / "whole" / name).read_bytes() == (toy.folder / "cut" / name).read_bytes()


def test_state_updates_once_per_optimiser_step_also_with_accumulation(toy):
    loop = toy.loop(loop={"accumulate": 4})
    loop.run()
    steps = loop.position.global_step
    assert steps == 3 * 4
    assert int(loop.method.updates) == steps


def test_accumulation_equals_the_whole_batch(toy):
    weights = []
    for name, accumulate in (("whole", 1), ("parts", 3)):
        torch.manual_seed(1)
        network = toy.Network(dropout=0.0)
        network.encoder[1] = torch.nn.Identity()  # batch norm sees micro-batches, so it cannot be equal
        loop = toy.loop(name, network=network.double(), loaders=DoubleLoaders(toy), loop={"accumulate": accumulate})
        loop.method.double()
        loop.run()
        weights.append(loop.network.state_dict())
    for key in weights[0]:
        torch.testing.assert_close(weights[0][key], weights[1][key], rtol=1e-10, atol=1e-12)


def DoubleLoaders(toy):
    loaders = toy.Loaders(16)
    loaders.train = (loaders.train[0].double(), loaders.train[1])
    loaders.validation = (loaders.validation[0].double(), loaders.validation[1])
    return loaders


def test_own_parameters_of_the_method_move_with_their_own_scale(toy):
    loop = toy.loop()
    loop.run()
    assert float(loop.method.scale.detach()) != 1.0
    scales = [group["lr_scale"] for group in loop.optimizer.param_groups]
    rates = [group["lr"] for group in loop.optimizer.param_groups]
    assert scales == [1.0, 0.5]
    assert rates[1] == pytest.approx(0.5 * rates[0])


class HookMethod(Method):
    """Writes down every hook with what it saw."""

    def __init__(self, task) -> None:
        super().__init__(task)
        self.seen: list[tuple] = []
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def stages(self, epochs):
        return [
            Stage("first", 1),
            Stage(
                "second",
                epochs - 1,
                fresh_model=True,
                train="head",
                sampler="class-balanced",
                views=2,
                learning_rate_scale=0.5,
            ),
        ]

    def loss(self, step, update_state):
        assert step.logits.requires_grad
        self.seen.append(("loss", step.stage, step.views, step.epoch, step.global_step))
        total = torch.nn.functional.cross_entropy(step.logits, step.labels)
        return MethodLoss(total, {})

    def sample_multiplicity(self, stage):
        return None if stage == 0 else torch.full((50,), 2)

    def on_stage_start(self, context):
        self.seen.append(("stage start", context.stage, context.epoch, context.global_step, context.epochs))

    def on_stage_end(self, context):
        index = torch.cat([step.index for step in context.training_pass()])
        assert index.tolist() == list(range(50))
        self.passes += 1
        self.seen.append(("stage end", context.stage))

    def on_epoch_start(self, context):
        self.seen.append(("epoch start", context.epoch))

    def on_epoch_end(self, context):
        assert not any(step.logits.requires_grad for step in context.training_pass())
        self.seen.append(("epoch end", context.epoch))

    def on_step_end(self, step):
        assert not step.features.requires_grad
        self.seen.append(("step end", step.global_step, len(step.labels)))


def test_hooks_run_in_the_documented_order(toy):
    method = HookMethod(toy.task())
    loop = toy.loop(method=method, loop={"epochs": 2, "batch_size": 25, "accumulate": 2})
    first = loop.network
    loop.run()
    assert method.seen[0] == ("stage start", 0, 0, 0, 2)
    step = ["loss", "loss", "step end"]
    one_stage = ["stage start", "epoch start", *step, *step, "epoch end", "stage end"]
    assert [entry[0] for entry in method.seen] == one_stage * 2
    assert ("step end", 1, 25) in method.seen
    assert ("step end", 2, 50) in method.seen, "two views in the second stage"
    assert ("stage start", 1, 1, 2, 2) in method.seen
    assert loop.network is not first, "a fresh network in the second stage"
    assert loop.loaders.asked[0] == {"sampler": None, "views": None, "multiplicity": None}
    assert loop.loaders.asked[1]["sampler"] == "class-balanced"
    assert loop.loaders.asked[1]["multiplicity"].tolist() == [2] * 50


def test_a_stage_that_trains_the_head_leaves_the_encoder_alone(toy):
    loop = toy.loop(method=HookMethod(toy.task()), loop={"epochs": 3})
    encoders = []
    enter = loop._enter_stage

    def remember(stage):
        enter(stage)
        encoders.append({name: value.clone() for name, value in loop.network.encoder.state_dict().items()})

    loop._enter_stage = remember
    loop.run()
    assert same(encoders[1], dict(loop.network.encoder.state_dict())), "weights and running statistics"


@pytest.mark.parametrize("cut_at", [1, 4, 5, 9])
def test_a_staged_method_resumes_bit_identical(toy, cut_at):
    whole = toy.loop("whole", method=HookMethod(toy.task()))
    whole.run()
    cut = toy.loop("cut", method=HookMethod(toy.task()), loop={"checkpoint_steps": 1})
    toy.run_until(cut, cut_at)
    resumed = toy.loop("cut", method=HookMethod(toy.task()))
    resumed.run()
    assert same(final_state(whole), final_state(resumed))


class BreaksAtStep(Method):
    def loss(self, step, update_state):
        total = torch.nn.functional.cross_entropy(step.logits, step.labels)
        return MethodLoss(total * float("nan") if step.global_step == 6 else total, {})


def test_a_loss_that_is_not_a_number_stops_with_the_batch_and_the_state(toy):
    loop = toy.loop(method=BreaksAtStep(toy.task()))
    with pytest.raises(
        DivergedError, match=r"loss is nan at step 6 .* index \d+, \d+.*failure/step-00000006"
    ) as caught:
        loop.run()
    record = json.loads((toy.folder / "run/failure/step-00000006/failure.json").read_text())
    indices = record["processes"][0]["sample_index"]
    assert len(indices) == 16
    assert str(indices[0]) in str(caught.value)
    assert (toy.folder / "run/failure/step-00000006/tensors.safetensors").exists()
    assert [path.name for path in (toy.folder / "run/checkpoint").iterdir()] == ["step-00000004"], "the good one stays"
    assert all(torch.isfinite(value).all() for value in loop.network.state_dict().values()), "no weight has moved"


@pytest.mark.parametrize("step", [6, 4, 12], ids=["within", "end of an epoch", "end of the training"])
def test_a_stop_request_saves_and_the_run_goes_on_identical(toy, step):
    whole = toy.loop("whole")
    whole.run()
    stopped = toy.loop("stopped")
    tell = stopped.weights.after_step

    def ask():
        tell()
        if stopped.position.global_step == step - 2:
            stopped.stop.signal_number = 15

    stopped.weights.after_step = ask
    with pytest.raises(StoppedError, match=f"step {step};") as caught:
        stopped.run()
    assert caught.value.exit_code == 143
    resumed = toy.loop("stopped")
    resumed.run()
    assert same(final_state(whole), final_state(resumed))
    for name in ("metrics.jsonl", "metrics.csv"):
        assert (toy.folder / "whole" / name).read_bytes() == (toy.folder / "stopped" / name).read_bytes()


@pytest.mark.parametrize("epoch", [1, 3], ids=["in between", "the last"])
def test_a_signal_during_an_evaluation_stops_the_run_before_anything_else(toy, epoch):
    whole = toy.loop("whole")
    whole.run()
    stopped = toy.loop("stopped")
    evaluate, steps = stopped._evaluate, 4 * epoch

    def ask():
        if stopped.position.epoch == epoch:
            signal.raise_signal(signal.SIGTERM)
        evaluate()

    stopped._evaluate = ask
    with pytest.raises(StoppedError, match=f"step {steps};") as caught:
        stopped.run()
    assert caught.value.exit_code == 143
    assert stopped.recorder._store.paths()[0].name == f"step-{steps:08d}"
    resumed = toy.loop("stopped")
    resumed.run()
    assert same(final_state(whole), final_state(resumed))
    assert (toy.folder / "whole/metrics.jsonl").read_bytes() == (toy.folder / "stopped/metrics.jsonl").read_bytes()


@pytest.fixture
def interruptible():
    """Make SIGINT raise KeyboardInterrupt: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_after_the_last_save_is_not_swallowed(toy):
    """It has the effect it has when nothing handles it: the run is whole, only its evaluation on the test set is missing."""
    loop = toy.loop()
    close = loop.recorder.close

    def late():
        loop.stop.signal_number = signal.SIGINT
        close()

    loop.recorder.close = late
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.position.epoch == 3


def test_a_signal_that_is_ignored_stays_ignored():
    """As in background jobs of a script, which Ctrl-C is not meant for; the signal of a scheduler is still answered."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = StopRequest()
    try:
        with stop.listening():
            signal.raise_signal(signal.SIGINT)
            assert not stop
            signal.raise_signal(signal.SIGTERM)
            assert stop.signal_number == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class RefusesNonFinite(Method):
    """Refuses what is not finite with an error of its own, as MR² does."""

    def loss(self, step, update_state):
        if not torch.isfinite(step.features).all():
            raise ValueError("features must be finite")
        return MethodLoss(torch.nn.functional.cross_entropy(step.logits, step.labels), {})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_method_that_refuses_broken_features_stops_the_run_like_a_broken_loss(toy, accumulate):
    loop = toy.loop(method=RefusesNonFinite(toy.task()), loop={"accumulate": accumulate})
    loop.network.head.weight.data.fill_(1.0)
    loop.network.encoder[0].register_forward_hook(
        lambda layer, inputs, output: output * (float("inf") if loop.position.global_step == 6 else 1.0)
    )
    with pytest.raises(DivergedError, match=r"loss is nan at step 6 .*failure/step-00000006"):
        loop.run()


def test_an_error_of_a_method_with_finite_features_is_its_own(toy):
    class Wrong(Method):
        def loss(self, step, update_state):
            raise ValueError("labels must be sorted")

    with pytest.raises(ValueError, match="labels must be sorted"):
        toy.loop(method=Wrong(toy.task())).run()


def test_weights_that_are_no_numbers_are_never_saved_as_a_checkpoint(toy):
    """The loss of the last step was finite, its gradient was not."""
    loop = toy.loop(loop={"checkpoint_steps": 1})
    follow = loop.weights.after_step

    def overflow():
        follow()
        if loop.position.global_step == 5:
            loop.network.head.weight.data[0, 0] = float("inf")

    loop.weights.after_step = overflow
    with pytest.raises(DivergedError, match=r"a weight is no longer a number at step 6 .*failure"):
        loop.run()
    kept = sorted(path.name for path in (toy.folder / "run/checkpoint").iterdir())
    assert kept == ["step-00000004", "step-00000005"]


def test_a_failed_step_is_told_even_if_its_state_cannot_be_saved(toy, monkeypatch):
    from classmargin.training import recorder

    def full(*_):
        raise OSError(28, "No space left on device")

    loop = toy.loop(method=BreaksAtStep(toy.task()))
    monkeypatch.setattr(recorder, "write_tree", full)
    with pytest.raises(DivergedError, match=r"loss is nan at step 6 .*could not be saved .*No space left"):
        loop.run()


def test_best_weights_are_those_of_the_best_epoch_on_validation(toy):
    loop = toy.loop(loop={"epochs": 8, "select": "worst"})
    network = loop.run()
    records = [json.loads(line) for line in (toy.folder / "run/metrics.jsonl").read_text().splitlines()]
    best = max(records, key=lambda record: record["worst"])
    assert loop.weights.best_epoch == best["epoch"]
    from classmargin.training.evaluate import measure_accuracies

    again = measure_accuracies(network, loop.method, loop._validation.epoch(0), toy.CLASSES, loop.fabric)
    assert again.worst == best["worst"]


def test_averaged_weights_follow_the_formula(toy):
    loop = toy.loop(loop={"ema_decay": 0.5, "epochs": 1})
    track = []
    follow = loop.weights.after_step

    def note():
        follow()
        track.append(loop.network.head.weight.detach().clone())

    loop.weights.after_step = note
    network = loop.run()
    expected = track[0]
    for weight in track[1:]:
        expected = 0.5 * expected + 0.5 * weight
    torch.testing.assert_close(network.head.weight, expected)


def test_averages_of_epochs_are_equal_shares_of_the_late_ones(toy):
    loop = toy.loop(loop={"swa_start": 0.5, "epochs": 4})
    ends = []
    follow = loop.weights.after_epoch

    def note(done):
        follow(done)
        ends.append(loop.network.head.weight.detach().clone())
        assert (loop.weights.evaluated is loop.network) == (done <= 0.5)

    loop.weights.after_epoch = note
    network = loop.run()
    torch.testing.assert_close(network.head.weight, (ends[2] + ends[3]) / 2)


def test_averages_of_epochs_have_the_running_statistics_of_one_pass(toy):
    loop = toy.loop(loop={"swa_start": 0.3})
    network = loop.run()
    layer = network.encoder[1]
    batches = [network.encoder[0](batch.inputs) for batch in loop._loader.epoch(3)]
    expected = torch.stack([values.mean(dim=0) for values in batches]).mean(dim=0)
    torch.testing.assert_close(layer.running_mean, expected)
    assert layer.momentum == loop.network.encoder[1].momentum


@pytest.mark.parametrize("average", ["ema_decay", "swa_start"])
def test_an_average_in_half_precision_is_refused(toy, average):
    with pytest.raises(ValueError, match=f"{average} needs weights in full precision"):
        toy.loop(loop={average: 0.5, "precision": "bf16-true"})


def test_selection_without_validation_samples_is_refused(toy):
    with pytest.raises(ValueError, match=r"loop\.select='hard' needs validation samples"):
        toy.loop(loaders=toy.Loaders(16, validation=0), loop={"select": "hard"})


def test_a_run_without_validation_samples_still_logs_its_losses(toy):
    toy.loop(loaders=toy.Loaders(16, validation=0)).run()
    records = [json.loads(line) for line in (toy.folder / "run/metrics.jsonl").read_text().splitlines()]
    assert len(records) == 3
    assert records[-1]["loss"] < records[0]["loss"]


def test_clipping_bounds_the_step(toy):
    loop = toy.loop(
        optimizer={"clip_norm": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
        loop={"epochs": 1, "batch_size": 50},
    )
    before = torch.cat([p.detach().flatten().clone() for p in loop.network.parameters()])
    loop.run()
    after = torch.cat([p.detach().flatten() for p in loop.network.parameters()])
    assert 0 < float((after - before).norm()) <= 0.1 * 1e-3 * 1.0001


def test_evaluation_leaves_the_state_of_method_and_network_alone(toy):
    loop = toy.loop()
    loop.run()
    before = {name: value.clone() for name, value in {**loop.network.state_dict(), **loop.method.state_dict()}.items()}
    loop._evaluate()
    assert same(before, {**loop.network.state_dict(), **loop.method.state_dict()})
