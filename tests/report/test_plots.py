from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from classmargin.report import figures as plots
from classmargin.report.figures import axis_labels, plotly_text

NAMES = [f"c{k}" for k in range(4)]
ACCURACY = np.array([0.5, 0.9, np.nan, 0.7])
CLASSES = pd.DataFrame(
    {
        "accuracy": ACCURACY,
        "low": ACCURACY - 0.1,
        "high": ACCURACY + 0.05,
        "n": 10,
        "tier": ["hard", "easy", "absent", "medium"],
    }
)


def accuracy_figure(names=NAMES, repeats=1):
    return plots.class_accuracy_figure(list(names) * repeats, pd.concat([CLASSES] * repeats))


def test_few_classes_are_named_best_on_top_and_absent_ones_left_out():
    figure = accuracy_figure()
    assert list(figure.layout.yaxis.ticktext) == ["c1", "c3", "c0"]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]
    assert [trace.name for trace in figure.data] == ["easy", "medium", "hard"]
    hard = figure.data[2]
    assert list(hard.x) == [0.5]
    assert list(hard.y) == [3]


def test_error_bars_reach_the_ends_of_the_interval():
    bar = accuracy_figure().data[0].error_x
    np.testing.assert_allclose(bar.array, [0.05])
    np.testing.assert_allclose(bar.arrayminus, [0.1])


def test_many_classes_are_shown_by_rank():
    figure = accuracy_figure(repeats=21)
    ranks = np.concatenate([trace.x for trace in figure.data])
    assert sorted(ranks.tolist()) == list(range(1, 64))
    by_rank = np.concatenate([trace.y for trace in figure.data])[np.argsort(ranks)]
    assert (np.diff(by_rank) <= 0).all()
    assert figure.layout.yaxis.tickformat == ".0%"


def test_scatter_leaves_out_classes_without_both_values():
    classes = CLASSES.assign(spread=[1.0, np.nan, 2.0, 3.0])
    figure = plots.class_scatter_figure(NAMES, classes, "spread", "spread")
    assert {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data} == {
        "medium": ([3.0], [0.7]),
        "hard": ([1.0], [0.5]),
    }


def test_classes_without_thirds_make_one_group():
    figure = plots.class_scatter_figure(NAMES, CLASSES.assign(n=range(4), tier=""), "n", "samples")
    assert [trace.name for trace in figure.data] == ["classes"]
    assert len(figure.data[0].x) == 3


def test_gains_are_sorted_and_grouped_by_outcome():
    classes = {
        "class_name": NAMES,
        "difference": [0.1, -0.2, np.nan, 0.0],
        "q_value": [0.01, 0.0004, np.nan, 1.0],
        "outcome": ["gained", "lost", "absent", "noise"],
    }
    figure = plots.gains_figure(pd.DataFrame(classes))
    found = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert found == {
        "gained (1)": ([1], [10.0]),
        "lost (1)": ([3], [-20.0]),
        "may be noise (1)": ([2], [0.0]),
    }
    assert "q = &lt;0.001" in figure.data[1].text[0]


def test_thirds_of_two_models_do_not_lie_on_one_another():
    values = {"easy": (0.9, 0.8, 1.0), "hard": (0.5, 0.4, 0.6)}
    figure = plots.thirds_figure({"old": values, "new": values})
    assert list(figure.layout.yaxis.ticktext) == ["easy", "hard"]
    assert not set(figure.data[0].y) & set(figure.data[1].y)
    np.testing.assert_allclose(figure.data[0].error_x.arrayminus, [0.1, 0.1])


def test_changes_are_in_points():
    figure = plots.changes_figure({"new": {"hard": (0.05, -0.01, 0.1)}})
    np.testing.assert_allclose(figure.data[0].x, [5.0])
    np.testing.assert_allclose(figure.data[0].error_x.array, [5.0])
    assert figure.data[0].text[0] == "hard: +5.0 (-1.0 to +10.0) points"


def test_figures_are_strict_json():
    json.loads(accuracy_figure().to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("figure", [accuracy_figure(["<a href='https://x.y'>", "<b>", "<i>", "&lt;"])])
def test_names_reach_plotly_escaped(figure):
    texts = [*figure.layout.yaxis.ticktext, *(text for trace in figure.data for text in trace.text)]
    assert not any("<a" in text or "<i>" in text for text in texts)
    assert any("&amp;lt;" not in text and "&lt;a href" in text for text in texts)


def test_escaped_text_keeps_its_characters():
    import html

    assert html.unescape(plotly_text("<b>R&D</b> &lt;")) == "<b>R&D</b> &lt;"


def test_labels_differ_even_where_names_are_cut_to_the_same():
    names = ["x" * 10 + str(k) + "y" * 30 for k in range(3)] + ["a", "a"]
    labels = axis_labels(names, longest=8)
    assert len(set(labels)) == 5
