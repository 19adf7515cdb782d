"""The page of results is what the records say."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "make_results_page", ROOT / "scripts" / "make_results_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_one_its_records_make(script):
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == script.results_page()


def test_records_are_small_and_name_no_folder_of_a_machine():
    records = list((ROOT / "results").glob("*.json"))
    assert records
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 300_000, path.name
        assert not [folder for folder in ("/home/", "/tmp/", "/work/") if folder in text], path.name
        json.loads(text)
