"""The tutorial notebook runs from its first cell to its last and shows what its words promise."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


def run_cell(source: str, names: dict) -> object:
    """Run a cell as a notebook does and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


@pytest.fixture(scope="module")
def executed():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    names: dict = {"__name__": "__main__"}
    shown = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    return names, shown


def test_the_shirts_lag_and_their_samples_are_shown(executed):
    names, shown = executed
    assert names["worst"] == "shirt"
    assert "shirt" in names["audit"].verdict
    tables = [table for table in shown if hasattr(table, "columns")]
    assert tables[1]["class_name"].unique().tolist() == ["shirt"]
    assert tables[2]["true_probability"].is_monotonic_increasing
    assert len(tables) == 5


def test_the_page_holds_pictures(executed):
    text = executed[0]["page"].read_text("utf-8")
    assert text.count("data:image/png;base64,") > 100


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
