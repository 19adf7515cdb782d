"""Import every module of a folder, so that a new recipe is a new file and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_all(package: str, path: Iterable[str]) -> None:
    """Import the modules of ``package`` in the order of their names."""
    for module in sorted(info.name for info in pkgutil.iter_modules(list(path))):
        importlib.import_module(f"{package}.{module}")
