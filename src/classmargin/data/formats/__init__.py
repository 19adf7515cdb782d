"""Readers of file formats, and the one that finds out which of them understands a path.

What is refused before it is read (a pipe, a bomb) raises ``UnfitFileError``, which ``load_data`` turns into a ``DataError``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from classmargin.data.formats import arrays, arrow_tables, cifar, image_folder
from classmargin.data.raw import DataError, RawData

Reader = Callable[[Path], RawData]

# Asked in this order; the image tree comes last because it is satisfied with any folder of folders.
_FOLDER_READERS: tuple[tuple[Callable[[Path], object], Reader], ...] = (
    (lambda folder: arrays.find_idx(folder, "train-images-idx3"), arrays.read_idx_folder),
    (cifar.CIFAR10.looks_right, cifar.CIFAR10.read),
    (cifar.CIFAR100.looks_right, cifar.CIFAR100.read),
    (
        lambda folder: any((folder / f"{name}.npy").is_file() for name in ("x_train", "inputs")),
        arrays.read_npy,
    ),
    (arrow_tables.looks_like_saved_dataset, arrow_tables.read_saved_dataset),
    (arrow_tables.parquet_files, arrow_tables.read_parquet),
    (image_folder.looks_like_image_tree, image_folder.read_image_tree),
)
_FILE_READERS: dict[str, Reader] = {
    ".npz": arrays.read_npz,
    ".npy": arrays.read_npy,
    ".parquet": arrow_tables.read_parquet,
}


def read_any(path: Path) -> RawData:
    """Read a file or folder in whichever known format it is."""
    if path.is_file():
        reader = _FILE_READERS.get(path.suffix.lower())
        if reader is None:
            raise DataError(f"{path} must be one of {', '.join(_FILE_READERS)}, or a folder")
        return reader(path)
    for looks_right, reader in _FOLDER_READERS:
        if looks_right(path):
            return reader(path)
    raise DataError(
        f"{path} is not a data set: expected class folders with images (or train/ and val/ of them), idx files, CIFAR "
        "batches, x_train.npy and y_train.npy, parquet files, or what save_to_disk writes"
    )
