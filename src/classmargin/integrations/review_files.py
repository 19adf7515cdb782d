"""Samples whose labels are in doubt, as files for the tools where people look at them: FiftyOne and Label Studio.

    doubted = doubted_samples(labels, probabilities, class_names=names, sample_id=files)
    write_fiftyone(doubted, "review/labels.json", names)
    write_label_studio(doubted, "review/tasks.json", url="/data/local-files/?d=images/{sample_id}")

Plain JSON; nothing of either tool is needed to write it. A doubt is the confident-learning estimate that the audit counts as
``label_issues``: the sample is labelled *i*, and *j* is the likeliest class among those whose probability reaches what it is
on average for samples labelled *j*. A weak model doubts good labels too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from classmargin._atomic import atomic_path
from classmargin.evaluation.class_diagnosis import label_issues
from classmargin.evaluation.class_metrics import class_means


class DoubtedSample(NamedTuple):
    """One sample whose label is in doubt.

    Attributes:
        sample_id: Its identity, e.g. the name of a file.
        label: Name of the class it is labelled with.
        suggestion: Name of the class it is taken for.
        label_probability: Probability of its label.
        suggestion_probability: Probability of the suggestion.
    """

    sample_id: str
    label: str
    suggestion: str
    label_probability: float
    suggestion_probability: float


def doubted_samples(
    labels: Any,
    probabilities: Any,
    *,
    class_names: Sequence[str] | None = None,
    sample_id: Sequence[Any] | None = None,
) -> list[DoubtedSample]:
    """Return the samples whose labels confident learning doubts, the least likely label first.

    Args:
        labels: Given classes ``[N]``.
        probabilities: Probabilities of a model that has not been trained on these samples ``[N, K]``.
        class_names: Names of the classes ``[K]``; numbers by default.
        sample_id: Identity of each sample ``[N]``; its position by default.

    Raises:
        ValueError: Shapes that do not fit together, labels out of range, or probabilities that are none.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.95, 0.05]])
        >>> [(s.sample_id, s.label, s.suggestion) for s in doubted_samples([0, 0, 1, 1], probabilities)]
        [('3', '1', '0')]
    """
    labels, table = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    if table.ndim != 2 or labels.shape != table.shape[:1]:
        raise ValueError(
            f"probabilities must have shape (N, K) with one row per label, got {table.shape} for labels {labels.shape}"
        )
    count, classes = table.shape
    if not np.issubdtype(labels.dtype, np.integer) or (
        count and not 0 <= labels.min() <= labels.max() < classes
    ):
        raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}, got {labels.dtype}")
    if not ((table >= 0).all() and np.allclose(table.sum(1), 1.0, atol=1e-3)):
        raise ValueError(
            "probabilities must be rows >= 0 that sum to 1, got others; give the softmax of logits"
        )
    names = [str(k) for k in range(classes)] if class_names is None else [str(name) for name in class_names]
    ids = [str(k) for k in range(count)] if sample_id is None else [str(name) for name in sample_id]
    for name, given, wanted in (("class_names", names, classes), ("sample_id", ids, count)):
        if len(given) != wanted or len(set(given)) != wanted:
            raise ValueError(
                f"{name} must be {wanted} different names, got {len(given)}, {len(set(given))} different"
            )
    own = table[np.arange(count), labels]
    order = np.argsort(-table, axis=1, kind="stable")
    ranked = np.take_along_axis(table, order, axis=1)
    doubted = np.flatnonzero(label_issues(labels, own, order, ranked, classes))
    reached = ranked >= np.nan_to_num(class_means(own, labels, classes), nan=np.inf)[order]
    taken_for = order[np.arange(count), reached.argmax(axis=1)]
    rows = sorted(doubted.tolist(), key=lambda row: own[row])
    return [
        DoubtedSample(
            ids[row],
            names[labels[row]],
            names[taken_for[row]],
            float(own[row]),
            float(table[row, taken_for[row]]),
        )
        for row in rows
    ]


def write_fiftyone(samples: Sequence[DoubtedSample], path: str | Path, class_names: Sequence[str]) -> Path:
    """Write ``labels.json`` of FiftyOne's format ``FiftyOneImageClassificationDataset``.

    Load it with ``fo.Dataset.from_dir(data_path=IMAGES, labels_path=FILE,
    dataset_type=fo.types.FiftyOneImageClassificationDataset)``; samples are found by the names of their files without ending. The
    classification is the given label; ``suggestion`` and both probabilities are its attributes.

    Args:
        samples: What :func:`doubted_samples` returned.
        path: File to write.
        class_names: Names of all classes.

    Raises:
        ValueError: Two samples whose files have the same name but for folder and ending.
    """
    entries: dict[str, Any] = {}
    for sample in samples:
        key = PurePosixPath(sample.sample_id.replace("\\", "/")).stem
        if key in entries:
            raise ValueError(f"samples must have different file names, got {key!r} twice")
        entries[key] = {
            "label": sample.label,
            "confidence": sample.label_probability,
            "attributes": {
                "sample_id": sample.sample_id,
                "suggestion": sample.suggestion,
                "suggestion_probability": sample.suggestion_probability,
            },
        }
    return _write({"classes": [str(name) for name in class_names], "labels": entries}, path)


def write_label_studio(
    samples: Sequence[DoubtedSample],
    path: str | Path,
    *,
    url: str = "{sample_id}",
    data_key: str = "image",
    from_name: str = "choice",
    model_version: str = "classmargin",
) -> Path:
    """Write tasks for Label Studio's import: the given label as an annotation, the suggestion as a prediction.

    Fits a labelling interface with ``<Image name="image" value="$image"/>`` and ``<Choices name="choice" toName="image">``.

    Args:
        samples: What :func:`doubted_samples` returned.
        path: File to write.
        url: Where Label Studio finds a sample; ``{sample_id}`` stands for its identity.
        data_key: Name of the object and its variable in the interface (``image``, ``text``).
        from_name: Name of the ``Choices`` in the interface.
        model_version: Name under which Label Studio lists the suggestions.
    """

    def choice(name: str, number: str) -> list[dict[str, Any]]:
        value = {"choices": [name]}
        return [
            {"id": number, "from_name": from_name, "to_name": data_key, "type": "choices", "value": value}
        ]

    tasks = [
        {
            "data": {data_key: url.replace("{sample_id}", sample.sample_id), "sample_id": sample.sample_id},
            "annotations": [{"result": choice(sample.label, f"label-{number}")}],
            "predictions": [
                {
                    "model_version": model_version,
                    "score": sample.suggestion_probability,
                    "result": choice(sample.suggestion, f"suggestion-{number}"),
                }
            ],
        }
        for number, sample in enumerate(samples)
    ]
    return _write(tasks, path)


def _write(content: Any, path: str | Path) -> Path:
    with atomic_path(Path(path)) as file:
        Path(file).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Path(path)
