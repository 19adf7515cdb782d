import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# mr2_batches.py is shared with the script that runs in two processes; mr2_naive.py is the reference of all files.
for folder in (HERE, HERE.parent / "reference"):
    sys.path.insert(0, str(folder))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
