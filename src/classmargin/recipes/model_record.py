"""What must be known of the data to use a trained network without them: ``model.json`` of a run folder."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from classmargin._checks import check_int
from classmargin._files import read_json
from classmargin.training.run_folder import RunFolder, write_json

# Indices of training samples beyond this are a damaged file, not a data set.
LARGEST_SET = 2**31
# Numbers in one input: colour images of 4 700 x 4 700 pixels. A network is built for it before weights are compared.
LARGEST_INPUT = 2**26


@dataclass(frozen=True)
class ModelRecord:
    """Names, shapes and normalisation of a trained network.

    Attributes:
        class_names: In label order.
        class_counts: Training samples of each class.
        full_size: Size of the training set that stable indices point into.
        kind: What goes into the network: ``images``, ``features`` or ``text``.
        input_shape: ``(C, H, W)``, ``(d,)`` or ``(T,)``.
        mean: Of each channel, subtracted from images in [0, 1].
        std: Of each channel, by which they are then divided.
        encoder: Fingerprint of a frozen encoder whose weights are not in the checkpoint; empty otherwise.
        steps_per_epoch: Optimiser steps of an epoch.
        head_start: Where training began with the head: ``random``, ``prompts`` (class names) or ``checkpoint``.
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
    head_start: str = "random"

    @property
    def num_classes(self) -> int:
        """``K``."""
        return len(self.class_names)


def write_record(run: RunFolder, record: ModelRecord) -> None:
    """Keep the record in the run folder."""
    write_json(run.model_file, dataclasses.asdict(record), durable=True)


def read_record(run: RunFolder) -> ModelRecord:
    """Read the record of a run.

    Raises:
        ValueError: The folder is not a run, or its record is damaged.
    """
    path = run.model_file
    try:
        values = read_json(path)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        record = ModelRecord(**{**values, **lists})
        _check(record)
    except FileNotFoundError as error:
        raise ValueError(f"{run.path} is not a run folder with a trained network: no model.json") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return record


def _check(record: ModelRecord) -> None:
    """Refuse values of other types, and sizes that would ask for all memory."""
    kinds: dict[str, tuple[type, ...]] = {
        "class_names": (str,),
        "class_counts": (int,),
        "input_shape": (int,),
        "mean": (int, float),
        "std": (int, float),
    }
    for name, kind in kinds.items():
        values = getattr(record, name)
        if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
            raise TypeError(f"{name} must be a list of {kind[-1].__name__}")
    if len(record.class_counts) != len(record.class_names):
        raise ValueError("class_counts and class_names must be of one length")
    for name in ("full_size", "steps_per_epoch"):
        check_int(name, getattr(record, name), minimum=0)
    if record.full_size > LARGEST_SET:
        raise ValueError(f"full_size must be at most {LARGEST_SET}, got {record.full_size}")
    if min(record.input_shape, default=1) < 1 or math.prod(record.input_shape) > LARGEST_INPUT:
        raise ValueError(f"input_shape must hold 1 to {LARGEST_INPUT} numbers, got {record.input_shape}")
    if not all(isinstance(text, str) for text in (record.kind, record.encoder, record.head_start)):
        raise TypeError("kind, encoder and head_start must be text")
