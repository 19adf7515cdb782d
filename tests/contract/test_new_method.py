"""Adding a method takes one class: the registry, the table and a loop then know it."""

import pytest
from tiny_loop import TinyRun
from torch import nn

from classmargin.methods import (
    Method,
    MethodLoss,
    create,
    default_hyperparameters,
    method_registry,
    methods_table_markdown,
)


@pytest.fixture
def squared():
    """A method registered for the length of a test."""
    info = method_registry.MethodInfo("squared", "Squared", "nobody", "baseline", "Squared error of the probabilities.")

    @method_registry.register(info)
    class Squared(Method):
        def __init__(self, task, *, scale: float = 1.0) -> None:
            super().__init__(task)
            self.scale = scale

        def loss(self, step, update_state):
            target = nn.functional.one_hot(step.labels, self.task.num_classes)
            total = self.scale * (step.logits.softmax(1) - target).square().sum(1).mean()
            return MethodLoss(total, {})

    yield Squared
    del method_registry._CLASSES["squared"], method_registry._INFOS["squared"]


def test_a_new_method_is_one_class_with_a_loss(squared):
    run = TinyRun("squared", epochs=12, batch_size=8, scale=2.0).run()
    assert isinstance(run.method, squared)
    assert run.accuracy() > 0.5


def test_a_new_method_appears_in_table_and_defaults(squared):
    assert "| `squared` |" in methods_table_markdown()
    assert default_hyperparameters("squared") == {"scale": 1.0}


def test_a_new_method_combines_with_sam(squared):
    combined = create("sam+squared", TinyRun("erm").method.task, rho=0.3, scale=4.0)
    assert (combined.rho, combined.inner.scale) == (0.3, 4.0)
    assert TinyRun("sam+squared").run().accuracy() > 0.4
