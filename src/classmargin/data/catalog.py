"""The catalogue: one frozen record per named data set, the only source of lists, messages, downloads and loading.

Files are fetched from the homes of data sets only when asked for, checked by sha256, whole or not at all.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from classmargin._atomic import atomic_path
from classmargin._checks import did_you_mean
from classmargin._progress import progress
from classmargin.data.bundle import Kind
from classmargin.data.raw import DataError, DataNotFoundError, RawData

ROOT_VARIABLE = "CLASSMARGIN_DATA"


@dataclass(frozen=True)
class DataInfo:
    """What is known about a data set before it is loaded.

    Attributes:
        name: Name on the command line.
        title: Name in the literature.
        classes: Number of classes.
        kind: ``"images"``, ``"features"`` or ``"text"``.
        licence: Terms under which its authors distribute it.
        homepage: Where it is described.
        where_to_get: One sentence for people who do not have it.
        places: Where it is looked for, relative to the data root, in this order.
        read: Turns the place that exists into parts.
        image_size: Side to which images are brought unless the user says otherwise.
        mean: Channel means used for normalisation; measured on the training part when left out.
        std: Channel standard deviations, likewise.
        flip: Whether a mirrored image keeps its class.
        class_names: Names in label order, where the files do not carry them.
        downloads: Files that ``download=True`` may fetch; empty where the licence or a login forbids it.
        embedded: Whether it is part of the package.
    """

    name: str
    title: str
    classes: int
    kind: Kind
    licence: str
    homepage: str
    where_to_get: str
    places: tuple[str, ...]
    read: Callable[[Path], RawData]
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    flip: bool = True
    class_names: tuple[str, ...] | None = None
    downloads: tuple[RemoteFile, ...] = ()
    embedded: bool = False


_CATALOG: dict[str, DataInfo] = {}


def register(info: DataInfo) -> DataInfo:
    """Add a data set to the catalogue and return its record.

    Raises:
        ValueError: the name is taken.
    """
    if info.name in _CATALOG:
        raise ValueError(f"name must be new, but the catalogue already has a data set called {info.name!r}")
    _CATALOG[info.name] = info
    return info


def list_data() -> list[DataInfo]:
    """Return all named data sets, sorted by name.

    Example:
        >>> import classmargin.data
        >>> "fashion-mnist-mini" in [info.name for info in classmargin.data.list_data()]
        True
    """
    return [_CATALOG[name] for name in sorted(_CATALOG)]


def find_info(name: str) -> DataInfo | None:
    """Return the record of ``name``, or ``None`` if the catalogue does not have it."""
    return _CATALOG.get(name)


def data_root(root: Path | None = None) -> Path:
    """Return the folder of data sets: ``root``, ``$CLASSMARGIN_DATA`` or ``~/.cache/classmargin/data``."""
    if root is not None:
        return Path(root).expanduser()
    variable = os.environ.get(ROOT_VARIABLE)
    return Path(variable).expanduser() if variable else Path.home() / ".cache" / "classmargin" / "data"


def locate(info: DataInfo, root: Path) -> Path | None:
    """Return the first of the record's places below ``root`` that holds something.

    A folder without visible files is what a download that failed or was killed leaves behind.
    """
    return next((root / place for place in info.places if _holds_something(root / place)), None)


def _holds_something(place: Path) -> bool:
    if place.is_dir():
        return any(not child.name.startswith(".") for child in place.iterdir())
    return place.exists()


def not_found(info: DataInfo, root: Path) -> DataNotFoundError:
    """Return the error that says where to get a named data set and where to put it."""
    places = " or ".join(str(root / place) for place in info.places)
    offer = " Or allow the download: download=True (--download)." if info.downloads else ""
    return DataNotFoundError(
        f"the data set {info.name!r} ({info.title}) is not on this machine. {info.where_to_get} "
        f"({info.homepage}; licence: {info.licence}). Put it at {places}, or set ${ROOT_VARIABLE} to the "
        f"folder that holds it.{offer}"
    )


def unknown(name: str, root: Path) -> DataNotFoundError:
    """Return the error for a name that is neither in the catalogue nor a path."""
    hint = f" For a data set of the Hugging Face hub write hf:{name}." if name.count("/") == 1 else ""
    return DataNotFoundError(
        f"there is no data set and no file or folder called {name!r}{did_you_mean(name, _CATALOG)}. "
        f"Known names: {', '.join(sorted(_CATALOG))}; also looked below {root}.{hint}"
    )


_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that may be downloaded.

    Attributes:
        urls: Addresses of the same bytes, tried in order.
        sha256: Checksum of those bytes.
        target: Where the file goes, relative to the folder of the data set.
        members: For a tar archive, the members to unpack (by their path inside); the archive is not kept.
    """

    urls: tuple[str, ...]
    sha256: str
    target: str
    members: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What is there once it is fetched, relative to the folder."""
        return self.members or (self.target,)


def download_files(files: tuple[RemoteFile, ...], folder: Path) -> None:
    """Fetch every file that is not there yet into ``folder``.

    Raises:
        DataNotFoundError: no address answered.
        DataError: what came has another checksum; nothing is left behind.
    """
    for file in files:
        if not all((folder / name).is_file() for name in file.names):
            _fetch_first(file, folder)


def is_interrupted(files: tuple[RemoteFile, ...], folder: Path) -> bool:
    """Return whether some of the files are in ``folder`` and others are not."""
    there = [(folder / name).is_file() for file in files for name in file.names]
    return any(there) and not all(there)


def _fetch_first(file: RemoteFile, folder: Path) -> None:
    failures = []
    for url in file.urls:
        try:
            with atomic_path(folder / file.target) as temporary:
                _fetch(url, temporary, file.sha256)
                if file.members:
                    _unpack(temporary, file.members, folder)
            if file.members:
                (folder / file.target).unlink()
            return
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failures.append(f"{url}: {error}")
    raise DataNotFoundError(
        f"the download failed ({'; '.join(failures)}). Fetch it by hand and put it into {folder}"
    )


def _fetch(url: str, target: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, open(target, "wb") as out:
        length = answer.headers.get("Content-Length")
        steps = None if length is None else -(-int(length) // _CHUNK)
        for block in progress(_blocks(answer), f"downloading {url.rsplit('/', 1)[-1]}", total=steps):
            digest.update(block)
            out.write(block)
    if digest.hexdigest() != sha256:
        raise DataError(
            f"{url} gave a file with sha256 {digest.hexdigest()}, expected {sha256}; it is not kept"
        )


def _blocks(answer: BinaryIO) -> Iterator[bytes]:
    while block := answer.read(_CHUNK):
        yield block


def _unpack(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    # Only named regular files are copied out, so paths, links and modes inside the archive cannot do harm.
    with tarfile.open(archive) as tar:
        for name in members:
            content = tar.extractfile(name)
            if content is None:
                raise DataError(f"{archive.name} has no regular file {name}")
            with content, atomic_path(folder / name) as temporary, open(temporary, "wb") as out:
                shutil.copyfileobj(content, out)
