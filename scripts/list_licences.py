"""Print the licences of the packages that a requirement brings, as a Markdown table: ``python scripts/list_licences.py``.

Read from the metadata of what is installed; packages of constraints.txt that are not installed here are left out and counted.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNKNOWN = "not stated"


def licence_of(package: metadata.Distribution) -> str:
    """Return what a package says of its licence: the SPDX expression, the classifiers, or its own words."""
    about = package.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    classifiers = [
        line.split("::")[-1].strip() for line in about.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    named = [line for line in classifiers if line != "OSI Approved"]
    if named:
        return "; ".join(named)
    words = " ".join((about.get("License") or "").split())
    return words if 0 < len(words) <= 60 else UNKNOWN


def rows() -> tuple[list[tuple[str, str, str]], int]:
    """Return name, version and licence of the pinned packages that are installed, and how many are not."""
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    found, missing = [], 0
    for name in pins:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing += 1
            continue
        found.append((name, package.version, licence_of(package).replace("|", "/")))
    return found, missing


if __name__ == "__main__":
    listed, left_out = rows()
    lines = [
        "| package | version | licence |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in listed),
    ]
    sys.stdout.write("\n".join([*lines, "", f"{left_out} pinned packages are not installed here."]) + "\n")
