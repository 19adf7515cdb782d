"""The folder of a command that trains many runs: a new one, or its own with the same question; never another's.

::

    OUT/question.json     which command, about what, and the settings of every kind of run; written before any run

``train`` and ``sweep`` have such a file of their own (``config.toml``, ``sweep.json``).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from classmargin._files import read_json
from classmargin.recipes.recipe_plan import PlannedBlock, RecipePlan, in_order
from classmargin.recipes.record import read_record
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import PlannedRun
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, differences
from classmargin.training.run_folder import write_text

QUESTION_FILE = "question.json"
RECORD_FILE, COMPARISON_FILE = "record.json", "comparison.json"
SELECTION_FOLDER = "selection"
# Made by --select before the final runs are known.
BEFORE_RUNS = (SELECTION_FOLDER, "sample-data")
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


def refuse_unsettled(configs: Iterable[RunConfig], where: str) -> None:
    """Refuse to add to runs whose numerics were not written down: nobody knows whether they share them.

    Raises:
        ValueError: A version before 0.5 wrote the settings and let a stopwatch choose the memory format of each run.
    """
    if any(config.machine.memory_format == "auto" for config in configs):
        raise ValueError(
            f"{where} holds runs of a version before 0.5, which may have computed each of them in another memory "
            "format; choose another --out"
        )


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


def is_asked(folder: Path) -> bool:
    """Whether the folder of a command says what it is about."""
    return (folder / QUESTION_FILE).exists()


def is_empty(folder: Path) -> bool:
    """Whether there is nothing in a folder, or no folder."""
    return not folder.exists() or all(path.name in BEFORE_RUNS for path in folder.iterdir())


def has_runs(folder: Path) -> bool:
    """Whether a run was begun in the folder of a command."""
    return any(True for name in RUN_FOLDERS for _ in (folder / name).glob("*/config.toml"))


def read_question(file: Path) -> Question:
    """Return the question in a file.

    Raises:
        ValueError: It is not one.
    """
    try:
        record = read_json(file)
        question, written = Question.from_dict(record), [build(tables) for tables in record["runs"].values()]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} does not say what was asked: {error}") from error
    refuse_unsettled(written, str(file.parent))
    return question


def _check_same(before: Question, now: Question, folder: Path) -> None:
    if before.command != now.command:
        raise ValueError(f"{folder} holds results of {before.command}; choose another --out")
    changed = before.changes_to(now)
    if changed:
        raise ValueError(
            f"{folder} holds results of {now.command} that ask something else ({'; '.join(changed)}); "
            "choose another --out"
        )


def claim_comparison_folder(folder: Path, block: PlannedBlock) -> None:
    """Make the folder of a comparison, or check that it holds one with the same settings.

    Methods and seeds may be added and left out.

    Raises:
        ValueError: As :func:`claim_folder`.
    """
    question = Question("compare-methods", {}, {row.key: row.runs[0].config for row in block.rows})
    claim_folder(folder, question, in_order([block]), results=(COMPARISON_FILE,))


def results_folder(out: Path, recipe: str, scale: str) -> Path:
    """Return where the results of a recipe go: ``out``, or a folder below it where another recipe was there first.

    Recipes in one ``out`` share its ``runs``: equal runs are trained once.
    """
    try:
        before = Question.from_dict(read_json(out / QUESTION_FILE))
        taken = before.command == "reproduce" and before.about != {"recipe": recipe, "scale": scale}
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        taken = (out / RECORD_FILE).exists() and read_record(out).recipe != recipe
    return out / f"{recipe}-{scale}" if taken else out


def claim_recipe_folder(plan: RecipePlan, folder: Path) -> None:
    """Make the folder of a recipe, or check that it holds the same recipe with the same settings.

    Raises:
        ValueError: As :func:`claim_folder`.
    """
    configs = {
        f"{block.key}/{row.key}": _portable(row.runs[0].config, plan.folder)
        for block in plan.blocks
        for row in block.rows
    }
    if not configs and not (folder / QUESTION_FILE).exists():
        claim_record_folder(folder, plan.recipe.name)  # a figure of formulas: its record is all there is
        return
    question = Question("reproduce", {"recipe": plan.recipe.name, "scale": plan.scale}, configs)
    claim_folder(folder, question, plan.runs, results=(RECORD_FILE,))


def _portable(config: RunConfig, folder: Path) -> RunConfig:
    """Return settings without the place of made-up weights, which differs with the way the folder is written."""
    checkpoint = config.backbone.checkpoint
    if checkpoint is None or not Path(checkpoint).is_relative_to(folder):
        return config
    return replace(config, backbone=replace(config.backbone, checkpoint=None))


def claim_record_folder(folder: Path, recipe: str) -> None:
    """Make the folder of a record of finished runs, or check that it holds a record of the same recipe.

    Raises:
        ValueError: It cannot be made, or holds something else.
    """
    make_folder(folder)
    if is_empty(folder):
        return
    if not (folder / RECORD_FILE).exists():
        raise ValueError(f"{folder} exists and holds no record; choose another --out")
    before = read_record(folder).recipe
    if before != recipe:
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
