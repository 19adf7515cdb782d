"""From presets, TOML files and ``key=value`` words to a :class:`RunConfig`, refusing what it does not know.

``backbone`` and ``method`` are open: keys that are not theirs become ``options``, which their registries check by name.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from classmargin._checks import did_you_mean
from classmargin._files import UnfitFileError, read_text
from classmargin.training.config import NUMERICS, RunConfig

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its former name
    import tomli as tomllib

Tables = dict[str, dict[str, Any]]
# The parser needs time that grows with the square of what is nested; a configuration has some kilobytes.
MAX_BYTES = 64 * 1024


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a configuration file."""
    try:
        return tomllib.loads(read_text(path, max_bytes=MAX_BYTES))
    except UnfitFileError as error:
        raise ValueError(f"configuration file {error}") from error
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and thousands of digits
        raise ValueError(f"configuration file {path} is not valid TOML: {error}") from error


def parse_overrides(words: Iterable[str]) -> Tables:
    """Turn ``["loop.epochs=5", "method.mode=joint"]`` into tables; values are TOML, bare words are text."""
    tables: Tables = {}
    for word in words:
        key, equals, text = word.partition("=")
        part, dot, name = key.strip().partition(".")
        if not (equals and dot and part and name) or "." in name:
            raise ValueError(f"--set wants PART.KEY=VALUE, e.g. method.mean_margin=2; got {word!r}")
        tables.setdefault(part, {})[name] = _value(text.strip())
    return tables


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text


def merge(*sources: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Return the tables of all sources; later ones win, key by key."""
    merged: Tables = {}
    for source in sources:
        for part, table in source.items():
            if not isinstance(table, Mapping):
                raise TypeError(f"{part} must be a table of settings, got {type(table).__name__} ({table!r})")
            merged.setdefault(part, {}).update(table)
    return merged


def build(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return the typed configuration of merged tables; an error names the key and the nearest known one."""
    parts = typing.get_type_hints(RunConfig)
    for name in tables:
        if name not in parts:
            raise ValueError(f"unknown table {name!r}; a run has {', '.join(parts)}{did_you_mean(name, parts)}")
    return RunConfig(**{name: _build_part(name, parts[name], tables.get(name, {})) for name in parts})


def _build_part(part: str, cls: Any, table: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    is_open = "options" in hints
    unknown = {key: value for key, value in table.items() if key not in hints}
    if unknown and not is_open:
        key = next(iter(unknown))
        raise ValueError(f"unknown key {part}.{key}; {part} has {', '.join(hints)}{did_you_mean(key, hints)}")
    known = table.keys() & (hints.keys() - {"options"})
    values = {key: _typed(f"{part}.{key}", value, hints[key]) for key, value in table.items() if key in known}
    return cls(**values, options={**table.get("options", {}), **unknown}) if is_open else cls(**values)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the type of ``hint``, or say what was expected. Ints pass as floats, never back."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None or value == "none":  # TOML has no null
            return None
        hint = next(option for option in arguments if option is not type(None))
        return _typed(name, value, hint)
    if origin is Literal:
        return _expect(name, value, str)
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"{name} must be a list, got {type(value).__name__} ({value!r})")
        if Ellipsis not in arguments and len(items) != len(arguments):
            raise ValueError(f"{name} must have {len(arguments)} entries, got {len(items)} ({value!r})")
        return tuple(_typed(name, item, arguments[0]) for item in items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > 2**1000:  # float() would raise an error of another kind
            raise ValueError(f"{name} must be a number that fits a float, got one of {len(str(value))} digits")
        return float(value)
    return _expect(name, value, hint)


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _expect(name: str, value: Any, cls: type) -> Any:
    if not isinstance(value, cls) or (isinstance(value, bool) and cls is not bool):
        expected = _TYPE_NAMES.get(cls, cls.__name__)
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__} ({value!r})")
    return value


def to_toml(config: RunConfig) -> str:
    """Return the configuration as the text of a TOML file; None, which TOML lacks, is left out."""
    lines: list[str] = []
    for part, table in config.to_dict().items():
        lines.append(f"[{part}]")
        lines += [f"{key} = {_literal(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        pairs = [f"{_literal(str(key))} = {_literal(item)}" for key, item in value.items() if item is not None]
        return "{" + ", ".join(pairs) + "}"
    # Text of JSON is text of TOML, but for DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Return what decides the result and differs, as ``loop.epochs: 10 -> 20``; see ``NUMERICS``."""
    before, after = old.to_dict(), new.to_dict()
    found = []
    for part in before:
        keys = NUMERICS if part == "machine" else dict.fromkeys([*before[part], *after[part]])
        for key in keys:
            was, becomes = before[part].get(key), after[part].get(key)
            if _literal(was) != _literal(becomes):  # lists of a file and tuples of a record are the same
                found.append(f"{part}.{key}: {was!r} -> {becomes!r}")
    return found


def with_values(config: RunConfig, tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return a copy with the values of ``tables`` in place."""
    return build(merge(config.to_dict(), tables))


def replace_machine(config: RunConfig, **values: Any) -> RunConfig:
    """Return a copy with other machine settings."""
    return dataclasses.replace(config, machine=dataclasses.replace(config.machine, **values))
