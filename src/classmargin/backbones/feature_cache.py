"""Features computed once, used for every epoch: what makes a linear probe take seconds instead of minutes.

    batches --extract_features--> FeatureSet --probe_head--> a network on features that shares the head

:func:`cached_features` keeps the features in a file whose name is a hash of everything they depend on: the
encoder's name, settings and weights, the image size, and the caller's key for the data.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._files import UnfitFileError, check_regular
from classmargin._progress import progress
from classmargin._types import Batch
from classmargin.backbones.contract import Backbone

logger = logging.getLogger(__name__)

# Features are mapped from their file, not read into memory.
LARGEST = 2**40
AnyBatch = Batch | Sequence[Tensor]


class FeatureSet(NamedTuple):
    """Features of a data set, on the CPU, in the order in which the batches came.

    Attributes:
        features: Shape ``[N, d]``, float32.
        labels: Shape ``[N]``.
        index: Stable position of each row in the data set, shape ``[N]``.
    """

    features: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # the name the whole package uses; hides tuple.index


def extract_features(backbone: Backbone, batches: Iterable[AnyBatch]) -> FeatureSet:
    """Return the features of all batches, with the encoder in evaluation mode and without gradients.

    Args:
        backbone: Network whose encoder is used; its training mode is as before afterwards.
        batches: Batches, or sequences ``(inputs, labels)`` or ``(inputs, labels, index)``. Without an index
            rows are numbered as they come.

    Example:
        >>> backbone = Backbone(nn.Flatten(), feature_dim=4, num_classes=2)
        >>> batches = [(torch.ones(3, 2, 2), torch.tensor([0, 1, 0]))]
        >>> extract_features(backbone, batches).index
        tensor([0, 1, 2])
    """
    parts: list[FeatureSet] = []
    count, total = 0, len(batches) if isinstance(batches, Sized) else None
    # Module by module: a batch norm that its owner keeps in evaluation mode must stay in it.
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        for batch in progress(batches, "features", total=total):
            if isinstance(batch, Batch):
                inputs, labels, index = batch.inputs, batch.labels, batch.index
            elif len(batch) in (2, 3):
                inputs, labels, *given = batch
                index = given[0] if given else torch.arange(count, count + len(labels))
            else:
                raise ValueError(f"a batch must be (inputs, labels[, index]), got {len(batch)} parts")
            place = next(backbone.encoder.parameters(), inputs).device
            # Convolutions in evaluation run up to twice as fast with the channels last, on CPUs and GPUs alike.
            layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
            with torch.no_grad():
                features = backbone.encode(inputs.to(place).contiguous(memory_format=layout))
            parts.append(FeatureSet(features.float().cpu(), labels.cpu(), index.cpu()))
            count += len(labels)
    finally:
        for module, mode in modes:
            module.training = mode
    if not parts:
        raise ValueError("batches must hold at least one batch, got none")
    return FeatureSet(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def cached_features(
    backbone: Backbone, batches: Iterable[AnyBatch], *, cache_dir: str | Path, data_key: str
) -> FeatureSet:
    """Return features from the cache, or extract them and keep them there.

    Args:
        backbone: Network whose encoder is used.
        batches: Read only if the cache has nothing; see :func:`extract_features`.
        cache_dir: Folder of the cache; created.
        data_key: What the batches are: data set, split, fraction, seed, preprocessing, image size. Equal
            keys must mean equal batches.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    file = cache_file(backbone, cache_dir=cache_dir, data_key=data_key)
    if file.exists():
        try:
            check_regular(file, max_bytes=LARGEST)
            tensors = load_file(file)
            return FeatureSet(tensors["features"], tensors["labels"], tensors["index"])
        except (SafetensorError, UnfitFileError, KeyError) as error:
            logger.warning("feature cache %s is damaged (%s): computing the features again", file, error)
    found = extract_features(backbone, batches)
    with atomic_path(file) as temporary:
        save_file({name: part.contiguous() for name, part in found._asdict().items()}, temporary)
    return FeatureSet(**load_file(file))  # mapped: gigabytes in each of several workers else


def cache_file(backbone: Backbone, *, cache_dir: str | Path, data_key: str) -> Path:
    """Return where the features of this encoder on this data are kept."""
    key = f"{encoder_fingerprint(backbone)}|{data_key}".encode()
    name = re.sub(r"[^\w-]+", "_", backbone.name)
    return Path(cache_dir) / f"{name}-{hashlib.blake2b(key, digest_size=16).hexdigest()}.safetensors"


def encoder_fingerprint(backbone: Backbone) -> str:
    """Return a hash of everything that features depend on besides the data."""
    digest = hashlib.blake2b(digest_size=16)
    options = sorted(backbone.encoder_options.items())
    settings = (backbone.name, type(backbone.encoder).__name__, options)
    digest.update(repr((*settings, backbone.input_size, backbone.normalize_features)).encode())
    for key, tensor in sorted(backbone.encoder.state_dict().items()):
        digest.update(repr((key, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def probe_head(backbone: Backbone) -> Backbone:
    """Return a network on features that shares the head of ``backbone``: training it trains that head.

    Example:
        >>> backbone = Backbone(nn.Flatten(), feature_dim=4, num_classes=2)
        >>> probe = probe_head(backbone)
        >>> probe.head is backbone.head, probe(torch.zeros(3, 4)).logits.shape
        (True, torch.Size([3, 2]))
    """
    size = backbone.feature_dim
    probe = Backbone(nn.Identity(), feature_dim=size, num_classes=backbone.num_classes, input_size=(size,))
    probe.name = f"{backbone.name} probe"
    probe.head = backbone.head
    return probe
