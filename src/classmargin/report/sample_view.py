"""The samples that a page shows: which ones, and their pictures or texts, as data that the page draws on demand.

Pictures come from strangers: nothing outside the folder is read, sizes are compared before a pixel is decoded, and what cannot be read is
left out and counted. A picture in the page has been written anew, so nothing of the original file but its look is in it.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._checks import require_extra
from classmargin._printable import printable
from classmargin._progress import progress_if_long
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.input_checks import AnyArray, IntArray
from classmargin.evaluation.samples import KINDS, places_in_groups

# Errors, doubted labels and typical samples of each class; a page of a thousand classes shows few of those that do not lag.
MOST, FEW = (30, 12, 5), (4, 2, 1)
MOST_ROWS = 8000
MOST_LETTERS = 300
MOST_LETTERS_IN_ALL = 2 * 2**20
SIDE = 72  # pixels; shown a little larger
# Both limits together bound the page: it is to be mailed and opened on a phone.
MOST_BYTES = 6 * 2**20
MOST_PICTURES = 4000
LARGEST_PIXELS = 40_000_000
# Pillow looks at the content, not at the name, and knows formats that start other programs (EPS: Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_ENLARGED = 32  # smaller pictures are enlarged without smoothing by the page


def sample_view(audit: Audit, *, images: Any = None, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what the page needs to show samples."""
    if texts is not None and len(texts) != audit.num_samples:
        raise ValueError(f"texts must have one entry per sample ({audit.num_samples}), got {len(texts)}")
    frame = audit.samples
    number = {name: k for k, name in enumerate(audit.class_names)}
    positions = frame["position"].to_numpy()
    truth, predicted = audit.labels[positions], audit.predictions[positions]
    kind = np.array([KINDS.index(name) for name in frame["kind"]], dtype=np.int64)
    chosen = _choose(audit, truth, predicted, kind, frame["rank"].to_numpy())
    # Room for pictures and texts goes to lagging classes first.
    lags = audit.by_class["lags"].to_numpy(dtype=bool)
    first = positions[chosen][np.argsort(~lags[truth[chosen]], kind="stable")].tolist()
    pictures = images if images is None or isinstance(images, Pictures) else Pictures(images, audit)
    uris = {} if pictures is None else data_uris(pictures, first)
    letters: dict[int, str] = {}
    kept = 0
    for position in first if texts is not None else []:
        text = printable(str(texts[position]))  # type: ignore[index]
        text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
        kept += len(text)
        if kept > MOST_LETTERS_IN_ALL:
            break
        letters[position] = text
    places = [{position: place for place, position in enumerate(found)} for found in (uris, letters)]
    rows = []
    for row, record in zip(chosen.tolist(), frame.iloc[chosen].to_dict("records"), strict=True):
        probabilities = [record["probability"], record["true_probability"]]
        rows.append(
            [
                *(int(truth[row]), int(kind[row]), printable(str(record["sample_id"])), int(predicted[row])),
                *(None if value != value else round(float(value), 3) for value in probabilities),
                number.get(record["second_choice"], -1),
                *(found.get(record["position"], -1) for found in places),
            ]
        )
    totals = [np.bincount(truth[kind == code], minlength=audit.num_classes).tolist() for code in range(len(KINDS) - 1)]
    # The class to show at first: the worst one, among those that lag where there are any.
    accuracy = audit.by_class["accuracy"].where(lags | (not lags.any())).fillna(np.inf)
    words = ""
    if pictures is not None:
        words = f"Pictures are re-encoded small; the page holds at most {MOST_BYTES / 2**20:.0f} MB of them"
        if pictures.unreadable:
            words += f"; {pictures.unreadable} could not be read or were refused"
        left = len(set(first)) - len(uris) - pictures.unreadable
        words += f"; {left} listed samples are without one." if left > 0 else "."
    shown = {"rows": rows, "pictures": list(uris.values()), "texts": list(letters.values()), "totals": totals}
    names = [printable(name) for name in audit.class_names]
    return {"names": names, "kinds": KINDS, **shown, "first": int(np.argmin(accuracy)), "words": words}


def _choose(audit: Audit, truth: IntArray, predicted: IntArray, kind: IntArray, rank: IntArray) -> IntArray:
    """Return rows of the sample table: all kinds of error of a class get their turn, lagging classes first."""
    # The place among the errors of the same pair: a rare confusion is shown as well as the usual one. Rows come by rank.
    turn = np.where(kind == 0, places_in_groups(kind, truth, predicted), rank)
    order = np.lexsort((rank, turn))
    place = np.empty(len(rank), dtype=np.int64)
    place[order] = places_in_groups(truth[order], kind[order])
    most, few = np.array(MOST)[kind], np.array(FEW)[kind]
    lags = audit.by_class["lags"].to_numpy(dtype=bool)[truth]
    accuracy = audit.by_class["accuracy"].to_numpy(dtype=np.float64)[truth]
    # First all that a lagging class may have, then a little of every class, then the rest.
    wave = np.where(lags, 0, np.where(place < few, 1, 2))
    allowed = np.flatnonzero(place < most)
    best = allowed[np.lexsort((place[allowed], accuracy[allowed], wave[allowed]))]
    return np.sort(best[:MOST_ROWS])  # as in the table: by class, kind and rank


