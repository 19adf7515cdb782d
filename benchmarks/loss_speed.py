"""How much the loss costs: MR² against cross-entropy and against a per-class loop, forward and backward.

Each case cycles through several batches, so that the statistics move as in training (on one batch repeated for ever
the deviations from the running mean would shrink to denormal numbers, which are slow for reasons of their own).

The limits are for the compiled loops of the extra ``fast``, which ``make bench`` installs; the same without them is
measured and printed too.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import interleaved_medians, paired_ratio
from classmargin import MR2Loss
from classmargin.mr2.batch_table import table_maker

CASES = (
    # B, K, d, rounds, most times cross-entropy, least times faster than the loop
    (128, 100, 64, 600, 6.0, 20.0),
    (512, 1000, 1024, 200, 2.0, 40.0),
    (1024, 1000, 768, 100, 2.0, 40.0),
)
BATCHES = 8
IN_A_ROW = 4
STEP_LIMIT = 1.03


class LoopLoss(nn.Module):
    """Eq. 1, 2 and 4 with one Python iteration a class: what a straightforward transcription does."""

    def __init__(
        self, num_classes: int, mean_margin: float = 1.0, weight: float = 0.1, decay: float = 0.9
    ) -> None:
        super().__init__()
        self.num_classes, self.mean_margin, self.weight, self.decay = num_classes, mean_margin, weight, decay
        self.register_buffer("mean_sqnorm", torch.zeros(num_classes))
        self.register_buffer("spread", torch.zeros(num_classes))

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        """Return the loss, updating the statistics of every class that occurs."""
        with torch.no_grad():
            for k in range(self.num_classes):
                rows = features[labels == k]
                if len(rows):
                    mean = rows.mean(0)
                    for buffer, value in (
                        (self.mean_sqnorm, mean.square().sum()),
                        (self.spread, (rows - mean).square().sum(1).mean()),
                    ):
                        buffer[k] = (
                            value if buffer[k] == 0 else self.decay * buffer[k] + (1 - self.decay) * value
                        )
            root = (self.mean_sqnorm + self.spread) ** (1 / 3)
            margins = self.mean_margin * self.num_classes * root / root.sum()
            mean_spread = self.spread.mean()
        logit = F.cross_entropy(logits / margins[labels].unsqueeze(1), labels)
        pair = features.new_zeros(())
        for k in range(self.num_classes):
            rows = features[labels == k]
            if len(rows) > 1:
                distance = (rows.unsqueeze(0) - rows.unsqueeze(1)).square().sum(2)
                off = ~torch.eye(len(rows), dtype=torch.bool)
                exponent = (distance - 2 * mean_spread).masked_fill(~off, -1e30)
                pair = pair + torch.logaddexp(torch.logsumexp(exponent, 1), torch.zeros(len(rows))).sum()
        return logit + self.weight * pair / len(labels)


def loss_case(batch: int, classes: int, dim: int, rounds: int) -> dict[str, float]:
    """Return median seconds of cross-entropy, MR² (printed formulas; recommended) and, in fewer rounds, the loop."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(batch, classes, generator=generator).requires_grad_(),
            torch.randint(0, classes, (batch,), generator=generator),
            torch.randn(batch, dim, generator=generator).requires_grad_(),
        )
        for _ in range(BATCHES)
    ]
    ours, loop = MR2Loss(classes, feature_dim=dim), LoopLoss(classes)
    recommended = MR2Loss.preset("recommended", classes, dim, warmup_steps=0)  # as after its warm-up
    for loss in (ours, recommended, loop):  # every class has been seen, as after the first epoch
        everyone = torch.arange(classes)
        with torch.no_grad():
            features = torch.randn(classes, dim, generator=generator)
            if isinstance(loss, MR2Loss):
                loss.statistics.update(features, everyone)
            else:
                loss(torch.zeros(classes, classes), everyone, features)

    def step(loss: Any, index: int) -> None:
        logits, labels, features = batches[index % BATCHES]
        logits.grad = features.grad = None
        (F.cross_entropy(logits, labels) if loss is None else loss(logits, labels, features)).backward()

    fast = interleaved_medians(
        {
            "cross_entropy": lambda i: step(None, i),
            "mr2": lambda i: step(ours, i),
            "recommended": lambda i: step(recommended, i),
        },
        rounds=rounds,
    )

    # Two ways, both kept: several steps in a row, as training runs them, and single steps in turn, where one step of ours
    # finds every cache cold after 100 ms of the loop.
    def in_a_row(loss: Any, index: int) -> None:
        for following in range(IN_A_ROW):
            step(loss, index + following)

    row = interleaved_medians(
        {"mr2": lambda i: in_a_row(ours, i), "loop": lambda i: in_a_row(loop, i)}, rounds=9, warmup=1
    )
    turn = interleaved_medians(
        {"mr2": lambda i: step(ours, i), "loop": lambda i: step(loop, i)}, rounds=9, warmup=1
    )
    return {
        **fast,
        "loop": row["loop"] * fast["mr2"] / row["mr2"],
        "times_faster_in_turn": turn["loop"] / turn["mr2"],
    }


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


