"""What the command line, a file and a preset say about a run, merged into one configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from classmargin.methods import list_methods
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, merge, parse_overrides, read_toml
from classmargin.training.presets import preset_values

Tables = Mapping[str, Mapping[str, Any]]


def gather_config(
    *,
    flags: Tables | None = None,
    overrides: Iterable[str] = (),
    preset: str | None = None,
    file: str | Path | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """Return the configuration of a run; later sources win: base, preset, file, flags, overrides.

    Args:
        flags: Values given as options of their own; None means not given.
        overrides: Words like ``method.mean_margin=2``.
        preset: Name of a recipe preset; wins over a ``preset`` at the top of the file.
        file: TOML file with the differences from the defaults.
        base: A configuration to start from (a run that is resumed).

    Example:
        >>> gather_config(preset="cifar", flags={"loop": {"epochs": 2}}).loop.epochs
        2
    """
    from_file = dict(read_toml(file)) if file is not None else {}
    named = preset if preset is not None else from_file.get("preset")
    from_file.pop("preset", None)
    given = _given(flags or {})
    explicit = parse_overrides(overrides)
    _refuse_method_tables(explicit)
    start = base.to_dict() if base is not None else {}
    method = str(merge(start, from_file, given, explicit).get("method", {}).get("name", "erm"))
    if base is not None and method != base.method.name:
        start["method"] = {"name": base.method.name}  # hyper-parameters of one method mean nothing to another
    from_preset = preset_values(named, method) if named is not None else {}
    return build(merge(start, from_preset, from_file, given, explicit))


def split_overrides(
    words: Iterable[str], methods: Collection[str]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Separate ``mr2.mean_margin=2`` (for one method) from settings of every run.

    Raises:
        ValueError: A setting of a method that is not among those of the command.

    Example:
        >>> split_overrides(["mr2.mean_margin=2", "loop.epochs=3"], ["erm", "mr2"])
        (['loop.epochs=3'], {'mr2': {'mean_margin': 2}})
    """
    names = set(methods)
    shared: list[str] = []
    own: list[str] = []
    for word in words:
        method = word.partition(".")[0]
        if method not in names and is_method(method):
            raise ValueError(
                f"--set {word}: {method} is not among the methods of this command, {', '.join(methods)}"
            )
        (own if method in names else shared).append(word)
    return shared, parse_overrides(own)


def method_names(words: str) -> list[str]:
    """Return the methods of a comma-separated list; ``all`` is every registered one.

    Example:
        >>> method_names("erm, mr2")
        ['erm', 'mr2']
    """
    if words.strip() == "all":
        return [info.name for info in list_methods()]
    return [word.strip() for word in words.split(",") if word.strip()]


def is_method(name: str) -> bool:
    """Whether a method has that name."""
    return any(info.name == name for info in list_methods())


def _refuse_method_tables(tables: Tables) -> None:
    """Say where the hyper-parameters of a run belong; under the name of a method they go where several methods run."""
    for part, table in tables.items():
        if is_method(part):
            key, value = next(iter(table.items()))
            raise ValueError(
                f"unknown table {part!r}; one run has one method, whose settings are in the table method: "
                f"--set method.{key}={value}"
            )


def _given(flags: Tables) -> dict[str, dict[str, Any]]:
    kept = {part: {k: v for k, v in table.items() if v is not None} for part, table in flags.items()}
    return {part: table for part, table in kept.items() if table}
