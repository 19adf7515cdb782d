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
    """Return the configuration of a run; later sources win: base (of a run that is resumed), preset, file, flags, overrides.

    A value of None among the flags is not given; ``preset`` wins over a ``preset`` at the top of the file.
    """
    from_file = dict(read_toml(file)) if file is not None else {}
    named = preset if preset is not None else from_file.get("preset")
    from_file.pop("preset", None)
    tables = (flags or {}).items()
    given = merge(*({part: {k: v}} for part, table in tables for k, v in table.items() if v is not None))
    explicit = parse_overrides(overrides)
    for part in method_names("all"):  # under the name of a method they go where several methods run
        if part in explicit:
            key, value = next(iter(explicit[part].items()))
            raise ValueError(
                f"unknown table {part!r}; one run has one method, whose settings are in the table method: "
                f"--set method.{key}={value}"
            )
    start = base.to_dict() if base is not None else {}
    method = str(merge(start, from_file, given, explicit).get("method", {}).get("name", "erm"))
    if base is not None and method != base.method.name:
        start["method"] = {"name": base.method.name}  # hyper-parameters of one method mean nothing to another
    from_preset = preset_values(named, method) if named is not None else {}
    return build(merge(start, from_preset, from_file, given, explicit))


def split_overrides(words: Iterable[str], methods: Collection[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Separate ``mr2.mean_margin=2`` (for one method of the command) from settings of every run."""
    shared: list[str] = []
    own: list[str] = []
    for word in words:
        method = word.partition(".")[0]
        if method not in methods and method in method_names("all"):
            raise ValueError(f"--set {word}: {method} is not among the methods of this command, {', '.join(methods)}")
        (own if method in methods else shared).append(word)
    return shared, parse_overrides(own)


def method_names(words: str) -> list[str]:
    """Return the methods of a comma-separated list; ``all`` is every registered one."""
    if words.strip() == "all":
        return [info.name for info in list_methods()]
    return [word.strip() for word in words.split(",") if word.strip()]
