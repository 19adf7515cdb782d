"""A trained network as one file for other programs: ``classmargin export RUN --format onnx``.

The exported graph takes pixels in [0, 1] (``[B, C, H, W]``, float32) or features (``[B, d]``) and returns scores and
features; normalisation and the method's prediction rule are inside. Beside it lies a JSON file with names and
shapes. Every export is run once and compared with the original before it is kept.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._checks import check_choice, require_extra
from classmargin.recipes.saved_model import DeployedModel, SavedModel
from classmargin.training.run_folder import write_json

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}
TOLERANCE = 1e-4


def export(model: SavedModel, target: str | os.PathLike[str], file_format: str) -> Path:
    """Write the network and return where it is.

    Args:
        model: From :func:`classmargin.recipes.saved_model.load_model`.
        target: File to write; the suffix of the format is added if it is missing.
        file_format: ``onnx``, ``torchscript`` or ``safetensors`` (weights alone, for
            ``create_backbone(checkpoint=…)``).

    Raises:
        ValueError: Unknown format, or an exported network that does not compute the same.
        ImportError: The format needs a package that is missing; the message names the extra.
    """
    check_choice("format", file_format, SUFFIXES)
    path = Path(target)
    if path.suffix != SUFFIXES[file_format]:
        path = path.with_name(path.name + SUFFIXES[file_format])
    if file_format == "safetensors":
        _write_weights(model, path)
    else:
        write_graph(DeployedModel(model).eval(), _example(model), path, file_format)
    write_json(
        path.with_name(f"{path.name}.json"), {"format": file_format, **dataclasses.asdict(model.record)}
    )
    return path


def _example(model: SavedModel) -> Tensor:
    # Two samples: with one, a tracer takes the batch for a constant.
    random = torch.Generator().manual_seed(0)
    shape = (2, *model.record.input_shape)
    if model.record.kind == "text":  # without padding: a tracer keeps the length of what it saw
        encoder: Any = model.backbone.encoder
        others = torch.tensor([token for token in range(encoder.vocabulary) if token != encoder.padding])
        return others[torch.randint(len(others), shape, generator=random)]
    return torch.rand(shape, generator=random)


def _write_weights(model: SavedModel, path: Path) -> None:
    from safetensors.torch import save_file

    weights = {name: value.contiguous().clone() for name, value in model.backbone.state_dict().items()}
    names = json.dumps(list(model.record.class_names))
    with atomic_path(path) as temporary:
        save_file(weights, temporary, metadata={"backbone": model.config.backbone.name, "class_names": names})


def write_graph(model: nn.Module, example: Tensor, path: Path, file_format: str) -> None:
    """Write a module that returns scores and features as ``onnx`` or ``torchscript``, if the file computes the same."""
    writer: Callable[[nn.Module, Tensor, Path], None] = (
        _write_onnx if file_format == "onnx" else _write_script
    )
    runner = run_onnx if file_format == "onnx" else run_script
    with atomic_path(path) as temporary, torch.no_grad():
        writer(model, example, temporary)
        _check_equal(model(example), runner(temporary, example))


def _check_equal(expected: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor]) -> None:
    for name, left, right in zip(("scores", "features"), expected, found, strict=True):
        worst = float((left - right).abs().max())
        if not worst <= TOLERANCE:
            raise ValueError(f"the exported network differs from the original: {name} by up to {worst:g}")


def _write_script(model: nn.Module, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        # TorchScript is in maintenance, which PyTorch says at each use; whoever asks for it knows.
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, example), str(path))  # type: ignore[no-untyped-call]


def run_script(path: Path, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run an exported TorchScript file."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        scores, features = torch.jit.load(str(path))(inputs)  # type: ignore[no-untyped-call]
    return scores, features


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    require_extra("onnxscript", "export", "ONNX export")
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports every optional package it lacks
    with warnings.catch_warnings():
        # The exporter announces future changes of its own interface.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (example,),
            input_names=["inputs"],
            output_names=["scores", "features"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(str(path), external_data=False)


def run_onnx(path: Path, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run an exported ONNX file on the CPU."""
    runtime = require_extra("onnxruntime", "export", "checking an ONNX file")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    scores, features = session.run(["scores", "features"], {"inputs": inputs.numpy()})
    return torch.from_numpy(scores), torch.from_numpy(features)
