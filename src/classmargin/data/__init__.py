"""Data sets by name or path, split, augmented and batched.

>>> from classmargin.data import load_data, make_loader
>>> bundle = load_data("fashion-mnist-mini")
>>> loader = make_loader(bundle, "train", batch_size=128, training=True, augmentation="standard")
"""

from classmargin.data.bundle import DataBundle, Framing, Split
from classmargin.data.catalog import DataInfo, data_root, list_data, register
from classmargin.data.load import load_data
from classmargin.data.loader import BatchLoader, make_loader
from classmargin.data.raw import CorruptImageError, DataError, DataNotFoundError, MixedSizeError
from classmargin.data.synthetic import Synthetic, synthetic_features, synthetic_images

__all__ = [
    "BatchLoader",
    "CorruptImageError",
    "DataBundle",
    "DataError",
    "DataInfo",
    "DataNotFoundError",
    "Framing",
    "MixedSizeError",
    "Split",
    "Synthetic",
    "data_root",
    "list_data",
    "load_data",
    "make_loader",
    "register",
    "synthetic_features",
    "synthetic_images",
]
