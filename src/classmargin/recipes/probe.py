"""Linear probe: images are swapped for the features of a frozen encoder, computed once and kept on the disk.

A second seed, another method or a resumed run finds them again by a fingerprint of encoder and samples.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from classmargin.backbones import Backbone, cached_features
from classmargin.data import DataBundle, Split, make_loader

LARGEST_BATCH = 128
# Pixels of a batch whose activations a processor's cache still holds: at 224 pixels 4 images a batch run four times as
# fast as 128 do.
CACHED_PIXELS = 1 << 18


def feature_bundle(bundle: DataBundle, backbone: Backbone, *, workers: int = 0, device: str = "cpu") -> DataBundle:
    """Return the data with features in place of images, kept in ``$CLASSMARGIN_CACHE`` or ``~/.cache/classmargin``.

    The encoder computes on ``device`` and returns to the CPU; ``workers`` processes decode streamed images ahead.
    """
    folder = Path(os.environ.get("CLASSMARGIN_CACHE", Path.home() / ".cache" / "classmargin")) / "features"
    parts, splits = ("train", "validation", "test"), dict[str, Any]()
    backbone.to(device)
    try:
        splits = {name: _split_features(bundle, name, backbone, folder, workers, device) for name in parts}
    finally:
        backbone.to("cpu")
    shape: dict[str, Any] = {"input_shape": (backbone.feature_dim,), "mean": (0.0,), "std": (1.0,)}
    return replace(bundle, kind="features", resize=None, **splits, **shape)


def _split_features(
    bundle: DataBundle, name: str, backbone: Backbone, folder: Path, workers: int, device: str
) -> Split:
    split = bundle.split(name)
    if len(split) == 0:
        return replace(split, inputs=torch.zeros(0, backbone.feature_dim), images=None)
    loader = make_loader(bundle, name, batch_size=batch_size_for(bundle.input_shape), training=False, workers=workers)
    # The number of threads changes the last bits of features, and with them those of every run that reads them.
    place = f"threads={torch.get_num_threads()}" if device == "cpu" else device
    key = f"{data_fingerprint(bundle, name)} {place}"
    found = cached_features(backbone, loader.epoch(0), cache_dir=folder, data_key=key)
    return replace(split, inputs=found.features, images=None)


def batch_size_for(input_shape: Sequence[int]) -> int:
    """Return how many images of this shape ``[C, H, W]`` are encoded at a time."""
    return max(1, min(LARGEST_BATCH, CACHED_PIXELS // math.prod(input_shape[1:])))


def data_fingerprint(bundle: DataBundle, name: str) -> str:
    """Return a hash of the samples of a split as the encoder sees them; of files, which ones and when they changed."""
    split = bundle.split(name)
    seen = (bundle.name, name, bundle.mean, bundle.std, bundle.input_shape, bundle.resize)
    digest = hashlib.sha256(repr(seen).encode())
    if bundle.framing.interpolation != "bilinear":
        digest.update(bundle.framing.interpolation.encode())
    for tensor in (split.index, split.labels, *([] if split.inputs is None else [split.inputs])):
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if split.images is not None:
        for position in range(len(split)):
            digest.update(_identity(split.images.open(position)))
    return digest.hexdigest()


def _identity(image: Path | io.BytesIO) -> bytes:
    """Return what tells an image from others: its bytes, or place, size and last change of a file, which cost less to read."""
    if isinstance(image, io.BytesIO):
        return hashlib.sha256(image.getbuffer()).digest()
    file = image.resolve()
    try:
        found = file.stat()
        return os.fsencode(file) + b"\0%d %d\n" % (found.st_size, found.st_mtime_ns)
    except OSError:  # what cannot be opened is told, or left out, by whoever reads it
        return os.fsencode(file) + b"\0\n"
