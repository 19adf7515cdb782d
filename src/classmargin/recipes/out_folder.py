"""The folder of a command that trains many runs: a new one, or its own with the same question; never another's.

::

    OUT/question.json     which command, about what, and the settings of every kind of run; written before any run

``train`` and ``sweep`` have such a file of their own (``config.toml``, ``sweep.json``).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from classmargin.recipes.run_pool import PlannedRun
from classmargin.recipes.session import effective
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, differences
from classmargin.training.run_folder import write_text

QUESTION_FILE = "question.json"
RUN_FOLDERS = ("runs", "watched-runs")
# Where the data lie is no difference, and seeds may be added.
_FREE = ("data.root:", "loop.seed:")


@dataclass(frozen=True)
class Question:
    """What a folder is about.

    Attributes:
        command: Verb of the command line.
        about: What is the same for all runs, e.g. the recipe.
        configs: One run of each kind, by the name of the kind. Kinds may be added and left out later.
    """

    command: str
    about: Mapping[str, str]
    configs: Mapping[str, RunConfig]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        kinds = {kind: config.to_dict() for kind, config in self.configs.items()}
        return {"command": self.command, "about": dict(self.about), "runs": kinds}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Question:
        """Return the question of a record of :meth:`to_dict`."""
        kinds = {kind: effective(build(tables)) for kind, tables in record["runs"].items()}
        return Question(str(record["command"]), dict(record["about"]), kinds)

    def changes_to(self, other: Question) -> list[str]:
        """Return in what another question differs, without the kinds of runs that only one of them has."""
        found = [
            f"{name}: {self.about.get(name)} -> {value}"
            for name, value in other.about.items()
            if self.about.get(name) != value
        ]
        for kind in self.configs.keys() & other.configs.keys():
            words = differences(self.configs[kind], other.configs[kind])
            found += [word for word in words if not word.startswith(_FREE)]
        return list(dict.fromkeys(found))


def claim_folder(
    folder: Path, question: Question, runs: Sequence[PlannedRun], *, results: Sequence[str] = ()
) -> None:
    """Make the folder and keep the question in it, or check that the one that is there is the same.

    Args:
        folder: Given as ``--out``.
        question: What is asked now.
        runs: What is to be trained; a folder without ``question.json`` is known by them.
        results: Files that are there when the command has ended.

    Raises:
        ValueError: It cannot be made, holds something else, or another question.
    """
    make_folder(folder)
    file = folder / QUESTION_FILE
    if file.exists():
        # A question of which nothing was trained yet (a slip in the first command) may be asked otherwise.
        if has_runs(folder) or any((folder / name).exists() for name in results):
            before = read_question(file)
            _check_same(before, question, folder)
            question = replace(question, configs={**before.configs, **question.configs})
    elif not is_empty(folder) and not any(run.folder.path.exists() for run in runs):
        raise ValueError(
            f"{folder} exists and holds no results of this {question.command}; choose another --out"
        )
    # Not strict JSON: a hyper-parameter may be infinite and must come back as it was.
    write_text(file, json.dumps(question.to_dict(), indent=1, default=list) + "\n")


def make_folder(folder: Path) -> None:
    """Make the folder of ``--out`` before anything is trained for it.

    Raises:
        ValueError: Something else is in its place, or the file system refuses.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a folder, got the file {str(folder)!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be made, got {str(folder)!r} ({error.strerror})"
        ) from error


def is_empty(folder: Path) -> bool:
    """Whether there is nothing in a folder, or no folder."""
    return not folder.exists() or not any(folder.iterdir())


def has_runs(folder: Path) -> bool:
    """Whether a run was begun in the folder of a command."""
    return any(True for name in RUN_FOLDERS for _ in (folder / name).glob("*/config.toml"))


def read_question(file: Path) -> Question:
    """Return the question in a file.

    Raises:
        ValueError: It is not one.
    """
    try:
        return Question.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} does not say what was asked: {error}") from error


def _check_same(before: Question, now: Question, folder: Path) -> None:
    if before.command != now.command:
        raise ValueError(f"{folder} holds results of {before.command}; choose another --out")
    changed = before.changes_to(now)
    if changed:
        raise ValueError(
            f"{folder} holds results of {now.command} that ask something else ({'; '.join(changed)}); "
            "choose another --out"
        )


@contextlib.contextmanager
def removed_unless_begun(folder: Path) -> Iterator[None]:
    """Remove a folder that was made inside the block if an error ends it before any run began."""
    was_there = folder.exists()
    try:
        yield
    except Exception:
        if not was_there and folder.is_dir() and not any(folder.rglob("config.toml")):
            shutil.rmtree(folder, ignore_errors=True)
        raise
