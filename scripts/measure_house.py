"""Print how large the source is and how its modules hang together: ``python scripts/measure_house.py``.

Nothing of the package is executed; imports are read by ``tests/architecture/import_graph.py``. Two figures need their
definition. A module *with one importer* is imported by exactly one other module, late imports included. The *longest
chain* is the longest path of imports that run when a module loads (late imports and those for type checkers left out).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "architecture"))

from import_graph import all_imports, module_name, module_names, source_files
from test_cycles import between_packages, cycle_in, loaded_by
from test_file_sizes import lengths, shared_names


def importers() -> dict[str, set[str]]:
    """Return for every module which other modules import it."""
    found = defaultdict(set)
    for entry in all_imports():
        if entry.is_ours and entry.inside in module_names() and entry.inside != entry.importer:
            found[entry.inside].add(entry.importer)
    return found


def with_one_importer() -> dict[str, str]:
    """Return the modules that one other module imports, and that module; packages are left out."""
    packages = {module_name(path) for path in source_files() if path.name == "__init__.py"}
    return {
        name: next(iter(users))
        for name, users in sorted(importers().items())
        if len(users) == 1 and name not in packages
    }


def longest_chain() -> list[str]:
    """Return the longest path of imports at load time."""
    graph = {
        name: {target for target in targets if target in module_names() and target not in ("", name)}
        for name, targets in loaded_by(module_names()).items()
    }

    @cache
    def chain_from(name: str) -> tuple[str, ...]:
        return (name, *max((chain_from(target) for target in sorted(graph[name])), key=len, default=()))

    return list(max(map(chain_from, sorted(graph)), key=len))


def size_lines() -> list[str]:
    """Return files and lines of every package, and of all."""
    packages: dict[str, list[int]] = defaultdict(list)
    for name, length in lengths(source_files()).items():
        packages[name.split("/")[0] if "/" in name else "(root)"].append(length)
    rows = [f"{package:<14}{len(sizes):>6}{sum(sizes):>8}" for package, sizes in sorted(packages.items())]
    every = [size for sizes in packages.values() for size in sizes]
    total = f"{'all':<14}{len(every):>6}{sum(every):>8}   longest file: {max(every)} lines"
    return [f"{'package':<14}{'files':>6}{'lines':>8}", *rows, total]


def main() -> None:
    """Print all figures."""
    twice, lonely, chain = shared_names(), with_one_importer(), longest_chain()
    lines = [
        *size_lines(),
        f"\nnames that occur twice: {len(twice)}",
        *(f"  {stem}: {', '.join(names)}" for stem, names in twice.items()),
        f"\nmodules with one importer: {len(lonely)}",
        *(f"  {name} <- {user or '__init__'}" for name, user in lonely.items()),
        f"\ncycle between packages: {' -> '.join(cycle_in(between_packages())) or 'none'}",
        f"\nlongest chain of imports: {len(chain)} modules\n  {' -> '.join(chain)}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
