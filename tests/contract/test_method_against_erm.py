"""No method silently is cross-entropy: its gradient over an epoch of balanced data differs from ERM's.

Where it provably is the same (Balanced Softmax, logit adjustment, EQL below its threshold, effective-number
weights), the equality itself is asserted.
"""

import inspect
from pathlib import Path

import pytest
import torch
from tiny_loop import COMBINATIONS, NAMES, TinyRun

from classmargin.methods import Stage, create, method_info
from classmargin.methods.method_registry import _CLASSES

EQUAL = [name for name in NAMES if method_info(name).equals_erm_when_balanced]
DIFFERENT = [name for name in NAMES + COMBINATIONS if name not in [*EQUAL, "erm"]]


def epoch_gradient(run, stage_number):
    """Sum over an epoch of the gradients that the optimiser would have been given, weights held still."""
    stage, total = run.stages[stage_number], None
    run.at.stage, run.at.epoch, run.at.step = stage_number, run.epochs - 1, 0
    everything = Stage(stage.name, stage.epochs, views=stage.views)
    for rows in run.batches():
        run.train_step(rows, everything, step=lambda: None)
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in run.model.parameters()]
        )
        total = flat.clone() if total is None else total + flat
    return total / len(run.batches())


def erm_gradient(run):
    """The same for cross-entropy on the same network."""
    plain = TinyRun("erm", epochs=4, plain=True, dtype=torch.float64)
    plain.model, plain.epochs = run.model, run.epochs  # the same epoch is the same order of samples
    plain.optimizer = plain.new_optimizer()
    return epoch_gradient(plain, 0)


def relative_differences(name):
    run = TinyRun(name, epochs=4, plain=True, dtype=torch.float64).run()
    expected = erm_gradient(run)
    return [
        ((epoch_gradient(run, stage) - expected).norm() / expected.norm()).item() for stage in range(len(run.stages))
    ]


@pytest.mark.parametrize("name", DIFFERENT)
def test_gradient_differs_from_erm_on_balanced_data(name):
    assert max(relative_differences(name)) > 1e-3


@pytest.mark.parametrize("name", EQUAL)
def test_gradient_equals_erm_on_balanced_data(name):
    assert max(relative_differences(name)) < 1e-6


def test_the_ones_known_to_be_equal_say_so():
    assert set(EQUAL) >= {"eql", "balanced-softmax", "logit-adjustment", "class-balanced"}


def test_deferred_weights_of_ldam_do_nothing_on_balanced_data():
    plain = TinyRun("ldam", epochs=4, plain=True, dtype=torch.float64).run()
    deferred = TinyRun("ldam-drw", epochs=4, plain=True, dtype=torch.float64).run()
    for key, value in plain.model.state_dict().items():
        torch.testing.assert_close(deferred.model.state_dict()[key], value)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_value_test(name):
    """In the test file of its name, or of the source file that it shares with its relatives."""
    stems = {name.replace("-", "_"), Path(inspect.getfile(_CLASSES[name])).stem}
    files = [Path(__file__).parents[1] / "methods" / f"test_{stem}.py" for stem in sorted(stems)]
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    assert any(f'"{name}"' in text and "approx(" in text for text in texts)


def test_a_misspelt_name_is_never_erm():
    task = TinyRun("erm").method.task
    with pytest.raises(ValueError, match="did you mean"):
        create("groupdro", task)
