"""Print how large the source is and how its modules depend on one another: ``python scripts/measure_house.py``.

Nothing of the package is executed; imports are read by ``tests/architecture/import_graph.py``. Two figures need their
definition. A module *with one importer* is imported by exactly one other module, late imports included; one that only its
own package (or the list of commands) imports, in order to register or export it, is counted apart. The *longest chain* is
the longest path of imports that run when a module loads (late imports and those for type checkers left out).

``--update`` counts anew the lines in the table *Written by hand, or a library?* of ``docs/architecture.md``.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "architecture"))

from import_graph import ROOT, all_imports, module_name, module_names, source_files
from test_cycles import between_packages, cycle_in, loaded_by
from test_file_sizes import lengths, shared_names

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"


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


def is_listed_by(name: str, user: str) -> bool:
    """Return whether ``user`` imports the module only to register or export it."""
    return user in ("", "cli.main", name.rpartition(".")[0])


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


def files_of(where: str) -> list[Path]:
    """Return the files of a cell such as ```data/{loader,pixels}.py`, `_files.py```.

    Raises:
        FileNotFoundError: One of its patterns matches nothing.
    """
    patterns = []
    for pattern in re.findall(r"`([^`]+)`", where):
        before, brace, rest = pattern.partition("{")
        names, _, after = rest.partition("}")
        patterns += [f"{before}{name}{after}" for name in names.split(",")] if brace else [pattern]
    found = {pattern: sorted(ROOT.glob(pattern)) for pattern in patterns}
    missing = [pattern for pattern, files in found.items() if not files]
    if missing:
        raise FileNotFoundError(f"{PAGE.name} names {', '.join(missing)}, which src/classmargin does not have")
    return [file for files in found.values() for file in files]


def with_counts(page: str) -> str:
    """Return the page with the lines of every row counted, rounded to ten."""

    def counted(row: re.Match[str]) -> str:
        lines = sum(lengths(files_of(row[2])).values())
        return f"{row[1]}{row[2]}| {round(lines, -1)} |"

    return re.sub(r"^(\| [^|\n]+ \|)( `[^|\n]*\.py` )\| \d+ \|", counted, page, flags=re.MULTILINE)


def main() -> None:
    """Print all figures, or count the lines of the architecture page anew."""
    if sys.argv[1:] == ["--update"]:
        PAGE.write_text(with_counts(PAGE.read_text(encoding="utf8")), encoding="utf8")
        return
    twice, chain, single = shared_names(), longest_chain(), with_one_importer()
    listed = {name for name, user in single.items() if is_listed_by(name, user)}
    lonely = {name: user for name, user in single.items() if name not in listed}
    lines = [
        *size_lines(),
        f"\nnames that occur twice: {len(twice)}",
        *(f"  {stem}: {', '.join(names)}" for stem, names in twice.items()),
        f"\nmodules with one importer: {len(lonely)}, and {len(listed)} that only their package lists",
        *(f"  {name} <- {user}" for name, user in lonely.items()),
        f"\ncycle between packages: {' -> '.join(cycle_in(between_packages())) or 'none'}",
        f"\nlongest chain of imports: {len(chain)} modules\n  {' -> '.join(chain)}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
