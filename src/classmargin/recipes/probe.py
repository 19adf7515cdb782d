"""Linear probe: features of a frozen encoder are computed once, kept on the disk, and trained on.

``feature_bundle`` swaps images for their features and ``head_alone`` the network for its head (the same head
object, so the full network is trained when the head is). Features are found again by a fingerprint of encoder
and samples: a second seed, another method or a resumed run reads them instead of computing them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._progress import progress
from classmargin.backbones.contract import Backbone
from classmargin.data import DataBundle, Split, make_loader

BATCH = 128
SPLITS = ("train", "validation", "test")


def head_alone(backbone: Backbone) -> Backbone:
    """Return a network from features to logits that shares the head of ``backbone``."""
    network = Backbone(nn.Identity(), feature_dim=backbone.feature_dim, num_classes=backbone.num_classes)
    network.head = backbone.head
    network.name = f"head of {backbone.name}"
    return network


def feature_bundle(bundle: DataBundle, backbone: Backbone, *, cache: Path | None = None) -> DataBundle:
    """Return the data with features in place of images.

    Args:
        bundle: Images, normalised as the encoder wants them.
        backbone: Its encoder makes the features.
        cache: Folder for computed features; ``$CLASSMARGIN_CACHE`` or ``~/.cache/classmargin`` if left out.
    """
    encoder = encoder_fingerprint(backbone)
    folder = (cache or cache_folder()) / "features"
    train, validation, test = (
        _split_features(bundle, name, backbone, folder / f"{encoder}-{_data_fingerprint(bundle, name)}")
        for name in SPLITS
    )
    return replace(
        bundle,
        kind="features",
        train=train,
        validation=validation,
        test=test,
        input_shape=(backbone.feature_dim,),
        mean=(0.0,),
        std=(1.0,),
        resize=None,
    )


def cache_folder() -> Path:
    """Return where computed things are kept."""
    return Path(os.environ.get("CLASSMARGIN_CACHE", Path.home() / ".cache" / "classmargin"))


def _split_features(bundle: DataBundle, name: str, backbone: Backbone, stem: Path) -> Split:
    split = bundle.split(name)
    if len(split) == 0:
        return replace(split, inputs=torch.zeros(0, backbone.feature_dim), images=None)
    file = stem.with_name(f"{stem.name}.safetensors")
    features = _read(file, len(split))
    if features is None:
        features = _compute(bundle, name, backbone)
        _write(file, features)
    return replace(split, inputs=features, images=None)


def _compute(bundle: DataBundle, name: str, backbone: Backbone) -> Tensor:
    loader = make_loader(bundle, name, batch_size=BATCH, training=False)
    backbone.eval()
    rows = []
    with torch.inference_mode():
        for batch in progress(loader.epoch(0), f"features of {name}", total=len(loader)):
            rows.append(backbone.encode(batch.inputs).float())
    return torch.cat(rows).clone()


def _read(file: Path, rows: int) -> Tensor | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        features = load_file(file)["features"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return features if len(features) == rows else None


def _write(file: Path, features: Tensor) -> None:
    from safetensors.torch import save_file

    with atomic_path(file) as temporary:
        save_file({"features": features.contiguous()}, temporary)


def encoder_fingerprint(backbone: Backbone) -> str:
    """Return 16 hexadecimal digits that change with any weight of the encoder or its input normalisation."""
    digest = hashlib.sha256(repr((backbone.name, backbone.normalize_features)).encode())
    for name, tensor in sorted(backbone.encoder.state_dict().items()):
        digest.update(name.encode())
        _add(digest.update, tensor)
    return digest.hexdigest()[:16]


def _data_fingerprint(bundle: DataBundle, name: str) -> str:
    split = bundle.split(name)
    digest = hashlib.sha256(repr((bundle.name, name, bundle.mean, bundle.std, bundle.input_shape)).encode())
    _add(digest.update, split.index)
    _add(digest.update, split.labels)
    if split.inputs is not None:
        _add(digest.update, split.inputs)
    else:
        # Reading every file of a large set would cost as much as the features; names and order must do.
        digest.update("\n".join(split.paths or []).encode())
    return digest.hexdigest()[:16]


def _add(update: Callable[[Any], None], tensor: Tensor) -> None:
    plain = tensor.detach().cpu().contiguous()
    if plain.numel():
        update(plain.reshape(-1).view(torch.uint8).numpy().data)
