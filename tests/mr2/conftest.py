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


BATCHES = {
    "few rows": (7, 3, 2),
    "one row": (1, 4, 3),
    "no pairs": (4, 400, 3),
    "one class": (9, 1, 5),
    "many columns": (64, 10, 701),
}


@pytest.fixture(params=BATCHES.values(), ids=BATCHES.keys())
def batch(request):
    """Features far from the origin in float64 ``[B, d]``, their classes ``[B]``, and ``K``."""
    rows, classes, dim = request.param
    generator = torch.Generator().manual_seed(rows)
    features = torch.randn(rows, dim, generator=generator, dtype=torch.float64) + 3.0
    return features, torch.randint(0, classes, (rows,), generator=generator), classes
