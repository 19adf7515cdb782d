"""``make soak``: everything that must not break is broken on purpose, within 20 minutes; prints and writes counts.

``python -m soak [NAME ...]`` runs only the named parts; ``--seed N`` draws other moments; ``--page`` writes the figures of
parts that ran to their end into ``docs/reliability.md``.

Ends with 0 if every part ran to its end and every promise held, 1 if one broke, 2 if time ran out: then what was not
run is named, and nothing is claimed for it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from soak.budget import OutOfTimeError, share, time_until
from soak.children import end_all
from soak.figures import write_figures

# Shares of the time; what a part leaves over goes to the later ones.
PARTS = {
    "checkpoint_kills": 1.0,
    "crash_matrix": 7.0,
    "pool_kills": 7.0,
    "report_kills": 0.5,
    "full_disk": 1.5,
    "step_kills": 2.0,
    "long_haul": 2.5,
    "many_classes": 1.0,
    "determinism": 1.5,
    "fuzzing": 4.0,
    "hostile_commands": 3.0,
}
OUT = Path(__file__).parent / "out"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
MINUTES = 20.0
BROKEN, NOT_ALL_RUN = 1, 2
# A part that was cut short still has to end its processes and write its numbers.
RESERVE = 20.0

Record = dict[str, Any]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="all of it ends within this time")
    parser.add_argument("--page", action="store_true", help="write the figures into docs/reliability.md")
    chosen = parser.parse_args(words)
    unknown = [name for name in chosen.names if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    end = begin + 60 * chosen.minutes - RESERVE
    names = chosen.names or list(PARTS)
    records = []
    for name in names:
        deadline = time.monotonic() + share(PARTS, name, names, max(0.0, end - time.monotonic()))
        record = _run_part(name, chosen.out, seed=chosen.seed, quick=chosen.quick, deadline=deadline)
        _write(chosen.out / f"{name}.json", record)
        records.append(record)
    code = _conclude(records, chosen.out, time.monotonic() - begin)
    if chosen.page:
        write_figures(PAGE, records)
    return code


def _run_part(name: str, out: Path, *, seed: int, quick: bool, deadline: float) -> Record:
    print(f"== {name} ==", flush=True)
    begin = time.monotonic()
    record: Record = {"part": name, "python": platform.python_version(), "machine": platform.machine()}
    record |= {"cores": os.cpu_count(), "seed": seed}
    if begin >= deadline:
        record["cut short"] = "not begun"
    else:
        record |= _outcome(name, seed=seed, quick=quick, deadline=deadline)
    record["seconds"] = round(time.monotonic() - begin, 1)
    print(f"({record['seconds']} s; written to {name}.json)", flush=True)
    return record


def _outcome(name: str, *, seed: int, quick: bool, deadline: float) -> Record:
    """Run one part; whatever happens is a record, and no process of it is left."""
    folder = Path(tempfile.mkdtemp(prefix=f"classmargin-soak-{name}-"))
    code = _code_digest()
    try:
        with time_until(deadline):
            part = importlib.import_module(f"soak.{name}")
            result: Record = part.run(folder, seed=seed, quick=quick)
    except OutOfTimeError:
        print(f"CUT SHORT: {name} did not come to its end in its time", file=sys.stderr, flush=True)
        return {"cut short": "ended by the clock; nothing is claimed for it"}
    except Exception as broken:  # an error of the harness proves nothing kept either
        words = str(broken) if isinstance(broken, AssertionError) else traceback.format_exc()
        print(f"BROKEN PROMISE: {words}\n(the folder is kept: {folder})", file=sys.stderr, flush=True)
        if _code_digest() != code:
            print("the code changed meanwhile; that may be the reason", file=sys.stderr, flush=True)
        return {"broken": words}
    finally:
        end_all()
    print(json.dumps(result, indent=1), flush=True)
    _remove(folder)
    cut = {"cut short": result["cut short"]} if result.get("cut short") else {}
    return {"result": result, **cut}


def _conclude(records: list[Record], out: Path, seconds: float) -> int:
    """Sum up, say plainly what broke and what was not run, and return the exit code."""
    broken = [record["part"] for record in records if "broken" in record]
    cut = {record["part"]: record["cut short"] for record in records if "cut short" in record}
    totals: dict[str, int] = {}
    for record in records:
        for name, value in record.get("result", {}).get("totals", {}).items():
            totals[name] = totals.get(name, 0) + value
    summary = {"totals": totals, "broken": broken, "cut short": cut, "seconds": round(seconds, 1)}
    _write(out / "summary.json", summary)
    print("== sum ==")
    for name, value in totals.items():
        print(f"{value:7} {name}")
    for name, words in cut.items():
        print(f"NOT ALL RUN: {name}: {words}")
    for name in broken:
        print(f"BROKEN: {name}")
    words = "broken" if broken else "not all of it ran" if cut else "all of it ran, every promise held"
    print(f"{words}; {seconds:.0f} s", flush=True)
    return BROKEN if broken else NOT_ALL_RUN if cut else 0


def _write(path: Path, record: Record) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _code_digest() -> str:
    """Return a digest of the package's source: runs of two versions are not expected to be equal."""
    import classmargin

    digest = hashlib.sha256()
    for path in sorted(Path(classmargin.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
