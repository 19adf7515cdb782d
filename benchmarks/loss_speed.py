"""How much the loss costs on the CPU: MR² against cross-entropy, forward and backward, and in a whole training step.

Each case cycles through several batches, so that the statistics move as in training. Cross-entropy is measured against itself beside it:
what that ratio is off 1 is noise. The loss alone is timed by the processor time of its one thread, which other processes disturb less
than the clock on the wall.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.timing import interleaved_medians, paired_ratio
from classmargin import MR2Loss

CASES = (
    # B, K, d, rounds, most times cross-entropy (recommended)
    (128, 100, 64, 600, 8.0),
    (512, 1000, 1024, 150, 4.0),
    (1024, 1000, 768, 80, 4.0),
)
BATCHES = 8
STEP_LIMIT = 1.03


def loss_case(batch: int, classes: int, dim: int, rounds: int) -> dict[str, float]:
    """Return median seconds of cross-entropy (twice), the recommended loss and the paper's."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(batch, classes, generator=generator).requires_grad_(),
            torch.randint(0, classes, (batch,), generator=generator),
            torch.randn(batch, dim, generator=generator).requires_grad_(),
        )
        for _ in range(BATCHES)
    ]
    losses = {
        "cross_entropy": None,
        "cross_entropy_again": None,
        "recommended": MR2Loss(classes, feature_dim=dim),
        "paper": MR2Loss.preset("paper", classes, dim),
    }

    def step(loss: Any, index: int) -> None:
        logits, labels, features = batches[index % BATCHES]
        logits.grad = features.grad = None
        (F.cross_entropy(logits, labels) if loss is None else loss(logits, labels, features)).backward()

    calls = {name: (lambda index, loss=loss: step(loss, index)) for name, loss in losses.items()}
    return interleaved_medians(calls, rounds=rounds, clock=time.process_time)


def whole_step(rounds: int = 20) -> dict[str, float]:
    """Return median seconds of one ResNet-32 training step at B = 128 with either loss, and their ratio."""
    from classmargin.backbones import create_backbone

    torch.manual_seed(0)
    network = create_backbone("resnet32", num_classes=100).to(memory_format=torch.channels_last)
    loss = MR2Loss(100, feature_dim=network.feature_dim)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (128,))

    def step(use_mr2: bool) -> None:
        optimizer.zero_grad(set_to_none=True)
        features, logits = network(images)
        (loss(logits, labels, features) if use_mr2 else F.cross_entropy(logits, labels)).backward()
        optimizer.step()

    plain, ours, ratio = paired_ratio(lambda: step(False), lambda: step(True), rounds=rounds)
    # What the same comparison says where there is nothing to find.
    noise = paired_ratio(lambda: step(False), lambda: step(False), rounds=rounds // 2, warmup=0)[2]
    return {"cross_entropy": plain, "mr2": ours, "ratio": ratio, "ratio_of_cross_entropy_to_itself": noise}


def measured_row(case: tuple[int, int, int, int, float]) -> dict[str, Any]:
    """Measure one case and print its line."""
    batch, classes, dim, rounds, most = case
    seconds = loss_case(batch, classes, dim, rounds)
    base = seconds["cross_entropy"]
    ratios = {name: value / base for name, value in seconds.items()}
    name = f"B={batch} K={classes} d={dim}"
    print(
        f"{name:>24} {1e3 * base:8.3f} {ratios['cross_entropy_again']:8.2f} {ratios['recommended']:12.2f} {most:6.1f} "
        f"{ratios['paper']:8.2f}"
    )
    return {"case": name, "seconds": seconds, "times_cross_entropy": ratios, "limit": most}


def run() -> dict[str, Any]:
    """Measure all cases and print a table."""
    torch.set_num_threads(1)
    print(f"{'case':>24} {'CE ms':>8} {'CE/CE':>8} {'recomm./CE':>12} {'limit':>6} {'paper/CE':>8}")
    rows = [measured_row(case) for case in CASES]
    step = whole_step()
    print(
        f"ResNet-32 step, B=128: MR²/CE {step['ratio']:.3f} (limit {STEP_LIMIT}), "
        f"CE/CE {step['ratio_of_cross_entropy_to_itself']:.3f}"
    )
    return {"loss": rows, "resnet32_step": step, "step_limit": STEP_LIMIT}
