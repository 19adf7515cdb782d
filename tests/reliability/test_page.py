"""The page of promises names tests that exist, and every promise has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
NAMED = sorted(
    {name for row in ROWS for name in re.findall(r"`((?:[\w/]*/)?test_[\w*]+\.py(?:::[\w:]+)?)`", row)}
)


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
        assert re.search(rf"^\s*(def|class) {part}\b", found[0].read_text(encoding="utf-8"), re.MULTILINE), (
            name
        )


def test_every_promise_names_a_test():
    rows = [row for row in ROWS if row.count("|") == 3]
    without = [
        row for row in rows if "test_" not in row.split("|")[2] and "the same" not in row.split("|")[2]
    ]
    assert without == []
