"""Kills commands that train many runs side by side (``compare-methods``, ``sweep``, ``reproduce``), and their workers one by
one: the same command, given again, resumes, trains nothing twice and ends with the same numbers; so does a comparison of 200 runs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.budget import OutOfTimeError, no_more_alarms
from soak.children import Child, group_lives, start_command
from soak.same_run import BrokenPromise, check_same
from soak.tiny_task import train_words, write_features

PATIENCE = 300.0
LONGEST = 600.0
MANY_SEEDS = 100
# What the command may end with when a signal hit it, or when one of its workers was killed (3: a run failed).
PARENT_CODES = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Kill each command several times and return the counts."""
    rng = random.Random(seed)
    data = write_features(folder / "features.npz")
    kills: Counter[str] = Counter()
    compared = 0
    left = dict(commands(data))
    if quick:
        del left["reproduce"]
    many = 0
    try:
        for name, words in list(left.items()):
            hit: Counter[str] = Counter()
            compared += _break_command(name, words, folder / name, rng, hit, 2 if quick else 3)
            kills += hit  # now that all runs were found equal
            del left[name]
            print(f"{name}: {sum(kills.values())} kills so far", flush=True)
        if not quick:
            left["a comparison of 200 runs"] = []
            many = _break_a_long_comparison(data, folder / "many", rng, kills)
            left.clear()
    except OutOfTimeError:
        no_more_alarms()  # what was proved so far is
    return {
        "seed": seed,
        "kills": sum(kills.values()),
        "kills by command": dict(kills),
        "runs compared": compared,
        "cut short": f"not, or not wholly, tried: {', '.join(left)}" if left else "",
        "totals": {
            "kills survived, commands of many runs": sum(kills.values()),
            "runs compared bit for bit": compared,
            **({"runs in one comparison": many} if many else {}),
        },
    }


def commands(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each command without its ``--out``."""
    settings = train_words(data, "erm", Path("unused"), extra=("optimizer.momentum=0.8",))
    own = [word for word in settings[settings.index("--set") :] if word != "--set"]
    shared = [word for setting in own for word in ("--set", setting)]
    common = ["--data", str(data), "--backbone", "mlp", "--epochs", "20", "--jobs", "2", *shared]
    yield "compare-methods", ["compare-methods", "--methods", "erm,mr2", "--seeds", "2", *common]
    search = ["--search", "mean_margin=1,2", "--search", "representation_weight=0.1,0.3"]
    yield "sweep", ["sweep", "--method", "mr2", *search, "--trials", "4", "--pruner", "none", *common]
    smoke = ["--scale", "smoke", "--seeds", "1", "--rows", "mr2-la", "--epochs", "30", "--jobs", "2"]
    yield "reproduce", ["reproduce", "table-long-tail", *smoke, "--set", "loop.checkpoint_steps=1"]


def _break_command(
    name: str, words: list[str], folder: Path, rng: random.Random, kills: Counter[str], times: int
) -> int:
    whole, broken = folder / "whole", folder / "broken"
    folder.mkdir()
    _must_end_well([*words, "--out", str(whole)], folder / "log-whole")
    for _ in range(times):
        _kill_once([*words, "--out", str(broken)], broken, folder / "log", rng, kills, name)
    _must_end_well([*words, "--out", str(broken)], folder / "log")
    expected, found = runs_below(whole), runs_below(broken)
    if expected.keys() != found.keys():
        raise BrokenPromise(f"{broken} has other runs than {whole}")
    for identity, place in expected.items():
        check_same(place, found[identity])
    return len(expected)


def runs_below(folder: Path) -> dict[str, Path]:
    """Return the runs of a command by their settings; side by side, their numbers may be exchanged."""
    return {path.read_text().replace(str(folder), "OUT"): path.parent for path in folder.rglob("config.toml")}


def _break_a_long_comparison(data: Path, folder: Path, rng: random.Random, kills: Counter[str]) -> int:
    """Kill a comparison of very many short runs once, let it end and return how many runs it has."""
    out, log = folder / "out", folder / "log"
    folder.mkdir()
    words = [
        "compare-methods",
        "--data",
        str(data),
        "--methods",
        "erm,mr2",
        "--seeds",
        str(MANY_SEEDS),
        "--out",
        str(out),
    ]
    words += ["--backbone", "linear", "--epochs", "1", "--jobs", "2", "--set", "machine.accelerator=cpu"]
    hit: Counter[str] = Counter()
    _kill_once(words, out, log, rng, hit, "compare-methods of 200 runs")
    _must_end_well(words, log)
    done = len(list(out.glob("runs/*/done")))
    if done != 2 * MANY_SEEDS:
        raise BrokenPromise(f"{out} has {done} finished runs, not {2 * MANY_SEEDS}")
    kills += hit
    return done


def _kill_once(words: list[str], broken: Path, log: Path, rng: random.Random, kills: Counter[str], name: str) -> None:
    child = start_command(words, log)
    before = _progress(broken)
    deadline = time.monotonic() + PATIENCE
    while child.poll() is None and _progress(broken) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, 0.8))
    workers = children_of(child.pid)
    number = rng.choice(tuple(PARENT_CODES))
    hit_worker = bool(workers) and rng.random() < 0.4
    if child.poll() is not None:
        return
    if hit_worker:
        os.kill(rng.choice(workers), signal.SIGKILL)
        code = child.wait(PATIENCE)
        expected = {0, 3}
    else:
        child.send(number)
        code = child.wait(PATIENCE)
        expected = PARENT_CODES[number] | {0}
    if code not in expected:
        raise BrokenPromise(f"{name} ended with {code}, not {expected}: {child.said[-3000:]}")
    _wait_for_workers(workers, child)
    what = "worker, SIGKILL" if hit_worker else number.name
    kills[f"{name}, {what}"] += 1


def _progress(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("step-*")) if folder.exists() else []


def children_of(pid: int) -> list[int]:
    """Return the processes that ``pid`` started and that train runs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_text()
            except (OSError, IndexError):
                continue
            if parent == pid and "worker" in command:
                found.append(int(entry.name))
    return found


def _wait_for_workers(workers: list[int], child: Child) -> None:
    """A worker whose parent is gone saves and ends; none may train on unseen."""
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        if time.monotonic() > deadline:
            raise BrokenPromise(f"a worker goes on without its parent: {child.said[-2000:]}")
        time.sleep(0.1)


def _must_end_well(words: list[str], log: Path) -> None:
    child = start_command(words, log)
    code = child.wait(LONGEST)
    if code != 0:
        if group_lives(child.pid):
            os.killpg(child.pid, signal.SIGTERM)
        raise BrokenPromise(f"{' '.join(words[:1])} ended with {code}: {child.said[-3000:]}")
