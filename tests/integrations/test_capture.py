"""Features come from the one forward pass, with their graph, whatever wraps the model."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
import toy_training
from torch import nn
from toy_training import INPUTS, NUM_CLASSES, WIDTH, Network, batch, new_network

import classmargin
from classmargin import MR2Loss, capture_features
from classmargin.integrations.capture import features_of_chosen_token, find_head


@pytest.fixture
def network():
    return new_network()


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def expected_features(network, inputs):
    return 3.0 * network.encoder(inputs)


# --- what is captured


@pytest.mark.parametrize("layer", [None, "head", "module"])
def test_features_are_the_input_of_the_head(network, layer):
    captured = capture_features(network, network.head if layer == "module" else layer)
    inputs, _ = batch(7, 0)
    logits = network(inputs)
    torch.testing.assert_close(captured.features, expected_features(network, inputs))
    torch.testing.assert_close(network.head(captured.features), logits)
    assert (captured.layer_name, captured.feature_dim, captured.num_classes) == ("head", WIDTH, NUM_CLASSES)


def test_head_by_default_is_the_last_linear_layer(network):
    assert find_head(network, None) == ("head", network.head)
    assert find_head(network.encoder, None) == ("2", network.encoder[2])


def test_any_layer_can_be_named(network):
    captured = capture_features(network, "encoder.2")
    inputs, _ = batch(3, 0)
    network(inputs)
    torch.testing.assert_close(captured.features, network.encoder[:2](inputs))


def test_layer_with_two_names_is_found_by_both_and_is_last_by_its_last(network):
    """Tied layers: a head that was registered before, under another name."""
    network.decoder, network.middle, network.output = nn.Linear(WIDTH, 3), nn.Linear(2, 2), network.head
    assert find_head(network, None) == ("output", network.head)
    for name in ("head", "output"):
        assert find_head(network, name) == (name, network.head)


class ManyOutputs(Network):
    """Logits deep inside a model, and not alone in what it returns."""

    def forward(self, inputs):
        logits = super().forward(inputs)
        return {"scores": (logits, inputs.mean()), "extra": None}


@pytest.mark.parametrize("compiled", [False, True])
def test_model_may_be_nested_and_return_what_it_likes(compiled):
    torch.manual_seed(0)
    outer = nn.ModuleDict({"student": nn.ModuleDict({"net": ManyOutputs()})})
    inner = outer["student"]["net"]
    captured = capture_features(outer, "student.net.head")
    criterion = captured.criterion()
    inputs, labels = batch(8, 0)
    call = torch.compile(inner, backend="eager") if compiled else inner
    logits, _ = call(inputs)["scores"]
    expected = MR2Loss.preset("recommended", NUM_CLASSES)(logits, labels, expected_features(inner, inputs))
    torch.testing.assert_close(criterion(logits, labels), expected)
    assert captured.layer_name == "student.net.head"


def test_gradient_through_captured_features_is_that_of_the_encoder(network):
    captured = capture_features(network)
    inputs, _ = batch(7, 0)
    network(inputs)
    captured.features.square().sum().backward()
    ours = network.encoder[0].weight.grad.clone()
    network.zero_grad()
    expected_features(network, inputs).square().sum().backward()
    torch.testing.assert_close(ours, network.encoder[0].weight.grad)


def test_no_second_forward_pass(network):
    calls = []
    network.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    network.head.register_forward_hook(lambda *_: calls.append("head"))
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    criterion(network(inputs), labels).backward()
    assert calls == ["encoder", "head"]


def test_output_and_state_of_the_model_are_untouched(network):
    inputs, _ = batch(4, 0)
    before, names = network(inputs), list(network.state_dict())
    with capture_features(network):
        assert torch.equal(network(inputs), before)
        assert list(network.state_dict()) == names


def test_head_called_by_keyword(network):
    class Keyword(Network):
        def forward(self, inputs):
            return self.head(input=self.encoder(inputs))

    model = Keyword()
    captured = capture_features(model)
    inputs, _ = batch(4, 0)
    model(inputs)
    torch.testing.assert_close(captured.features, model.encoder(inputs))


def test_features_of_a_convolutional_head_are_flat():
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 3, 1))
    captured = capture_features(model, "2")
    model(torch.randn(2, 1, 8, 8))
    assert captured.features.shape == (2, 6)


def test_last_forward_pass_counts(network):
    captured = capture_features(network)
    (first, _), (second, _) = batch(4, 0), batch(6, 1)
    network(first)
    network(second)
    torch.testing.assert_close(captured.features, expected_features(network, second))


# --- the life of a capture


def test_features_before_any_forward_pass_are_refused(network):
    captured = capture_features(network)
    with pytest.raises(RuntimeError, match="'head' has not been called"):
        _ = captured.features


def test_taken_features_cannot_be_taken_again(network):
    captured = capture_features(network)
    network(batch(4, 0)[0])
    assert captured.take().shape == (4, WIDTH)
    with pytest.raises(RuntimeError, match="no features"):
        captured.take()


def test_closed_capture_leaves_no_hook(network):
    with capture_features(network) as captured:
        network(batch(4, 0)[0])
    assert not network.head._forward_hooks
    with pytest.raises(RuntimeError, match="no features"):
        _ = captured.features


def test_loss_lets_go_of_the_graph(network):
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    logits = network(inputs)
    kept = weakref.ref(logits)
    loss = criterion(logits, labels)
    loss.backward()
    del loss, logits
    gc.collect()
    assert kept() is None
    assert criterion.capture._slot.features is None


def test_copy_of_a_model_writes_nowhere(network):
    """Averaged twins (EMA) are deep copies, made in the middle of training."""
    captured = capture_features(network)
    inputs, _ = batch(4, 0)
    network(inputs)
    twin = copy.deepcopy(network)
    twin(batch(5, 1)[0])
    torch.testing.assert_close(captured.features, expected_features(network, inputs))


def test_copy_of_model_and_loss_together_is_whole():
    """A LightningModule that holds both is copied by weight averaging."""
    whole = nn.ModuleDict({"net": new_network()})
    whole["criterion"] = capture_features(whole["net"]).criterion()
    inputs, labels = batch(8, 0)
    whole["criterion"](whole["net"](inputs), labels)
    twin = copy.deepcopy(whole)
    twin["criterion"](twin["net"](inputs), labels)
    updates = [int(part["criterion"].loss.statistics.updates) for part in (whole, twin)]
    assert updates == [1, 2]


def test_hook_of_a_model_can_be_pickled(network):
    capture_features(network)
    network(batch(4, 0)[0])
    hook = next(iter(network.head._forward_hooks.values()))
    assert pickle.loads(pickle.dumps(hook)).features is None
    torch.save(network, io.BytesIO())


# --- what is refused


def test_model_without_a_linear_layer_is_refused():
    with pytest.raises(ValueError, match=r"Sequential has no nn\.Linear; give layer="):
        capture_features(nn.Sequential(nn.Conv2d(1, 2, 3)))


def test_unknown_layer_is_refused_with_the_nearest_name(network):
    with pytest.raises(ValueError, match="did you mean 'head'"):
        capture_features(network, "heads")
    with pytest.raises(ValueError, match="foreign Linear"):
        capture_features(network, nn.Linear(2, 2))
    with pytest.raises(TypeError, match="layer must be a name, a module or None, got int"):
        capture_features(network, 3)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got str"):
        capture_features("network")


def test_logits_of_another_forward_pass_are_refused(network):
    criterion = capture_features(network).criterion()
    first = network(batch(4, 0)[0])
    second = network(batch(6, 1)[0])
    with pytest.raises(ValueError, match=r"shape \(10, d\).*got \(6, 6\) from layer 'head'"):
        criterion(torch.cat([first, second]), torch.zeros(10, dtype=torch.long))


class WithAuxiliary(nn.Module):
    """Declares its head before a layer that is used on the way, or not at all."""

    def __init__(self, uses_auxiliary):
        super().__init__()
        self.fc = nn.Linear(8, 10)
        self.aux = nn.Linear(8, 16)
        self.uses_auxiliary = uses_auxiliary

    def forward(self, inputs):
        if self.uses_auxiliary:
            self.aux(inputs)
        return self.fc(inputs)


@pytest.mark.parametrize("uses_auxiliary", [True, False])
def test_layer_that_did_not_make_the_logits_is_named(uses_auxiliary):
    model, inputs, labels = WithAuxiliary(uses_auxiliary), torch.randn(32, 8), torch.arange(32) % 10
    criterion = capture_features(model).criterion()
    with pytest.raises(
        ValueError,
        match=r"layer 'aux' \(16 outputs\) was captured as the head but the logits have 10 columns; give",
    ):
        criterion(model(inputs), labels)
    assert capture_features(model, "fc").criterion()(model(inputs), labels).isfinite()


def test_logits_cut_to_the_given_number_of_classes_are_fine(network):
    criterion = capture_features(network).criterion(NUM_CLASSES - 1)
    inputs, labels = batch(9, 0)
    assert criterion(network(inputs)[:, :-1], labels % (NUM_CLASSES - 1)).isfinite()


def test_number_of_classes_must_be_known():
    model = nn.Sequential(nn.Flatten(), nn.Identity())
    with pytest.raises(ValueError, match="num_classes must be given: layer '1'"):
        capture_features(model, "1").criterion()
    assert capture_features(model, "1").criterion(5).loss.num_classes == 5


# --- the proof that features and logits belong together


def silent_no_grad(network, inputs, other):
    logits = network(inputs)
    with torch.no_grad():
        network(other)
    return logits


def silent_second_call(network, inputs, other):
    logits = network(inputs)
    network(other)
    return logits


def silent_second_call_of_the_head(network, inputs, other):
    logits = network(inputs).float() / 2
    network.head(torch.randn(len(inputs), WIDTH))
    return logits


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (
            silent_no_grad,
            "a forward pass without gradients .* is the last one, and the logits have gradients",
        ),
        (silent_second_call, "an earlier call or another layer made them"),
        (silent_second_call_of_the_head, "an earlier call or another layer made them"),
    ],
)
def test_another_pass_of_the_same_size_before_the_loss_is_refused(network, forward, reason):
    criterion = capture_features(network).criterion()
    (inputs, labels), (other, _) = batch(8, 0), batch(8, 1)
    logits = forward(network, inputs, other)
    with pytest.raises(
        ValueError, match=rf"features of layer 'head' may not belong.*{reason}.*right after.*features=\.\.\.\)"
    ):
        criterion(logits, labels)
    assert int(criterion.loss.statistics.updates) == 0


class TwoHeads(nn.Module):
    """Two heads of one width: the first makes the logits, the second is an auxiliary task or a second answer."""

    def __init__(self):
        super().__init__()
        self.encoder, self.first, self.second = (
            nn.Linear(INPUTS, WIDTH),
            *(nn.Linear(WIDTH, NUM_CLASSES) for _ in range(2)),
        )

    def forward(self, inputs):
        features = self.encoder(inputs)
        return self.first(features), self.second(features.tanh())


@pytest.mark.parametrize("compiled", [None, "eager", "aot_eager"])
def test_loss_on_the_other_of_two_equal_heads_is_refused(compiled):
    model = TwoHeads()
    call = torch.compile(model, backend=compiled) if compiled else model
    criterion = capture_features(model).criterion()
    inputs, labels = batch(8, 0)
    with pytest.raises(ValueError, match=r"layer 'second' may not belong.*another layer made them"):
        criterion(call(inputs)[0], labels)
    assert criterion(call(inputs)[1], labels).isfinite()
    torch._dynamo.reset()  # a second hook
    named = capture_features(model, "first").criterion()
    assert named(call(inputs)[0], labels).isfinite()


def test_sum_of_two_heads_is_the_output_of_neither():
    model = TwoHeads()
    criterion = capture_features(model).criterion()
    inputs, labels = batch(8, 0)
    with pytest.raises(ValueError, match="another layer made them"):
        criterion(sum(model(inputs)), labels)


class Unused(TwoHeads):
    def forward(self, inputs):
        return self.first(self.encoder(inputs))


def test_last_layer_that_is_never_called_is_named():
    model = Unused()
    with pytest.raises(RuntimeError, match="layer 'second' has not been called"):
        capture_features(model).criterion()(model(batch(8, 0)[0]), batch(8, 0)[1])


TEMPERATURE = nn.Parameter(torch.tensor(0.3))
ROW_WISE = {
    "itself": lambda logits: logits,
    "cast": lambda logits: logits.double(),
    "temperature": lambda logits: logits / 2 + torch.arange(NUM_CLASSES),
    "learned temperature": lambda logits: logits * TEMPERATURE.exp(),
    "in place": lambda logits: logits.div_(2).float().add_(1),
    "masked": lambda logits: logits.masked_fill(torch.eye(8, NUM_CLASSES).bool(), -9.0),
    "view": lambda logits: logits[:, None].squeeze(1).view(-1, NUM_CLASSES),
    "capped": lambda logits: 5 * torch.tanh(logits / 5),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_logits_may_be_changed_row_by_row(network, name):
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    logits = ROW_WISE[name](network(inputs))
    expected = MR2Loss.preset("recommended", NUM_CLASSES)(logits, labels, expected_features(network, inputs))
    torch.testing.assert_close(criterion(logits, labels), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits.flip(0),
        lambda logits: logits[torch.arange(len(logits) - 1, -1, -1)],
        lambda logits: logits @ torch.eye(NUM_CLASSES),
        lambda logits: logits.detach().clone().requires_grad_(),
    ],
    ids=["flip", "index", "product", "copy without graph"],
)
def test_logits_whose_rows_may_have_moved_are_refused(network, change):
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    with pytest.raises(ValueError, match="an operation that may reorder or mix rows"):
        criterion(change(network(inputs)), labels)


def test_features_may_be_given_instead_of_captured(network):
    criterion, by_hand = capture_features(network).criterion(), MR2Loss.preset("recommended", NUM_CLASSES)
    inputs, labels = batch(8, 0)
    logits, features = network(inputs).flip(0), expected_features(network, inputs).flip(0)
    torch.testing.assert_close(criterion(logits, labels, features=features), by_hand(logits, labels, features))
    with pytest.raises(RuntimeError, match="no features"):  # what was captured is gone
        criterion(logits, labels)


@pytest.mark.parametrize("reentrant", [True, False])
def test_backbone_may_be_checkpointed(network, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Network):
        def forward(self, inputs):
            return self.head(3.0 * checkpoint(self.encoder, inputs, use_reentrant=reentrant))

    model = Checkpointed()
    model.load_state_dict(network.state_dict())
    inputs, labels = batch(8, 0)
    for part in (network, model):
        capture_features(part).criterion()(part(inputs.clone().requires_grad_()), labels).backward()
    for ours, theirs in zip(model.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(("reentrant", "fits"), [(True, False), (False, True)])
def test_head_in_a_reentrant_checkpoint_is_refused(network, reentrant, fits):
    """Its features have no graph then, so the representation margin would train nothing."""
    from torch.utils.checkpoint import checkpoint

    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    logits = checkpoint(network, inputs.requires_grad_(), use_reentrant=reentrant)
    if fits:
        assert criterion(logits, labels).isfinite()
        return
    with pytest.raises(ValueError, match="reentrant checkpoint around the head"):
        criterion(logits, labels)


class Casting(Network):
    """What autocast wrappers do: the head in half precision, the logits that leave the model in full."""

    def forward(self, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = super().forward(inputs)
        return logits.float()


@pytest.mark.parametrize("compiled", [None, "eager", "aot_eager"])
def test_logits_cast_inside_the_model_are_recognised(compiled):
    torch.manual_seed(0)
    model = Casting()
    call = torch.compile(model, backend=compiled) if compiled else model
    criterion = capture_features(model).criterion()
    for seed in range(3):
        inputs, labels = batch(8, seed)
        criterion(call(inputs), labels).backward()
    assert int(criterion.loss.statistics.updates) == 3


def test_proof_reads_no_values(network):
    """On the meta device there are none to read."""
    model = network.to("meta")
    captured = capture_features(model)
    logits = model(torch.empty(8, INPUTS, device="meta"))
    assert captured.take(logits.float() / 2).shape == (8, WIDTH)


def test_head_inside_an_adapter_is_the_adapted_layer(network):
    """PEFT puts two low-rank layers beside the one it adapts; the last of them is as wide as the head."""

    class Adapted(nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, NUM_CLASSES, bias=False)})
            self.in_features, self.out_features = WIDTH, NUM_CLASSES

        def forward(self, inputs):
            return self.base_layer(inputs) + self.lora_B["default"](self.lora_A["default"](inputs))

    network.head = Adapted(network.head)
    captured = capture_features(network)
    assert (captured.layer_name, captured.feature_dim) == ("head", WIDTH)
    inputs, labels = batch(8, 0)
    assert captured.criterion()(network(inputs), labels).isfinite()


# --- evaluation


SETTINGS = {"weight": torch.linspace(0.5, 2.0, NUM_CLASSES), "label_smoothing": 0.2, "ignore_index": 1}


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["plain", "with settings"])
def test_evaluation_is_the_plain_cross_entropy(network, settings):
    criterion = capture_features(network).criterion(**settings)
    plain = nn.CrossEntropyLoss(**{"label_smoothing": 0.1, **settings})  # part of the recommended settings
    inputs, labels = batch(8, 0)
    for _ in range(3):
        criterion(network(inputs), labels)
    with torch.no_grad():
        assert torch.equal(criterion(network(inputs), labels), plain(network(inputs), labels))
        half = network(inputs).bfloat16()
        assert torch.equal(criterion(half, labels), plain(half.float(), labels))
    criterion.eval()
    assert torch.equal(criterion(network(inputs), labels), plain(network(inputs), labels))
    if not settings:
        soft = torch.softmax(torch.randn(8, NUM_CLASSES), 1)
        assert torch.equal(criterion(network(inputs), soft), plain(network(inputs), soft))


def test_evaluation_needs_no_features(network):
    criterion = capture_features(network).criterion().eval()
    logits, labels = torch.randn(4, NUM_CLASSES), torch.tensor([0, 1, 2, 3])
    assert torch.equal(criterion(logits, labels), nn.functional.cross_entropy(logits, labels, label_smoothing=0.1))


def test_parts_of_mr2_are_to_be_had_in_evaluation(network):
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    criterion(network(inputs), labels)
    with torch.no_grad():
        logits = network(inputs)
        features = criterion.capture.features
        expected = criterion.loss.terms(logits, labels, features, update_statistics=False)
        assert torch.equal(torch.stack(criterion.terms(logits, labels)), torch.stack(expected))


def test_early_stopping_by_hand_keeps_the_step_of_least_cross_entropy(network):
    """A plain loop: the validation loss is the cross-entropy, whatever the training loss does."""
    criterion = capture_features(network).criterion(label_smoothing=0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    (inputs, labels), (held_out, truth) = batch(64, 0), batch(64, 1)
    ours, expected = [], []
    for _ in range(30):
        optimizer.zero_grad()
        criterion(network(inputs), labels).backward()
        optimizer.step()
        with torch.no_grad():
            logits = network(held_out)
            ours.append(criterion(logits, truth).item())
            expected.append(nn.functional.cross_entropy(logits, truth).item())
    assert ours == expected
    assert min(range(30), key=ours.__getitem__) == min(range(30), key=expected.__getitem__)


# --- the loss object


def test_criterion_equals_the_loss_with_features_by_hand(network):
    criterion = capture_features(network).criterion(mean_margin=2.0, representation_weight=0.3)
    by_hand = MR2Loss.preset("recommended", NUM_CLASSES, mean_margin=2.0, representation_weight=0.3)
    for seed in range(3):
        inputs, labels = batch(9, seed)
        logits = network(inputs)
        expected = by_hand(logits, labels, expected_features(network, inputs))
        torch.testing.assert_close(criterion(logits, labels), expected, rtol=1e-6, atol=1e-6)
    assert criterion.loss.state_dict().keys() == by_hand.state_dict().keys()
    for name, value in by_hand.state_dict().items():
        assert torch.equal(criterion.loss.state_dict()[name], value)


def test_evaluation_never_moves_the_statistics(network):
    criterion = capture_features(network).criterion()
    inputs, labels = batch(8, 0)
    criterion(network(inputs), labels)
    before = copy.deepcopy(criterion.state_dict())
    with torch.no_grad():
        criterion(network(inputs), labels)
    criterion.eval()(network(inputs), labels)
    criterion.train()(network(inputs), labels, update_statistics=False)
    assert all(torch.equal(before[name], value) for name, value in criterion.state_dict().items())


def test_eight_micro_batches_move_the_statistics_once(network):
    criterion = capture_features(network).criterion(accumulate=8)
    moved = []
    for step in range(16):
        inputs, labels = batch(8, step)
        before = criterion.loss.statistics.class_mean.clone() if step else None
        criterion(network(inputs), labels).backward()
        moved.append(before is None or not torch.equal(before, criterion.loss.statistics.class_mean))
    assert moved == [step % 8 == 0 for step in range(16)]
    assert int(criterion.loss.statistics.updates) == 2


def test_presets_and_saved_state_of_the_criterion(network):
    criterion = capture_features(network).criterion(preset="paper")
    assert criterion.loss.mean_margin == 2.0
    inputs, labels = batch(8, 0)
    criterion(network(inputs), labels)
    again = capture_features(network).criterion(preset="paper")
    again.load_state_dict(criterion.state_dict())
    logits = network(inputs)  # both hooks see this pass
    assert torch.equal(criterion(logits, labels), again(logits, labels))


# --- wrappers


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("wrapped", [True, False], ids=["compiled model given", "bare model given"])
def test_compiled_model_gives_the_same_losses_and_weights(backend, wrapped):
    trained = []
    for compiled in (False, True):
        model = network = new_network()
        if compiled:
            model = torch.compile(network, backend=backend, fullgraph=True)
        criterion = capture_features(model if wrapped else network).criterion()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for seed in range(3):
            inputs, labels = batch(8, seed)
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
        trained.append({**network.state_dict(), **criterion.state_dict()})
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value)


def test_capture_after_the_first_compiled_call_is_an_error_not_a_wrong_number(network):
    model = torch.compile(network, backend="eager")
    inputs, labels = batch(8, 0)
    model(inputs)
    criterion = capture_features(model).criterion()
    with pytest.raises(RuntimeError, match="before the first call of a compiled model"):
        criterion(model(inputs), labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # inside the compiler
def test_compiler_proper_gives_the_same_gradients(network):
    inputs, labels = batch(8, 0)
    gradients = []
    for model in (network, torch.compile(network, fullgraph=True)):
        with capture_features(network) as captured:
            torch._dynamo.reset()
            network.zero_grad()
            captured.criterion()(model(inputs), labels).backward()
            gradients.append(network.encoder[0].weight.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("work", ["trained", pytest.param("compiled", marks=pytest.mark.slow)])
def test_two_processes_train_as_one(work, tmp_path):
    """An own loop under DDP, alone and with torch.compile, and a step of micro-batches as the Hugging Face Trainer counts."""
    command = [sys.executable, toy_training.__file__, work]
    started = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    alone = getattr(toy_training, work)(None)  # meanwhile
    assert [process.wait() for process in started] == [0, 0]
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for found in ranks:
        assert found.keys() == alone.keys()
    for name, value in alone.items():
        # The loss of a rank is its share: the mean over ranks is the mean over all rows. Weights and state are everybody's.
        values = [found[name] for found in ranks]
        for seen in [torch.stack(values).mean(0)] if name.endswith("losses") else values:
            torch.testing.assert_close(seen, value, rtol=1e-9, atol=1e-9)


# --- heads over all tokens


def test_token_that_the_model_chose_is_found():
    torch.manual_seed(0)
    features, head, chosen = torch.randn(3, 5, 4), nn.Linear(4, 2), torch.tensor([4, 0, 2])
    scores = head(features)
    found = features_of_chosen_token(features, scores, scores[torch.arange(3), chosen])
    assert torch.equal(found, features[torch.arange(3), chosen])
    with pytest.raises(ValueError, match="scores of one token each"):
        features_of_chosen_token(features, scores, scores.mean(1))


def test_public_name_is_the_function():
    assert classmargin.capture_features is capture_features
    assert new_network().encoder[0].in_features == INPUTS


def test_example_of_an_own_loop_runs(run_example):
    printed = run_example("own_loop.py")
    assert "cross-entropy" in printed
    assert "MR²" in printed
