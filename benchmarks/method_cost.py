"""What each method costs: time of a whole training relative to ERM, against what its passes require.

Every method trains the same small network on the same images for the same epochs, in the real loop. Rows that
go through a network are counted on the way: with a backward pass (also of a second network, a second view or a
second step of SAM) or forward alone (evaluation, passes over the training set, a frozen encoder). Counts times
the measured price of each kind of row give the required time; what is above it is the method's own work::

    ratio    = median time of the method / median time of ERM      (methods take turns, round after round)
    required = the same ratio from counted rows alone
    excess   = ratio / required - 1                                (the target is at most 0.10)

Times are CPU times of one thread, which other processes disturb less than the clock on the wall.

    python -m benchmarks.method_cost [NAME ...]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classmargin._types import ModelOutput
from classmargin.backbones import create_backbone
from classmargin.backbones.contract import Backbone
from classmargin.data.synthetic import synthetic_images
from classmargin.methods import TaskInfo, create, list_methods, requirements_of
from classmargin.recipes.run_parts import BundleLoaders
from classmargin.training import devices, process_state
from classmargin.training.config_reader import build
from classmargin.training.loop import Ingredients, Loop
from classmargin.training.recorder import Recorder
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import Watchers

BACKBONE, SIDE, CLASSES, PER_CLASS, BATCH, EPOCHS = "resnet20", 16, 10, 16, 32, 3
ALLOWED_EXCESS = 0.10
# Repeated errors would make the cost of JTT a matter of how many errors a toy training makes.
OPTIONS: dict[str, dict[str, Any]] = {"jtt": {"mode": "weight", "identification_share": 1.0}}


class RowCounter:
    """Counts the rows that go through networks, by what they cost."""

    def __init__(self) -> None:
        self.trained = self.forwarded = 0

    def watch(self, network: Backbone) -> Backbone:
        """Count what goes through ``network``; in place of its forward, which hooks would miss."""
        forward = network.forward

        def counting(inputs: Tensor) -> ModelOutput:
            encoder_moves = any(parameter.requires_grad for parameter in network.encoder.parameters())
            if torch.is_grad_enabled() and encoder_moves:
                self.trained += len(inputs)
            else:
                self.forwarded += len(inputs)
            return forward(inputs)

        network.forward = counting  # type: ignore[method-assign]
        return network


def make_training(name: str, folder: Path, counter: RowCounter) -> Loop:
    """Build one training of ``name`` whose networks are counted."""
    needs = requirements_of(name)
    bundle = synthetic_images(num_classes=CLASSES, side=SIDE, channels=3, samples_per_class=PER_CLASS).bundle
    config = build(
        {
            "loop": {"epochs": EPOCHS, "batch_size": BATCH, "evaluate_every": 1000},
            "machine": {"threads": 1, "accelerator": "cpu", "memory_format": "contiguous"},
            "method": {"name": name},
            "optimizer": {"learning_rate": 0.01},
        }
    )

    def new_network() -> Backbone:
        network = create_backbone(
            BACKBONE,
            num_classes=CLASSES,
            in_channels=3,
            input_size=(SIDE, SIDE),
            head=needs.head,
            head_options=dict(needs.head_options),
        )
        return counter.watch(network)

    process_state.seed_process(0, "weights", 0)
    loaders = BundleLoaders(bundle, needs, BATCH, "standard", seed=0)
    network = new_network()
    steps = len(loaders.training(sampler=None, views=None, multiplicity=None))
    labels, counts = bundle.train.labels, bundle.train.class_counts
    task = TaskInfo(CLASSES, network.feature_dim, counts, labels, EPOCHS, steps, new_network)
    run = RunFolder(folder)
    run.path.mkdir(parents=True)
    names = tuple(bundle.class_names)
    method = create(name, task, **OPTIONS.get(name, {}))
    ingredients = Ingredients(network, method, new_network, loaders, names)
    return Loop(config, ingredients, devices.start(config), Recorder(run, config, names), Watchers())


def timed_training(name: str) -> tuple[float, RowCounter]:
    """Train once; return CPU seconds and counted rows."""
    counter = RowCounter()
    with tempfile.TemporaryDirectory() as folder:
        loop = make_training(name, Path(folder) / "run", counter)
        counter.trained = counter.forwarded = 0
        begin = time.process_time()
        loop.run()
        return time.process_time() - begin, counter


def forward_share(rounds: int) -> float:
    """Return the price of a forward row in units of a trained row, from turns of both on one network."""
    network = create_backbone(BACKBONE, num_classes=CLASSES, in_channels=3, input_size=(SIDE, SIDE))
    inputs = torch.randn(BATCH, 3, SIDE, SIDE)
    forward, trained = [], []
    for _ in range(2 * rounds + 1):
        begin = time.process_time()
        with torch.no_grad():
            network.eval()(inputs)
        middle = time.process_time()
        network.train()(inputs).logits.sum().backward()
        forward.append(middle - begin)
        trained.append(time.process_time() - middle)
    return statistics.median(forward[1:]) / statistics.median(trained[1:])


def run(names: Sequence[str] | None = None, rounds: int = 3) -> dict[str, Any]:
    """Measure all methods (or ``names``) and return ratios, requirements and excesses.

    Args:
        names: Registry names; all of them when left out. ERM is always measured.
        rounds: Trainings of each method; the first round is a warm-up on top.

    Returns:
        ``methods`` (name to ``ratio``, ``required``, ``excess``), ``largest_excess``, ``forward_share`` and
        the sizes of the measurement.
    """
    torch.set_num_threads(1)
    chosen = [info.name for info in list_methods()] if names is None else ["erm", *names]
    chosen = list(dict.fromkeys(chosen))
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    rows: dict[str, RowCounter] = {}
    timed_training("erm")  # warm-up: lazily built kernels and imports
    for _ in range(rounds):
        for name in chosen:
            spent, rows[name] = timed_training(name)
            seconds[name].append(spent)
    share = forward_share(rounds)
    methods = {name: _compared(name, seconds, rows, share) for name in chosen}
    return {
        "network": BACKBONE,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "rounds": rounds,
        "forward_share": share,
        "methods": methods,
        "largest_excess": max(values["excess"] for values in methods.values()),
        "allowed_excess": ALLOWED_EXCESS,
    }


def _compared(
    name: str, seconds: dict[str, list[float]], rows: dict[str, RowCounter], share: float
) -> dict[str, float]:
    ratio = statistics.median(seconds[name]) / statistics.median(seconds["erm"])
    price = {key: counter.trained + share * counter.forwarded for key, counter in rows.items()}
    required = price[name] / price["erm"]
    return {"ratio": ratio, "required": required, "excess": ratio / required - 1}


def main() -> None:
    result = run(sys.argv[1:] or None)
    print(f"{'method':20} {'time/ERM':>9} {'required':>9} {'excess':>8}")
    for name, values in result["methods"].items():
        print(f"{name:20} {values['ratio']:9.2f} {values['required']:9.2f} {values['excess']:8.1%}")


if __name__ == "__main__":
    main()
