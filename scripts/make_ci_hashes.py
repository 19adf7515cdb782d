"""Writes ``requirements-ci.txt``: every package of the test environment with its version and checksums.

::

    python scripts/make_ci_hashes.py            write the file anew (after a change of constraints.txt)
    python scripts/make_ci_hashes.py --check    fail if what pip would install now is not what the file says

pip itself decides what is installed (``--dry-run --report``) and gives the checksum of each file; nothing is
installed. A package may come as several files (platforms, Python versions, the CPU build of torch): checksums
that an earlier version of the file has for the same version are kept, so that one file serves several machines.
No address of any registry is written.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "requirements-ci.txt"
HEADER = """\
# Every package of the test environment with its checksums; written by scripts/make_ci_hashes.py from
# constraints.txt. Install with: pip install --require-hashes --no-deps -r requirements-ci.txt
"""

Pins = dict[str, tuple[str, set[str]]]


def main(words: list[str]) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--report", type=Path, help="a report of pip to read instead of asking pip")
    chosen = parser.parse_args(words)
    report = json.loads(chosen.report.read_text() if chosen.report else ask_pip())
    wanted, written = pins_of(report), read(FILE.read_text() if FILE.exists() else "")
    if chosen.check:
        wrong = disagreements(wanted, written)
        print("\n".join(wrong) or f"{len(wanted)} packages as in {FILE.name}")
        return 1 if wrong else 0
    FILE.write_text(text_of(merged(wanted, written)), encoding="utf-8")
    print(f"{len(wanted)} packages in {FILE.name}")
    return 0


def ask_pip() -> str:
    """Return pip's report of what the test environment would consist of."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += [
            "--report",
            str(report),
            "-c",
            str(ROOT / "constraints.txt"),
            f"{ROOT}[test]",
            "hatchling",
        ]
        subprocess.run(command, check=True)
        return report.read_text(encoding="utf-8")


def pins_of(report: Mapping[str, Any]) -> Pins:
    """Return name -> (version, checksums) of everything in a report but the project itself."""
    pins: Pins = {}
    for item in report["install"]:
        metadata, source = item["metadata"], item["download_info"]
        if "dir_info" in source:
            continue
        checksum = source["archive_info"].get("hashes", {}).get("sha256")
        if checksum is None:
            raise ValueError(f"pip knows no sha256 of {metadata['name']}; its source is {sorted(source)}")
        # The local part (+cpu) names a build; the checksum says the same more exactly.
        pins[normal_name(metadata["name"])] = (metadata["version"].partition("+")[0], {checksum})
    return pins


def normal_name(name: str) -> str:
    """Return a package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(text: str) -> Pins:
    """Return the pins of a file written by this script."""
    pins: Pins = {}
    for entry in text.replace("\\\n", " ").splitlines():
        found = re.match(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*$", entry)
        if found:
            pins[found[1]] = (found[2], set(re.findall(r"sha256:([0-9a-f]{64})", found[3])))
        elif entry.strip() and not entry.startswith("#"):
            raise ValueError(f"a line without version and checksum: {entry!r}")
    return pins


def merged(wanted: Pins, written: Pins) -> Pins:
    """Return the wanted pins with the checksums already known for the same versions."""
    known = {name: hashes for name, (version, hashes) in written.items() if wanted.get(name, ("",))[0] == version}
    return {name: (version, hashes | known.get(name, set())) for name, (version, hashes) in wanted.items()}


def disagreements(wanted: Pins, written: Pins) -> list[str]:
    """Return a line for each package that pip would install and the file does not have like that."""
    wrong = []
    for name, (version, hashes) in sorted(wanted.items()):
        have = written.get(name)
        if have is None:
            wrong.append(f"{name} {version} is not in the file")
        elif have[0] != version:
            wrong.append(f"{name}: the file has {have[0]}, pip would take {version}")
        elif not hashes <= have[1]:
            wrong.append(f"{name} {version}: the checksum is not one of the file's")
    return wrong


def text_of(pins: Pins) -> str:
    """Return the file's text."""
    lines = [HEADER]
    for name, (version, hashes) in sorted(pins.items()):
        marks = "".join(f" \\\n    --hash=sha256:{value}" for value in sorted(hashes))
        lines.append(f"{name}=={version}{marks}\n")
    return "".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
