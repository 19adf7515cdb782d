"""Everything that decides a sweep, as one record: made once, kept in ``sweep.json``, read by every worker."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classmargin._checks import check_choice
from classmargin._files import read_json
from classmargin.backbones import backbone_info
from classmargin.recipes.out_folder import refuse_unsettled
from classmargin.recipes.run_parts import effective
from classmargin.recipes.sweep_space import Objective, Parameter, check_method, grid_size, settings_of
from classmargin.training.config import MethodConfig, RunConfig, identity
from classmargin.training.config_reader import build, differences, replace_machine, with_values
from classmargin.training.devices import settled
from classmargin.training.run_folder import write_json

PLAN_FILE = "sweep.json"
SAMPLERS = ("tpe", "random", "grid")


@dataclass(frozen=True)
class SweepPlan:
    """One sweep.

    Attributes:
        config: What all trials share.
        parameters: What varies.
        objective: What is maximised on validation.
        trials: Trials of the whole study, over all processes and machines.
        study: Name of the study in its storage.
        storage: Address of the data base.
        seed: Of the sampler; trial n always draws from (seed, n).
        pruner: ``median`` stops trials that are worse than half of the others at the same epoch, unless the method
            trains in stages.
        keep_easy: Whether "easy must not drop" constrains the choice.
        easy_slack: Drop of the easy third that is forgiven, as a fraction.
        sampler: ``tpe`` learns from ended trials, ``random`` does not, ``grid`` tries every combination.
    """

    config: RunConfig
    parameters: tuple[Parameter, ...]
    objective: Objective
    trials: int
    study: str
    storage: str
    seed: int = 0
    pruner: str = "median"
    keep_easy: bool = True
    easy_slack: float = 0.0
    sampler: str = "tpe"

    def __post_init__(self) -> None:
        check_choice("--sampler", self.sampler, SAMPLERS)
        if self.sampler == "grid" and grid_size(self.parameters) is None:
            raise ValueError(
                "--sampler grid needs values to combine: KEY=A,B,… or KEY=LOW:HIGH:STEP for every --search"
            )

    @property
    def budget(self) -> int:
        """Trials that make sense: no more than there are different ones."""
        size = grid_size(self.parameters)
        if self.sampler == "grid" and size is not None:
            return size
        return self.trials if size is None else min(self.trials, size)

    @property
    def is_whole_grid(self) -> bool:
        """Whether every combination is tried, so that nothing needs to be drawn."""
        size = grid_size(self.parameters)
        return size is not None and (size <= self.trials or self.sampler == "grid")

    @property
    def is_staged(self) -> bool:
        """Whether a trial may train in several stages.

        What such a run shows halfway says little about its end: SupCon has no classifier yet, JTT begins anew.
        """
        ends = [
            {p.key.partition(".")[0]: {p.key.partition(".")[2]: v}} for p in self.parameters for v in p.ends()
        ]
        configs = [effective(with_values(self.config, tables)) for tables in ({}, *ends)]
        return any(len(check_method(config).stages(config.loop.epochs)) > 1 for config in configs)

    def trial_config(self, labels: Mapping[str, Any]) -> RunConfig:
        """Return the run of one trial, by what the study suggests."""
        changed = with_values(self.config, settings_of(self.parameters, labels))
        return effective(_for_trials(changed))

    def reference_config(self) -> RunConfig:
        """Return the run that the easy third is measured against: plain ERM under the shared settings."""
        return effective(_for_trials(dataclasses.replace(self.config, method=MethodConfig("erm"))))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        # With what the trials round by: those of another version or machine must not differ in it.
        images = backbone_info(self.config.backbone.name).kind == "image"
        return {
            "config": settled(_for_trials(self.config), images=images).to_dict(),
            "parameters": [parameter.to_dict() for parameter in self.parameters],
            "objective": dict(self.objective.weights),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> SweepPlan:
        """Return the plan of a record of :meth:`to_dict`."""
        return SweepPlan(
            config=build(record["config"]),
            parameters=tuple(Parameter.from_dict(item) for item in record["parameters"]),
            objective=Objective(record["objective"]),
            **{name: record[name] for name in _PLAIN if name in record or name != "sampler"},
        )


_PLAIN = ("trials", "study", "storage", "seed", "pruner", "keep_easy", "easy_slack", "sampler")


def _for_trials(config: RunConfig) -> RunConfig:
    """One thread a process, no page for every trial: many run side by side."""
    return replace_machine(config, threads=1, report=False)


def study_name(config: RunConfig, parameters: tuple[Parameter, ...], objective: Objective) -> str:
    """Return a name that the same question gets on every machine, so that they meet in one study.

    Where the data lies does not count; how many trials are wanted does not either, so more can be added.
    """
    shared = with_values(config, {"data": {"root": None}})
    question = [
        identity(effective(_for_trials(shared))),
        [p.to_dict() for p in parameters],
        dict(objective.weights),
    ]
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.method.name}-{digest}"


def settle_plan(plan: SweepPlan, folder: Path) -> SweepPlan:
    """Keep the plan in the folder, or check that it asks the same as the one that is there.

    Raises:
        ValueError: The folder holds another sweep, or something else.
    """
    file = folder / PLAN_FILE
    if file.exists():
        check_same_question(read_plan(file), plan, str(folder))
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists and holds no sweep; choose another --out")
    write_json(file, plan.to_dict())
    return plan


def read_plan(file: Path) -> SweepPlan:
    """Return the plan in a file.

    Raises:
        ValueError: It is not one.
    """
    try:
        return SweepPlan.from_dict(read_json(file))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is not the plan of a sweep: {error}") from error


def check_same_question(before: SweepPlan, now: SweepPlan, where: str) -> None:
    """Refuse to mix trials of different questions; places of data and the number of trials may differ.

    Raises:
        ValueError: With everything that differs.
    """
    refuse_unsettled([before.config], where)
    old_config, new_config = (effective(_for_trials(plan.config)) for plan in (before, now))
    free = ("data.root:", "data.name:") if before.storage != now.storage else ("data.root:",)
    changed = [words for words in differences(old_config, new_config) if not words.startswith(free)]
    searched = [[p.to_dict() for p in plan.parameters] for plan in (before, now)]
    if json.dumps(searched[0]) != json.dumps(searched[1]):
        changed.append("--search")
    if dict(before.objective.weights) != dict(now.objective.weights):
        changed.append(f"--objective: {before.objective.name} -> {now.objective.name}")
    names = ("seed", "pruner", "keep_easy", "easy_slack", "sampler")
    changed += [
        f"{name}: {getattr(before, name)} -> {getattr(now, name)}"
        for name in names
        if getattr(before, name) != getattr(now, name)
    ]
    if changed:
        raise ValueError(f"{where} holds a sweep that asks something else ({'; '.join(changed)})")
