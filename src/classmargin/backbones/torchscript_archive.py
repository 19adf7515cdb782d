"""Reads the tensors of a TorchScript archive without running anything in it.

OpenAI publishes CLIP as TorchScript archives (``RN50.pt``, ``ViT-B-32.pt``). ``torch.jit.load`` would
compile and prepare the program inside; only its weights are wanted here. The archive is a zip file whose
``data.pkl`` names modules, their attributes and where the bytes of each tensor lie. The unpickler below
knows exactly the names such a file needs, builds plain attribute holders for modules, and refuses
everything else.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classmargin._array_files import check_pickle, is_suspicious
from classmargin._files import open_regular

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_torchscript(path: Path) -> bool:
    """Return whether ``path`` is a TorchScript archive rather than a file of ``torch.save``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the archived module under the names ``state_dict()`` would give them.

    Raises:
        ValueError: The archive asks for something that no module of plain tensors needs.
    """
    tensors: dict[str, Tensor] = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
            module = _TensorUnpickler(archive, root).load()
        _collect(module, "", tensors)
    except OSError:
        raise
    except Exception as error:  # a broken archive can raise nearly anything
        words = str(error) or type(error).__name__
        raise ValueError(f"{path} is not a TorchScript archive of plain tensors: {words}") from error
    return tensors


class _Module:
    """Stands for any module of the archive; unpickling fills its ``__dict__`` with the attributes."""


def _collect(value: Any, prefix: str, into: dict[str, Tensor]) -> None:
    if isinstance(value, Tensor):
        into[prefix] = value
    elif isinstance(value, _Module):
        for name, part in vars(value).items():
            _collect(part, f"{prefix}.{name}" if prefix else name, into)


def _build_list(values: list[Any]) -> list[Any]:
    return values


class _TensorUnpickler(pickle.Unpickler):
    """An unpickler that can only make attribute holders, ordered dictionaries, lists and tensors."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        packed = _read_member(archive, root + "data.pkl")
        check_pickle(packed)
        super().__init__(io.BytesIO(packed))
        self.archive = archive
        self.root = root

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return type("_Module", (_Module,), {})  # a fresh one: a pickle could change a class it is handed
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return _build_list
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _device, _length = pid
        content = bytearray(_read_member(self.archive, f"{self.root}data/{key}"))
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _rebuild_tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> Tensor:
    # A stride of zero would make a few bytes stand for terabytes; weights have each value once.
    if math.prod(size) > storage.numel():
        raise pickle.UnpicklingError(
            f"a tensor of shape {tuple(size)} in a storage of {storage.numel()} values"
        )
    return torch.as_strided(storage, size, stride, offset).clone()


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if is_suspicious(info.file_size, info.compress_size):
        raise pickle.UnpicklingError(
            f"{name} unpacks to {info.file_size} bytes: refused as a possible zip bomb"
        )
    return archive.read(info)
