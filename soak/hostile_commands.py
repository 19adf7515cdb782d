"""Files that stand for gigabytes, devices in place of files, weights that are not numbers, absurd numbers: given to the commands.

Each must end with code 2, a sentence and no traceback, having taken less than 500 MB more than a command that reads nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from soak.tiny_task import train_words, write_features

MOST_GROWTH = 500 * 10**6
BAD_INPUT = 2
LIMIT_SECONDS = 300.0
COMMAND = """
import json, resource, sys
from classmargin.cli.main import main
code = main(sys.argv[1:])
print(json.dumps({"code": code, "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""
Words = list[str]


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Attack the commands and return the number of refusals and the most memory that one of them took."""
    base = call(["list", "methods"])
    assert base["code"] == 0, base["words"]
    growth: dict[str, int] = {}
    attacks = {**dict(tables(folder)), **dict(absurd_numbers(folder))}
    for name, words in (attacks if quick else {**attacks, **dict(broken_runs(folder))}).items():
        found = call(words)
        said = found["words"]
        assert found["code"] == BAD_INPUT, f"{name}: code {found['code']}\n{said}"
        assert "Traceback" not in said, f"{name}:\n{said}"
        assert said.strip(), f"{name}: refused without a word"
        growth[name] = max(0, found["peak"] - base["peak"])
        print(f"{name}: refused, {growth[name] / 1e6:.0f} MB", flush=True)
        assert growth[name] < MOST_GROWTH, f"{name}: took {growth[name] / 1e6:.0f} MB\n{said}"
    return {
        "growth, bytes": growth,
        "largest growth, bytes": max(growth.values()),
        "totals": {"hostile inputs refused by commands": len(growth)},
    }


def call(words: Words) -> dict[str, Any]:
    """Run one command in a process of its own and return its code, its peak memory and its words."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = done.stdout.splitlines()
    try:
        record: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        record = {"code": done.returncode, "peak": 0}
    return {**record, "words": "\n".join(lines[:-1]) + done.stderr}


def tables(folder: Path) -> Iterator[tuple[str, Words]]:
    """Yield predictions and data that are larger than they look."""
    if zeros := write_zeros(folder / "zeros.parquet"):
        yield "a hundred million zeros in a Parquet file", ["audit", str(zeros), "--num-classes", "2"]
    for kind in ("<U0", "|S0"):
        path = folder / f"{kind[1]}.npz"
        write_archive(path, {name: header(kind, 2**28) for name in ("labels", "predictions")})
        yield f"2^28 items of {kind}", ["audit", str(path), "--num-classes", "2"]
        path = folder / f"{kind[1]}_data.npz"
        write_archive(path, {name: header(kind, 2**28) for name in ("x_train", "y_train")})
        yield f"training on 2^28 items of {kind}", train_words(path, "erm", folder / "never")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(63 * 2**18, np.float32))
    path = folder / "sixty.npz"
    write_archive(path, {f"x_{number}": buffer.getvalue() for number in range(60)})
    yield "60 members of 63 MB", train_words(path, "erm", folder / "never")
    path = folder / "wide.csv"
    path.write_text("label," + ",".join(f"p{k}" for k in range(100_000)) + "\n" + "0" + ",0.1" * 100_000 + "\n")
    yield "100 000 columns", ["audit", str(path)]
    path = folder / "predictions.csv"
    path.write_text("label,prediction\n" + "0,1\n1,0\n" * 30)
    yield "names from a device", ["audit", str(path), "--class-names", "/dev/zero"]
    yield "2^63 resamples", ["audit", str(path), "--num-classes", "2", "--bootstrap", str(2**63)]


def absurd_numbers(folder: Path) -> Iterator[tuple[str, Words]]:
    """Yield numbers beyond all reason."""
    data = write_features(folder / "data.npz")
    for more in (["--threads", "5000"], ["--devices", "10000"], ["--set", "data.image_size=30000"]):
        yield " ".join(more), [*train_words(data, "erm", folder / "never"), *more]


def broken_runs(folder: Path) -> Iterator[tuple[str, Words]]:
    """Yield a finished run with weights that are not numbers, and with devices in place of its files."""
    data, good = write_features(folder / "small.npz"), folder / "good"
    made = call(train_words(data, "erm", good, epochs=1))
    assert made["code"] == 0, made["words"]
    for name, value in (("NaN", np.nan), ("infinite", np.inf)):
        broken = folder / f"run_{name}"
        shutil.copytree(good, broken)
        spoil_weights(broken, value)
        yield f"predict with a weight that is {name}", ["predict", str(broken), str(data)]
        yield (
            f"export with a weight that is {name}",
            ["export", str(broken), "--out", str(folder / "never.onnx")],
        )
    for place in ("config.toml", "model.json", "state.json", "tensors.safetensors"):
        linked = folder / f"run_{place}"
        shutil.copytree(good, linked)
        for file in list(linked.rglob(place)):  # in every checkpoint: otherwise an earlier one takes its place
            file.unlink()
            file.symlink_to("/dev/zero")
        yield f"{place} from a device", ["predict", str(linked), str(data)]


def spoil_weights(run_folder: Path, value: float) -> None:
    """Put ``value`` into a weight of every checkpoint and make its checksum fit."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for folder in (run_folder / "checkpoint").iterdir():
        file, state = folder / "tensors.safetensors", folder / "state.json"
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata()
        tensors, old = load_file(file), hashlib.sha256(file.read_bytes()).hexdigest()
        name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() == 2)
        tensors[name].view(-1)[0] = value
        save_file(tensors, file, metadata=about)
        text = state.read_text(encoding="utf-8")
        assert old in text, "the checkpoint has no checksum that could be made to fit"
        state.write_text(text.replace(old, hashlib.sha256(file.read_bytes()).hexdigest()), encoding="utf-8")


def write_zeros(path: Path) -> Path | None:
    """Write a hundred million zeros as a Parquet file of 1 MB; None where pyarrow is missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    zeros = pyarrow.table(dict.fromkeys(("label", "pred"), np.zeros(10_000_000, np.int64)))
    with parquet.ParquetWriter(path, zeros.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(zeros)
    return path


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    """Write an ``.npz`` of the given members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def header(kind: str, count: int) -> bytes:
    """Return an array file of ``count`` items that says no more than its header."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count},)}}"
    padded = text + " " * (63 - (len(text) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()
