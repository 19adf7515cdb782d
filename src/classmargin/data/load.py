"""From a name or a path to a :class:`~classmargin.data.bundle.DataBundle`.

name or path -> reader -> RawData -> prepare_images -> check_raw -> hold out test, validation -> subset ->
DataBundle

Encoded images whose sides are at most 64 pixels are decoded once and live in memory (up to 1 GiB); larger ones are
decoded by worker processes during training.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from classmargin._checks import LARGEST_SIDE, check_int, check_number
from classmargin.data.bundle import DataBundle, Framing, Kind, Split
from classmargin.data.catalog import (
    DataInfo,
    data_root,
    download_files,
    find_info,
    is_interrupted,
    locate,
    not_found,
    unknown,
)
from classmargin.data.formats import read_any
from classmargin.data.formats.arrow_tables import HUB_PREFIX, read_hub
from classmargin.data.images import (
    SMALL_SIDE,
    JoinedImages,
    corrupt_message,
    decode_all,
    find_corrupt,
    scan_headers,
)
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

    Splits are deterministic. Validation samples are the data set's own; where it has none, a tenth of every
    training class is held out by a rule that does not know the seed. A set without test part is judged on its
    own validation part, or, having neither, on a fifth of every class. ``fraction`` and ``imbalance`` touch
    the training part only, after validation has been held out; ``validation=0`` trains on everything, the data
    set's own validation part included (the setting of the paper's tables), and leaves nothing to select models on.

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
    _check_arguments(fraction, imbalance, validation, seed, image_size)
    framing = framing or Framing()
    info, raw = _read(name_or_path, data_root(root), download=download)
    size = image_size if image_size is not None else info.image_size if info else None
    if info is not None:
        raw = replace(raw, class_names=raw.class_names or info.class_names)
    try:
        raw, image_format = prepare_images(raw, image_size=size, skip_corrupt=skip_corrupt, framing=framing)
        raw = check_raw(raw)
    except DataError as error:
        if name_or_path in str(error):
            raise
        raise type(error)(f"{name_or_path}: {error}") from error  # of several data sets, the one at fault
    assert raw.class_names is not None
    num_classes = len(raw.class_names)
    if info is not None and num_classes != info.classes:
        note = f"{info.title} has {info.classes} classes, but these files hold {num_classes}"
        raw = replace(raw, notes=(*raw.notes, note))
    raw = _hold_out(raw, validation)
    if fraction != 1.0 or imbalance != 1.0:
        rows = subset_rows(
            raw.train.labels, num_classes=num_classes, fraction=fraction, imbalance=imbalance, seed=seed
        )
        raw = replace(raw, train=raw.train.take(rows))
    known = info is not None or name_or_path.startswith(HUB_PREFIX)
    name = name_or_path if known else Path(name_or_path).stem
    bundle = _bundle(name, raw, info, image_format, size)
    return replace(bundle, framing=framing, flip=bundle.flip and framing.flip)


def _check_arguments(
    fraction: float, imbalance: float, validation: float | None, seed: int, image_size: int | None
) -> None:
    check_number("fraction", fraction, above=0.0, maximum=1.0)
    check_number("imbalance", imbalance, minimum=1.0)
    check_int("seed", seed, minimum=0)
    if validation is not None:
        check_number("validation", validation, minimum=0.0, below=1.0)
    if image_size is not None:
        check_int("image_size", image_size, minimum=1, maximum=LARGEST_SIDE)


def _read(name_or_path: str, root: Path, *, download: bool) -> tuple[DataInfo | None, RawData]:
    if name_or_path.startswith(HUB_PREFIX):
        return None, read_hub(name_or_path[len(HUB_PREFIX) :], root, download=download)
    info = find_info(name_or_path)
    if info is not None:
        return info, _read_named(info, _place_of(info, root, download=download))
    path = Path(name_or_path).expanduser()
    for place in (path, root / path, root / f"{name_or_path}.npz"):
        if place.exists():
            return None, read_any(place)
    raise unknown(name_or_path, root)


def _read_named(info: DataInfo, place: Path) -> RawData:
    """Read a set of the catalogue; its lists and tables may be damaged in any way."""
    try:
        return info.read(place)
    except (DataError, OSError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{place} does not hold {info.title} as it is distributed ({type(error).__name__}: {error})"
        ) from error


def _place_of(info: DataInfo, root: Path, *, download: bool) -> Path:
    place, own = root if info.embedded else locate(info, root), root / info.name
    if download and info.downloads and (place is None or is_interrupted(info.downloads, own)):
        place = own
        download_files(info.downloads, place)
    if place is None:
        raise not_found(info, root)
    return place


def _hold_out(raw: RawData, share: float | None) -> RawData:
    """Return ``raw`` with all three parts; see :func:`load_data` for the rules."""
    assert raw.class_names is not None
    num_classes, notes = len(raw.class_names), list(raw.notes)
    train, validation, test = raw.train, raw.validation, raw.test
    if test is None and validation is not None:
        test, validation = validation, None
        notes.append(
            "no test part: the validation part is the test part, validation samples come from training"
        )
    if test is None:
        kept, held_out = hold_out_rows(train.labels, TEST_SHARE, num_classes=num_classes, part=1)
        train, test = train.take(kept), train.take(held_out)
        notes.append(f"no test part: {TEST_SHARE:.0%} of every class are held out as test part")
        notes.extend(missing_classes("test", test, raw.class_names))
    if validation is not None and share == 0.0:
        notes.append(f"validation=0: the {len(validation)} samples of the validation part are trained on")
        train = join_parts(train, validation)
    elif validation is not None and share is not None:
        notes.append("a validation share was given: the validation part of the data set is not used")
    if validation is None or share is not None:
        wanted = VALIDATION_SHARE if share is None else share
        kept, held_out = hold_out_rows(train.labels, wanted, num_classes=num_classes)
        train, validation = train.take(kept), train.take(held_out)
        notes.extend(missing_classes("validation", validation, raw.class_names))
    return RawData(train, validation, test, raw.class_names, tuple(notes))


def _bundle(
    name: str, raw: RawData, info: DataInfo | None, image_format: ImageFormat | None, size: int | None
) -> DataBundle:
    assert raw.validation is not None
    assert raw.test is not None
    assert raw.class_names is not None
    splits = [_split(part, len(raw.class_names)) for part in (raw.train, raw.validation, raw.test)]
    inputs = splits[0].inputs
    if inputs is not None:
        shape = tuple(inputs.shape[1:])
    else:
        assert image_format is not None
        shape = (image_format.channels, *image_format.size)
    is_image = len(shape) == 3
    if is_image and size is not None:
        shape = (shape[0], size, size)
    known = None if info is None or info.mean is None or info.std is None else (info.mean, info.std)
    mean, std, notes = channel_statistics(inputs, shape[0] if is_image else 0, known)
    return DataBundle(
        name=name,
        kind="images" if is_image else _kind_of_rows(inputs),
        class_names=raw.class_names,
        num_classes=len(raw.class_names),
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        mean=mean,
        std=std,
        input_shape=shape,
        notes=raw.notes + notes,
        flip=info.flip if info else True,
        resize=image_format.resize if image_format is not None and inputs is None else None,
    )


def _kind_of_rows(inputs: torch.Tensor | None) -> Kind:
    return "text" if inputs is not None and inputs.dtype == torch.int64 else "features"


def _split(part: RawPart, num_classes: int) -> Split:
    inputs = None
    if part.inputs is not None:
        if part.inputs.ndim not in (2, 4):
            raise DataError(f"inputs must have 2 or 4 dimensions, got shape {part.inputs.shape}")
        inputs = torch.from_numpy(np.require(part.inputs, requirements=["C", "W", "O"]))
    return Split(
        labels=torch.from_numpy(part.labels.astype(np.int64)),
        index=torch.from_numpy(part.index.astype(np.int64)),
        full_size=part.full_size,
        num_classes=num_classes,
        inputs=inputs,
        images=part.images,
    )


def join_parts(first: RawPart, second: RawPart) -> RawPart:
    """Return the samples of both parts; the stable index of the second continues that of the first."""
    inputs = images = None
    if first.inputs is not None and second.inputs is not None:
        inputs = np.concatenate([first.inputs, second.inputs])
    if first.images is not None and second.images is not None:
        images = JoinedImages(first.images, second.images)
    return RawPart(
        labels=np.concatenate([first.labels, second.labels]),
        inputs=inputs,
        images=images,
        index=np.concatenate([first.index, second.index + first.full_size]),
        full_size=first.full_size + second.full_size,
    )


@dataclass(frozen=True)
class ImageFormat:
    """How encoded images become arrays: channels, size (H, W), and the shorter side before the centre cut."""

    channels: int
    size: tuple[int, int]
    resize: int | None

    def bytes_of(self, count: int) -> int:
        """Return the memory that ``count`` images need."""
        return count * self.channels * self.size[0] * self.size[1]


def prepare_images(
    raw: RawData, *, image_size: int | None, skip_corrupt: bool, framing: Framing
) -> tuple[RawData, ImageFormat | None]:
    """Return ``raw`` with small images decoded and corrupt ones dropped (or refused), and their format.

    Data without encoded images pass unchanged, with format ``None``.
    """
    if raw.train.images is None:
        return raw, None
    notes = list(raw.notes)
    if image_size is None:
        raw, image_format = _common_format(raw, notes, skip_corrupt=skip_corrupt)
    else:
        resize = image_size if image_size <= SMALL_SIDE else round(image_size / framing.centre_share)
        image_format = ImageFormat(3, (image_size, image_size), resize)
    total = sum(len(part) for part in raw.parts().values())
    if max(image_format.size) <= SMALL_SIDE and image_format.bytes_of(total) <= MEMORY_LIMIT:
        raw = _decode(raw, image_format, notes, skip_corrupt=skip_corrupt, framing=framing)
    elif skip_corrupt:
        corrupt = {name: find_corrupt(part.images)[0] for name, part in raw.parts().items() if part.images}
        raw = _drop(raw, corrupt, notes, skip_corrupt=True)
    return replace(raw, notes=tuple(notes)), image_format


def _common_format(raw: RawData, notes: list[str], *, skip_corrupt: bool) -> tuple[RawData, ImageFormat]:
    scans = {name: scan_headers(part.images) for name, part in raw.parts().items() if part.images is not None}
    raw = _drop(raw, {name: scan.corrupt for name, scan in scans.items()}, notes, skip_corrupt=skip_corrupt)
    sizes: Counter[tuple[int, int]] = Counter()
    for scan in scans.values():
        sizes.update(scan.sizes)
    if len(sizes) > 1:
        common = ", ".join(f"{count} of {height}x{width}" for (height, width), count in sizes.most_common(3))
        raise MixedSizeError(
            f"the images have {len(sizes)} different sizes (height x width: {common}, ...). Give image_size "
            "(--set data.image_size=224) to scale the shorter side and cut out the centre"
        )
    grey = all(scan.grey for scan in scans.values())
    size = next(iter(sizes), (1, 1))
    return raw, ImageFormat(1 if grey else 3, size, None)


def _decode(
    raw: RawData, image_format: ImageFormat, notes: list[str], *, skip_corrupt: bool, framing: Framing
) -> RawData:
    decoded: dict[str, RawPart] = {}
    corrupt: dict[str, dict[int, str]] = {}
    for name, part in raw.parts().items():
        assert part.images is not None
        pixels, corrupt[name] = decode_all(
            part.images,
            channels=image_format.channels,
            size=image_format.size,
            resize=image_format.resize,
            interpolation=framing.interpolation,
        )
        decoded[name] = replace(part, inputs=pixels, images=None)
    return _drop(_with_parts(raw, decoded), corrupt, notes, skip_corrupt=skip_corrupt)


def _drop(
    raw: RawData, corrupt: dict[str, dict[int, str]], notes: list[str], *, skip_corrupt: bool
) -> RawData:
    reasons = [text for rows in corrupt.values() for text in rows.values()]
    if not reasons:
        return raw
    parts = raw.parts()
    total = sum(len(part) for part in parts.values())
    if not skip_corrupt:
        raise CorruptImageError(corrupt_message(reasons, total, total))
    kept = {
        name: part.take(
            np.setdiff1d(np.arange(len(part)), np.fromiter(corrupt.get(name, {}), dtype=np.int64))
        )
        for name, part in parts.items()
    }
    notes.append(
        f"{len(reasons)} of {total} images cannot be read and are left out: "
        f"{name_some(sorted(reasons), limit=20)}"
    )
    return _with_parts(raw, kept)


def _with_parts(raw: RawData, parts: dict[str, RawPart]) -> RawData:
    return replace(raw, train=parts["train"], validation=parts.get("validation"), test=parts.get("test"))
