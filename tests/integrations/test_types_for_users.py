"""What a user's type checker sees: the package is typed, and a loss called like a function is a tensor."""

import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
import torch
from torch import nn
from classmargin import capture_features

logits, labels = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
criterion = capture_features(nn.Linear(4, 3)).criterion()
reveal_type(criterion(logits, labels))
reveal_type(criterion.terms(logits, labels).representation_margin)
"""


def test_the_package_says_that_it_is_typed():
    assert (SOURCE / "classmargin" / "py.typed").exists()


@pytest.mark.slow
def test_a_called_criterion_is_a_tensor_to_a_strict_type_checker(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(SOURCE))
    words = ["--strict", "--python-executable", sys.executable, "--cache-dir", str(tmp_path), "script.py"]
    printed, errors, _ = api.run(words)
    assert printed.count('Revealed type is "torch._tensor.Tensor"') == 2, printed + errors
    assert [line for line in printed.splitlines() if line.startswith("script.py") and ": error:" in line] == []
