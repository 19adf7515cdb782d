"""Fixtures and helpers of the audit's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# toy_sets.py and simulated_sets.py are shared by several files of this folder.
sys.path.insert(0, str(Path(__file__).parent))

from toy_sets import ToySet, make_toy


@pytest.fixture
def toy() -> ToySet:
    return make_toy()
