"""The samples that a page shows: which ones, and their pictures or texts, as data that the page draws on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.samples import KINDS
from classmargin.report.thumbnails import MOST_BYTES, Pictures, data_uris

# Of each class; a page of a thousand classes shows fewer of those that do not lag.
MOST_ERRORS, MOST_DOUBTED, MOST_TYPICAL = 30, 12, 5
FEW_ERRORS, FEW_DOUBTED, FEW_TYPICAL = 4, 2, 1
MOST_ROWS = 8000
MOST_LETTERS = 300
MOST_LETTERS_IN_ALL = 2 * 2**20


def sample_view(audit: Audit, *, images: Any = None, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what the page needs to show samples.

    Args:
        audit: Whose samples they are.
        images: As in :meth:`Audit.to_html`, or :class:`Pictures`.
        texts: One text per sample, or ``None``.

    Returns:
        ``names`` of the classes, ``kinds``, ``rows`` (class, kind, identity, predicted, its probability, probability of the
        true class, second choice, picture, text; -1 or null where there is none), ``pictures``, ``texts``, ``totals`` (errors
        and doubted labels of each class), ``first`` (the class to show at first) and ``words`` about what is left out.
    """
    if texts is not None and len(texts) != audit.num_samples:
        raise ValueError(f"texts must have one entry per sample ({audit.num_samples}), got {len(texts)}")
    frame = audit.samples
    number = {name: k for k, name in enumerate(audit.class_names)}
    truth = audit.labels[frame["position"].to_numpy()]
    predicted = audit.predictions[frame["position"].to_numpy()]
    kind = np.array([KINDS.index(name) for name in frame["kind"]], dtype=np.int64)
    chosen = _choose(audit, truth, predicted, kind, frame["rank"].to_numpy())
    shown = frame.iloc[chosen]
    positions = [int(position) for position in shown["position"]]
    pictures = _pictures(audit, images)
    # Room for pictures goes to lagging classes first.
    lags = audit.by_class["lags"].to_numpy(dtype=bool)[truth[chosen]]
    first = [positions[row] for row in np.argsort(~lags, kind="stable").tolist()]
    uris = {} if pictures is None else data_uris(pictures, first)
    places = {position: place for place, position in enumerate(uris)}
    letters, kept = {}, 0
    for position in first if texts is not None else []:
        words = printable(str(texts[position]))[: MOST_LETTERS + 1]  # type: ignore[index]
        words = words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}…"
        kept += len(words)
        if kept > MOST_LETTERS_IN_ALL:
            break
        letters[position] = words
    text_places = {position: place for place, position in enumerate(letters)}
    rows = [
        [
            int(truth[row]),
            int(kind[row]),
            printable(str(record["sample_id"])),
            int(predicted[row]),
            _rounded(record["probability"]),
            _rounded(record["true_probability"]),
            number.get(record["second_choice"], -1),
            places.get(record["position"], -1),
            text_places.get(record["position"], -1),
        ]
        for row, record in zip(chosen.tolist(), shown.to_dict("records"), strict=True)
    ]
    totals = [
        np.bincount(truth[kind == code], minlength=audit.num_classes).tolist()
        for code in range(len(KINDS) - 1)
    ]
    return {
        "names": [printable(name) for name in audit.class_names],
        "kinds": list(KINDS),
        "rows": rows,
        "pictures": list(uris.values()),
        "texts": list(letters.values()),
        "totals": totals,
        "first": _first(audit),
        "words": _words(len(set(positions)), pictures, len(uris)),
    }


def _choose(
    audit: Audit,
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
    kind: NDArray[np.int64],
    rank: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return rows of the sample table: all kinds of error of a class get their turn, lagging classes first."""
    # The place among the errors of the same pair: a rare confusion is shown as well as the usual one.
    order = np.lexsort((rank, predicted, truth, kind))
    key = (kind * audit.num_classes + truth) * audit.num_classes + predicted
    in_pair = np.empty(len(rank), dtype=np.int64)
    sorted_key = key[order]
    starts = np.flatnonzero(np.r_[True, sorted_key[1:] != sorted_key[:-1]]) if len(key) else order
    in_pair[order] = np.arange(len(key)) - np.repeat(starts, np.diff(np.r_[starts, len(key)]))
    turn = np.lexsort((rank, np.where(kind == 0, in_pair, rank), kind, truth))
    sorted_group = (truth * len(KINDS) + kind)[turn]
    starts = np.flatnonzero(np.r_[True, sorted_group[1:] != sorted_group[:-1]]) if len(key) else turn
    place = np.empty(len(rank), dtype=np.int64)
    place[turn] = np.arange(len(key)) - np.repeat(starts, np.diff(np.r_[starts, len(key)]))
    most = np.array([MOST_ERRORS, MOST_DOUBTED, MOST_TYPICAL])[kind]
    few = np.array([FEW_ERRORS, FEW_DOUBTED, FEW_TYPICAL])[kind]
    lags = audit.by_class["lags"].to_numpy(dtype=bool)[truth]
    accuracy = audit.by_class["accuracy"].to_numpy(dtype=np.float64)[truth]
    # First all that a lagging class may have, then a little of every class, then the rest.
    wave = np.where(lags, 0, np.where(place < few, 1, 2))
    allowed = np.flatnonzero(place < most)
    best = allowed[np.lexsort((place[allowed], accuracy[allowed], wave[allowed]))]
    return np.sort(best[:MOST_ROWS])  # as in the table: by class, kind and rank


def _pictures(audit: Audit, images: Any) -> Pictures | None:
    return images if images is None or isinstance(images, Pictures) else Pictures(images, audit)


def _rounded(value: float) -> float | None:
    return None if value != value else round(float(value), 3)


def _first(audit: Audit) -> int:
    frame = audit.by_class
    lags = frame["lags"].to_numpy(dtype=bool)
    accuracy = np.where(lags | (not lags.any()), frame["accuracy"].to_numpy(dtype=np.float64), np.inf)
    return int(np.argmin(np.where(np.isnan(accuracy), np.inf, accuracy)))


def _words(listed: int, pictures: Pictures | None, shown: int) -> str:
    if pictures is None:
        return ""
    words = f"Pictures are re-encoded small; the page holds at most {MOST_BYTES / 2**20:.0f} MB of them"
    if pictures.unreadable:
        words += f"; {pictures.unreadable} could not be read or were refused"
    left = listed - shown - pictures.unreadable
    return f"{words}; {left} listed samples are without one." if left > 0 else f"{words}."
