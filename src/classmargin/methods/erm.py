"""Plain cross-entropy: what every other method is compared with."""

from __future__ import annotations

from classmargin._distributed import global_mean
from classmargin.methods.base import Method, MethodLoss, Requirements, Step, number
from classmargin.methods.loss_parts import cross_entropy, with_parts
from classmargin.methods.method_registry import register


@register(
    name="erm",
    title="ERM",
    paper="Vapnik, Principles of Risk Minimization for Learning Theory, NeurIPS 1991",
    family="baseline",
    summary="Minimises the mean cross-entropy over samples.",
    search={"label_smoothing": (0.0, 0.05, 0.1)},
)
class ERM(Method):
    """Empirical risk minimisation: the mean over samples of ``-ln softmax(z)_y``.

    Idea: every sample counts the same, so the average is optimised whatever happens to single classes.
    Use: the reference of every comparison.
    Hyper-parameters: ``label_smoothing`` (0 = off).
    Cost: one forward and backward pass.
    Caveats: none.
    Source: Vapnik 1991.
    """

    requirements = Requirements(soft_labels=True)
    label_smoothing: float = number(0.0, minimum=0.0, below=1.0)

    def loss(self, step: Step, update_state: bool) -> MethodLoss:
        """Return the mean cross-entropy over the samples of all processes."""
        total = global_mean(cross_entropy(step.logits, step.labels, self.label_smoothing))
        return with_parts(total, cross_entropy=total)