class Pictures:
    """Reads the picture of a sample by its position."""

    def __init__(self, images: Any, audit: Audit) -> None:
        self.folder: Path | None = None
        self.names: Sequence[str] = ()
        self.array: AnyArray | None = None
        self.source: Any = None
        self.unreadable = 0
        if isinstance(images, (str, os.PathLike)):
            self.folder = Path(images)
            if not self.folder.is_dir():
                raise ValueError(f"images must be a folder, paths or an array, got {str(images)!r}, which is no folder")
            identity = np.arange(audit.num_samples) if audit.sample_id is None else audit.sample_id
            self.names = identity.astype(str).tolist()
            return
        if len(images) != audit.num_samples:
            raise ValueError(f"images must have one entry per sample ({audit.num_samples}), got {len(images)}")
        if hasattr(images, "open"):
            self.source = images
        elif isinstance(images[0], (str, os.PathLike)):
            self.names = [os.fspath(name) for name in images]
        else:
            self.array = np.asarray(images)
            if self.array.ndim not in (3, 4):
                shapes = "[N, H, W], [N, H, W, C] or [N, C, H, W]"
                raise ValueError(f"images must be an array {shapes}, got shape {self.array.shape}")

    def inside(self, folder: str | os.PathLike[str]) -> Pictures:
        """Read paths relative to ``folder``, and none outside of it."""
        self.folder = Path(folder)
        return self

    def encoded(self, position: int) -> bytes | None:
        """Return the picture of the sample at ``position`` as JPEG or PNG, or ``None`` if it cannot be read."""
        try:
            image = self._image(position)
            image.thumbnail((SIDE, SIDE))
            stream = io.BytesIO()
            if max(image.size) <= _ENLARGED:
                image.save(stream, "PNG", optimize=True)  # a few hundred bytes, and no blur
            else:
                image.convert("RGB").save(stream, "JPEG", quality=72, optimize=True)
            return stream.getvalue()
        except Exception:  # damaged files raise nearly anything; the page says how many there were
            self.unreadable += 1
            return None

    def properties(self, count: int) -> dict[str, list[float]]:
        """Return size, brightness, contrast and sharpness of the first ``count`` pictures; NaN where one cannot be read."""
        rows = []
        for position in progress_if_long(range(count), "measuring pictures"):
            try:
                rows.append(_measure(self._image(position)))
            except Exception:  # as above: anything may be wrong with a file
                rows.append((math.nan,) * 4)
        names = ("brightness", "contrast", "sharpness", "pixels")
        return {name: [row[k] for row in rows] for k, name in enumerate(names)}

    def _image(self, position: int) -> Any:
        pillow = require_extra("PIL.Image", "report", "pictures in a report")
        if self.array is not None:
            return pillow.fromarray(_as_pixels(self.array[position]))
        place = self._path(position) if self.source is None else self.source.open(position)
        with pillow.open(place, formats=FORMATS) as image:
            if image.width * image.height > LARGEST_PIXELS:
                raise ValueError("too many pixels")
            image.info["size"] = image.size
            image.draft("RGB", (2 * SIDE, 2 * SIDE))  # decodes a JPEG small, which is ten times faster
            return image.convert("RGB")

    def _path(self, position: int) -> Path:
        path = Path(self.names[position])
        if self.folder is not None:
            root = self.folder.resolve()
            path = (root / path).resolve()
            if root not in path.parents:
                raise ValueError("outside of the folder")
        if not path.is_file():
            raise ValueError("not a regular file")
        return path


def _measure(image: Any) -> tuple[float, float, float, float]:
    """Return mean and deviation of the grey values, how sharp the picture is, and its number of pixels."""
    width, height = image.info.get("size", image.size)
    grey = np.asarray(image.convert("L").resize((64, 64)), dtype=np.float64) / 255
    # Variance of the Laplacian: blurred pictures have no fine structure.
    inner = grey[1:-1, 1:-1]
    edges = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * inner
    return float(grey.mean()), float(grey.std()), float(edges.var()), float(width * height)


def _as_pixels(values: AnyArray) -> AnyArray:
    if values.ndim == 3 and values.shape[0] in (1, 3, 4) and values.shape[2] not in (1, 3, 4):
        values = values.transpose(1, 2, 0)
    if values.ndim == 3:
        values = values[:, :, 0] if values.shape[2] == 1 else values[:, :, :3]
    if values.dtype != np.uint8:
        numbers = np.nan_to_num(values.astype(np.float64))
        low, high = min(float(numbers.min()), 0.0), max(float(numbers.max()), 1.0)
        # Values between 0 and 1 as they are; bytes in another type as bytes; standardised ones over their range.
        scale = (0.0, 255.0) if low == 0.0 and high > 1.0 and high <= 255.0 else (low, high)
        values = np.round(255 * (numbers - scale[0]) / (scale[1] - scale[0])).astype(np.uint8)
    return np.ascontiguousarray(values)


def data_uris(pictures: Pictures, positions: Sequence[int]) -> dict[int, str]:
    """Return pictures for as many of ``positions`` as fit, first come, first served."""
    found: dict[int, str] = {}
    size = 0
    wanted = list(dict.fromkeys(positions))[:MOST_PICTURES]
    for position in progress_if_long(wanted, "reading pictures") if len(wanted) > 50 else wanted:
        content = pictures.encoded(position)
        if content is None:
            continue
        kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
        text = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
        size += len(text)
        if size > MOST_BYTES:
            break
        found[position] = text
    return found
