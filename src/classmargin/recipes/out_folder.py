"""The folder of a command that trains many runs: a new one, or its own with the same question; never another's.

``question.json`` in it says which command, about what, with the settings of every kind of run; it is written before any run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from classmargin._files import read_json
from classmargin.recipes.recipe_plan import SAMPLE_FOLDER, SELECTION_FOLDER, RecipePlan
from classmargin.recipes.record import CUSTOM, read_record
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import PlannedRun
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, differences
from classmargin.training.run_folder import write_text

QUESTION_FILE = "question.json"
RECORD_FILE = "record.json"
# Made by --select before the final runs are known.
BEFORE_RUNS = (SELECTION_FOLDER, SAMPLE_FOLDER)
# Where the data lie is no difference, and seeds may be added.
_FREE = ("data.root:", "loop.seed:")


@dataclass(frozen=True)
class Question:
    """What a folder is about."""

    command: str  # verb of the command line
    about: Mapping[str, str]  # what is the same for all runs, e.g. the recipe
    configs: Mapping[str, RunConfig]  # one run of each kind; kinds may be added and left out later

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
        pairs = [(name, self.about.get(name), value) for name, value in other.about.items()]
        found = [f"{name}: {was} -> {value}" for name, was, value in pairs if was != value]
        for kind in self.configs.keys() & other.configs.keys():
            words = differences(self.configs[kind], other.configs[kind])
            found += [word for word in words if not word.startswith(_FREE)]
        return list(dict.fromkeys(found))


def claim_folder(folder: Path, question: Question, runs: Sequence[PlannedRun], *, results: Sequence[str] = ()) -> None:
    """Make the folder of ``--out`` and keep the question in it, or check that the one that is there is the same.

    Without ``question.json`` it is known by the ``runs`` to be trained; ``results`` are files of a command that has ended.
    """
    make_folder(folder)
    file, command = folder / QUESTION_FILE, question.command
    if file.exists():
        # A question of which nothing was trained yet (a slip in the first command) may be asked otherwise.
        if any(folder.glob("*runs/*/config.toml")) or any((folder / name).exists() for name in results):
            before = read_question(file)
            changed = "; ".join(before.changes_to(question))
            if before.command != command:
                raise ValueError(f"{folder} holds results of {before.command}; choose another --out")
            if changed:
                raise ValueError(
                    f"{folder} holds results of {command} that ask something else ({changed}); choose another --out"
                )
            question = replace(question, configs={**before.configs, **question.configs})
    elif not is_empty(folder) and not any(run.folder.path.exists() for run in runs):
        raise ValueError(f"{folder} exists and holds no results of this {command}; choose another --out")
    # Not strict JSON: a hyper-parameter may be infinite and must come back as it was.
    write_text(file, json.dumps(question.to_dict(), indent=1, default=list) + "\n")


def make_folder(folder: Path) -> None:
    """Make the folder of ``--out`` before anything is trained for it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a folder, got the file {str(folder)!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be made, got {str(folder)!r} ({error.strerror})") from error


def is_empty(folder: Path) -> bool:
    """Whether there is nothing in a folder, or no folder."""
    return not folder.exists() or all(path.name in BEFORE_RUNS for path in folder.iterdir())


def read_question(file: Path) -> Question:
    """Return the question in a file; a file that holds none is named."""
    try:
        return Question.from_dict(read_json(file))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} does not say what was asked: {error}") from error


def claim_plan_folder(plan: RecipePlan, folder: Path) -> None:
    """Claim the folder of a recipe or comparison; methods (or rows) and seeds may be added and left out."""
    rows = [(block, row, row.runs[0].config) for block in plan.blocks for row in block.rows]
    if plan.recipe.name == CUSTOM:
        question = Question("compare-methods", {}, {row.key: config for _, row, config in rows})
        claim_folder(folder, question, plan.runs, results=("comparison.json",))
    elif not rows and not (folder / QUESTION_FILE).exists():
        claim_record_folder(folder, plan.recipe.name)  # a figure of formulas: its record is all there is
    else:
        configs = {f"{block.key}/{row.key}": config for block, row, config in rows}
        question = Question("reproduce", {"recipe": plan.recipe.name, "scale": plan.scale}, configs)
        claim_folder(folder, question, plan.runs, results=(RECORD_FILE,))


def results_folder(out: Path, recipe: str, scale: str) -> Path:
    """Return where the results of a recipe go: ``out``, or below it where another recipe was there first; they share runs."""
    try:
        before = read_question(out / QUESTION_FILE)
        taken = before.command == "reproduce" and before.about != {"recipe": recipe, "scale": scale}
    except (OSError, ValueError):
        taken = (out / RECORD_FILE).exists() and read_record(out).recipe != recipe
    return out / f"{recipe}-{scale}" if taken else out


def claim_record_folder(folder: Path, recipe: str) -> None:
    """Make the folder of a record of finished runs, or check that it holds a record of the same recipe."""
    make_folder(folder)
    if is_empty(folder):
        return
    if not (folder / RECORD_FILE).exists():
        raise ValueError(f"{folder} exists and holds no record; choose another --out")
    if (before := read_record(folder).recipe) != recipe:
        raise ValueError(f"{folder} holds a record of {before}, not of {recipe}; choose another --out")


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
