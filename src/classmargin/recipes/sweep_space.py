"""What a sweep may vary (the words of ``--search`` as typed parameters) and what it maximises (``--objective``).

::

    mean_margin=1,2,3                        one of these
    representation_weight=0.1:0.9            a number between
    optimizer.weight_decay=1e-5:1e-2:log     the same, drawn on a logarithmic scale
    loop.batch_size=32:256:32                in steps
    plain names are hyper-parameters of the method; dotted names any setting, as with --set

The objective is an accuracy on validation, ``hard``, or a mix ``hard:0.7,overall:0.3`` whose weights are brought to the sum
one. The constraint says that the easy third must not drop below that of a reference run (by default ERM under the same
settings).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classmargin._checks import check_choice, did_you_mean
from classmargin.methods import Method, method_info
from classmargin.recipes.run_parts import effective
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import parse_overrides, with_values

Tables = dict[str, dict[str, Any]]

# Trials are compared on one validation set: what changes it, or only renames luck, cannot be searched.
SEARCHABLE_DATA = ("augmentation", "image_size")
NOT_SEARCHABLE = {
    "loop.seed": "the best of several seeds is luck, not a setting",
    "method.name": "a sweep tunes one method; compare tuned methods with classmargin compare-methods",
}
MOST_CHOICES = 1000


@dataclass(frozen=True)
class Parameter:
    """One thing that may vary.

    Attributes:
        key: ``PART.KEY`` of the configuration.
        choices: The values, where they are listed.
        low: Smallest value of a range.
        high: Largest value of a range.
        step: Distance of neighbours in a range; None for all numbers.
        log: Drawn on a logarithmic scale.
        whole: Only whole numbers.
    """

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """The name people use: without ``method.`` for hyper-parameters of the method."""
        return self.key.removeprefix("method.")

    @property
    def labels(self) -> tuple[Any, ...]:
        """The choices as values that a data base can hold; lists become their JSON."""
        return tuple(_label(value) for value in self.choices)

    def value_of(self, label: Any) -> Any:
        """Return the setting for what a study holds."""
        if not self.choices:
            return int(label) if self.whole else float(label)
        return self.choices[self.labels.index(label)]

    def ends(self) -> tuple[Any, ...]:
        """Return the values that are checked before anything runs: all choices, or both ends."""
        if self.choices:
            return self.choices
        return self.value_of(self.low), self.value_of(self.high)

    def points(self) -> tuple[Any, ...]:
        """Return every label there is: the choices, or the steps of a range; nothing if it has none."""
        if self.choices or self.step is None:
            return self.labels
        count = math.floor((self.high - self.low) / self.step + 1e-9)
        values = (self.low + self.step * number for number in range(count + 1))
        return tuple(int(value) if self.whole else round(value, 12) for value in values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        if self.choices:
            return {"key": self.key, "choices": list(self.choices)}
        fields = ("key", "low", "high", "step", "log", "whole")
        return {name: getattr(self, name) for name in fields}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Parameter:
        """Return the parameter of a record of :meth:`to_dict`."""
        return Parameter(**{**record, "choices": tuple(record.get("choices", ()))})


def _label(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


def parse_search(words: Iterable[str], config: RunConfig) -> tuple[Parameter, ...]:
    """Turn the words of ``--search`` into parameters, checked against the run they vary.

    Args:
        words: Like ``mean_margin=1,2,3`` or ``optimizer.weight_decay=1e-5:1e-2:log``.
        config: The run; without words its method's own search ranges are taken.

    Raises:
        ValueError: Unknown name (with the nearest known one), a range that is none, a value out of bounds.

    Example:
        >>> from classmargin.training.config import MethodConfig
        >>> run = RunConfig(method=MethodConfig("mr2"))
        >>> [p.name for p in parse_search(["mean_margin=1,2", "optimizer.weight_decay=1e-5:1e-2:log"], run)]
        ['mean_margin', 'optimizer.weight_decay']
    """
    found = [_parse_word(word, config) for word in words] or default_parameters(config.method.name)
    keys = [parameter.key for parameter in found]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"--search names {twice} more than once")
    for parameter in found:
        _check_ends(parameter, config)
    return tuple(found)


def default_parameters(method: str) -> list[Parameter]:
    """Return the search ranges that a method was registered with.

    Raises:
        ValueError: It has none.

    Example:
        >>> [p.choices for p in default_parameters("erm")]
        [(0.0, 0.05, 0.1)]
    """
    search = method_info(method).search
    if not search:
        raise ValueError(f"method {method} has no search ranges of its own; give --search KEY=VALUES")
    return [_from_registry(f"method.{key}", values) for key, values in search.items()]


def _from_registry(key: str, values: Sequence[Any]) -> Parameter:
    if len(values) == 3 and values[2] == "log":
        return Parameter(key, low=float(values[0]), high=float(values[1]), log=True)
    return Parameter(key, choices=tuple(values))


def _parse_word(word: str, config: RunConfig) -> Parameter:
    name, equals, text = (piece.strip() for piece in word.partition("="))
    if not (name and equals and text):
        raise ValueError(f"--search wants KEY=A,B,… or KEY=LOW:HIGH[:log], got {word!r}")
    key = name if "." in name else f"method.{name}"
    _check_searchable(key)
    default = _default_of(key, config)
    if ":" in text and "," not in text:
        return _parse_range(key, text, whole=isinstance(default, int) and not isinstance(default, bool))
    return Parameter(key, choices=_parse_choices(key, text))


def _check_searchable(key: str) -> None:
    part, _, name = key.partition(".")
    if part == "machine":
        raise ValueError(f"{key} cannot be searched: the machine does not change what is computed")
    if part == "data" and name not in SEARCHABLE_DATA:
        known = ", ".join(f"data.{name}" for name in SEARCHABLE_DATA)
        raise ValueError(
            f"{key} cannot be searched: trials must be compared on the same samples; of data only {known} "
            f"may vary{did_you_mean(name, SEARCHABLE_DATA)}"
        )
    if key in NOT_SEARCHABLE:
        raise ValueError(f"{key} cannot be searched: {NOT_SEARCHABLE[key]}")


def _default_of(key: str, config: RunConfig) -> Any:
    """Return the present value of a setting; unknown names are refused with the nearest known one."""
    part, _, name = key.partition(".")
    tables = effective(config).to_dict()
    check_choice("the part of a searched setting", part, tables)
    if name not in tables[part] and part != "backbone":  # builders of networks have options of their own
        kind = f"method {config.method.name} has no hyper-parameter" if part == "method" else f"{part} has no"
        hint = did_you_mean(name, tables[part])
        raise ValueError(f"--search: {kind} {name!r}; it has {', '.join(tables[part])}{hint}")
    return tables[part].get(name)


def _parse_choices(key: str, text: str) -> tuple[Any, ...]:
    values = _toml_list(key, text)
    if values is None:
        pieces = [piece.strip() for piece in text.split(",")]
        if not all(pieces):
            raise ValueError(f"--search {key}={text}: an empty value between commas")
        values = [parse_overrides([f"x.x={piece}"])["x"]["x"] for piece in pieces]
    kept = [value for place, value in enumerate(values) if value not in values[:place]]
    if len(kept) > MOST_CHOICES:
        raise ValueError(f"--search {key} lists {len(kept)} values; at most {MOST_CHOICES}, or use LOW:HIGH")
    return tuple(kept)


def _toml_list(key: str, text: str) -> list[Any] | None:
    """Return the values of text that is the inside of a TOML list (numbers, quoted words, nested lists)."""
    value = parse_overrides([f"x.x=[{text}]"])["x"]["x"]
    return value if isinstance(value, list) and value else None


def _parse_range(key: str, text: str, *, whole: bool) -> Parameter:
    pieces = text.split(":")
    example = f"--search {key}={text}: a range is LOW:HIGH, LOW:HIGH:log or LOW:HIGH:STEP"
    if len(pieces) not in (2, 3):
        raise ValueError(f"{example}, got {len(pieces)} parts")
    low, high = (_number(piece, example) for piece in pieces[:2])
    log = len(pieces) == 3 and pieces[2].strip() == "log"
    step = None if len(pieces) == 2 or log else _number(pieces[2], example)
    if not low < high:
        raise ValueError(f"{example}, with LOW below HIGH")
    if log and low <= 0:
        raise ValueError(f"{example}; a logarithmic range begins above 0")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"{example}, with a STEP above 0 that fits between LOW and HIGH")
    if whole and any(number is not None and number != int(number) for number in (low, high, step)):
        raise ValueError(f"{example}; {key} takes whole numbers")
    return Parameter(key, low=low, high=high, step=step, log=log, whole=whole)


def _number(text: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{example}, got {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{example}, with finite numbers, got {text!r}")
    return value


def _check_ends(parameter: Parameter, config: RunConfig) -> None:
    for value in parameter.ends():
        part, _, name = parameter.key.partition(".")
        try:
            changed = effective(with_values(config, {part: {name: value}}))
            check_method(changed)
        except (ValueError, TypeError) as error:
            raise ValueError(f"--search {parameter.name}={value}: {error}") from error


def check_method(config: RunConfig) -> Method:
    """Return the method for a toy task, so that a bad hyper-parameter shows before anything is loaded."""
    import torch

    from classmargin.methods import TaskInfo, create

    labels = torch.arange(3).repeat(4)
    new_model = lambda: torch.nn.Linear(4, 3)  # noqa: E731 - one expression, used once
    task = TaskInfo(3, 4, torch.bincount(labels), labels, config.loop.epochs, 10, new_model)
    return create(config.method.name, task, preset=config.method.preset, **config.method.options)


def settings_of(parameters: Sequence[Parameter], labels: Mapping[str, Any]) -> Tables:
    """Return the tables of configuration for what a study suggests (by ``key``)."""
    tables: Tables = {}
    for parameter in parameters:
        part, _, name = parameter.key.partition(".")
        tables.setdefault(part, {})[name] = parameter.value_of(labels[parameter.key])
    return tables


def grid_size(parameters: Sequence[Parameter]) -> int | None:
    """Return how many different trials there are, or None if some range has no steps.

    Example:
        >>> grid_size([Parameter("a.b", choices=(1, 2)), Parameter("a.c", choices=(1, 2, 3))])
        6
    """
    points = [parameter.points() for parameter in parameters]
    return None if any(not found for found in points) else math.prod(map(len, points))


def grid(parameters: Sequence[Parameter]) -> Iterable[dict[str, Any]]:
    """Yield every combination of listed values, as labels by key."""
    keys = [parameter.key for parameter in parameters]
    for labels in itertools.product(*(parameter.points() for parameter in parameters)):
        yield dict(zip(keys, labels, strict=True))


METRICS = ("overall", "easy", "medium", "hard", "worst")
# Thirds need three classes; what is left of fewer has no hard third.
CLASSES_FOR_THIRDS = 3


@dataclass(frozen=True)
class Objective:
    """A weighted mean of accuracies on validation.

    Attributes:
        weights: ``{"hard": 0.7, "overall": 0.3}``; they sum to one.
    """

    weights: Mapping[str, float]

    @property
    def name(self) -> str:
        """How it is written on the command line."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return ",".join(f"{metric}:{weight:g}" for metric, weight in self.weights.items())

    def value(self, accuracies: Mapping[str, Any]) -> float:
        """Return the value for the accuracies of one evaluation; NaN if one of them is missing.

        Example:
            >>> parse_objective("hard:3,overall:1").value({"hard": 0.4, "overall": 0.8})
            0.5
        """
        known = {metric: accuracies.get(metric) for metric in self.weights}
        if any(accuracy is None for accuracy in known.values()):
            return math.nan
        return math.fsum(weight * float(known[metric] or 0.0) for metric, weight in self.weights.items())

    def check_classes(self, num_classes: int) -> None:
        """Refuse thirds where there are too few classes for them."""
        thirds = [metric for metric in self.weights if metric in ("easy", "medium", "hard")]
        if thirds and num_classes < CLASSES_FOR_THIRDS:
            raise ValueError(
                f"--objective {thirds[0]} needs at least {CLASSES_FOR_THIRDS} classes, the data has {num_classes}; "
                "use overall or worst"
            )