@contextmanager
def compiled_loops(wanted: bool) -> Iterator[None]:
    """Take the compiled loops or leave them, within the block."""
    before = os.environ.get("CLASSMARGIN_FAST")
    os.environ["CLASSMARGIN_FAST"] = "1" if wanted else "0"
    table_maker.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("CLASSMARGIN_FAST")
        if before is not None:
            os.environ["CLASSMARGIN_FAST"] = before
        table_maker.cache_clear()


def measured_row(case: tuple[int, int, int, int, float, float]) -> dict[str, Any]:
    """Measure one case and print its line."""
    batch, classes, dim, rounds, most, least = case
    seconds = loss_case(batch, classes, dim, rounds)
    ratio, speedup = seconds["mr2"] / seconds["cross_entropy"], seconds["loop"] / seconds["mr2"]
    name = f"B={batch} K={classes} d={dim}"
    print(
        f"{name:>24} {1e3 * seconds['cross_entropy']:8.3f} {1e3 * seconds['mr2']:8.3f} {1e3 * seconds['loop']:9.1f} "
        f"{ratio:7.2f} {most:6.1f} {speedup:9.1f} {least:6.1f} {seconds['times_faster_in_turn']:8.1f} "
        f"{seconds['recommended'] / seconds['cross_entropy']:12.2f}"
    )
    return {
        "case": name,
        **seconds,
        "times_cross_entropy": ratio,
        "recommended_times_cross_entropy": seconds["recommended"] / seconds["cross_entropy"],
        "limit": most,
        "times_faster_than_loop": speedup,
        "least": least,
    }


def run() -> dict[str, Any]:
    """Measure all cases and print a table."""
    torch.set_num_threads(1)
    print(
        f"{'case':>24} {'CE ms':>8} {'MR2 ms':>8} {'loop ms':>9} {'MR2/CE':>7} {'limit':>6} {'loop/MR2':>9} {'limit':>6} "
        f"{'in turn':>8} {'recomm./CE':>12}"
    )
    has_numba = importlib.util.find_spec("numba") is not None
    with compiled_loops(has_numba):
        rows = [measured_row(case) for case in CASES]
        step = whole_step()
    print(
        f"{'ResNet-32 step, B=128':>24} {1e3 * step['cross_entropy']:8.1f} {1e3 * step['mr2']:8.1f} {'':>9} "
        f"{step['ratio']:7.3f} {STEP_LIMIT:6.2f}   (cross-entropy against itself: {step['ratio_of_cross_entropy_to_itself']:.3f})"
    )
    result = {
        "compiled_loops": has_numba,
        "losses": rows,
        "resnet32_step": {**step, "limit": STEP_LIMIT},
    }
    if has_numba:
        print("without the extra fast")
        with compiled_loops(False):
            result["losses_without_compiled_loops"] = [measured_row(case) for case in CASES]
    return result
