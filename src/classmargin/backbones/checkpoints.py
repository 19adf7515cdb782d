"""Weights from files: read without running anything, loaded only if they fit.

    path --read_state_dict--> {name: tensor} --convert--> Weights(encoder, head) --load_weights--> backbone

Formats: safetensors, ``torch.save`` files (``weights_only``), TorchScript archives, and folders that hold
one of them under the names the Hugging Face hub uses.

OpenAI publishes CLIP as TorchScript archives (``RN50.pt``, ``ViT-B-32.pt``). ``torch.jit.load`` would compile the program
inside; only its weights are wanted. The ``data.pkl`` of such a zip file names modules, their attributes and where the bytes
of each tensor lie; the unpickler below knows the names such a file needs, and refuses everything else.
"""

from __future__ import annotations

import io
import logging
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from classmargin._array_files import check_archive, check_pickle, first_line
from classmargin._files import check_regular, memory_budget, open_regular, read_json
from classmargin.backbones.contract import Backbone

logger = logging.getLogger(__name__)

StateDict = dict[str, Tensor]

# Names under which people wrap the weights in a file with other things.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "module")
_FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
)
_SHOWN = 4
# Weights must fit into memory beside nothing else: they are read before the network is built.
LARGEST = 256 * 2**30
_COUNTER = "num_batches_tracked"


class Weights(NamedTuple):
    """Tensors of a checkpoint, renamed to the networks of this package."""

    encoder: StateDict
    head: StateDict


Converter = Callable[[StateDict], Weights]


def read_state_dict(path: str | Path) -> StateDict:
    """Return the tensors of a checkpoint file or folder, without wrappers (``{"model": …}``) and the prefix ``module.``."""
    source = weights_file(Path(path))
    check_archive(source, max_bytes=memory_budget(LARGEST, share=1.0))
    if source.name.endswith(".index.json"):
        content: object = _read_shards(source)
    elif source.suffix == ".safetensors":
        content = _read_safetensors(source)
    elif is_torchscript(source):
        content = read_torchscript(source)
    else:
        content = _read_torch(source)
    state = _unwrap(content, source)
    return with_prefix(state, "module.") if all(key.startswith("module.") for key in state) else state


def weights_file(path: Path) -> Path:
    """Return the file of weights at ``path``, which may be its folder."""
    if not path.exists():
        raise FileNotFoundError(f"checkpoint {path} does not exist")
    if not path.is_dir():
        return path
    for name in _FOLDER_FILES:
        if (path / name).exists():
            return path / name
    raise FileNotFoundError(f"folder {path} holds none of {', '.join(_FOLDER_FILES)}")


def _read_safetensors(path: Path) -> StateDict:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


def _read_shards(index: Path) -> StateDict:
    try:
        files = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is not a readable index of weights: {error}") from error
    merged: StateDict = {}
    for shard in (index.parent / Path(name).name for name in files):
        check_regular(shard, max_bytes=memory_budget(LARGEST, share=1.0))
        merged |= _read_safetensors(shard)
    return merged


def _read_torch(path: Path) -> object:
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the reader raise nearly anything
        raise ValueError(
            f"{path} cannot be read as plain weights ({first_line(error)}). Files with other Python "
            "objects are refused because reading them can run code; save the weights alone as safetensors."
        ) from error
    return content


def _unwrap(content: object, source: Path) -> StateDict:
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
            if tensors:
                return tensors
        content = inner
    raise ValueError(f"{source} holds no weights (no tensors at its top or under {', '.join(_WRAPPERS)})")


def with_prefix(state: Mapping[str, Tensor], prefix: str) -> StateDict:
    """Return the entries below ``prefix``, without it."""
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def is_own_format(state: Mapping[str, Tensor]) -> bool:
    """Return whether the tensors were saved from a :class:`Backbone`."""
    return {key.partition(".")[0] for key in state} in ({"encoder"}, {"encoder", "head"})


def convert_own(state: StateDict) -> Weights:
    """Split a state dict of :class:`Backbone`; a bare encoder (no ``encoder.`` prefix) is taken as it is."""
    encoder = with_prefix(state, "encoder.")
    return Weights(encoder, with_prefix(state, "head.")) if encoder else Weights(state, {})