def parse_objective(text: str) -> Objective:
    """Read ``hard`` or ``hard:0.7,overall:0.3``.

    Raises:
        ValueError: Unknown metric (with the nearest known one), or a weight that is not above zero.

    Example:
        >>> parse_objective("hard:7, overall:3").name
        'hard:0.7,overall:0.3'
    """
    weights: dict[str, float] = {}
    for piece in text.split(","):
        metric, colon, number = (word.strip() for word in piece.partition(":"))
        check_choice("--objective", metric, METRICS)
        if metric in weights:
            raise ValueError(f"--objective names {metric} more than once, got {text!r}")
        weights[metric] = _weight(number, text) if colon else 1.0
    total = sum(weights.values())
    return Objective({metric: weight / total for metric, weight in weights.items()})


def _weight(number: str, text: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"--objective wants weights above 0, e.g. hard:0.7,overall:0.3; got {text!r}")
    return weight


def easy_violation(accuracies: Mapping[str, Any], reference_easy: float, slack: float) -> float:
    """Return by how much the easy third falls below the reference minus ``slack``; zero or less is fine.

    Both thirds are ranked by each run's own accuracies, as everywhere in the paper: ranking both by the
    reference would charge the trial for the luck of the reference's best classes.

    Example:
        >>> easy_violation({"easy": 0.75}, reference_easy=0.875, slack=0.0)
        0.125
    """
    easy = accuracies.get("easy")
    return math.inf if easy is None else reference_easy - slack - float(easy)
