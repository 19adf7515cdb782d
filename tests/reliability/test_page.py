"""The page of promises names tests that exist, and every promise has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
NAMED = sorted({name for row in ROWS for name in re.findall(r"`((?:[\w/]*/)?test_[\w*]+\.py(?:::[\w:]+)?)`", row)})


def file_of(name: str) -> Path:
    path = name.partition("::")[0]
    return ROOT / (path if "/" in path else f"tests/reliability/{path}")


def test_the_page_has_promises():
    assert len(ROWS) > 20
    assert len(NAMED) > 20


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name):
    found = list(file_of(name).parent.glob(file_of(name).name))
    assert found, name
    for part in name.split("::")[1:]:
        assert re.search(rf"^\s*(def|class) {part}\b", found[0].read_text(encoding="utf-8"), re.MULTILINE), name


PROMISES = [row for row in ROWS if row.count("|") == 3 and not row.startswith("|---")]


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[2:60])
def test_every_promise_names_its_test_and_not_only_a_file(row):
    tests = row.split("|")[2]
    assert "::test_" in tests or tests.strip().startswith("the same"), row


@pytest.mark.parametrize("name", [name for name in NAMED if "::" in name])
def test_a_test_is_called_slow_where_it_is(name):
    """`make test` leaves out what is marked slow; the page must not claim that it is run."""
    text = file_of(name).read_text(encoding="utf-8")
    head = text[: re.search(rf"^[ ]*(def|class) {name.split('::')[-1]}\b", text, re.MULTILINE).start()]
    marks = head[head.rfind("\n\n") :]  # decorators stand right above, without an empty line
    is_slow = "@pytest.mark.slow\n" in marks or bool(re.search(r"^pytestmark = .*mark\.slow", text, re.MULTILINE))
    for row in ROWS:
        if f"`{name}`" in row:
            assert (f"*slow* `{name}`" in row) == is_slow, row
