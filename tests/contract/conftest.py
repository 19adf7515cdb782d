import sys
from pathlib import Path

import pytest
import torch

# tiny_loop.py is shared with the script that runs in two processes.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
