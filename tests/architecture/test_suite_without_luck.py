"""No test of the default suite is decided by luck: neither by new random examples nor by how fast the machine is just now."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
CLOCKS = {"monotonic", "perf_counter", "process_time", "time", "time_ns", "monotonic_ns", "perf_counter_ns"}
# A process that is waited for shares the machine with others: what is less than the limit of a test would be a clock too.
LEAST_PATIENCE = 600
# Draws anew on purpose, and is used by tests marked slow alone.
MAY_DRAW = {"reliability/hostile.py"}


def test_property_tests_draw_the_same_examples_and_have_no_deadline():
    if os.environ.get("CLASSMARGIN_HYPOTHESIS", "same") != "same":
        pytest.skip("this run explores")
    assert settings().derandomize
    assert settings().deadline is None
    assert settings().database is None, "what failed once is not tried before the others"


@given(st.integers())
def test_property_tests_are_marked(value):
    """The hook of tests/conftest.py gives the mark; ``make test-slow`` finds by it what to explore."""


def test_the_mark_is_there(request):
    marked = [item.name for item in request.session.items if item.get_closest_marker("property")]
    assert "test_property_tests_are_marked" in marked
    assert "test_the_mark_is_there" not in marked


def nodes(tree: ast.AST, inside_loop: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node and whether a ``while`` loop is around it."""
    for child in ast.iter_child_nodes(tree):
        inside = inside_loop or isinstance(child, ast.While)
        yield child, inside
        yield from nodes(child, inside)


def is_time(node: ast.AST, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
        and node.func.attr in names
    )


def patience(call: ast.Call) -> float:
    """Return the seconds after which a call gives up, 0 if it does not."""
    stated = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    if ast.unparse(call.func).endswith("mark.timeout"):
        stated += call.args
    values = [value.value for value in stated if isinstance(value, ast.Constant)]
    return next((value for value in values if isinstance(value, (int, float))), 0)


def lucky(text: str) -> list[str]:
    """Return what in a test file depends on luck."""
    found = []
    for node, inside_loop in nodes(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if is_time(node, {"sleep"}) and not inside_loop:
            found.append(f"{line}: a fixed sleep; wait for the event (wait_until)")
        compared = isinstance(node, ast.Compare) and any(is_time(part, CLOCKS) for part in ast.walk(node))
        if compared:
            found.append(f"{line}: a clock decides")
        if isinstance(node, ast.Call) and 0 < patience(node) < LEAST_PATIENCE:
            found.append(f"{line}: waits for {patience(node)} s only")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "settings":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "derandomize" in given and not getattr(given["derandomize"], "value", False):
                found.append(f"{line}: draws new examples")
            if "deadline" in given and getattr(given["deadline"], "value", 0) is not None:
                found.append(f"{line}: a deadline")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_no_clock_and_no_luck_decides(file):
    allowed = str(file.relative_to(TESTS)) in MAY_DRAW
    found = lucky(file.read_text(encoding="utf-8"))
    assert [words for words in found if not (allowed and "draws" in words)] == []


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(3)",
        "assert time.monotonic() - begin < 5",
        "while not ready() and time.monotonic() < deadline:\n    time.sleep(0.1)",
        "settings(derandomize=False)",
        "settings(deadline=200)",
        "process.wait(timeout=200)",
        "pytest.mark.timeout(60)",
    ],
)
def test_luck_is_seen(text):
    assert len(lucky(text)) == 1


def test_waiting_for_an_event_is_not_luck():
    assert lucky("while not ready():\n    time.sleep(0.1)\nsettings(max_examples=5, deadline=None)") == []
    assert lucky("process.wait()\nprocess.wait(timeout=600)\npytest.mark.timeout(900)") == []
