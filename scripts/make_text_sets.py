"""Writes the texts of a public intent data set as token numbers, in an ``.npz`` that ``--data`` reads.

    git clone https://github.com/PolyAI-LDN/task-specific-datasets
    python scripts/make_text_sets.py banking77 task-specific-datasets --out banking77_text.npz
    git clone https://github.com/clinc/oos-eval
    python scripts/make_text_sets.py clinc150 oos-eval --out clinc150_text.npz

``--per-class 10`` makes the 10-shot setting: 10 training texts of each class, and 10 others to validate on. The folder may
be a bare repository too. Tokens are those of all-MiniLM-L6-v2 (``--backbone minilm``); texts are cut to
``--longest`` of them. Beside the tokens the file holds the texts themselves (``text_train``, ``text_test``), which
training does not read. Classes are in alphabetical order; of CLINC150 the in-scope part is taken.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
from pathlib import Path

import numpy as np

from classmargin._atomic import atomic_path
from classmargin.backbones import create_backbone

Part = list[tuple[str, str]]


def main() -> None:
    """Read the arguments, tokenize, write."""
    options = _arguments()
    parts = {"banking77": read_banking77, "clinc150": read_clinc150}[options.name](options.folder)
    class_names = sorted({label for _, label in parts["train"]})
    number = {name: position for position, name in enumerate(class_names)}
    if options.per_class is not None:
        parts["train"], parts["val"] = few_of_each(parts["train"], options.per_class)
    encoder = create_backbone("minilm", num_classes=2, pretrained=True).encoder
    encoder.longest = options.longest
    arrays: dict[str, np.ndarray] = {"class_names": np.array(class_names)}
    for key, samples in parts.items():
        tokens = encoder.tokenize([text for text, _ in samples]).numpy()
        # Parts of one width; the network leaves out columns that are padding throughout a batch.
        padded = np.full((len(samples), options.longest), encoder.padding, np.int32)
        padded[:, : tokens.shape[1]] = tokens
        arrays[f"x_{key}"] = padded
        arrays[f"y_{key}"] = np.array([number[label] for _, label in samples])
        arrays[f"text_{key}"] = np.array([text for text, _ in samples])
    with atomic_path(options.out) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


def read_banking77(folder: Path) -> dict[str, Part]:
    """Return texts and labels of ``banking_data/{train,test}.csv``."""
    return {
        part: [
            (row["text"].strip(), row["category"])
            for row in csv.DictReader(io.StringIO(_read(folder, f"banking_data/{part}.csv")))
        ]
        for part in ("train", "test")
    }


def read_clinc150(folder: Path) -> dict[str, Part]:
    """Return texts and labels of the in-scope part of ``data/data_full.json``."""
    content = json.loads(_read(folder, "data/data_full.json"))
    return {part: [(text, label) for text, label in content[part]] for part in ("train", "val", "test")}


def few_of_each(samples: Part, count: int) -> tuple[Part, Part]:
    """Return ``count`` samples of each class to train on, and as many others to validate on, drawn with seed 0."""
    order = np.random.default_rng(0).permutation(len(samples))
    by_class: dict[str, Part] = {}
    for row in order:
        by_class.setdefault(samples[row][1], []).append(samples[row])
    chosen = [by_class[label] for label in sorted(by_class)]
    return (
        [sample for group in chosen for sample in group[:count]],
        [sample for group in chosen for sample in group[count : 2 * count]],
    )


def _read(folder: Path, name: str) -> str:
    if (folder / name).is_file():
        return (folder / name).read_text(encoding="utf-8")
    command = ["git", "-C", str(folder), "show", f"HEAD:{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("banking77", "clinc150"))
    parser.add_argument("folder", type=Path, help="clone of the public repository")
    parser.add_argument("--longest", type=int, default=32, help="tokens that a text is cut to")
    parser.add_argument(
        "--per-class",
        type=int,
        metavar="N",
        help="keep N training texts of each class, and N others as validation part",
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
