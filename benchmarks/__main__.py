"""``make bench``: runs every benchmark (or those named on the command line), prints tables, writes JSON."""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from pathlib import Path

NAMES = (
    "loss_speed",
    "no_harm",
    "choose_settings",
    "reviewer_questions",
    "why_smoothing",
    "audit_speed",
    "coverage",
    "input_pipeline",
    "training_speed",
    "method_cost",
    "sklearn_speed",
    "sklearn_quality",
)
OUT = Path(__file__).parent / "out"


def main(names: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
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
