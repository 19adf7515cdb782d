"""From a name or a path to a :class:`~classmargin.data.bundle.DataBundle`.

    reader -> RawData -> prepare_images -> check_raw -> hold out test, validation -> subset -> DataBundle

Encoded images of at most 64 pixels are decoded once and live in memory (up to 1 GiB); worker processes decode larger ones.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from classmargin._checks import LARGEST_SIDE, check_int, check_number
from classmargin._files import UnfitFileError
from classmargin.data import catalog, images
from classmargin.data.bundle import DataBundle, Framing, Kind, Split
from classmargin.data.catalog import DataInfo
from classmargin.data.formats import read_any
from classmargin.data.formats.arrow_tables import HUB_PREFIX, read_hub
from classmargin.data.images import ImageFormat
from classmargin.data.pixels import channel_statistics
from classmargin.data.raw import (
    CorruptImageError,
    DataError,
    MixedSizeError,
    RawData,
    RawPart,
    check_raw,
    missing_classes,
    name_some,
)
from classmargin.data.sampling import hold_out_rows, subset_rows

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2
MEMORY_LIMIT = 1024**3


def load_data(
    name_or_path: str,
    *,
    root: Path | None = None,
    fraction: float = 1.0,
    imbalance: float = 1.0,
    validation: float | None = None,
    seed: int = 0,
    download: bool = False,
    skip_corrupt: bool = False,
    image_size: int | None = None,
    framing: Framing | None = None,
) -> DataBundle:
    """Load a data set by name or path, split it, and thin its training part if asked.

    Splits are deterministic and do not know the seed. Validation samples are the data set's own; where it has none, a tenth
    of every training class. A set without test part is judged on its own validation part, or, having neither, on a fifth of
    every class. ``validation=0`` trains on everything, the data set's own validation part included (the setting of the
    paper's tables), and leaves nothing to select models on.

    Args:
        name_or_path: A name of the catalogue, ``hf:owner/name`` on the Hugging Face hub, or a file or folder
            (also relative to the root): image tree, idx files, CIFAR batches, ``.npz``, ``.npy``, parquet,
            ``save_to_disk``.
        root: Folder of data sets; ``$CLASSMARGIN_DATA`` or ``~/.cache/classmargin/data`` when left out.
        fraction: Share of every training class to keep, in (0, 1]. 0.1 is contained in 0.2 for the same seed.
        imbalance: Ratio of the exponential long tail (100 for CIFAR-100-IB-100); classes become rarer in
            label order.
        validation: Share of every training class to hold out instead of the default; 0 for none.
        seed: Chooses which samples ``fraction`` and ``imbalance`` keep.
        download: Allow a download where the terms allow one; without it nothing touches the network.
        skip_corrupt: Leave out images that cannot be decoded (they are named in ``notes``) instead of
            refusing the set. Streamed sets are decoded once for this, before training.
        image_size: Side of the square to which images are brought: shorter side scaled, centre cut out.
        framing: Crops, interpolation and mirroring on the way there; those of ImageNet training when left out.

    Returns:
        The bundle; ``bundle.notes`` lists choices made on the way.

    Raises:
        DataNotFoundError: unknown name, or data that are not on this machine (a ``FileNotFoundError``).
        DataError: data that cannot be trained on (a ``ValueError``).

    Example:
        >>> bundle = load_data("fashion-mnist-mini", fraction=0.1)
        >>> bundle.num_classes, len(bundle.train), len(bundle.validation), len(bundle.test)
        (10, 450, 500, 5000)
    """
    check_number("fraction", fraction, above=0.0, maximum=1.0)
    check_number("imbalance", imbalance, minimum=1.0)
    check_int("seed", seed, minimum=0)
    if validation is not None:
        check_number("validation", validation, minimum=0.0, below=1.0)
    if image_size is not None:
        check_int("image_size", image_size, minimum=1, maximum=LARGEST_SIDE)
    framing = framing or Framing()
    info, raw = _read(name_or_path, catalog.data_root(root), download=download)
    size = image_size or (info.image_size if info else None)
    try:
        raw, image_format = prepare_images(raw, size, framing, skip_corrupt=skip_corrupt)
        raw = check_raw(raw)
    except DataError as error:
        if name_or_path in str(error):
            raise
        raise type(error)(f"{name_or_path}: {error}") from error  # of several data sets, the one at fault
    num_classes = len(raw.class_names or ())
    if info is not None and num_classes != info.classes:
        note = f"{info.title} has {info.classes} classes, but these files hold {num_classes}"
        raw = raw.with_parts(raw.parts(), note)
    raw = _hold_out(raw, validation)
    if fraction != 1.0 or imbalance != 1.0:
        rows = subset_rows(raw.train.labels, num_classes=num_classes, fraction=fraction, imbalance=imbalance, seed=seed)
        raw = replace(raw, train=raw.train.take(rows))
    known = info is not None or name_or_path.startswith(HUB_PREFIX)
    return bundle_of(name_or_path if known else Path(name_or_path).stem, raw, info, image_format, size, framing)


def _read(name_or_path: str, root: Path, *, download: bool) -> tuple[DataInfo | None, RawData]:
    if name_or_path.startswith(HUB_PREFIX):
        return None, read_hub(name_or_path[len(HUB_PREFIX) :], root, download=download)
    info = catalog.find_info(name_or_path)
    if info is not None:
        place, read = catalog.place_of(info, root, download=download), info.read
    else:
        path = Path(name_or_path).expanduser()
        places = (path, root / path, root / f"{name_or_path}.npz")
        existing = [candidate for candidate in places if candidate.exists()]
        if not existing:
            raise catalog.unknown(name_or_path, root)
        place, read = existing[0], read_any
    try:
        raw = read(place)
        return info, raw if info is None else replace(raw, class_names=raw.class_names or info.class_names)
    except UnfitFileError as error:
        raise DataError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if info is None or isinstance(error, (DataError, OSError)):
            raise
        # The lists and tables of a set of the catalogue may be damaged in any way.
        raise DataError(
            f"{place} does not hold {info.title} as it is distributed ({type(error).__name__}: {error})"
        ) from error


def _hold_out(raw: RawData, share: float | None) -> RawData:
    """Return ``raw`` with all three parts; see :func:`load_data` for the rules."""
    names, notes = raw.class_names or (), list(raw.notes)
    train, validation, test = raw.train, raw.validation, raw.test

    def take_out(name: str, share: float, number: int) -> RawPart:
        nonlocal train
        kept, rows = hold_out_rows(train.labels, share, num_classes=len(names), part=number)
        train, held_out = train.take(kept), train.take(rows)
        notes.extend(missing_classes(name, held_out, names))
        return held_out

    if test is None and validation is not None:
        test, validation = validation, None
        notes.append("no test part: the validation part is the test part, validation samples come from training")
    if test is None:
        notes.append(f"no test part: {TEST_SHARE:.0%} of every class are held out as test part")
        test = take_out("test", TEST_SHARE, 1)
    if validation is not None and share == 0.0:
        notes.append(f"validation=0: the {len(validation)} samples of the validation part are trained on")
        train = _joined(train, validation)
    elif validation is not None and share is not None:
        notes.append("a validation share was given: the validation part of the data set is not used")
    if validation is None or share is not None:
        validation = take_out("validation", VALIDATION_SHARE if share is None else share, 0)
    return RawData(train, validation, test, names, tuple(notes))


def _joined(first: RawPart, second: RawPart) -> RawPart:
    """Return the samples of both parts; the stable index of the second continues that of the first."""
    inputs = sources = None
    if first.inputs is not None and second.inputs is not None:
        inputs = np.concatenate([first.inputs, second.inputs])
    if first.images is not None and second.images is not None:
        sources = images.JoinedImages(first.images, second.images)
    index = np.concatenate([first.index, second.index + first.full_size])
    full_size = first.full_size + second.full_size
    return RawPart(np.concatenate([first.labels, second.labels]), inputs, sources, index, full_size)


def bundle_of(
    name: str,
    raw: RawData,
    info: DataInfo | None = None,
    image_format: ImageFormat | None = None,
    size: int | None = None,
    framing: Framing | None = None,
) -> DataBundle:
    """Return three checked parts as a bundle, with the statistics of their channels."""
    class_names, framing = raw.class_names or (), framing or Framing()
    splits = {part: _split(samples, len(class_names)) for part, samples in raw.parts().items()}
    inputs = splits["train"].inputs
    streamed = image_format if inputs is None else None
    shape = (streamed.channels, *streamed.size) if streamed else tuple(inputs.shape[1:])  # type: ignore[union-attr]
    kind: Kind = "images" if len(shape) == 3 else "features"
    if inputs is not None and inputs.dtype == torch.int64:
        kind = "text"
    if kind == "images" and size is not None:
        shape = (shape[0], size, size)
    known = None if info is None or info.mean is None or info.std is None else (info.mean, info.std)
    mean, std, notes = channel_statistics(inputs, shape[0] if kind == "images" else 0, known)
    return DataBundle(
        name=name,
        kind=kind,
        class_names=class_names,
        num_classes=len(class_names),
        **splits,
        mean=mean,
        std=std,
        input_shape=shape,
        notes=raw.notes + notes,
        flip=framing.flip and (info is None or info.flip),
        resize=streamed.resize if streamed else None,
        framing=framing,
    )


def _split(part: RawPart, num_classes: int) -> Split:
    inputs = None
    if part.inputs is not None:
        inputs = torch.from_numpy(np.require(part.inputs, requirements=["C", "W", "O"]))
    labels, index = (torch.from_numpy(rows.astype(np.int64)) for rows in (part.labels, part.index))
    return Split(labels, index, part.full_size, num_classes, inputs, part.images)


def prepare_images(
    raw: RawData, image_size: int | None, framing: Framing, *, skip_corrupt: bool
) -> tuple[RawData, ImageFormat | None]:
    """Return ``raw`` with small images decoded and corrupt ones dropped (or refused), and the format of encoded images."""
    sources = {name: part.images for name, part in raw.parts().items() if part.images is not None}
    if not sources:
        return raw, None
    if len(sources) < len(raw.parts()):
        raise DataError("either all parts must hold encoded images, or none")
    if image_size is not None:
        resize = image_size if image_size <= images.SMALL_SIDE else round(image_size / framing.centre_share)
        image_format = ImageFormat(3, (image_size, image_size), resize)
    else:
        scanned = {name: images.scan_headers(source) for name, source in sources.items()}
        corrupt = {name: found for name, (_, found) in scanned.items()}
        raw = _without(raw, corrupt, skip_corrupt=skip_corrupt)
        image_format = _common_format(sum((kinds for kinds, _ in scanned.values()), Counter()))
    parts = raw.parts()
    bytes_of_all = sum(len(part) for part in parts.values()) * image_format.channels * math.prod(image_format.size)
    corrupt = {}
    if max(image_format.size) <= images.SMALL_SIDE and bytes_of_all <= MEMORY_LIMIT:
        for name, part in parts.items():
            assert part.images is not None
            pixels, corrupt[name] = images.decode_all(part.images, image_format, framing.interpolation)
            parts[name] = replace(part, inputs=pixels, images=None)
    elif skip_corrupt:
        corrupt = {name: images.find_corrupt(part.images) for name, part in parts.items() if part.images}
    return _without(raw.with_parts(parts), corrupt, skip_corrupt=skip_corrupt), image_format


def _common_format(kinds: Counter[tuple[int, int, bool]]) -> ImageFormat:
    """Return the format of images of which so many have each (H, W, grey)."""
    sizes: Counter[tuple[int, int]] = Counter()
    for (height, width, _), count in kinds.items():
        sizes[height, width] += count
    if len(sizes) > 1:
        common = ", ".join(f"{count} of {height}x{width}" for (height, width), count in sizes.most_common(3))
        raise MixedSizeError(
            f"the images have {len(sizes)} different sizes (height x width: {common}, ...). Give image_size "
            "(--set data.image_size=224) to scale the shorter side and cut out the centre"
        )
    return ImageFormat(1 if all(grey for *_, grey in kinds) else 3, next(iter(sizes), (1, 1)), None)


def _without(raw: RawData, corrupt: dict[str, dict[int, str]], *, skip_corrupt: bool) -> RawData:
    """Leave out corrupt images, with a note, or refuse them."""
    reasons = [text for rows in corrupt.values() for text in rows.values()]
    if not reasons:
        return raw
    parts = raw.parts()
    total = sum(len(part) for part in parts.values())
    if not skip_corrupt:
        raise CorruptImageError(
            f"{len(reasons)} of {total} images cannot be read: {name_some(reasons)}. {images.CORRUPT_HINT}"
        )
    kept = {
        name: part.take(np.setdiff1d(np.arange(len(part)), list(corrupt.get(name, ())))) for name, part in parts.items()
    }
    note = f"{len(reasons)} of {total} images cannot be read and are left out: {name_some(sorted(reasons), limit=20)}"
    return raw.with_parts(kept, note)
