"""Print the lowest version of every package that pyproject.toml allows, as constraints of pip.

    python scripts/lowest_versions.py report,train > lowest.txt

Needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]


def lowest(extras: list[str]) -> list[str]:
    """Return ``name==version`` for the core and these extras, extras of extras included.

    Raises:
        KeyError: There is no such extra.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, waiting, seen = list(project["dependencies"]), list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra not in seen:
            seen.add(extra)
            wanted += project["optional-dependencies"][extra]
        for nested in re.findall(r"classmargin\[([\w,-]+)\]", " ".join(wanted)):
            waiting += [name for name in nested.split(",") if name not in seen]
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\w.]+)", line) for line in wanted)
    versions: dict[str, tuple[int, ...]] = {}
    for name, version in (match.groups() for match in found if match):  # a package in two extras: the higher bound
        number = tuple(int(part) for part in version.split("."))
        versions[name] = max(versions.get(name, number), number)
    return [f"{name}=={'.'.join(map(str, number))}" for name, number in sorted(versions.items())]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest(sys.argv[1].split(",") if len(sys.argv) > 1 else [])) + "\n")
