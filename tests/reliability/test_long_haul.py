"""Long trainings: nothing grows, nothing drifts, nothing becomes NaN, and divergence stops with its state saved."""

from __future__ import annotations

import json

import pytest
import torch
from soak.determinism import method_names
from soak.long_haul import MEMORY_SLACK, OBJECT_SLACK, Grew, check_tracks, without_class
from soak.tiny_task import train_words, write_features

from classmargin._types import Batch
from classmargin.cli.main import main
from classmargin.mr2 import MR2Loss
from classmargin.training.checkpoint import CheckpointStore


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_steps_stay_flat_and_equal_in_two_processes(soak):
    numbers = soak("long_haul")
    assert numbers["steps"] == 2000
    assert numbers["steps without one class"] == 1000
    assert numbers["samples of that class in its absence"] == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_classes_stay_flat(soak):
    numbers = soak("many_classes", "--quick")
    assert numbers["classes"] == 10_000
    assert list(numbers["mr2: memory by step, MB"]) == [str(step) for step in range(50, 501, 50)]


def track(memory=0, objects=0, digest="same", finite=True):
    """Records of one process whose last one differs as said."""
    steps = [{"step": s, "memory": 10**8, "objects": 10**5, "digest": "same", "finite": True, "seen": 0}
             for s in range(100, 2001, 100)]  # fmt: skip
    steps[-1] |= {"memory": 10**8 + memory, "objects": 10**5 + objects, "digest": digest, "finite": finite}
    return steps


def test_flat_and_equal_records_pass():
    assert check_tracks([track(), track(memory=1000)], 2000)["memory growth after warm-up, bytes"] == [
        0,
        1000,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": MEMORY_SLACK + 1}, "memory grew"),
        ({"objects": OBJECT_SLACK + 1}, "memory grew"),
        ({"digest": "other"}, "the processes differ at step 2000"),
        ({"finite": False}, "not finite at step 2000"),
    ],
)
def test_growth_drift_and_infinities_are_seen(change, words):
    with pytest.raises(Grew, match=words):
        check_tracks([track(), track(**change)], 2000)


def test_a_class_is_taken_out_of_a_batch_without_changing_its_size():
    labels = torch.tensor([0, 1, 2, 1, 0])
    batch = without_class(Batch(torch.arange(5.0)[:, None], labels, torch.arange(5)), 1)
    assert batch.labels.tolist() == [0, 2, 2, 0, 0]
    assert batch.inputs[:, 0].tolist() == batch.index.tolist()
    assert set(batch.index.tolist()) <= {0, 2, 4}


def batches(steps, *, without=None, scale=lambda step: 1.0):
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        labels = torch.randint(0, 4, (12,), generator=generator)
        if without is not None:
            labels[labels == without] = (without + 1) % 4
        features = scale(step) * (torch.randn(12, 3, generator=generator) + labels[:, None])
        yield torch.randn(12, 4, generator=generator), labels, features


def assert_finite(loss):
    assert all(torch.isfinite(value).all() for value in loss.state_dict().values() if value.is_floating_point())


@pytest.mark.parametrize("representation", ["moments", pytest.param("pairs", marks=pytest.mark.slow)])
def test_statistics_stay_finite_and_useful_with_a_class_gone_for_a_thousand_steps(representation):
    loss = MR2Loss(4, representation=representation)
    for batch in batches(50):
        loss(*batch)
    for batch in batches(1000, without=2):
        value = loss(*batch)
    assert torch.isfinite(value)
    assert_finite(loss)
    margins = loss.class_margins
    assert torch.isfinite(margins).all()
    assert 0.1 < float(margins[2] / margins.mean()) < 10.0, "the absent class keeps a sensible margin"


@pytest.mark.filterwarnings("ignore::classmargin.FeatureCollapseWarning")  # tiny after huge features look like it
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # the sum that looks for it overflows
@pytest.mark.parametrize("representation", ["moments", "pairs"])
def test_statistics_survive_features_that_explode_and_come_back(representation):
    loss = MR2Loss(4, representation=representation)
    with torch.no_grad():
        # Up to 10^36: finite, and squares overflow from 10^19 on.
        for batch in batches(75, scale=lambda step: 10.0 ** (step / 2 - 1)):
            loss(*batch)
            assert_finite(loss)
        for batch in batches(50):
            value = loss(*batch)
    assert torch.isfinite(value)
    assert_finite(loss)


QUICK = ("erm", "mr2", "sam+mr2", "lff")


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in method_names()],
)
def test_a_learning_rate_that_diverges_stops_with_a_message_and_the_state(method, tmp_path, capsys):
    data = write_features(tmp_path / "features.npz")
    words = train_words(data, method, tmp_path / "run", epochs=3, extra=("optimizer.learning_rate=1e25",))
    assert main(words) == 3
    message = capsys.readouterr().err
    assert "no longer a number" in message or "the loss is" in message
    assert "A smaller learning rate" in message
    (failure,) = (tmp_path / "run" / "failure").iterdir()
    record = json.loads((failure / "failure.json").read_text())
    assert f"at step {record['step']} " in message
    assert (failure / "tensors.safetensors").stat().st_size > 0
    found = CheckpointStore(tmp_path / "run" / "checkpoint").load_newest()
    if found is not None:
        weights = found[1]["network"].values()
        assert all(torch.isfinite(w).all() for w in weights if w.is_floating_point()), "the good one stays good"
