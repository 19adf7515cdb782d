"""A watcher of a run that notes the spread of every class at each evaluation, in ``spread.jsonl``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch

from classmargin.evaluation.feature_geometry import FeatureSums, class_geometry
from classmargin.training.metric_logs import Evaluation, json_line

if TYPE_CHECKING:
    from classmargin.recipes.run_parts import RunParts

SPREAD_FILE = "spread.jsonl"


class SpreadLog:
    """Notes ``‖ŝ_y‖²`` of the validation samples; one line an evaluation.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / SPREAD_FILE
        self._session: RunParts | None = None

    def attach(self, session: RunParts) -> None:
        """Learn which network and samples to watch.

        Raises:
            ValueError: There are no validation samples to measure on.
        """
        if len(session.bundle.split("validation")) == 0:
            raise ValueError("watching spreads needs validation samples; set data.validation above 0")
        self._session = session

    def log(self, evaluation: Evaluation) -> None:
        """Measure and append a line."""
        session = self._session
        assert session is not None, "attached before training begins"
        # Only the first process writes; it looks at all samples, not at its share of them.
        loader = replace(session.loaders, rank=0, world_size=1).evaluation("validation")
        assert loader is not None, "checked when attached"
        network = session.network
        device = next(network.parameters()).device
        sums = FeatureSums.empty(session.bundle.num_classes, network.feature_dim, 2.0)
        was_training = network.training
        network.eval()
        with torch.inference_mode():
            for batch in loader.epoch(0):
                output = network(batch.inputs.to(device))
                sums.add(output.features.float().cpu().numpy(), batch.labels.numpy())
        network.train(was_training)
        line = {"epoch": evaluation.epoch, "spread": class_geometry(sums).spread.tolist()}
        with self._file.open("a+b") as file:
            # A killed writer or a full disk may have left half a line; the next one must not go on in it.
            file.write(b"\n" * _is_cut(file) + json_line(line).encode())

    def close(self) -> None:
        """Nothing is held open."""


def _is_cut(file: IO[bytes]) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
