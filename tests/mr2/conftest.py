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


@pytest.fixture(params=["compiled", "numpy"])
def either_table(request, monkeypatch):
    """Run a test with the compiled loops and with NumPy: ``pytestmark = pytest.mark.usefixtures("either_table")``."""
    from classmargin.mr2 import batch_table

    if request.param == "compiled":
        pytest.importorskip("numba", reason="the extra fast is not installed")
    monkeypatch.setenv("CLASSMARGIN_FAST", "1" if request.param == "compiled" else "0")
    batch_table.table_maker.cache_clear()
    yield request.param
    batch_table.table_maker.cache_clear()
