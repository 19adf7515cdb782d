"""The page of results shows what the records hold, those of failures included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "results" / "improve").glob("*.json"))
PAGE = (ROOT / "docs" / "improve.md").read_text(encoding="utf-8")


def shown(delta) -> str:
    value, low, high = (f"{100 * one:+.1f}" for one in delta)
    return f"{value} ({low} to {high})"


def row_of(record) -> str:
    """Return the row of a record: answer, choice, hard third on validation and test, easy third and overall accuracy on test."""
    test, validation = record["test"], record["validation"]
    numbers = (validation.get("hard"), test.get("hard"), test.get("easy"), test.get("overall"))
    cells = [
        record["answer"],
        record["choice"] or "–",
        *("–" if one is None else shown(one) for one in numbers),
    ]
    return " | ".join(cells)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_every_record_has_its_row_and_its_command(file):
    record = json.loads(file.read_text(encoding="utf-8"))
    assert row_of(record) in PAGE
    assert record["command"] in PAGE


def test_there_are_records():
    assert len(RECORDS) >= 3
