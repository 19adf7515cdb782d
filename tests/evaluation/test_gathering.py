"""The accumulating audit in two real processes (gloo) against one process that sees all samples."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_sets import make_toy

from classmargin import _distributed
from classmargin.evaluation import AuditAccumulator, audit

SCRIPT = Path(__file__).parent / "audit_in_processes.py"


class Wide:
    """The toy set with an eighth class that no sample has."""

    def __init__(self, toy):
        self.labels, self.features = toy.labels, toy.features
        self.logits8 = np.hstack([toy.logits, np.full((len(toy.labels), 1), -9.0)])
        self.weight8 = np.vstack([toy.weight, np.ones(5)])


@pytest.fixture(scope="module")
def wide():
    return Wide(make_toy())


@pytest.fixture(scope="module")
def records(tmp_path_factory, wide):
    """What both processes found, for every case: a list over processes."""
    folder = tmp_path_factory.mktemp("processes")
    np.savez(
        folder / "arrays.npz",
        labels=wide.labels,
        logits=wide.logits8,
        features=wide.features,
        weight=wide.weight8,
    )
    started = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(rank), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {case: [one[case] for one in found] for case in found[0]}


def close(found, expected, path=""):
    """Compare nested plain values, numbers to 1e-9."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key in expected:
            close(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for position, (one, two) in enumerate(zip(found, expected, strict=True)):
            close(one, two, f"{path}/{position}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-11), path
    else:
        assert found == expected, path


@pytest.mark.parametrize("case", ["unequal", "empty"])
def test_two_processes_equal_one(records, wide, case):
    one = AuditAccumulator(num_classes=8)
    one.update(wide.labels, logits=wide.logits8, features=wide.features, sample_id=np.arange(600))
    expected = one.compute(classifier_weight=wide.weight8, bootstrap=200)
    for record in records[case]:
        close(record["audit"], expected.to_dict())
        assert record["again"] == expected.overall
        index, total = record["kept"]
        assert index == expected.feature_sample.index.tolist()
        assert total == pytest.approx(float(expected.feature_sample.features.sum()), rel=1e-6)


def test_without_identities_every_number_is_still_the_same(records, wide):
    # Rank 0 holds the first rows, so the order is that of one process.
    expected = audit(wide.labels, logits=wide.logits8, bootstrap=200)
    for record in records["plain"]:
        close(record["audit"], expected.to_dict())


def test_a_sampler_that_repeats_samples_is_refused(records):
    for record in records["repeated"]:
        assert "sample_id must name every sample once" in record["error"]


def test_sums_over_features_are_added_up_rather_than_gathered(monkeypatch):
    """Every process would get the Gram matrices of all others: gigabytes with wide features and many processes."""
    gathered = []

    def gather(value):
        gathered.append(pickle.dumps(value))
        return [pickle.loads(gathered[-1])]

    monkeypatch.setattr(_distributed, "is_distributed", lambda: True)
    monkeypatch.setattr(_distributed, "gather_objects", gather)
    monkeypatch.setattr(_distributed, "all_reduce_sum", lambda tensor: 2 * tensor)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    accumulator = AuditAccumulator(num_classes=2)
    features = np.random.default_rng(0).normal(size=(20, 400))
    accumulator.update(np.arange(20) % 2, predictions=np.arange(20) % 2, features=features)
    result = accumulator.compute(bootstrap=0)
    assert len(gathered[0]) < 100_000  # the Gram matrix alone has 1.3 MB
    assert result.by_class["sqnorm"].notna().all()
    np.testing.assert_array_equal(accumulator.feature_sums.counts, [10, 10])
