"""``make bench``: runs every measurement (or those named on the command line), prints tables, writes JSON.

Experiments train for hours, keep finished runs and go on where they were stopped; they run only when they are named.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from pathlib import Path

MEASUREMENTS = (
    "loss_speed",
    "no_harm",
    "audit_speed",
    "coverage",
    "input_pipeline",
    "training_speed",
    "method_cost",
    "sklearn_speed",
)
EXPERIMENTS = ("choose_settings", "reviewer_questions", "why_smoothing", "sklearn_quality")
OUT = Path(__file__).parent / "out"


def main(names: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    unknown = [name for name in names if name not in MEASUREMENTS + EXPERIMENTS]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are {', '.join(MEASUREMENTS + EXPERIMENTS)}", file=sys.stderr)
        return 2
    for name in names or MEASUREMENTS:
        print(f"\n== {name} ==", flush=True)
        start = time.perf_counter()
        result = importlib.import_module(f"benchmarks.{name}").run()
        record = {
            "benchmark": name,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "result": result,
        }
        (OUT / f"{name}.json").write_text(json.dumps(record, indent=2, default=float) + "\n")
        print(f"({time.perf_counter() - start:.0f} s; written to {(OUT / name).relative_to(OUT.parent.parent)}.json)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
