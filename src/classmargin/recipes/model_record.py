"""What must be known of the data to use a trained network without them: ``model.json`` of a run folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from classmargin.training.run_folder import RunFolder, write_json


@dataclass(frozen=True)
class ModelRecord:
    """Names, shapes and normalisation of a trained network.

    Attributes:
        class_names: In label order.
        class_counts: Training samples of each class.
        full_size: Size of the training set that stable indices point into.
        kind: What goes into the network: ``images`` or ``features``.
        input_shape: ``(C, H, W)`` or ``(d,)``.
        mean: Of each channel, subtracted from images in [0, 1].
        std: Of each channel, by which they are then divided.
        encoder: Fingerprint of a frozen encoder whose weights are not in the checkpoint; empty otherwise.
        steps_per_epoch: Optimiser steps of an epoch.
    """

    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    full_size: int
    kind: str
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: str = ""
    steps_per_epoch: int = 1

    @property
    def num_classes(self) -> int:
        """``K``."""
        return len(self.class_names)


def write_record(run: RunFolder, record: ModelRecord) -> None:
    """Keep the record in the run folder."""
    write_json(run.path / "model.json", dataclasses.asdict(record), durable=True)


def read_record(run: RunFolder) -> ModelRecord:
    """Read the record of a run.

    Raises:
        ValueError: The folder is no run, or its record is damaged.
    """
    path = run.path / "model.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return ModelRecord(**{**values, **lists})
    except FileNotFoundError as error:
        raise ValueError(f"{run.path} is not a run folder with a trained network: no model.json") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
