"""What a sweep may vary (the words of ``--search`` as typed parameters) and what it maximises (``--objective``).

``KEY=A,B,…`` lists values, ``KEY=LOW:HIGH``, ``KEY=LOW:HIGH:log`` and ``KEY=LOW:HIGH:STEP`` are ranges; plain names are
hyper-parameters of the method, dotted names any setting. The objective is an accuracy on validation or a mix of several, with
weights that are brought to the sum one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from classmargin._checks import check_choice, did_you_mean
from classmargin.methods import Method, TaskInfo, create, method_info
from classmargin.recipes.run_parts import effective
from classmargin.recipes.train_run import METRICS
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import Tables, merge, parse_overrides, with_values

# Trials are compared on one validation set: what changes it, or only renames luck, cannot be searched.
SEARCHABLE_DATA = ("augmentation", "image_size")
NOT_SEARCHABLE = {
    "loop.seed": "the best of several seeds is luck, not a setting",
    "method.name": "a sweep tunes one method; compare tuned methods with classmargin compare-methods",
}


@dataclass(frozen=True)
class Parameter:
    """One thing that may vary: listed choices, or a range."""

    key: str  # PART.KEY of the configuration
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None  # distance of neighbours in a range; None for all numbers
    log: bool = False  # drawn on a logarithmic scale
    whole: bool = False

    @property
    def name(self) -> str:
        """The name people use: without ``method.`` for hyper-parameters of the method."""
        return self.key.removeprefix("method.")

    @property
    def labels(self) -> tuple[Any, ...]:
        """The choices as values that a data base can hold; lists become their JSON."""
        plain = (bool, int, float, str)
        return tuple(value if isinstance(value, plain) else json.dumps(value) for value in self.choices)

    def value_of(self, label: Any) -> Any:
        """Return the setting for what a study holds."""
        if not self.choices:
            return int(label) if self.whole else float(label)
        return self.choices[self.labels.index(label)]

    def ends(self) -> tuple[Any, ...]:
        """Return the values that are checked before anything runs: all choices, or both ends."""
        return self.choices or (self.value_of(self.low), self.value_of(self.high))

    def points(self) -> tuple[Any, ...]:
        """Return every label there is: the choices, or the steps of a range; nothing if it has none."""
        if self.choices or self.step is None:
            return self.labels
        count = math.floor((self.high - self.low) / self.step + 1e-9)
        values = (self.low + self.step * number for number in range(count + 1))
        return tuple(int(value) if self.whole else round(value, 12) for value in values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "choices": list(self.choices)}


def parse_search(words: Iterable[str], config: RunConfig) -> tuple[Parameter, ...]:
    """Turn the words of ``--search`` into parameters, checked against the run they vary; by default its method's ranges."""
    found = [_parse_word(word, config) for word in words] or default_parameters(config.method.name)
    keys = [parameter.key for parameter in found]
    for parameter in found:
        if keys.count(parameter.key) > 1:
            raise ValueError(f"--search names {parameter.key} more than once")
        for value in parameter.ends():
            try:
                check_method(effective(with_values(config, settings_table(parameter.key, value))))
            except (ValueError, TypeError) as error:
                raise ValueError(f"--search {parameter.name}={value}: {error}") from error
    return tuple(found)


def default_parameters(method: str) -> list[Parameter]:
    """Return the search ranges that a method was registered with; one without is refused."""
    search = method_info(method).search
    if not search:
        raise ValueError(f"method {method} has no search ranges of its own; give --search KEY=VALUES")
    return [
        Parameter(f"method.{name}", low=float(values[0]), high=float(values[1]), log=True)
        if values[-1] == "log"
        else Parameter(f"method.{name}", choices=tuple(values))
        for name, values in search.items()
    ]


def _parse_word(word: str, config: RunConfig) -> Parameter:
    name, equals, text = (piece.strip() for piece in word.partition("="))
    if not (name and equals and text):
        raise ValueError(f"--search wants KEY=A,B,… or KEY=LOW:HIGH[:log], got {word!r}")
    key = name if "." in name else f"method.{name}"
    default = _present_value(key, config)
    if ":" in text and "," not in text:
        return _parse_range(key, text, whole=isinstance(default, int) and not isinstance(default, bool))
    return Parameter(key, choices=_parse_choices(key, text))


def _present_value(key: str, config: RunConfig) -> Any:
    """Return the present value of a setting; one that cannot be searched is refused."""
    part, _, name = key.partition(".")
    if part == "machine":
        raise ValueError(f"{key} cannot be searched: the machine does not change what is computed")
    if part == "data" and name not in SEARCHABLE_DATA:
        hint = did_you_mean(name, SEARCHABLE_DATA)
        raise ValueError(f"{key} cannot be searched: trials must be compared on the same samples{hint}")
    if key in NOT_SEARCHABLE:
        raise ValueError(f"{key} cannot be searched: {NOT_SEARCHABLE[key]}")
    return effective(config).to_dict().get(part, {}).get(name)


