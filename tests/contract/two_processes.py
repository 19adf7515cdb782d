"""Trains every method as one of two processes and saves what came out. Run by test_method_processes.py.

Usage: two_processes.py RANK FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tiny_loop import COMBINATIONS, NAMES, TinyRun, tensors_of

# As a program of its own it has not been through tests/conftest.py.
sys.path.insert(0, str(Path(__file__).parents[1]))
from two_ranks import one_of_two

# 13 rows a batch: shares of 7 and 6, and a last batch of 12.
SETTINGS = {"epochs": 3, "batch_size": 13, "plain": True, "dtype": torch.float64}


def outcomes() -> dict[str, dict[str, torch.Tensor]]:
    """Train every method and return all tensors of network, method and optimiser."""
    return {name: tensors_of(TinyRun(name, **SETTINGS).run().state()) for name in NAMES + COMBINATIONS}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    with one_of_two(rank, folder):
        torch.save(outcomes(), folder / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
