"""Features computed once, used for every epoch: what makes a linear probe take seconds instead of minutes.

    batches --extract_features--> FeatureSet --probe_head--> a network on features that shares the head

:func:`cached_features` keeps the features in a file whose name is a hash of everything they depend on: the
encoder's name, settings and weights, the image size, and the caller's key for the data.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from itertools import accumulate, chain, islice
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
# Features of 2048 numbers fill half a gigabyte, after a few minutes of an accelerator.
SHARD_ROWS = 65_536
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

    Raises:
        ValueError: No batch at all.

    Example:
        >>> backbone = Backbone(nn.Flatten(), feature_dim=4, num_classes=2)
        >>> batches = [(torch.ones(3, 2, 2), torch.tensor([0, 1, 0]))]
        >>> extract_features(backbone, batches).index
        tensor([0, 1, 2])
    """
    parts = list(_feature_parts(backbone, batches, first_row=0))
    if not parts:
        raise ValueError("batches must hold at least one batch, got none")
    return _joined(parts)


def _feature_parts(
    backbone: Backbone, batches: Iterable[AnyBatch], *, first_row: int
) -> Generator[FeatureSet, None, None]:
    """Yield the features of one batch after the other; rows without an index are numbered from ``first_row``."""
    count, total = first_row, len(batches) if isinstance(batches, Sized) else None
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
            yield FeatureSet(features.float().cpu(), labels.cpu(), index.cpu())
            count += len(labels)
    finally:
        for module, mode in modes:
            module.training = mode


def _joined(parts: Sequence[FeatureSet]) -> FeatureSet:
    return FeatureSet(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def cached_features(
    backbone: Backbone,
    batches: Iterable[AnyBatch] | Callable[[int], Iterable[AnyBatch]],
    *,
    cache_dir: str | Path,
    data_key: str,
    shard_rows: int = SHARD_ROWS,
) -> FeatureSet:
    """Return features from the cache, or extract them and keep them there.

    Large sets are extracted in shards on the disk: an interrupted extraction resumes after the last whole shard, no
    more than one shard is in memory at a time, and the features that come back are mapped from their file.

    Args:
        backbone: Network whose encoder is used.
        batches: Read only if the cache has nothing; see :func:`extract_features`. A function of the number of the
            first wanted batch lets a resumed extraction skip the batches before it.
        cache_dir: Folder of the cache; created.
        data_key: What the batches are: data set, split, fraction, seed, preprocessing, image size. Equal
            keys must mean equal batches.
        shard_rows: Rows after which a shard is written.
    """
    file = cache_file(backbone, cache_dir=cache_dir, data_key=data_key)
    kept = _read(file)
    if kept is not None:
        return kept
    folder = file.with_suffix(".shards")
    shards = _whole_shards(folder)
    done = shards[-1].end if shards else 0
    rest = batches(done) if callable(batches) else islice(batches, done, None)
    waiting: list[FeatureSet] = []
    first_row = sum(shard.rows for shard in shards)
    with closing(_feature_parts(backbone, rest, first_row=first_row)) as parts:
        for number, part in enumerate(parts, start=done + 1):
            waiting.append(part)
            rows = sum(len(found.labels) for found in waiting)
            if rows >= shard_rows:
                shard = _Shard(done, number, rows)
                _write(folder / shard.name, _joined(waiting))
                shards.append(shard)
                waiting, done = [], number
    if not shards:
        if not waiting:
            raise ValueError("batches must hold at least one batch, got none")
        computed = _joined(waiting)
        _write(file, computed)
        return computed
    kept = _read(file)  # another process may have finished the same features, and removed the shards
    if kept is None:
        _write_from_shards(file, [folder / shard.name for shard in shards], waiting)
        shutil.rmtree(folder, ignore_errors=True)
        kept = _read(file)
    if kept is None:
        raise ValueError(f"features were written to {file}, but cannot be read back")
    return kept


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


class _Shard(NamedTuple):
    """Batches ``start`` to ``end`` (exclusive) with ``rows`` rows, in the file ``name``."""

    start: int
    end: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.start:08d}-{self.end:08d}-{self.rows}.safetensors"


def _whole_shards(folder: Path) -> list[_Shard]:
    """Return the readable shards from the first batch on, without gaps."""
    named = (re.fullmatch(r"(\d+)-(\d+)-(\d+)\.safetensors", path.name) for path in folder.glob("*"))
    found = {int(match[1]): _Shard(*(int(text) for text in match.groups())) for match in named if match}
    whole: list[_Shard] = []
    while (shard := found.get(whole[-1].end if whole else 0)) is not None:
        kept = _read(folder / shard.name)
        if kept is None or len(kept.labels) != shard.rows:
            break
        whole.append(shard)
    return whole


def _read(file: Path) -> FeatureSet | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.exists():
        return None
    try:
        check_regular(file, max_bytes=LARGEST)
        tensors = load_file(file)
        return FeatureSet(tensors["features"], tensors["labels"], tensors["index"])
    except (SafetensorError, UnfitFileError, KeyError) as error:
        logger.warning("feature cache %s is damaged (%s): computing the features again", file, error)
        return None


def _write(file: Path, computed: FeatureSet) -> None:
    from safetensors.torch import save_file

    with atomic_path(file) as temporary:
        save_file({name: part.contiguous() for name, part in computed._asdict().items()}, temporary)


def _write_from_shards(file: Path, shards: Sequence[Path], rest: Sequence[FeatureSet]) -> None:
    """Write one safetensors file out of shards; the features of no more than one of them are in memory."""

    def parts() -> Iterator[FeatureSet]:
        for path in shards:
            kept = _read(path)
            if kept is None:
                raise ValueError(f"the shard {path} cannot be read; extract the features again")
            yield kept
        yield from rest

    numbers = [(part.labels, part.index, part.features.shape[1]) for part in parts()]
    labels, index = (torch.cat(columns) for columns in list(zip(*numbers, strict=True))[:2])
    if {labels.dtype, index.dtype} != {torch.int64}:
        raise ValueError("labels and index of batches must be int64")
    rows, width = len(labels), numbers[0][2]
    ends = list(accumulate((0, 4 * rows * width, 8 * rows, 8 * rows)))
    header = {
        name: {"dtype": kind, "shape": shape, "data_offsets": ends[place : place + 2]}
        for place, (name, kind, shape) in enumerate(
            (("features", "F32", [rows, width]), ("labels", "I64", [rows]), ("index", "I64", [rows]))
        )
    }
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)  # the format wants its numbers aligned
    with atomic_path(file) as temporary, open(temporary, "wb") as out:
        out.write(len(packed).to_bytes(8, "little") + packed)
        for column in chain((part.features for part in parts()), (labels, index)):
            out.write(column.contiguous().numpy().data)
