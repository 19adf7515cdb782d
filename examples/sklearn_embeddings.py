"""A matrix of embeddings and its labels: classify it with MR² margins and see which classes are left behind.

Needs the extra ``sklearn``: pip install 'classmargin[sklearn]'. Runs offline in a few seconds. With embeddings of your own,
replace ``embeddings()`` by two arrays: features ``[N, d]`` and labels ``[N]`` (numbers or text).
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split

import classmargin


def embeddings(rows: int = 3000, classes: int = 12, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around class directions; later classes are spread wider, hence harder."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    spread = np.linspace(0.12, 0.45, classes)[labels, None]
    directions = rng.normal(size=(classes, size)) / size**0.5
    points = directions[labels] + spread * rng.normal(size=(rows, size))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points.astype(np.float32), np.array([f"class {k:02d}" for k in range(classes)])[labels]


def main() -> None:
    X, y = embeddings()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)

    # Embeddings that are compared by angle: cosine head, third norm. The mean margin is chosen on the training rows alone.
    cosine = classmargin.MR2Classifier(norm_order=3, cosine=True)
    search = GridSearchCV(cosine, {"mean_margin": [0.5, 1.0, 2.0]}, cv=3).fit(X_train, y_train)
    print(f"mean margin chosen by cross-validation: {search.best_params_['mean_margin']:g}")

    models = {"logistic regression": LogisticRegression(max_iter=1000).fit(X_train, y_train), "MR2": search}
    for name, model in models.items():
        result = classmargin.audit(
            y_test, logits=model.decision_function(X_test), class_names=model.classes_, bootstrap=200
        )
        print(f"{name:20} accuracy {result.overall:.3f}   hard third {result.hard:.3f}   worst {result.worst:.3f}")

    margins = search.best_estimator_.class_margins_
    print(
        "margins:",
        ", ".join(f"{name} {margin:.2f}" for name, margin in zip(search.classes_, margins, strict=True)),
    )


if __name__ == "__main__":
    main()
