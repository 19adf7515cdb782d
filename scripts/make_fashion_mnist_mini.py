"""Makes the embedded data set from the original Fashion-MNIST files.

    python scripts/make_fashion_mnist_mini.py FOLDER

``FOLDER`` holds the four original idx files (plain or gzipped), for example those of Debian's package
``dataset-fashion-mnist``. The first 500 training and the first 500 test images of each class are kept, in the
order of the original files and with unchanged pixels; ``train_index`` and ``test_index`` say where each came
from.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin.data.catalog import FASHION_CLASSES
from classmargin.data.formats.arrays import MINI_FILE, read_idx_folder

LARGEST = 4_000_000  # bytes inside the wheel


def first_of_each_class(labels: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return, ascending, the positions of the first ``count`` samples of every class."""
    classes = range(int(labels.max()) + 1)
    chosen = [np.flatnonzero(labels == label)[:count] for label in classes]
    if min(len(rows) for rows in chosen) < count:
        raise SystemExit(f"every class needs {count} images, the smallest has {min(len(rows) for rows in chosen)}")
    return np.sort(np.concatenate(chosen))


def build(folder: Path, train_count: int, test_count: int) -> bytes:
    """Return the packed archive."""
    raw = read_idx_folder(folder)
    assert raw.test is not None
    arrays: dict[str, Any] = {"class_names": np.array(FASHION_CLASSES)}
    for name, part, count in (("train", raw.train, train_count), ("test", raw.test, test_count)):
        rows = first_of_each_class(part.labels, count)
        assert part.inputs is not None
        arrays[f"x_{name}"] = part.inputs[rows, 0]
        arrays[f"y_{name}"] = part.labels[rows]
        arrays[f"{name}_index"] = rows.astype(np.int32)
    archive = io.BytesIO()
    np.savez(archive, **arrays)
    return lzma.compress(archive.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Write the archive and its checksum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the original idx files")
    parser.add_argument("--out", type=Path, default=MINI_FILE, help="file to write (default: inside the package)")
    parser.add_argument("--train", type=int, default=500, help="training images a class")
    parser.add_argument("--test", type=int, default=500, help="test images a class")
    options = parser.parse_args()
    packed = build(options.folder, options.train, options.test)
    if len(packed) > LARGEST:
        raise SystemExit(f"{len(packed)} bytes are more than the {LARGEST} that may travel inside the wheel")
    with atomic_path(options.out) as path:
        path.write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    with atomic_path(options.out.with_name("SHA256SUMS")) as path:
        path.write_text(f"{digest}  {options.out.name}\n", encoding="utf-8")
    print(f"{options.out.name}: {len(packed)} bytes, sha256 {digest}")  # noqa: T201


if __name__ == "__main__":
    main()