def load_weights(backbone: Backbone, weights: Weights, *, source: str, own: bool = False) -> bool:
    """Load an encoder, and return whether the head was loaded too: one of another kind or for other classes stays fresh.

    ``own`` weights that fit are not adapted: positions of 2 x 8 patches could be those of 4 x 4 in a published file.
    """
    adapt: Callable[[StateDict], StateDict] | None = getattr(backbone.encoder, "adapt_state", None)
    fits_already = own and _misfit(backbone.encoder, weights.encoder) is None
    encoder_state = weights.encoder if adapt is None or fits_already else adapt(weights.encoder)
    misfit = _misfit(backbone.encoder, encoder_state)
    if misfit is not None:
        raise ValueError(f"{source} does not fit the encoder of {backbone.name}: {misfit}")
    # Copying casts: half-precision checkpoints (OpenAI's CLIP) become the float32 that training needs.
    backbone.encoder.load_state_dict(encoder_state, strict=False)
    fits = bool(weights.head) and _misfit(backbone.head, weights.head) is None
    if fits:
        backbone.head.load_state_dict(weights.head)
    logger.info("loaded %s; head %s", source, "loaded" if fits else "fresh")
    return fits


def _misfit(module: nn.Module, state: StateDict) -> str | None:
    """Return in words what is missing, unexpected or of another shape; None if everything fits."""
    # Counters of batch norm are absent from old checkpoints and change nothing here.
    own, given = (
        {key: tuple(value.shape) for key, value in tensors.items() if not key.endswith(_COUNTER)}
        for tensors in (module.state_dict(), state)
    )
    faults = {
        "missing": [key for key in own if key not in given],
        "unexpected": [key for key in given if key not in own],
        "of another shape": [
            f"{key}: file {given[key]}, network {own[key]}" for key in own if given.get(key, own[key]) != own[key]
        ],
    }
    words = [
        f"{len(keys)} {what} ({', '.join(keys[:_SHOWN])}{', …' if len(keys) > _SHOWN else ''})"
        for what, keys in faults.items()
        if keys
    ]
    return "; ".join(words) or None


_STORAGES = {
    f"{name}Storage": getattr(torch, name.lower())
    for name in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short")
} | {"CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool}


def is_torchscript(path: Path) -> bool:
    """Return whether ``path`` is a TorchScript archive rather than a file of ``torch.save``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the archived module under the names ``state_dict()`` would give them; all else is refused."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
            return dict(_tensors_of(_TensorUnpickler(archive, root).load(), ""))
    except OSError:
        raise
    except Exception as error:  # a broken archive can raise nearly anything
        raise ValueError(f"{path} is not a TorchScript archive of plain tensors: {first_line(error)}") from error


class _Module:
    """Stands for any module of the archive; unpickling fills its ``__dict__`` with the attributes."""


def _tensors_of(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, _Module):
        for key, part in vars(value).items():
            yield from _tensors_of(part, f"{name}.{key}" if name else key)


class _TensorUnpickler(pickle.Unpickler):
    """An unpickler that can only make attribute holders, ordered dictionaries, lists and tensors."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        packed = archive.read(root + "data.pkl")
        check_pickle(packed)
        super().__init__(io.BytesIO(packed))
        self.archive, self.root = archive, root
        # Read once and never copied: a pickle of kilobytes can name the same storage a million times.
        self.storages: dict[str, bytearray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return type("_Module", (_Module,), {})  # a fresh one: a pickle could change a class it is handed
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return lambda values: values  # not list, which would make an object of each value of a storage
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _device, _length = pid
        name = f"{self.root}data/{key}"
        content = self.storages.get(name)
        if content is None:
            content = self.storages[name] = bytearray(self.archive.read(name))
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    # A stride of zero would make a few bytes stand for terabytes; weights have each value once.
    if math.prod(size) > storage.numel():
        raise pickle.UnpicklingError(f"a tensor of shape {size} in a storage of {storage.numel()} values")
    return torch.as_strided(storage, size, stride, offset)
