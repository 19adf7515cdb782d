"""The pages of results are what the records say."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_results_page", ROOT / "scripts" / "make_results_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["results", "history", "no_harm", "reviewers", "why"])
def test_a_page_is_the_one_its_records_make(script, page):
    made = getattr(script, f"{page}_page")()
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") == made


def test_records_of_objectives_that_are_gone_are_on_the_history_page_alone():
    """Records say which version of the package made their runs; choices are in the folder of theirs."""
    for path in (ROOT / "results").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        made_by = record["session"]["versions"]["classmargin"]
        assert tuple(map(int, made_by.split(".")[:2])) >= (0, 5), path.name


def test_records_say_what_ran_with_what_and_how_to_run_it():
    for path in (ROOT / "results").glob("*_0_5.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert {"python", "classmargin", "torch", "numpy"} <= record["session"]["versions"].keys(), path.name
        assert record["command"].startswith("classmargin "), path.name
        assert record["note"], path.name
        for block in record["blocks"]:
            assert block["settings"]["data"], path.name
            assert all(row["runs"] for row in block["rows"]), path.name


def test_predictions_beside_a_record_are_small_and_belong_to_one_of_its_runs():
    for folder in (ROOT / "results" / "predictions").glob("*"):
        record = json.loads((ROOT / "results" / f"{folder.name}.json").read_text(encoding="utf-8"))
        runs = sum(len(row["runs"]) for row in record["blocks"][0]["rows"])
        files = list(folder.rglob("*.npz"))
        assert len(files) == runs, folder.name
        assert max(file.stat().st_size for file in files) < 2_000_000, folder.name


def test_records_are_small_and_name_no_folder_of_a_machine():
    records = list((ROOT / "results").rglob("*.json"))
    assert records
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 300_000, path.name
        assert not [folder for folder in ("/home/", "/tmp/", "/work/") if folder in text], path.name
        json.loads(text)
