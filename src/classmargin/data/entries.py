"""The named data sets. A new one is one more ``register`` call here and one test."""

from __future__ import annotations

from functools import partial

from classmargin.data.catalog import DataInfo, RemoteFile, register
from classmargin.data.formats import annotated, cifar, read_any
from classmargin.data.formats.arrays import read_embedded
from classmargin.data.pixels import IMAGENET_MEAN, IMAGENET_STD

FASHION_CLASSES = (
    "t-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_MNIST_HOME = "http://yann.lecun.com/exdb/mnist/"
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
_FASHION_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_IDX_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _idx_files(urls: tuple[str, ...], checksums: tuple[str, ...]) -> tuple[RemoteFile, ...]:
    names = [f"{name}-ubyte.gz" for name in _IDX_FILES]
    return tuple(
        RemoteFile(tuple(url + name for url in urls), sha256, name)
        for name, sha256 in zip(names, checksums, strict=True)
    )


def _cifar_files(archive: str, sha256: str, folder: str, *members: str) -> tuple[RemoteFile, ...]:
    files = tuple(f"{folder}/{name}" for name in members)
    return (RemoteFile((_CIFAR_HOME + archive,), sha256, archive, files),)


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
            _FASHION_URLS,
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
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
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    _cifar(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        places=("cifar10", cifar.CIFAR10_FOLDER, "cifar10.npz"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        downloads=_cifar_files(
            "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            cifar.CIFAR10_FOLDER,
            *(f"data_batch_{number}" for number in range(1, 6)),
            "test_batch",
            "batches.meta",
        ),
    ),
    _cifar(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        places=("cifar100", cifar.CIFAR100_FOLDER, "cifar100.npz"),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        downloads=_cifar_files(
            "cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            cifar.CIFAR100_FOLDER,
            "train",
            "test",
            "meta",
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
        read=annotated.read_imagenet,
    ),
    _photographs(
        name="stanford-cars",
        title="Stanford Cars",
        classes=196,
        licence="non-commercial research",
        homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        where_to_get="Get cars_train, cars_test, devkit and cars_test_annos_withlabels.mat, side by side",
        places=("stanford-cars", "stanford_cars"),
        read=annotated.read_stanford_cars,
    ),
    _photographs(
        name="oxford-pets",
        title="Oxford-IIIT Pets",
        classes=37,
        licence="CC BY-SA 4.0",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        where_to_get="Get images.tar.gz and annotations.tar.gz and unpack them side by side",
        places=("oxford-pets", "oxford-iiit-pet"),
        read=annotated.read_oxford_pets,
    ),
    _photographs(
        name="flowers-102",
        title="Oxford Flowers-102",
        classes=102,
        licence="not stated; research use",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        where_to_get="Get 102flowers.tgz, imagelabels.mat and setid.mat; unpack the first, which makes jpg/",
        places=("flowers-102", "flowers102"),
        read=annotated.read_flowers102,
    ),
    _photographs(
        name="food-101",
        title="Food-101",
        classes=101,
        licence="research use; images belong to their photographers",
        homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        where_to_get="Get food-101.tar.gz and unpack it",
        places=("food-101",),
        read=annotated.read_food101,
    ),
    _photographs(
        name="fgvc-aircraft",
        title="FGVC-Aircraft (100 variants)",
        classes=100,
        licence="non-commercial research",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        where_to_get="Get fgvc-aircraft-2013b.tar.gz and unpack it",
        places=("fgvc-aircraft", "fgvc-aircraft-2013b"),
        read=annotated.read_fgvc_aircraft,
    ),
):
    register(_info)
