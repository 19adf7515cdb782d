"""What ran where: versions, git state and each session (first start and every resume) of a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from classmargin.training.config import RunConfig, identity
from classmargin.training.run_folder import RunFolder, write_json

PACKAGES = ("classmargin", "torch", "numpy", "lightning", "safetensors")


def add_session(folder: RunFolder, config: RunConfig, resumed_step: int | None) -> None:
    """Append this start to ``run.json``.

    Args:
        folder: The run.
        config: Its effective configuration.
        resumed_step: Optimiser step that the run goes on from; None for a first start.
    """
    record: dict[str, Any] = {"identity": identity(config), "seed": config.loop.seed, "sessions": []}
    if folder.record_file.exists():
        record = _read(folder.record_file) or {
            **record,
            "note": "an earlier record was unreadable and is lost",
        }
    record["sessions"].append(session(resumed_step))
    write_json(folder.record_file, record)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return record if isinstance(record["sessions"], list) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def session(resumed_step: int | None = None) -> dict[str, Any]:
    """Return time, command, versions, machine and git state of this process."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "resumed_from_step": resumed_step,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "git": git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """Return commit and whether files differ from it, of the folder the command runs in; None outside git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit.strip(),
        "modified": bool((_git("status", "--porcelain", "--untracked-files=no") or "").strip()),
    }


def _git(*words: str) -> str | None:
    try:
        answer = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
