"""``make soak``: everything that must not break is broken on purpose, within 15 minutes; prints and writes counts.

``python -m soak [NAME ...]`` runs only the named parts; ``--seed N`` draws other moments.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("checkpoint_kills", "crash_matrix", "pool_kills", "long_haul", "determinism", "fuzzing")
OUT = Path(__file__).parent / "out"
MINUTES = 15.0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="nothing is begun after this time")
    chosen = parser.parse_args(words)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(NAMES)}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * chosen.minutes
    failed = [
        name
        for name in chosen.names or NAMES
        if not _run_part(name, chosen.out, seed=chosen.seed, quick=chosen.quick, deadline=deadline)
    ]
    return 1 if failed else 0


def _run_part(name: str, out: Path, *, seed: int, quick: bool, deadline: float) -> bool:
    print(f"== {name} ==", flush=True)
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"classmargin-soak-{name}-"))
    code = _code_digest()
    record = {"part": name, "python": platform.python_version(), "machine": platform.machine()}
    try:
        result = importlib.import_module(f"soak.{name}").run(
            folder, seed=seed, quick=quick, deadline=deadline
        )
    except AssertionError as broken:
        record |= {"broken": str(broken)}
        print(f"BROKEN PROMISE: {broken}", file=sys.stderr, flush=True)
        if _code_digest() != code:
            print("the code changed meanwhile; that may be the reason", file=sys.stderr, flush=True)
    else:
        record |= {"result": result}
        print(json.dumps(result, indent=1), flush=True)
        _remove(folder)
    record["seconds"] = round(time.monotonic() - begin, 1)
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"({record['seconds']} s; written to {(out / name).name}.json)", flush=True)
    return "broken" not in record


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
