"""Two processes on gloo equal one process with the global batch: loss, gradient of every parameter, buffers.

The loss of a rank is its share: the mean over ranks is the mean over all rows, and so are gradients that DDP has averaged.
"""

import pytest
import torch
import torch.multiprocessing as multiprocessing
from mr2_two_processes import CASES, GOLDEN, UNEVEN, outcomes, work

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-10}
STORED = [row for row in GOLDEN if row["dtype"] == "float64"]
every_case = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process computed and what two did; one pair of processes for all cases: starting them costs more."""
    folder = tmp_path_factory.mktemp("two_processes")
    processes = multiprocessing.spawn(work, (str(folder),), nprocs=2, join=False)
    alone = outcomes()  # meanwhile
    while not processes.join():
        pass
    return alone, [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


def differences(ours, expected, tolerance, kind):
    """Return the entries of one kind that differ, with the largest difference."""
    assert any(kind in name for name in expected)
    return {
        name: (ours[name] - value).abs().max().item()
        for name, value in expected.items()
        if kind in name and not torch.allclose(ours[name], value, rtol=tolerance, atol=tolerance)
    }


@every_case
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["gradient", "state", "margins"])
def test_gradients_and_buffers_of_each_rank_equal_the_single_process(results, name, rank, kind):
    alone, ranks = results
    assert differences(ranks[rank][name], alone[name], TOLERANCE[CASES[name].dtype], kind) == {}


@every_case
@pytest.mark.parametrize("kind", ["total", "logit_margin", "representation_margin"])
def test_the_mean_over_ranks_is_the_global_mean(results, name, kind):
    alone, ranks = results
    keys = [key for key in alone[name] if key.endswith(f": {kind}")]
    assert len(keys) == len(UNEVEN)
    mean = {key: (ranks[0][name][key] + ranks[1][name][key]) / 2 for key in keys}
    expected = {key: alone[name][key] for key in keys}
    assert differences(mean, expected, TOLERANCE[CASES[name].dtype], kind) == {}


@pytest.mark.parametrize("name", [*CASES, "statistics moments", "statistics batch"])
def test_both_ranks_hold_identical_buffers(results, name):
    left, right = (results[1][rank][name] for rank in (0, 1))
    kept = [key for key in left if name.startswith("statistics") or key.startswith("state")]
    assert len(kept) >= 2
    assert [key for key in kept if not torch.equal(left[key], right[key])] == []


@every_case
def test_gradients_are_not_trivially_zero(results, name):
    gradients = [value for key, value in results[0][name].items() if "gradient of encoder" in key]
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3


@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_statistics_alone_are_summed_over_processes(results, estimator):
    alone, ranks = results
    for name, value in alone[f"statistics {estimator}"].items():
        torch.testing.assert_close(ranks[0][f"statistics {estimator}"][name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "index", range(len(STORED)), ids=lambda i: f"{STORED[i]['preset']}-{STORED[i]['case']['seed']}"
)
def test_two_processes_keep_the_values_of_0_4_0(results, index):
    row, (left, right) = STORED[index], (results[1][rank]["golden"][index] for rank in (0, 1))
    for step, stored in enumerate(row["steps"]):
        for name, value in stored.items():
            mine, other = left[f"{step} {name}"], right[f"{step} {name}"]
            if "gradient" in name:
                whole = torch.cat([mine, other])
                found = (whole * torch.arange(1, whole.numel() + 1).double().reshape(whole.shape).sin()).sum()
            else:
                found = (mine + other) / 2
            assert found.item() == pytest.approx(value, rel=1e-9, abs=1e-9), (step, name)
    assert left["class_margins"].tolist() == pytest.approx(row["class_margins"], rel=1e-9, abs=1e-7)
    assert left["mean_spread"].item() == pytest.approx(row["mean_spread"], rel=1e-9)


def test_a_forward_pass_sends_at_most_two_messages_and_none_in_evaluation(results):
    for rank in (0, 1):
        for name, counts in results[1][rank]["collectives"].items():
            assert 1 <= counts["training"].item() <= 2, name
            assert counts["evaluation"].item() == 0, name


def test_evaluation_on_one_rank_waits_for_nobody(results):
    alone, ranks = results
    torch.testing.assert_close(ranks[0]["evaluation"], alone["evaluation"])


@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
def test_a_broken_row_on_one_rank_is_told_on_both_and_poisons_nothing(results, name):
    left, right = (results[1][rank]["broken"][name] for rank in (0, 1))
    assert left["told"].item() is True
    assert left["statistics.updates"].item() == 2
    for key, value in left.items():
        assert value.isfinite().all(), key
        assert torch.equal(value, right[key]), key
