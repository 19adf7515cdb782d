"""Helpers of the theory tests: the naive reference and the features that bounds like least."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

REFERENCE = Path(__file__).parents[1] / "reference" / "theory_naive.py"


@pytest.fixture(scope="session")
def naive() -> ModuleType:
    """The plain-loop versions in tests/reference/theory_naive.py."""
    spec = importlib.util.spec_from_file_location("theory_naive", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_features(kind: str, n: int, d: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "normal":
        return normal
    if kind == "unit":  # e_1, e_2, … in turn: the worst case for p < 2
        return torch.eye(d, dtype=torch.float64).repeat(n // d + 1, 1)[:n]
    if kind == "repeated":  # one vector over and over: the sum is a scalar Rademacher sum
        return normal[:1].repeat(n, 1)
    if kind == "single":  # one large vector, the rest nearly zero: no cancellation at all
        return normal * torch.where(torch.arange(n) == 0, 1e3, 1e-3)[:, None]
    if kind == "signs":  # all coordinates ±1: the worst case for p > 2
        return torch.sign(normal)
    if kind == "sparse":
        return normal * (torch.rand(n, d, generator=generator) < 0.15)
    if kind == "heavy":  # ratio of normals = Cauchy, so a few samples dominate
        return normal / torch.randn(n, d, generator=generator, dtype=torch.float64).abs().clamp_min(1e-3)
    raise AssertionError(kind)


@pytest.fixture(scope="session")
def make_features():
    """Return ``make(kind, n, d, seed) -> [n, d]``."""

    def make(kind: str, n: int, d: int, seed: int) -> Tensor:
        return _make_features(kind, n, d, torch.Generator().manual_seed(seed))

    return make
