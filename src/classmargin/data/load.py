"""From a name or a path to a :class:`~classmargin.data.bundle.DataBundle`.

name or path -> reader -> RawData -> prepare_images -> check_raw -> hold out test, validation -> subset ->
DataBundle
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from classmargin._checks import LARGEST_SIDE, check_int, check_number
from classmargin.data.bundle import DataBundle, Framing, Kind, Split
from classmargin.data.catalog import (
    DataInfo,
    data_root,
    find_info,
    locate,
    not_found,
    unknown,
)
from classmargin.data.download import download_files, is_interrupted
from classmargin.data.errors import DataError
from classmargin.data.formats import read_any
from classmargin.data.formats.arrow_tables import HUB_PREFIX, read_hub
from classmargin.data.normalisation import channel_statistics
from classmargin.data.prepare_images import ImageFormat, prepare_images
from classmargin.data.raw import RawData, RawPart, check_raw, join_parts, missing_classes
from classmargin.data.splits import hold_out_rows, subset_rows

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2


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
    try:
        raw, image_format = prepare_images(
            _with_names(raw, info), image_size=size, skip_corrupt=skip_corrupt, framing=framing
        )
        raw = _with_class_note(check_raw(raw), info)
    except DataError as error:
        if name_or_path in str(error):
            raise
        raise type(error)(f"{name_or_path}: {error}") from error  # of several data sets, the one at fault
    raw = _hold_out(raw, validation)
    raw = _thin(raw, fraction, imbalance, seed)
    bundle = _bundle(_name_of(name_or_path), raw, info, image_format, size)
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


def _with_names(raw: RawData, info: DataInfo | None) -> RawData:
    return raw if info is None else replace(raw, class_names=raw.class_names or info.class_names)


def _with_class_note(raw: RawData, info: DataInfo | None) -> RawData:
    assert raw.class_names is not None
    found = len(raw.class_names)
    if info is None or found == info.classes:
        return raw
    return replace(
        raw, notes=(*raw.notes, f"{info.title} has {info.classes} classes, but these files hold {found}")
    )


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


def _thin(raw: RawData, fraction: float, imbalance: float, seed: int) -> RawData:
    if fraction == 1.0 and imbalance == 1.0:
        return raw
    assert raw.class_names is not None
    rows = subset_rows(
        raw.train.labels, num_classes=len(raw.class_names), fraction=fraction, imbalance=imbalance, seed=seed
    )
    return replace(raw, train=raw.train.take(rows))


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


def _name_of(name_or_path: str) -> str:
    if find_info(name_or_path) is not None or name_or_path.startswith(HUB_PREFIX):
        return name_or_path
    return Path(name_or_path).stem
