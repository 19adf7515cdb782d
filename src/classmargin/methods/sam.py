"""SAM: steps with the gradient at the worst point nearby, around any other method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from classmargin.methods.base import Method, MethodLoss, Requirements, TaskInfo, number, switch
from classmargin.methods.loss_parts import frozen_running_statistics
from classmargin.methods.method_registry import create, register

# Hooks that are the business of the inner method.
_PASSED_ON = [hook for hook in dir(Method) if hook.startswith("on_")]
_PASSED_ON += ["loss", "stages", "parameter_groups", "sample_multiplicity", "predict"]


@register(
    name="sam",
    title="SAM",
    paper=("Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021"),
    family="sharpness",
    summary="Steps with the gradient taken at the worst weights nearby.",
    search={"rho": (0.01, 0.02, 0.05, 0.1, 0.2)},
    cost=2.0,
    presets={
        # Foret et al. 2021, section 3.1 and appendix; from memory, the PDF could not be read again.
        "cifar10": {"rho": 0.05},
        "cifar100": {"rho": 0.1},
        "imagenet": {"rho": 0.05},
        # The example of the common port (github.com/davda54/sam), with label smoothing 0.1.
        "adaptive": {"rho": 2.0, "adaptive": True},
    },
    caveats="The optimiser's weight decay acts at the old weights; weight_decay puts it into the loss.",
)
class SAM(Method):
    """Sharpness-aware minimisation: ``w ← w - lr ∇L(w + ρ g/‖g‖)``, ``g = ∇L(w)``.

    Idea: a minimum that stays low nearby generalises better.
    Use: alone (cross-entropy), or around any method as ``sam+NAME``.
    Hyper-parameters: ``rho`` ρ, ``adaptive`` (scale by the size of each weight, with a larger ρ), ``weight_decay``
        inside the loss (then switch the optimiser's off); presets named after data sets have the ρ of the paper.
    Cost: 2 forward and backward passes.
    Caveats: the original has weight decay in both gradients; a common port leaves it to the optimiser, which is the
        default here. Only the network is perturbed. Method state and batch-norm statistics come from the first pass.
    Source: Foret et al., ICLR 2021.
    """

    requirements = Requirements(soft_labels=True)  # those of ERM, which is inside unless another method is

    rho: float = number(0.05, minimum=0.0)
    adaptive: bool = switch(False)
    weight_decay: float = number(0.0, minimum=0.0)

    def __init__(self, task: TaskInfo, *, inner: Method | None = None, **hyperparameters: Any) -> None:
        super().__init__(task, **hyperparameters)
        self.inner = create("erm", task) if inner is None else inner
        self.requirements = self.inner.requirements
        for name in _PASSED_ON:
            setattr(self, name, getattr(self.inner, name))

    def optimizer_step(
        self, closure: Callable[[bool], MethodLoss], step: Callable[[], None], model: nn.Module
    ) -> MethodLoss:
        """Climb to the worst weights nearby, take the gradient there and step from where it started."""
        device = next((parameter.device for parameter in model.parameters()), None)
        # Both passes see the same random numbers (dropout).
        with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []):
            result = closure(True)
        self._add_weight_decay(model)
        before = self._climb(model)
        with frozen_running_statistics(model):
            closure(False)
        self._add_weight_decay(model)
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
        step()
        return result

    @torch.no_grad()
    def _climb(self, model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
        """Move the weights by ``ρ g/‖g‖`` and return the old ones; subtracting would not restore exactly."""
        moved = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        if not moved:
            return []
        sizes = [p.abs() if self.adaptive else torch.ones((), device=p.device) for p, _ in moved]
        lengths = [(size * grad).float().norm() for size, (_, grad) in zip(sizes, moved, strict=True)]
        length = torch.stack(lengths).norm()
        if not torch.isfinite(length):
            # A loss scale that is still too large: the scaler will skip this step, and the weights stay numbers.
            return []
        scale = self.rho / (length + 1e-12)
        before = [(p, p.detach().clone()) for p, _ in moved]
        for size, (parameter, gradient) in zip(sizes, moved, strict=True):
            parameter.add_(size.square() * gradient * scale)
        return before

    @torch.no_grad()
    def _add_weight_decay(self, model: nn.Module) -> None:
        if self.weight_decay:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter, alpha=self.weight_decay)
