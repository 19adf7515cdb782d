"""Every single file operation of a checkpoint save, broken in every way: afterwards there is a whole checkpoint.

::

    setting   what lies there before            what is saved
    next      step 1                            step 2
    again     steps 1 and 2                     step 2 once more (an epoch that was stopped at its end)
    first     nothing                           step 1

After a kill, ``repair`` and ``load_newest`` must give the old state or the new one, and nothing else may lie
there. After an error the old one must be there, and the save must have said so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.children import Child, fork_call
from soak.file_faults import ERRORS, KILLS, KINDS, Fault, install
from soak.same_run import BrokenPromise

SETTINGS = {"next": ((1,), 2), "again": ((1, 2), 2), "first": ((), 1)}
SAID_SO = 7


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Break every operation once in every way and return the counts; nothing is drawn, so the seed is not used."""
    import safetensors.torch  # noqa: F401 - loaded once, before children are forked

    kills = errors = 0
    journal: list[str] = []
    for name, (before, step) in SETTINGS.items():
        if quick and name != "again":  # the one with the most operations
            continue
        journal = _operations(folder / f"{name}-count", before, step)
        for fault in _faults(len(journal), (*KILLS, "ENOSPC") if quick else KINDS):
            _try(folder / f"{name}-{fault.kind}-{fault.number}", before, step, fault)
            kills += fault.kind in KILLS
            errors += fault.kind in ERRORS
    counts = {"kills inside a save": kills, "errors inside a save": errors}
    return {**counts, "operations of a save": journal, "totals": counts}


def _faults(operations: int, kinds: tuple[str, ...]) -> Iterator[Fault]:
    for number in range(1, operations + 1):
        for kind in kinds:
            yield Fault(kind, number, lasting=number % 2 == 0)


def tree(step: int, version: str = "old") -> dict[str, Any]:
    """Return a state that says what it is."""
    import torch

    return {"step": step, "version": version, "weights": torch.full((64,), float(step))}


def _prepare(folder: Path, steps: tuple[int, ...]) -> None:
    from classmargin.training.checkpoint import CheckpointStore

    folder.mkdir(parents=True)
    for step in steps:
        CheckpointStore(folder / "checkpoint").save(step, tree(step))


def _operations(folder: Path, before: tuple[int, ...], step: int) -> list[str]:
    """Return the file operations of an unbroken save, in order."""
    _prepare(folder, before)
    _save_in_child(folder, step, Fault("none", 0)).wait(300)
    lines = (folder / "journal").read_text().splitlines()
    shutil.rmtree(folder)
    return [line.partition(" ")[2] for line in lines]


def _save_in_child(folder: Path, step: int, fault: Fault) -> Child:
    def save() -> int:
        from classmargin.training.checkpoint import CheckpointStore

        install(fault, folder / "checkpoint", folder / "journal")
        try:
            CheckpointStore(folder / "checkpoint").save(step, tree(step, "new"))
        except OSError as error:
            return SAID_SO if "could not save checkpoint" in str(error) else 1
        return 0

    return fork_call(save, folder / "log")


def _try(folder: Path, before: tuple[int, ...], step: int, fault: Fault) -> None:
    from classmargin.training.checkpoint import CheckpointStore

    _prepare(folder, before)
    code = _save_in_child(folder, step, fault).wait(300)
    store = CheckpointStore(folder / "checkpoint")
    store.repair()
    found = store.load_newest()
    what = f"{fault.kind} at {(folder / 'journal').read_text().splitlines()[-1]} (code {code}, {folder})"
    expected = {(step, "new")} | ({(max(before), "old")} if before else {None})
    got = None if found is None else (found[1]["step"], found[1]["version"])
    if got not in expected:
        raise BrokenPromise(f"after {what}: newest is {got}, expected one of {expected}")
    if fault.kind in KILLS and code != -9:
        raise BrokenPromise(f"after {what}: not killed")
    if fault.kind in ERRORS and (code, got == (step, "new")) not in (
        (SAID_SO, False),
        (SAID_SO, True),
        (0, True),
    ):
        raise BrokenPromise(f"after {what}: no error, and yet not saved")
    strays = [path.name for path in (folder / "checkpoint").glob(".*")] if before else []
    if strays:
        raise BrokenPromise(f"after {what}: {strays} left behind")
    shutil.rmtree(folder)
