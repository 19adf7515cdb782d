import pytest
import torch
from torch import nn

from classmargin.methods import MethodLoss, create, requirements_of

START = (1.0, 2.0)


class Bowl(nn.Module):
    """L = ½(w₁² + 3w₂²)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(START, dtype=torch.float64))

    def loss(self):
        return 0.5 * (self.w[0] ** 2 + 3 * self.w[1] ** 2)


def one_step(method, *, weight_decay=0.0):
    """Do one SAM step with plain SGD; return the weights and what the closure saw."""
    bowl = Bowl()
    optimizer = torch.optim.SGD([bowl.w], lr=0.1, weight_decay=weight_decay)
    seen = []

    def closure(update_state):
        optimizer.zero_grad()
        total = bowl.loss()
        total.backward()
        seen.append((update_state, bowl.w.detach().clone(), bowl.w.grad.clone(), total.item()))
        return MethodLoss(total.detach(), {})

    result = method.optimizer_step(closure, optimizer.step, bowl)
    return bowl.w.detach(), seen, result


def test_values_of_one_step(make):
    w, seen, result = one_step(make("sam"))
    assert (seen[1][1] - torch.tensor(START)).tolist() == pytest.approx([0.008220, 0.049320], abs=1e-6)
    assert seen[1][2].tolist() == pytest.approx([1.008220, 6.147959], abs=1e-6)
    assert w.tolist() == pytest.approx([0.899178, 1.385204], abs=1e-6)
    assert result.total.item() == 6.5  # the loss at the weights, not at the worst point nearby


def test_weight_decay_inside_the_loss_or_in_the_optimiser(make):
    inside, _, _ = one_step(make("sam", weight_decay=0.01))
    outside, _, _ = one_step(make("sam"), weight_decay=0.01)
    assert inside.tolist() == pytest.approx([0.898164, 1.383157], abs=1e-6)
    assert outside.tolist() == pytest.approx([0.898178, 1.383204], abs=1e-6)


def test_adaptive_form_scales_by_the_size_of_each_weight(make):
    _, seen, _ = one_step(make("sam", adaptive=True, rho=0.5))
    # w²g = (1, 24), ‖|w| g‖ = √(1 + 144)
    expected = [0.5 / 145**0.5, 12 / 145**0.5]
    assert (seen[1][1] - torch.tensor(START)).tolist() == pytest.approx(expected, abs=1e-6)


def test_state_is_updated_in_the_first_pass_only(make):
    _, seen, _ = one_step(make("sam"))
    assert [update_state for update_state, *_ in seen] == [True, False]


def test_rho_zero_is_plain_descent(make):
    w, _, _ = one_step(make("sam", rho=0.0))
    assert w.tolist() == pytest.approx([0.9, 1.4])


def test_zero_gradient_moves_nothing(make):
    method, layer = make("sam"), nn.Linear(2, 2)
    before = layer.weight.detach().clone()

    def closure(update_state):
        layer.zero_grad()
        (0 * layer.weight.sum()).backward()
        return MethodLoss(torch.zeros(()), {})

    method.optimizer_step(closure, lambda: None, layer)
    assert torch.equal(layer.weight, before)


def test_weights_are_restored_exactly(make):
    torch.manual_seed(0)
    layer, inputs = nn.Linear(5, 3), torch.randn(7, 5)
    before = layer.weight.detach().clone()

    def closure(update_state):
        layer.zero_grad()
        layer(inputs).square().sum().backward()
        return MethodLoss(torch.zeros(()), {})

    make("sam", rho=0.3).optimizer_step(closure, lambda: None, layer)
    assert torch.equal(layer.weight, before)


def test_running_statistics_and_dropout_come_from_the_first_pass(make):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    inputs, masks = torch.randn(8, 4), []

    def closure(update_state):
        network.zero_grad()
        out = network(inputs)
        masks.append(out == 0)
        out.square().sum().backward()
        return MethodLoss(torch.zeros(()), {})

    make("sam").optimizer_step(closure, lambda: None, network)
    assert torch.equal(masks[0], masks[1])
    assert network[1].num_batches_tracked == 1
    assert network[1].track_running_stats
    alone = nn.BatchNorm1d(6)
    alone(nn.functional.linear(inputs, network[0].weight, network[0].bias))
    torch.testing.assert_close(network[1].running_mean, alone.running_mean)


def test_combination_passes_everything_on_to_the_inner_method(make, make_task):
    task = make_task()
    assert create("sam+jtt", task).stages(10) == create("jtt", task).stages(10)
    assert requirements_of("sam+lgm") == requirements_of("lgm")
    assert len(create("sam+drl", task).parameter_groups()) == 1
    combined = make("sam+ldam", rho=0.2, scale=10.0)
    assert (combined.rho, combined.inner.scale) == (0.2, 10.0)
    assert combined.requirements.head == "cosine"
    late = make("sam+logit-adjustment", (6, 3, 1), preset="post-hoc")
    assert late.inner.mode == "post-hoc"


def test_alone_it_trains_cross_entropy(make, toy):
    assert make("sam").loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_sam_around_sam_is_refused(make):
    with pytest.raises(ValueError, match="wraps SAM in SAM"):
        make("sam+sam")


def test_a_gradient_that_overflowed_leaves_the_weights_as_they_are(make):
    """A loss scale that is too large for the first steps: the scaler skips the step, and training goes on."""
    bowl, seen, stepped = Bowl(), [], []

    def closure(update_state):
        seen.append(bowl.w.detach().clone())
        bowl.w.grad = torch.tensor([float("inf"), 1.0], dtype=torch.float64)
        return MethodLoss(bowl.loss().detach(), {})

    make("sam").optimizer_step(closure, lambda: stepped.append(bowl.w.grad.clone()), bowl)
    assert [w.tolist() for w in seen] == [list(START)] * 2
    assert bowl.w.tolist() == list(START)
    assert len(stepped) == 1
    assert torch.isinf(stepped[0]).any(), "the scaler must see it"


@pytest.mark.parametrize(
    ("preset", "rho", "adaptive"),
    [("cifar10", 0.05, False), ("cifar100", 0.1, False), ("imagenet", 0.05, False), ("adaptive", 2.0, True)],
)
@pytest.mark.parametrize("name", ["sam", "sam+erm", "sam+eql"])
def test_presets_of_sam_reach_every_combination(make, name, preset, rho, adaptive):
    method = make(name, preset=preset)
    assert (method.rho, method.adaptive) == (pytest.approx(rho), adaptive)


def test_presets_of_the_inner_method_stay_within_reach(make):
    assert make("sam+supcon", preset="joint").inner.mode == "joint"
