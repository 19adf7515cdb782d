"""skorch, and audits of arrays from other frameworks: the documented recipes run as they are."""

import importlib.util
import re

import pytest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_example_of_skorch_learns(run_example):
    pytest.importorskip("skorch", reason="skorch is not installed here; make test-newest runs this")
    printed = run_example("skorch_net.py")
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) > 0.7


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_audit_is_the_same_from_every_framework(run_example):
    lines = run_example("audit_any_framework.py").splitlines()
    values = {line.split(": ")[1] for line in lines}
    assert lines[0].startswith("numpy: overall 0.857")
    assert len(values) == 1
    for package in ("jax", "keras"):
        assert any(line.startswith(package) for line in lines) == bool(importlib.util.find_spec(package))


def test_example_of_class_offsets_prints_the_price(run_example):
    lines = run_example("class_offsets.py").splitlines()
    points = [[float(word) for word in line.split()] for line in lines[1:6]]
    assert points[0][1] >= points[-1][1]  # overall falls
    assert points[-1][2] > points[0][2]  # the hard third rises


def test_example_of_doubted_labels_writes_both_files(run_example, tmp_path):
    printed = run_example("review_doubted_labels.py")
    assert "images/087.jpg: labelled dog" in printed
    assert (tmp_path / "labels.json").exists()
    assert (tmp_path / "tasks.json").exists()
