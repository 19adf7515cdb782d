"""MR2Classifier against LogisticRegression at equal tuning, on real features: overall, hard third, worst class, seconds.

Each seed draws 2 000 training rows, stratified; both classifiers are tuned by the same ``GridSearchCV`` (three folds, as many points
in each grid) on them and tested on the whole test set. The classifier with a hidden layer has its defaults, untuned. Digits, which has
no test set, is split in halves. Differences are paired by seed, with the standard error over seeds.

The second part holds ``λ`` of the hidden layer against ``λ = 0`` on a quarter of the training rows that the fit has not seen: the decision
behind its default, which the test set has no part in.

Data: ``CLASSMARGIN_DATA``, the folder of ``banking77_minilm.npz``, ``clinc150_minilm.npz`` and ``oxford_pets_efflite0.npz``
(``scripts/extract_features.py`` makes such files); those that are missing are left out, digits come with scikit-learn.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = 5
ROWS = 2_000
FILES = {
    "Banking77": "banking77_minilm.npz",
    "CLINC150": "clinc150_minilm.npz",
    "Pets": "oxford_pets_efflite0.npz",
}
# Strength of the penalty α; C of LogisticRegression is 1 / (α v n), the same penalty.
PENALTIES = (1e-6, 1e-5, 1e-4)
WEIGHTS = (0.0, 0.3, 1.0, 3.0)
HEADLINES = ("overall", "hard", "worst")
THEIRS = "LogisticRegression"
Numbers = dict[str, float]


def run(seeds: int = SEEDS) -> dict[str, Any]:
    folder = Path(os.environ.get("CLASSMARGIN_DATA", "data"))
    names = ["Digits", *(name for name, file in FILES.items() if (folder / file).exists())]
    left_out = [name for name in FILES if name not in names]
    if left_out:
        print(f"not in CLASSMARGIN_DATA={folder}: {', '.join(left_out)}")
    head = "| data | classifier | overall | hard | worst | fit, s |\n|---|---|---|---|---|---|"
    tables: dict[str, Any] = {}
    for part, measure in (("tuned", _compare), ("representation_weight", _weights)):
        print(head if part == "tuned" else f"\n{head}")
        tables[part] = {}
        for name in names:
            tables[part][name] = measure(name, folder, seeds)
            for title, line in tables[part][name].items():
                print(_line(name, title, line), flush=True)
    return {"seeds": seeds, **tables}


def _compare(name: str, folder: Path, seeds: int) -> dict[str, Any]:
    found: dict[str, list[Numbers]] = {}
    for seed in range(seeds):
        split = _split(name, folder, seed)
        for title, model in _candidates(split[0], seed).items():
            found.setdefault(title, []).append(_measure(model, *split))
    return {title: _summary(rows, found[THEIRS]) for title, rows in found.items()}


def _split(name: str, folder: Path, seed: int) -> tuple[Any, ...]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if name == "Digits":
        X, y = load_digits(return_X_y=True)
        X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
        return X, y, X_test, y_test
    with np.load(folder / FILES[name], allow_pickle=False) as arrays:
        X, y = arrays["x_train"].astype(np.float32), arrays["y_train"]
        X_test, y_test = arrays["x_test"].astype(np.float32), arrays["y_test"]
    X, _, y, _ = train_test_split(X, y, train_size=ROWS, stratify=y, random_state=seed)
    return X, y, X_test, y_test


def _candidates(X: Any, seed: int) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    from classmargin import MR2Classifier

    variance, folds = float(X.astype(np.float64).var(axis=0).sum()), 3
    strengths = [1.0 / (alpha * variance * len(X)) for alpha in PENALTIES]
    # On rows of one length p = 2 gives uniform margins, which is logistic regression.
    lengths = np.linalg.norm(X, axis=1)
    order = 3.0 if np.ptp(lengths) < 0.01 * lengths.mean() else 2.0
    grids = {
        THEIRS: (LogisticRegression(max_iter=1000), {"C": strengths}),
        "MR2Classifier": (MR2Classifier(norm_order=order, device="cpu"), {"alpha": list(PENALTIES)}),
    }
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    found = {title: GridSearchCV(model, grid, cv=split) for title, (model, grid) in grids.items()}
    return found | {"MR2Classifier, hidden, untuned": MR2Classifier(hidden=(256,), random_state=seed, device="cpu")}


def _weights(name: str, folder: Path, seeds: int) -> dict[str, Any]:
    from sklearn.model_selection import train_test_split

    from classmargin import MR2Classifier

    found: dict[str, list[Numbers]] = {}
    for seed in range(seeds):
        X, y, *_ = _split(name, folder, seed)
        fit, held_out, y_fit, y_held_out = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
        split = fit, y_fit, held_out, y_held_out
        for weight in WEIGHTS:
            model = MR2Classifier(hidden=(256,), representation_weight=weight, random_state=seed, device="cpu")
            found.setdefault(f"hidden, λ = {weight:g}", []).append(_measure(model, *split))
    return {title: _summary(rows, found["hidden, λ = 0"]) for title, rows in found.items()}


def _measure(model: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> Numbers:
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of searches that a corner of the grid does not end
        model.fit(X, y)
    seconds = getattr(model, "refit_time_", time.perf_counter() - begin)  # without the search
    right = model.predict(X_test) == y_test
    accuracy = np.sort([right[y_test == label].mean() for label in np.unique(y_test)])
    values = (right.mean(), accuracy[: len(accuracy) // 3].mean(), accuracy[0])
    return {**{key: 100.0 * float(value) for key, value in zip(HEADLINES, values, strict=True)}, "s": seconds}


def _summary(rows: list[Numbers], base: list[Numbers]) -> dict[str, Any]:
    out: dict[str, Any] = {"seconds": float(np.mean([row["s"] for row in rows]))}
    for key in HEADLINES:
        gains = np.array([row[key] - other[key] for row, other in zip(rows, base, strict=True)])
        error = float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else float("nan")
        out[key] = {
            "mean": float(np.mean([row[key] for row in rows])),
            "gain": float(gains.mean()),
            "error": error,
        }
    return out


def _line(name: str, title: str, line: dict[str, Any]) -> str:
    paired = any(line[key]["gain"] or line[key]["error"] for key in HEADLINES)
    cells = [
        f"{line[key]['mean']:.1f}" + (f" ({line[key]['gain']:+.1f} ± {line[key]['error']:.1f})" if paired else "")
        for key in HEADLINES
    ]
    return f"| {name} | {title} | " + " | ".join(cells) + f" | {line['seconds']:.1f} |"
