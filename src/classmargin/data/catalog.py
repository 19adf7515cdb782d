"""The catalogue: one frozen record per named data set, the only source of lists, messages, downloads and loading.

Files are fetched from the homes of data sets only when asked for, checked by sha256, whole or not at all. A new data set is
one more ``register`` call here and one test.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from classmargin._atomic import atomic_path
from classmargin._checks import did_you_mean
from classmargin._progress import progress
from classmargin.data.bundle import Kind
from classmargin.data.formats import cifar, image_folder, read_any
from classmargin.data.formats.arrays import read_embedded
from classmargin.data.pixels import IMAGENET_MEAN, IMAGENET_STD
from classmargin.data.raw import DataError, DataNotFoundError, RawData

ROOT_VARIABLE = "CLASSMARGIN_DATA"
_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """A file with several addresses, put at ``target`` in the folder of the data set; of a tar archive only ``members`` are kept."""

    urls: tuple[str, ...]
    sha256: str
    target: str
    members: tuple[str, ...] = ()

    def found_in(self, folder: Path) -> list[bool]:
        """Return which of the files that it brings are in ``folder``."""
        return [(folder / name).is_file() for name in self.members or (self.target,)]


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
    """Add a data set to the catalogue and return its record; a name that is taken is a ``ValueError``."""
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
    """Return the first of the record's places that holds something; a download that was killed leaves no visible files."""
    for place in (root / name for name in info.places):
        content = place.iterdir() if place.is_dir() else (place,)
        if any(path.exists() and not path.name.startswith(".") for path in content):
            return place
    return None


def place_of(info: DataInfo, root: Path, *, download: bool) -> Path:
    """Return where a named data set is, or fetch what is missing of it if that is allowed."""
    place, own = root if info.embedded else locate(info, root), root / info.name
    there = [found for file in info.downloads for found in file.found_in(own)]
    if download and there and (place is None or (any(there) and not all(there))):  # some: an interrupted download
        download_files(info.downloads, own)
        return own
    if place is None:
        raise not_found(info, root)
    return place


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


def download_files(files: tuple[RemoteFile, ...], folder: Path) -> None:
    """Fetch every file that is not there yet into ``folder``; one with another checksum is refused and not kept."""
    for file in files:
        if all(file.found_in(folder)):
            continue
        failures = []
        for url in file.urls:
            try:
                with atomic_path(folder / file.target) as temporary:
                    _fetch(url, temporary, file.sha256)
                    if file.members:
                        _unpack(temporary, file.members, folder)
                if file.members:
                    (folder / file.target).unlink()
                break
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                failures.append(f"{url}: {error}")
        else:
            raise DataNotFoundError(f"the download failed ({'; '.join(failures)}). Put it by hand into {folder}")


