"""The random numbers of a process: seeded by name, saved and put back exactly.

Order and augmentation of samples do not need this (they are functions of seed, epoch and step); dropout,
initial weights and methods that draw do.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def seed_for(seed: int, *purpose: object) -> int:
    """Return a seed that depends on ``seed`` and on what it is for.

    Example:
        >>> seed_for(0, "weights", 1) == seed_for(0, "weights", 1)
        True
        >>> seed_for(0, "weights", 1) == seed_for(0, "weights", 2)
        False
    """
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def seed_process(seed: int, *purpose: object) -> None:
    """Seed the generators of Python, NumPy and PyTorch (all devices)."""
    value = seed_for(seed, *purpose)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - libraries that methods call may draw from the global generator
    torch.manual_seed(value)


def capture() -> dict[str, Any]:
    """Return the state of all generators as numbers and tensors."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put the generators back to a captured state."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = legacy["keys"].numpy().astype(np.uint32)
    # NumPy does not look, and would read beyond the end of its keys.
    if keys.shape != (624,) or not 0 <= legacy["position"] <= 624:
        raise ValueError("the state of NumPy's random numbers in the checkpoint is damaged")
    np.random.set_state(("MT19937", keys, legacy["position"], legacy["has_gauss"], legacy["cached"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
