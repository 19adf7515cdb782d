from __future__ import annotations

import numpy as np
import pytest

from classmargin.report import confusion_matrix as module
from classmargin.report.confusion_matrix import confusion_view


def counts_of(num_classes: int, seed: int = 0) -> np.ndarray:
    counts = np.random.default_rng(seed).integers(0, 3, (num_classes, num_classes))
    np.fill_diagonal(counts, 30)
    return counts


def test_few_classes_make_one_matrix_with_a_blank_diagonal():
    counts = np.array([[5, 5, 0], [0, 8, 2], [0, 0, 4]])
    view = confusion_view(counts, ["a", "b", "c"])
    heat = view.figures["confusion"].data[0]
    place = {name: position for position, name in enumerate(heat.y)}
    assert view.blocks == []
    assert view.cells is None
    assert np.isnan(np.diag(np.array(heat.z, dtype=float))).all()
    assert heat.z[place["a"]][place["b"]] == 0.5
    assert heat.z[place["b"]][place["c"]] == 0.2


@pytest.mark.parametrize("counts", [np.diag([3, 4]), np.array([[7]]), np.zeros((2, 2))])
def test_no_error_gives_an_empty_view(counts):
    view = confusion_view(counts, [str(k) for k in range(len(counts))])
    assert view.figures == {}
    assert view.blocks == []


def test_many_classes_become_blocks_and_every_error_is_in_the_cells():
    counts = counts_of(160)
    view = confusion_view(counts, [f"c{k}" for k in range(160)])
    assert 2 <= len(view.blocks) <= 40
    assert len(view.figures["confusion"].data[0].y) == len(view.blocks)
    assert view.left_out == 0
    rebuilt = np.zeros_like(counts)
    for truth, predicted, count in view.cells["cells"]:
        rebuilt[truth, predicted] = count
    np.fill_diagonal(counts, 0)
    np.testing.assert_array_equal(rebuilt, counts)


def test_too_many_cells_leave_the_rarest_out_and_say_how_many(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 100)
    counts = counts_of(160)
    counts[3, 5] = 29
    view = confusion_view(counts, [str(k) for k in range(160)])
    assert len(view.cells["cells"]) == 100
    assert [3, 5, 29] in view.cells["cells"].tolist()
    assert view.left_out == int((counts > 0).sum() - 160 - 100)


def test_names_are_escaped_in_every_label():
    counts = counts_of(160)
    view = confusion_view(counts, ["<b>x</b>"] * 160)
    assert not any("<" in label for label in view.cells["labels"])
    assert len(set(view.cells["labels"])) == 160
