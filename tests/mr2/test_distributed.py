"""Two processes on gloo equal one process with the global batch: loss, gradient of every parameter, buffers."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.multiprocessing as multiprocessing
from mr2_two_processes import CASES, outcomes, work

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


class Finished(NamedTuple):
    """What one process computed, what two did, and how the two ended."""

    alone: dict
    ranks: list
    error: Exception | None
    folder: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One pair of processes for all cases: starting them costs more than training."""
    folder, error = tmp_path_factory.mktemp("two_processes"), None
    processes = multiprocessing.spawn(work, (str(folder),), nprocs=2, join=False)
    alone = outcomes()  # meanwhile
    try:
        while not processes.join(timeout=200):
            pass
    except (multiprocessing.ProcessExitedException, multiprocessing.ProcessRaisedException) as problem:
        error = problem
        if not all((folder / f"rank{rank}.pt").exists() for rank in (0, 1)):
            raise
    return Finished(alone, load(folder, "rank"), error, folder)


def load(folder, name):
    return [torch.load(folder / f"{name}{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture
def results(finished):
    return finished.alone, finished.ranks


def differences(ours, expected, tolerance, kind):
    return {
        name: (ours[name] - value).abs().max().item()
        for name, value in expected.items()
        if kind in name and not torch.allclose(ours[name], value, rtol=tolerance, atol=tolerance)
    }


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(
    "kind", ["total", "logit_margin", "representation_margin", "gradient", "state", "margins"]
)
def test_each_rank_equals_the_single_process(results, name, rank, kind):
    alone, ranks = results
    assert any(kind in key for key in alone[name])
    expected = alone[name]
    if "memory" in name:  # a ring holds the same features wherever they stand
        expected = {key: value for key, value in expected.items() if "ring" not in key}
    assert differences(ranks[rank][name], expected, TOLERANCE[CASES[name].dtype], kind) == {}


@pytest.mark.parametrize("name", [*CASES, "statistics alone"])
def test_both_ranks_hold_identical_buffers(results, name):
    _, ranks = results
    left, right = (ranks[rank][name] for rank in (0, 1))
    kept = [key for key in left if name == "statistics alone" or key.startswith("state")]
    assert len(kept) >= 5
    assert [key for key in kept if not torch.equal(left[key], right[key])] == []


@pytest.mark.parametrize("name", [name for name in CASES if "memory" in name])
def test_both_ranks_remember_the_features_of_the_global_batch(results, name):
    alone, ranks = results
    rings = [result[name]["state memory.ring"].flatten(1).sort(1).values for result in (alone, *ranks)]
    tolerance = TOLERANCE[CASES[name].dtype]
    for ring in rings[1:]:
        torch.testing.assert_close(ring, rings[0], rtol=tolerance, atol=tolerance)


def test_gradients_are_not_trivially_zero(results):
    alone, _ = results
    for name in CASES:
        gradients = [value for key, value in alone[name].items() if "gradient of encoder" in key]
        assert max(gradient.abs().max() for gradient in gradients) > 1e-3, name


def test_statistics_alone_are_summed_over_processes(results):
    alone, ranks = results
    for name, value in alone["statistics alone"].items():
        torch.testing.assert_close(ranks[0]["statistics alone"][name], value, rtol=1e-10, atol=1e-10)


def test_evaluation_on_one_rank_waits_for_nobody(results):
    alone, ranks = results
    torch.testing.assert_close(ranks[0]["evaluation"]["loss"], alone["evaluation"]["loss"])


def test_broken_row_on_one_rank_blocks_nobody_and_poisons_nothing(finished):
    assert finished.error is None
    left, right = load(finished.folder, "broken")
    for name, value in left.items():
        assert value.isfinite().all(), name
        assert torch.equal(value, right[name]), name
