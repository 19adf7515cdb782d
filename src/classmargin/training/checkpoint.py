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
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from classmargin.training.packing import pack, unpack

KEEP = 2
FORMAT = 1


class CorruptCheckpointError(ValueError):
    """A checkpoint that does not read back as it was written."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: Where they lie; created by the first save.
        say: Called with one line when a checkpoint is passed over.
    """

    def __init__(
        self, folder: str | os.PathLike[str], say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.folder = Path(folder)
        self.say = say

    def paths(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        found = [path for path in self.folder.glob("step-*") if path.name[5:].isdigit() and path.is_dir()]
        return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)

    def save(self, step: int, tree: dict[str, Any]) -> Path:
        """Write ``tree`` as the checkpoint of optimiser step ``step`` and drop all but the newest two.

        Raises:
            OSError: It could not be written (disk full, no permission); earlier checkpoints are untouched.
        """
        final = self.folder / f"step-{step:08d}"
        try:
            write_tree(final, tree)
        except OSError as error:
            kept = self.paths()
            rest = f"the checkpoint {kept[0].name} before it is intact" if kept else "there is no earlier one"
            raise OSError(error.errno, f"could not save checkpoint {final} ({error}); {rest}") from error
        self._prune(final)
        return final

    def _prune(self, newest: Path) -> None:
        # After a resume from an older checkpoint, folders of later steps are leftovers of the broken attempt:
        # they would be taken for the newest at the next resume, so they go as well.
        by_age = [path for path in self.paths() if path.name <= newest.name]
        for path in set(self.paths()) - set(by_age[:KEEP]):
            shutil.rmtree(path, ignore_errors=True)

    def repair(self) -> None:
        """Put right what a kill in the middle of a save left behind; only the writer of the run may ask.

        A half-written checkpoint goes. One that was set aside to be replaced takes its name back, unless the
        new one got there.
        """
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

        Raises:
            OSError: The system does not let it be read (no permission, a disk or network that fails). It may be
                whole, and going on from an earlier one would in time delete it.
        """
        for path in self.paths():
            try:
                return int(path.name[5:]), read_tree(path)
            except CorruptCheckpointError as error:
                self.say(f"checkpoint {path.name} is damaged ({error}); falling back to the one before")
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"checkpoint {path} cannot be read ({error}), which does not mean that it is damaged; try "
                    "again, or delete it to go on from the one before",
                ) from error
        return None


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
        except SafetensorError as error:  # the library hides the errno of the failed write in its text
            raise OSError(None, str(error)) from error
        record = {"format": FORMAT, "sha256": _checksum(working / "tensors.safetensors"), "state": structure}
        (working / "state.json").write_text(json.dumps(record), encoding="utf-8")
        for path in (*working.iterdir(), working):
            _flush(path)
        _swap_in(working, final)
        _flush(final.parent)
        if is_first:
            _flush(final.parent.parent)
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
    """Read a folder written by :func:`write_tree`.

    Raises:
        CorruptCheckpointError: A part is missing, cut off or changed.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        record = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise CorruptCheckpointError(f"format {record['format']} is not {FORMAT}")
        if _checksum(path / "tensors.safetensors") != record["sha256"]:
            raise CorruptCheckpointError("the tensors do not match their checksum")
        tree: dict[str, Any] = unpack(load_file(path / "tensors.safetensors"), record["state"])
    except CorruptCheckpointError:
        raise
    except (FileNotFoundError, LookupError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error
    return tree


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
