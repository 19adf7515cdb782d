"""What ``improve`` gains by choosing on folds of few training samples instead of on a fifth of them, on data with many.

    python scripts/compare_folds.py --data clinc150_minilm.npz --per-class 20 --draws 4 --out folds

Each draw takes so many training samples of every class as the training part and ``--judges`` others of it as the test part; the
test samples of the data set are not read. The remedies are trained without each fold and on all samples, two seeds each; the
choice is that of ``improve`` (guard and half a standard error), once on the first fold alone and once on all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from classmargin.recipes.improve.candidates import pool, read_scores
from classmargin.recipes.improve.improving import FEATURE_SETTINGS, FOLDS
from classmargin.recipes.improve.judging import Aim, broken_guard, changes, mean_scores, sure_gain
from classmargin.recipes.improve.remedies import REMEDIES, lay
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_parts import load_bundle
from classmargin.recipes.train_run import VALIDATION_FILE, train
from classmargin.training.config_reader import merge, with_values

NAMES, SEEDS, AIM = ("label-smoothing", "mr2", "mixup", "logit-adjustment"), 2, Aim()


def main() -> None:
    """Print one line of JSON per draw."""
    options = _arguments()
    for draw in range(options.draws):
        sys.stdout.write(json.dumps({"draw": draw, **one_draw(options, draw)}) + "\n")
        sys.stdout.flush()


def one_draw(options: argparse.Namespace, draw: int) -> dict:
    """Return choice, its change on validation and, trained on everything, on the judging samples, for both ways to choose."""
    folder = options.out / f"{options.per_class}-{draw}"
    folder.mkdir(parents=True, exist_ok=True)
    write_draw(options, draw, folder / "data.npz")
    own = {"data": {"name": str(folder / "data.npz"), "validation": 0.0}, "loop": {"evaluate_every": 20}}
    own |= {"optimizer": {"learning_rate": 3e-3}, "machine": {"report": False, "accelerator": "cpu"}}
    base = gather_config(flags=merge(FEATURE_SETTINGS, own))
    bundle = load_bundle(base)
    files: dict[str, dict[str, list[Path]]] = {"a fifth": {}, "folds": {}, "test": {}}
    for name in ("baseline", *NAMES):
        config = base if name == "baseline" else lay(base, REMEDIES[name].settings(base, bundle))
        for seed in range(SEEDS):
            held = []
            for fold in (*range(FOLDS), None):
                run = folder / f"{name}-seed{seed}-{fold}"
                data = {} if fold is None else {"data": {"fold": (fold, FOLDS)}}
                settings = with_values(config, merge({"loop": {"seed": seed}}, data))
                last = fold is None
                train(settings, run, resume=True, show=False, test=last, validation=not last, notices=False)
                held.append(run / VALIDATION_FILE)
            pool(held[:FOLDS], folder / f"{name}-seed{seed}.npz")
            files["a fifth"].setdefault(name, []).append(held[0])
            files["folds"].setdefault(name, []).append(folder / f"{name}-seed{seed}.npz")
            files["test"].setdefault(name, []).append(run / "predictions.npz")
    tested, found = audits_of(files["test"]), {}
    for way in ("a fifth", "folds"):
        choice, there = chosen(audits_of(files[way]))
        gain = changes(AIM, tested["baseline"], tested[choice])[0]["hard"][0] if choice else 0.0
        found[way] = {"choice": choice, "validation": there, "gain": gain}
    return found


def write_draw(options: argparse.Namespace, draw: int, file: Path) -> None:
    """Write the drawn training part and, as test part, other training samples."""
    with np.load(options.data) as data:
        inputs, labels = data["x_train"].astype(np.float32), data["y_train"]
    order = np.random.default_rng(1000 + draw).permutation(len(labels))
    rows = [order[labels[order] == label] for label in np.unique(labels)]
    n, arrays = options.per_class, {}
    train = [of_class[:n] for of_class in rows]
    test = [np.sort(of_class[n:])[: options.judges] for of_class in rows]
    for part, taken in (("train", np.concatenate(train)), ("test", np.concatenate(test))):
        arrays |= {f"x_{part}": inputs[taken], f"y_{part}": labels[taken]}
    np.savez(file, **arrays)


def audits_of(files: dict[str, list[Path]]) -> dict[str, list]:
    """Return the audits of all runs by name, and those of their ensembles."""
    samples = read_scores(next(iter(files.values()))[0])[0]
    scores = {name: [read_scores(file)[1] for file in runs] for name, runs in files.items()}
    scores |= {f"{name}, ensemble": [mean_scores(runs)] for name, runs in scores.items()}
    return {name: [samples.lean_audit(one) for one in runs] for name, runs in scores.items()}


def chosen(audits: dict[str, list]) -> tuple[str | None, tuple | None]:
    """Return the choice and its change of the hard third with its interval."""
    deltas = {name: changes(AIM, audits["baseline"], runs)[0] for name, runs in audits.items()}
    able = {name: sure_gain(one) for name, one in deltas.items() if not broken_guard(AIM, one)}
    best = max(able, key=lambda name: able[name])
    return (best, deltas[best]["hard"]) if able[best] > 0 else (None, None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a file of features with x_train and y_train")
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--judges", type=int, default=40, help="other samples of each class that judge")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
