"""The loop of the package on tiny synthetic features, for contract tests over the registry."""

from __future__ import annotations

from pathlib import Path

from classmargin.backbones import create_backbone
from classmargin.backbones.contract import Backbone
from classmargin.data.synthetic import synthetic_features
from classmargin.methods import TaskInfo, create, requirements_of
from classmargin.recipes.run_parts import BundleLoaders
from classmargin.training import process_state
from classmargin.training.config_reader import build
from classmargin.training.devices import start
from classmargin.training.loop import Ingredients, Loop
from classmargin.training.recorder import Recorder
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import Watchers

CLASSES, EPOCHS, BATCH = 4, 5, 12
BUNDLE = synthetic_features(
    num_classes=CLASSES,
    dimensions=6,
    samples_per_class=20,
    mean_distance=3.0,
    class_spread=[1.0, 2.0, 3.0, 4.0],
).bundle


def make_loop(name: str, folder: Path) -> Loop:
    """Build everything anew, as a new process would; the folder decides whether it begins or goes on."""
    config = build(
        {
            "loop": {"epochs": EPOCHS, "batch_size": BATCH, "checkpoint_steps": 7},
            "machine": {"threads": 1, "accelerator": "cpu", "memory_format": "contiguous"},
            "method": {"name": name},
        }
    )
    needs = requirements_of(name)
    process_state.seed_process(0, "weights", 0)

    def new_network() -> Backbone:
        return create_backbone(
            "mlp",
            num_classes=CLASSES,
            input_size=(6,),
            hidden=8,
            batch_norm=True,
            dropout=0.1,
            head=needs.head,
            head_options=dict(needs.head_options),
        )

    loaders = BundleLoaders(BUNDLE, needs, BATCH, "none", seed=0)
    train = BUNDLE.train
    network = new_network()
    task = TaskInfo(
        CLASSES, network.feature_dim, train.class_counts, train.labels, EPOCHS,
        len(loaders.training(sampler=None, views=None, multiplicity=None)), new_network,
    )  # fmt: skip
    method = create(name, task)
    run = RunFolder(folder)
    run.path.mkdir(parents=True, exist_ok=True)
    names = tuple(BUNDLE.class_names)
    recorder = Recorder(run, config, names)
    return Loop(
        config,
        Ingredients(network, method, new_network, loaders, names),
        start(config),
        recorder,
        Watchers(),
    )
