"""A disk that is truly full: commands run on small file systems of their own, of many sizes, until nothing more fits.

::

    whole  = the command where there is room; tells how much it needs
    small  = the same on a tmpfs with a part of that: code 2, a sentence, no traceback
    then the tmpfs grows, and the same command resumes and ends equal to whole, bit for bit

Mounting needs a name space of the process's own (``unshare``); where the system does not allow it, nothing is claimed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.children import fork_command, preload
from soak.same_run import BrokenPromise, check_same
from soak.tiny_task import train_words, write_features

ROOT = Path(__file__).parents[1]
BAD_INPUT = 2
# Shares of what the command needs. A report is larger than everything else of these runs.
TRAIN_SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
REPORT_SHARES = (0.5, 0.98)
COMPARE_SHARES = (0.3, 0.7, 0.95)
PLENTY = "512m"
PAGE = 4096
NAME_SPACE = ["unshare", "--user", "--map-root-user", "--mount"]
LONGEST = 600.0


def can_mount() -> bool:
    """Whether this system lets a process mount a file system that only it sees."""
    if shutil.which(NAME_SPACE[0]) is None:
        return False
    words = [*NAME_SPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Fill the disk under each command and return the counts; nothing is drawn, so the seed is not used."""
    if not can_mount():
        return {"totals": {}, "cut short": "small file systems cannot be mounted on this system"}
    words = [
        *NAME_SPACE,
        sys.executable,
        "-m",
        "soak.full_disk",
        str(folder),
        *(["--quick"] if quick else []),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokenPromise(done.stderr[-4000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def commands(data: Path, quick: bool) -> Iterator[tuple[str, list[str], tuple[float, ...]]]:
    """Yield the name of each command, its words without ``--out``, and the shares to try."""
    words = train_words(data, "mr2", Path("unused"), epochs=3)
    place = words.index("--out")
    train = words[:place] + words[place + 2 :]
    yield "train", train, TRAIN_SHARES[1::4] if quick else TRAIN_SHARES
    if quick:
        return
    yield "train with a report", [*train, "--set", "machine.report=true"], REPORT_SHARES
    settings = train[train.index("--set") :]
    common = ["--data", str(data), "--backbone", "mlp", "--epochs", "2", *settings]
    yield (
        "compare-methods",
        ["compare-methods", "--methods", "erm,mr2", "--seeds", "1", *common],
        COMPARE_SHARES,
    )


def fill_all(folder: Path, quick: bool) -> dict[str, Any]:
    """Run every command on every size and return the counts; to be called in a name space of its own."""
    preload()
    data = write_features(folder / "features.npz")
    refused: Counter[str] = Counter()
    compared = 0
    for name, words, shares in commands(data, quick):
        whole = folder / f"{name}-whole"
        _end_in((0,), [*words, "--out", str(whole)], folder / "log")
        for share in shares:
            disk = folder / f"{name}-{share}"
            disk.mkdir()
            _mount(disk, f"{max(8 * PAGE, int(share * size_of(whole)))}")
            there = [*words, "--out", str(disk / "out")]
            place = _end_in((BAD_INPUT, 0), there, folder / "log")  # the largest share may be enough
            if place:
                refused[f"{name}, {place}"] += 1
                _mount(disk, PLENTY, again=True)
                _end_in((0,), there, folder / "log")
            compared += _compare(whole, disk / "out")
        if not any(key.startswith(f"{name}, ") for key in refused):
            raise BrokenPromise(f"no disk was too small for {name}: nothing was tried")
    return {
        "full disks": sum(refused.values()),
        "full disks by file": dict(refused),
        "runs compared": compared,
        "totals": {"full disks survived": sum(refused.values()), "runs compared bit for bit": compared},
    }


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes on a disk of pages."""
    return sum(PAGE if path.is_dir() else -(-path.lstat().st_size // PAGE) * PAGE for path in folder.rglob("*"))


def _mount(place: Path, size: str, *, again: bool = False) -> None:
    options = f"size={size}" + (",remount" if again else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def _end_in(expected: tuple[int, ...], words: list[str], log: Path) -> str:
    """Run a command to its end; return the file that the disk was too full for, or nothing if it was not."""
    log.unlink(missing_ok=True)
    child = fork_command(words, log)
    code = child.wait(LONGEST)
    if code not in expected or "Traceback" in child.said:
        raise BrokenPromise(
            f"{' '.join(words)} ended with {code}, not {' or '.join(map(str, expected))}: {child.said[-3000:]}"
        )
    if code == 0:
        return ""
    if "No space left on device" not in child.said:
        raise BrokenPromise(f"{' '.join(words)} does not say that the disk is full: {child.said[-3000:]}")
    return next(
        iter(re.findall(r"checkpoint|[\w-]+\.(?:html|jsonl?|csv|npz|toml|md)", child.said.strip().splitlines()[-1])),
        "another file",
    )


def _compare(whole: Path, found: Path) -> int:
    runs = sorted(path.parent.relative_to(whole) for path in whole.rglob("config.toml"))
    for run in runs:
        check_same(whole / run, found / run)
    return len(runs)


if __name__ == "__main__":
    print(json.dumps(fill_all(Path(sys.argv[1]), "--quick" in sys.argv)))
