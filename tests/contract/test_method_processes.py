"""Two processes equal one, for every method and everything it keeps."""

import subprocess
import sys
from pathlib import Path

import torch
from two_processes import outcomes


def test_two_processes_equal_one(tmp_path):
    # One pair of processes for all methods: starting them costs more than training.
    script = Path(__file__).parent / "two_processes.py"
    processes = [
        subprocess.Popen([sys.executable, str(script), str(r), str(tmp_path)], stderr=subprocess.PIPE) for r in (0, 1)
    ]
    alone = outcomes()
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    ranks = [torch.load(tmp_path / f"rank{r}.pt", weights_only=True) for r in (0, 1)]
    different = {
        f"{name} rank {number}{path}": (together[name][path].double() - value.double()).abs().max().item()
        for number, together in enumerate(ranks)
        for name, tensors in alone.items()
        for path, value in tensors.items()
        if not torch.allclose(together[name][path].double(), value.double(), rtol=1e-6, atol=1e-9)
    }
    assert different == {}
