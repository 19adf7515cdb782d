"""The catalogue: one frozen record per named data set, the only source of lists, messages and loading."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from classmargin._checks import did_you_mean
from classmargin.data.bundle import Kind
from classmargin.data.download import RemoteFile
from classmargin.data.errors import DataNotFoundError
from classmargin.data.raw import RawData

ROOT_VARIABLE = "CLASSMARGIN_DATA"


@dataclass(frozen=True)
class DataInfo:
    """What is known about a data set before it is loaded.

    Attributes:
        name: Name on the command line.
        title: Name in the literature.
        classes: Number of classes.
        kind: ``"images"``, ``"features"`` or ``"text"``.
        licence: Terms under which its authors give it away.
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
        embedded: Whether it travels inside the package.
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

    @property
    def where_to_put(self) -> str:
        """One phrase saying where it is looked for."""
        if self.embedded:
            return "nowhere: it travels inside the package"
        return " or ".join(self.places) + f" below the data root (${ROOT_VARIABLE})"

    def card(self) -> dict[str, str | int | bool]:
        """Return what a list of data sets shows, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "classes": self.classes,
            "kind": self.kind,
            "licence": self.licence,
            "homepage": self.homepage,
            "where_to_get": self.where_to_get,
            "where_to_put": self.where_to_put,
            "download": bool(self.downloads),
        }


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