def _fetch(url: str, target: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, open(target, "wb") as out:
        blocks = iter(partial(answer.read, _CHUNK), b"")
        for block in progress(blocks, f"downloading {url.rsplit('/', 1)[-1]}"):
            digest.update(block)
            out.write(block)
    if digest.hexdigest() != sha256:
        raise DataError(f"{url} gave sha256 {digest.hexdigest()}, expected {sha256}; it is not kept")


def _unpack(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    # Only named regular files are copied out, so paths, links and modes inside the archive cannot do harm.
    with tarfile.open(archive) as tar:
        for name in members:
            content = tar.extractfile(name)
            if content is None:
                raise DataError(f"{archive.name} has no regular file {name}")
            with content, atomic_path(folder / name) as temporary, open(temporary, "wb") as out:
                shutil.copyfileobj(content, out)


FASHION_CLASSES = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_MNIST_HOME = "http://yann.lecun.com/exdb/mnist/"
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"


def _files(urls: Sequence[str], files: Mapping[str, str], *members: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(tuple(url + name for url in urls), sha256, name, members) for name, sha256 in files.items())


def _idx_files(urls: tuple[str, str], *checksums: str) -> tuple[RemoteFile, ...]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return _files(urls, {f"{stem}-ubyte.gz": sha256 for stem, sha256 in zip(stems, checksums, strict=True)})


_fashion = partial(
    DataInfo,
    classes=10,
    kind="images",
    licence="MIT",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    mean=(0.2860,),
    std=(0.3530,),
)
_cifar = partial(
    DataInfo,
    kind="images",
    licence="none stated; cite Krizhevsky (2009)",
    homepage=_CIFAR_HOME + "cifar.html",
    where_to_get="Get the python version from its homepage and unpack it",
    read=read_any,
)
_photographs = partial(DataInfo, kind="images", image_size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)

for _info in (
    _fashion(
        name="fashion-mnist-mini",
        title="Fashion-MNIST, 500 training and 500 test images per class",
        where_to_get="It is embedded",
        places=(),
        read=lambda _place: read_embedded(),
        embedded=True,
    ),
    _fashion(
        name="fashion-mnist",
        title="Fashion-MNIST",
        where_to_get="Get the four idx files from its homepage or Debian's package dataset-fashion-mnist",
        places=("fashion-mnist", "fashion-mnist.npz"),
        read=read_any,
        class_names=FASHION_CLASSES,
        downloads=_idx_files(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    DataInfo(
        name="mnist",
        title="MNIST handwritten digits",
        classes=10,
        kind="images",
        licence="CC BY-SA 3.0",
        homepage=_MNIST_HOME,
        where_to_get="Get the four idx files from its homepage",
        places=("mnist", "mnist.npz"),
        read=read_any,
        mean=(0.1307,),
        std=(0.3081,),
        flip=False,
        downloads=_idx_files(
            (_MNIST_HOME, "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    _cifar(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        places=("cifar10", cifar.CIFAR10.folder, "cifar10.npz"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        downloads=_files(
            (_CIFAR_HOME,),
            {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
            *cifar.CIFAR10.paths,
        ),
    ),
    _cifar(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        places=("cifar100", cifar.CIFAR100.folder, "cifar100.npz"),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        downloads=_files(
            (_CIFAR_HOME,),
            {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
            *cifar.CIFAR100.paths,
        ),
    ),
    _photographs(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        classes=1000,
        licence="non-commercial research; registration needed",
        homepage="https://image-net.org/",
        where_to_get="Register there and unpack train/<synset>/ and val/ (sorted, or with the devkit)",
        places=("imagenet",),
        read=image_folder.read_imagenet,
    ),
    _photographs(
        name="stanford-cars",
        title="Stanford Cars",
        classes=196,
        licence="non-commercial research",
        homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        where_to_get="Get cars_train, cars_test, devkit and cars_test_annos_withlabels.mat, side by side",
        places=("stanford-cars", "stanford_cars"),
        read=image_folder.read_stanford_cars,
    ),
    _photographs(
        name="oxford-pets",
        title="Oxford-IIIT Pets",
        classes=37,
        licence="CC BY-SA 4.0",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        where_to_get="Get images.tar.gz and annotations.tar.gz and unpack them side by side",
        places=("oxford-pets", "oxford-iiit-pet"),
        read=image_folder.read_oxford_pets,
    ),
    _photographs(
        name="flowers-102",
        title="Oxford Flowers-102",
        classes=102,
        licence="not stated; research use",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        where_to_get="Get 102flowers.tgz, imagelabels.mat and setid.mat; unpack the first, which makes jpg/",
        places=("flowers-102", "flowers102"),
        read=image_folder.read_flowers102,
    ),
    _photographs(
        name="food-101",
        title="Food-101",
        classes=101,
        licence="research use; images belong to their photographers",
        homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        where_to_get="Get food-101.tar.gz and unpack it",
        places=("food-101",),
        read=image_folder.read_food101,
    ),
    _photographs(
        name="fgvc-aircraft",
        title="FGVC-Aircraft (100 variants)",
        classes=100,
        licence="non-commercial research",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        where_to_get="Get fgvc-aircraft-2013b.tar.gz and unpack it",
        places=("fgvc-aircraft", "fgvc-aircraft-2013b"),
        read=image_folder.read_fgvc_aircraft,
    ),
):
    register(_info)
