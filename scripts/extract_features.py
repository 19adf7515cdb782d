"""Writes the features of a pretrained encoder to an ``.npz`` that ``--data`` reads, with its own validation part.

    python scripts/extract_features.py --data cifar100 --backbone efficientnet-lite0 --validation 0.1 --fraction 0.2223 \
        --out cifar100_efflite0.npz

A probe (``backbone.mode=probe``) keeps its features by itself; this script is for networks on top of frozen features
(``--backbone mlp``), for scikit-learn, and for anything else that wants a matrix.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from classmargin._atomic import atomic_path
from classmargin.recipes.run_parts import build_run
from classmargin.training.config import BackboneConfig, DataConfig, RunConfig


def main() -> None:
    """Read the arguments, extract, write."""
    options = _arguments()
    torch.set_num_threads(options.threads)
    data = DataConfig(
        name=options.data,
        fraction=options.fraction,
        validation=options.validation,
        image_size=options.image_size,
    )
    probe = BackboneConfig(name=options.backbone, mode="probe", pretrained=True)
    features = build_run(RunConfig(data=data, backbone=probe)).bundle
    arrays: dict[str, np.ndarray] = {"class_names": np.array(features.class_names)}
    for split, key in (("train", "train"), ("validation", "val"), ("test", "test")):
        part = features.split(split)
        if len(part):
            arrays[f"x_{key}"] = part.inputs.numpy().astype(np.float16)
            arrays[f"y_{key}"] = part.labels.numpy()
    with atomic_path(options.out) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="name or path, as for classmargin train")
    parser.add_argument("--backbone", required=True, help="a pretrained network of classmargin list backbones")
    parser.add_argument("--image-size", type=int, help="side of the images; left out: what the network was made for")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of every training class to keep")
    parser.add_argument("--validation", type=float, help="share of every training class held out first")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