def _parse_choices(key: str, text: str) -> tuple[Any, ...]:
    values = parse_overrides([f"x.x=[{text}]"])["x"]["x"]
    if not (isinstance(values, list) and values):  # not the inside of a TOML list: bare words
        pieces = [piece.strip() for piece in text.split(",")]
        if not all(pieces):
            raise ValueError(f"--search {key}={text}: an empty value between commas")
        values = [parse_overrides([f"x.x={piece}"])["x"]["x"] for piece in pieces]
    return tuple(value for place, value in enumerate(values) if value not in values[:place])


def _parse_range(key: str, text: str, *, whole: bool) -> Parameter:
    pieces = text.split(":")
    example = f"--search {key}={text}: a range is LOW:HIGH, LOW:HIGH:log or LOW:HIGH:STEP"
    if len(pieces) not in (2, 3):
        raise ValueError(f"{example}, got {len(pieces)} parts")
    log = pieces[2:] == ["log"]
    try:
        low, high, step = (*map(float, pieces[:2]), None if log or len(pieces) == 2 else float(pieces[2]))
    except ValueError:
        raise ValueError(f"{example}, got {text!r}") from None
    if not math.isfinite(low + high):
        raise ValueError(f"{example}, with finite numbers, got {text!r}")
    if not low < high:
        raise ValueError(f"{example}, with LOW below HIGH")
    if log and low <= 0:
        raise ValueError(f"{example}; a logarithmic range begins above 0")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"{example}, with a STEP above 0 that fits between LOW and HIGH")
    if whole and any(number is not None and number != int(number) for number in (low, high, step)):
        raise ValueError(f"{example}; {key} takes whole numbers")
    return Parameter(key, low=low, high=high, step=step, log=log, whole=whole)


def check_method(config: RunConfig) -> Method:
    """Return the method for a toy task, so that a bad hyper-parameter shows before anything is loaded."""
    labels = torch.arange(3).repeat(4)
    new_model = lambda: torch.nn.Linear(4, 3)  # noqa: E731 - one expression, used once
    task = TaskInfo(3, 4, torch.bincount(labels), labels, config.loop.epochs, 10, new_model)
    return create(config.method.name, task, preset=config.method.preset, **config.method.options)


def settings_table(key: str, value: Any) -> Tables:
    """Return the value of ``PART.KEY`` as tables of a configuration."""
    return {key.partition(".")[0]: {key.partition(".")[2]: value}}


def settings_of(parameters: Sequence[Parameter], labels: Mapping[str, Any]) -> Tables:
    """Return the tables of configuration for what a study suggests (by ``key``)."""
    return merge(*(settings_table(p.key, p.value_of(labels[p.key])) for p in parameters))


def grid_size(parameters: Sequence[Parameter]) -> int | None:
    """Return how many different trials there are, or None if some range has no steps."""
    points = [parameter.points() for parameter in parameters]
    return None if any(not found for found in points) else math.prod(map(len, points))


def grid(parameters: Sequence[Parameter]) -> Iterable[dict[str, Any]]:
    """Yield every combination of listed values, as labels by key."""
    for labels in itertools.product(*(parameter.points() for parameter in parameters)):
        yield {parameter.key: label for parameter, label in zip(parameters, labels, strict=True)}


@dataclass(frozen=True)
class Objective:
    """A weighted mean of accuracies on validation."""

    weights: Mapping[str, float]  # {"hard": 0.7, "overall": 0.3}; they sum to one

    @property
    def name(self) -> str:
        """How it is written on the command line."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return ",".join(f"{metric}:{weight:g}" for metric, weight in self.weights.items())

    def value(self, accuracies: Mapping[str, Any]) -> float:
        """Return the value for the accuracies of one evaluation; NaN if one of them is missing."""
        if any(accuracies.get(metric) is None for metric in self.weights):
            return math.nan
        return math.fsum(weight * float(accuracies[metric]) for metric, weight in self.weights.items())

    def check_classes(self, num_classes: int) -> None:
        """Refuse thirds where there are too few classes for them."""
        thirds = [metric for metric in self.weights if metric in ("easy", "medium", "hard")]
        if thirds and num_classes < 3:
            raise ValueError(
                f"--objective {thirds[0]} needs at least 3 classes, the data has {num_classes}; use overall or worst"
            )


def parse_objective(text: str) -> Objective:
    """Read ``hard`` or ``hard:0.7,overall:0.3``."""
    weights: dict[str, float] = {}
    for piece in text.split(","):
        metric, colon, number = (word.strip() for word in piece.partition(":"))
        check_choice("--objective", metric, METRICS)
        if metric in weights:
            raise ValueError(f"--objective names {metric} more than once, got {text!r}")
        try:
            weights[metric] = float(number) if colon else 1.0
        except ValueError:
            weights[metric] = math.nan
        if not 0 < weights[metric] < math.inf:
            raise ValueError(f"--objective wants weights above 0, e.g. hard:0.7,overall:0.3; got {text!r}")
    total = sum(weights.values())
    return Objective({metric: weight / total for metric, weight in weights.items()})


def easy_violation(accuracies: Mapping[str, Any], reference_easy: float, slack: float) -> float:
    """Return by how much the easy third, ranked by the trial itself, falls below the reference minus ``slack``."""
    easy = accuracies.get("easy")
    return math.inf if easy is None else reference_easy - slack - float(easy)
