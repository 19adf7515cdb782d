"""Results as Python values that ``json.dumps`` accepts: no NaN, no NumPy, no frames."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np


def to_plain(value: Any) -> Any:
    """Return ``value`` with arrays as lists, frames as lists of rows, and NaN or infinity as ``None``."""
    if isinstance(value, (np.generic, np.ndarray)):
        return to_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return to_plain(value.to_dict(orient="records"))
    return value


def fields_to_plain(record: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values, without those in ``leave_out``."""
    return {f.name: to_plain(getattr(record, f.name)) for f in fields(record) if f.name not in leave_out}


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return strict JSON: NaN and infinities become ``null``, numpy values plain numbers and lists."""
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)
