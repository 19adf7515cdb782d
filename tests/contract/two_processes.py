"""Trains every method as one of two processes and saves what came out. Run by test_method_processes.py.

Usage: two_processes.py RANK FOLDER
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_loop import COMBINATIONS, NAMES, TinyRun, tensors_of

# 13 rows a batch: shares of 7 and 6, and a last batch of 12.
SETTINGS = {"epochs": 3, "batch_size": 13, "plain": True, "dtype": torch.float64}


def outcomes() -> dict[str, dict[str, torch.Tensor]]:
    """Train every method and return all tensors of network, method and optimiser."""
    return {name: tensors_of(TinyRun(name, **SETTINGS).run().state()) for name in NAMES + COMBINATIONS}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(outcomes(), folder / f"rank{rank}.pt")
    gc.collect()  # what still holds the group holds its threads too, and they abort the interpreter's end
    dist.barrier()  # whoever leaves first closes connections that the other may still read from
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
