"""Checkpoints that are whole or not there, checked when read, and never the only copy.

::

    RUN/checkpoint/step-00000120/tensors.safetensors    every tensor
                                 state.json             everything else, and the checksum of the tensors
                  /step-00000140/...                    the newest two are kept

``save`` writes into a hidden folder, flushes it to the disk and renames it: a kill or a full disk at any
moment leaves the earlier checkpoints as they were, and ``repair`` clears away what it left half done.
``load_newest`` takes the newest one that reads back whole and says which ones it had to pass over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from classmargin._atomic import flush
from classmargin._files import memory_budget, open_regular, read_json

KEEP = 2
FORMAT = 1
# A checkpoint must fit into memory to be of use.
LARGEST = 256 * 2**30


class CorruptCheckpointError(ValueError):
    """A checkpoint that does not read back as it was written."""


class CheckpointStore:
    """The checkpoints of one run; ``say`` is called with a line for each that is passed over."""

    def __init__(self, folder: str | os.PathLike[str], say: Callable[[str], None] = lambda line: None) -> None:
        self.folder = Path(folder)
        self.say = say

    def paths(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        found = [path for path in self.folder.glob("step-*") if path.name[5:].isdigit() and path.is_dir()]
        return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)

    def save(self, step: int, tree: dict[str, Any]) -> Path:
        """Write ``tree`` as the checkpoint of an optimiser step and drop all but the newest two; on an error they all stay."""
        final = self.folder / f"step-{step:08d}"
        try:
            write_tree(final, tree)
        except OSError as error:
            kept = self.paths()
            rest = f"the checkpoint {kept[0].name} before it is intact" if kept else "there is no earlier one"
            raise _retold(error, f"could not save checkpoint {final} ({error}); {rest}") from error
        # After a resume from an older checkpoint, folders of later steps are leftovers of the broken attempt:
        # they would be taken for the newest at the next resume, so they go as well.
        by_age = [path for path in self.paths() if path.name <= final.name]
        for path in set(self.paths()) - set(by_age[:KEEP]):
            shutil.rmtree(path, ignore_errors=True)
        return final

    def repair(self) -> None:
        """Remove half-written checkpoints, and give one set aside for a replacement that never came its name back."""
        for path in self.folder.glob(".step-*.writing"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(".step-*.stale"):
            final = path.with_name(path.name[1 : -len(".stale")])
            if final.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.rename(path, final)

    def load_newest(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and tree of the newest whole checkpoint, or None if there is none.

        One that cannot be read just now may be whole: an ``OSError``, as going on from an earlier one would in time
        delete it.
        """
        for path in self.paths():
            try:
                return int(path.name[5:]), read_tree(path)
            except CorruptCheckpointError as error:
                self.say(f"checkpoint {path.name} is damaged ({error}); falling back to the one before")
            except OSError as error:
                words = (
                    f"checkpoint {path} cannot be read ({error}), which does not mean that it is damaged; try "
                    "again, or delete it to resume from the one before"
                )
                raise _retold(error, words) from error
        return None


def _retold(error: OSError, words: str) -> OSError:
    """Return an error of the system in other words; one without a number must not be told as ``[Errno None]``."""
    return OSError(words) if error.errno is None else OSError(error.errno, words)


def write_tree(final: Path, tree: dict[str, Any]) -> None:
    """Write a state tree as a folder that appears under its name only when it is whole."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, structure = pack(tree)
    working = final.with_name(f".{final.name}.writing")
    shutil.rmtree(working, ignore_errors=True)
    is_first = not final.parent.exists()
    working.mkdir(parents=True)
    try:
        try:
            save_file(tensors, working / "tensors.safetensors")
        except SafetensorError as error:  # which hides the number of the failed write in its text
            found = re.search(r"\(os error (\d+)\)", str(error))
            raise (OSError(int(found[1]), str(error)) if found else OSError(str(error))) from error
        record = {"format": FORMAT, "sha256": _checksum(working / "tensors.safetensors"), "state": structure}
        (working / "state.json").write_text(json.dumps(record), encoding="utf-8")
        for path in (*working.iterdir(), working):
            flush(path)
        _swap_in(working, final)
        flush(final.parent)
        if is_first:
            flush(final.parent.parent)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _swap_in(working: Path, final: Path) -> None:
    if final.exists():
        # A folder cannot replace a non-empty one in one call. Between these two renames the name is missing;
        # a kill there is put right by CheckpointStore.repair.
        shutil.rmtree(stale := final.with_name(f".{final.name}.stale"), ignore_errors=True)
        os.rename(final, stale)
        os.rename(working, final)
        shutil.rmtree(stale, ignore_errors=True)
    else:
        os.rename(working, final)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a folder written by :func:`write_tree`; one that is not as it was written is a ``CorruptCheckpointError``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        record = read_json(path / "state.json")
        if record["format"] != FORMAT:
            raise CorruptCheckpointError(f"format {record['format']} is not {FORMAT}")
        if _checksum(path / "tensors.safetensors") != record["sha256"]:
            raise CorruptCheckpointError("the tensors do not match their checksum")
        tree: dict[str, Any] = unpack(load_file(path / "tensors.safetensors"), record["state"])
        return tree
    except CorruptCheckpointError:
        raise
    except (FileNotFoundError, LookupError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path, max_bytes=memory_budget(LARGEST, share=1.0)) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_TENSOR, _PAIRS, _TUPLE = "__tensor__", "__pairs__", "__tuple__"


def pack(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a tree of numbers, text, None, tensors and nests of these into tensors by name and a JSON-able structure."""
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(tree, "", tensors)


def _pack(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = path or "value"
        # A contiguous copy: the file format refuses tensors that share memory.
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, Mapping):
        inner = [(key, _pack(value, _join(path, key), tensors)) for key, value in tree.items()]
        # Text keys stay readable; one that looks like our marks would be misread, so it is paired.
        if all(isinstance(key, str) and not key.startswith("__") for key, _ in inner):
            return dict(inner)
        return {_PAIRS: [[key, value] for key, value in inner]}
    if isinstance(tree, (list, tuple)):
        items = [_pack(value, _join(path, position), tensors) for position, value in enumerate(tree)]
        return {_TUPLE: items} if isinstance(tree, tuple) else items
    raise TypeError(f"state at {path or 'the top'!r} must be numbers, text or tensors, got {type(tree).__name__}")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def unpack(tensors: Mapping[str, Tensor], structure: Any) -> Any:
    """Rebuild the tree that :func:`pack` took apart."""
    if isinstance(structure, list):
        return [unpack(tensors, item) for item in structure]
    if not isinstance(structure, dict):
        return structure
    if set(structure) == {_TENSOR}:
        return tensors[structure[_TENSOR]]
    if set(structure) == {_PAIRS}:
        return {key: unpack(tensors, value) for key, value in structure[_PAIRS]}
    if set(structure) == {_TUPLE}:
        return tuple(unpack(tensors, item) for item in structure[_TUPLE])
    return {key: unpack(tensors, value) for key, value in structure.items()}
