"""Distances, averages and pull of a batch: compiled loops and NumPy against loops in float64, and which one is taken."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from classmargin.mr2 import batch_table as chooser
from classmargin.mr2.batch_table import batch_table
from classmargin.mr2.class_groups import group_compact

pytestmark = pytest.mark.usefixtures("either_table")

TYPES = [torch.float64, torch.float32]


def naive_pull(features, labels, slack, temperature):
    """Return the mean of Eq. 2 and its gradient, by autograd over a loop of pairs."""
    rows = features.clone().requires_grad_()
    total = rows.sum() * 0.0
    for i in range(len(rows)):
        mates = [j for j in range(len(rows)) if j != i and labels[j] == labels[i]]
        exponents = [((rows[i] - rows[j]).square().sum() - slack) / temperature for j in mates]
        total = total + torch.logsumexp(torch.stack([rows.new_zeros(()), *exponents]), 0)
    mean = total / len(rows)
    return mean.item(), torch.autograd.grad(mean, rows)[0]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("temperature", [5.0, 400.0])
def test_pull_is_the_loss_and_its_gradient(batch, dtype, temperature):
    features, labels, _ = batch
    if features.shape[1] > 100:
        temperature *= 100.0
    loss, gradient = naive_pull(features, labels, 3.0, temperature)
    table = batch_table(features.to(dtype), group_compact(labels))
    mean, pulled = table.pull(3.0, temperature, 0.25, True)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    assert mean == pytest.approx(loss, rel=tolerance, abs=tolerance)
    assert pulled.dtype == dtype
    torch.testing.assert_close(pulled.double(), 0.25 * gradient, rtol=tolerance, atol=tolerance)
    again, nothing = table.pull(3.0, temperature, 0.25, False)
    assert again == mean
    assert nothing is None


def test_exponents_beyond_the_range_of_exp_neither_overflow_nor_vanish():
    features = torch.tensor([[0.0], [40.0], [0.1], [7.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    loss, gradient = naive_pull(features, labels, 1.0, 0.5)  # exponents up to 3198
    mean, pulled = batch_table(features, group_compact(labels)).pull(1.0, 0.5, 1.0, True)
    assert mean == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(pulled, gradient, rtol=1e-10, atol=1e-12)


def test_an_infinite_temperature_counts_classmates_and_does_not_pull():
    labels = torch.tensor([0, 0, 0, 1])
    mean, pulled = batch_table(torch.randn(4, 3), group_compact(labels)).pull(1.0, math.inf, 1.0, True)
    assert mean == pytest.approx(3 * math.log(3) / 4)
    assert torch.equal(pulled, torch.zeros(4, 3))


@pytest.mark.parametrize("dtype", TYPES)
def test_averages_are_those_of_rows_weighted_by_their_age(batch, dtype):
    """Two batches with decay q: rows of the first weigh q, those of the second 1 (common factors cancel)."""
    features, labels, classes = batch
    decay, dim = 0.75, features.shape[1]
    later = features.flip(0) * 1.5 - 1.0
    kind = torch.zeros((), dtype=dtype).numpy().dtype
    class_mean, scalars = np.zeros((classes, dim), kind), np.zeros((4, classes), kind)
    power = np.arange(1.0, classes + 1)
    for rows in (features, later):
        batch_table(rows.to(dtype), group_compact(labels)).move(class_mean, scalars, decay, power)
    tolerance = 1e-9 if dtype == torch.float64 else 3e-5
    for label in labels.unique().tolist():
        chosen = labels == label
        rows = torch.cat((features[chosen], later[chosen]))
        weight = torch.tensor([decay] * int(chosen.sum()) + [1.0] * int(chosen.sum()), dtype=torch.float64)
        mean = (weight[:, None] * rows).sum(0) / weight.sum()
        spread = (weight * (rows - mean).square().sum(1)).sum() / weight.sum()
        square = (weight * rows.square().sum(1)).sum() / weight.sum()
        np.testing.assert_allclose(class_mean[label], mean.numpy(), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(scalars[1, label], float(spread), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(scalars[2, label], float(square), rtol=tolerance)
        np.testing.assert_allclose(scalars[3, label], power[label] / int(chosen.sum()), rtol=tolerance)
    absent = np.setdiff1d(np.arange(classes), labels.numpy())
    assert not scalars[:, absent].any()
    assert not class_mean[absent].any()


def test_without_power_sums_the_fourth_row_is_the_third(batch):
    features, labels, classes = batch
    class_mean, scalars = np.zeros((classes, features.shape[1])), np.zeros((4, classes))
    batch_table(features, group_compact(labels)).move(class_mean, scalars, 0.9, None)
    np.testing.assert_array_equal(scalars[3], scalars[2])


def test_single_precision_rows_move_double_precision_averages():
    labels = torch.tensor([0, 1, 0])
    rows = torch.tensor([[1.0, 2.0], [0.5, 0.25], [3.0, 4.0]])
    class_mean, scalars = np.zeros((2, 2)), np.zeros((4, 2))
    batch_table(rows, group_compact(labels)).move(class_mean, scalars, 0.9, None)
    np.testing.assert_allclose(class_mean, [[2.0, 3.0], [0.5, 0.25]])
    np.testing.assert_allclose(scalars[1], [2.0, 0.0])


def test_rows_that_do_not_follow_one_another_in_memory_are_read_right():
    rows, labels = torch.randn(3, 8, dtype=torch.float64).T, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    assert not rows.is_contiguous()
    expected = batch_table(rows.contiguous(), group_compact(labels)).pull(1.0, 2.0, 1.0, True)
    mean, pulled = batch_table(rows, group_compact(labels)).pull(1.0, 2.0, 1.0, True)
    assert mean == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(pulled, expected[1])


def test_a_class_far_from_the_origin_keeps_its_spread_in_single_precision():
    rows = torch.tensor([[1e4, 0.0], [1e4, 1.0]])
    class_mean, scalars = np.zeros((1, 2), np.float32), np.zeros((4, 1), np.float32)
    batch_table(rows, group_compact(torch.tensor([0, 0]))).move(class_mean, scalars, 0.9, None)
    assert scalars[1, 0] == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "too large to be squared"])
@pytest.mark.parametrize("row", [0, 1, 3])
def test_what_cannot_be_squared_is_not_called_finite(bad, row, dtype):
    labels = torch.tensor([0, 1, 0, 1])
    rows = torch.ones(4, 3, dtype=dtype)
    assert batch_table(rows, group_compact(labels)).finite
    rows[row, 2] = (1e30 if dtype == torch.float32 else 1e200) if isinstance(bad, str) else bad
    assert not batch_table(rows, group_compact(labels)).finite


def test_the_environment_decides_at_the_first_step_of_a_process(either_table):
    assert chooser.table_maker().__name__ == ("CompiledTable" if either_table == "compiled" else "tabulate")
    assert chooser.table_maker() is chooser.table_maker()


def test_a_numba_that_cannot_be_imported_is_said_once_and_done_without(monkeypatch):
    monkeypatch.setenv("CLASSMARGIN_FAST", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "classmargin.mr2.compiled_table", None)
    chooser.table_maker.cache_clear()
    with pytest.warns(RuntimeWarning, match="Numba cannot be used"):
        assert chooser.table_maker().__name__ == "tabulate"
    assert chooser.table_maker().__name__ == "tabulate"


def test_loops_compile_where_no_folder_may_be_written(either_table, monkeypatch):
    if either_table == "numpy":
        pytest.skip("nothing is compiled")
    from classmargin.mr2 import class_loops, compiled_table

    real = compiled_table._compile
    asked = []

    def compile_without_a_folder(function, cache):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function, cache)

    monkeypatch.setattr(compiled_table, "_compile", compile_without_a_folder)
    measure = compiled_table._compiled(class_loops.measure)
    assert asked == [True, False]
    distances, _, largest = measure(np.array([[1.0], [3.0]]), np.array([0, 1]), np.array([0, 2]), 1)
    assert distances.tolist() == [4.0]
    assert largest == 9.0


def test_no_numba_is_loaded_where_it_is_not_wanted(either_table):
    code = (
        "import sys, torch\nfrom classmargin import MR2Loss\n"
        "logits, features = torch.randn(4, 3, requires_grad=True), torch.randn(4, 2, requires_grad=True)\n"
        "MR2Loss(3)(logits, torch.tensor([0, 1, 0, 2]), features).backward()\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == str(either_table == "compiled"), done.stderr
