"""The demo's question and ``classmargin list``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from classmargin.cli.list_things import KINDS, rows_of
from classmargin.cli.main import build_app, main
from classmargin.recipes.improve.budget import Budget
from classmargin.recipes.improve.remedies import find_remedies
from classmargin.recipes.run_options import gather_config
from classmargin.training.config import RunConfig
from classmargin.training.stopping import StoppedError


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_lists_as_table_and_as_json(kind, capsys):
    assert main(["list", kind]) == 0
    table = capsys.readouterr().out
    assert main(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all(row["name"] in table for row in rows)


def test_methods_are_listed_with_defaults_needs_and_cost():
    rows = {row["name"]: row for row in rows_of("methods")}
    assert rows["mr2"]["defaults"]["mean_margin"] > 0
    assert rows["supcon"]["needs"]["views"] == 2
    assert rows["sam"]["cost"] == 2.0


def test_every_setting_is_listed_with_its_default_and_a_meaning():
    rows = {row["name"]: row for row in rows_of("settings")}
    tables = RunConfig().to_dict()
    closed = {f"{part}.{key}" for part, table in tables.items() for key in table}
    assert rows.keys() == closed | {"backbone.*", "method.*"}
    assert all(rows[name]["default"] == tables[name.split(".")[0]][name.split(".")[1]] for name in closed)
    assert all(row["meaning"] for row in rows.values())


def test_help_names_the_defaults_of_a_run():
    config = RunConfig()
    shown = (config.data.name, config.backbone.name, config.method.name, config.loop.epochs)
    given = {item.name: item.help for item in typer.main.get_command(build_app()).commands["train"].params}
    for name, default in zip(("data", "backbone", "method", "epochs"), shown, strict=True):
        assert f"Default: {default}" in given[name]
    assert "classmargin list settings" in given["overrides"]


def test_an_unknown_kind_suggests_the_nearest(capsys):
    assert main(["list", "metods"]) == 2
    assert "did you mean 'methods'" in capsys.readouterr().err


def test_the_demo_improves_the_embedded_data_within_a_small_budget(tmp_path, monkeypatch, capsys):
    seen = {}

    def stop(data, **asked):
        seen.update(data=data, **asked)
        raise StoppedError("stopped by signal 2; the same command resumes", 130)

    monkeypatch.setattr("classmargin.recipes.improve.improving.improve", stop)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert (seen["data"], seen["jobs"], seen["out"]) == ("fashion-mnist-mini", 2, tmp_path)
    assert Budget.parse(seen["budget"]).runs <= 12
    assert {"mr2", "ensemble"} <= {remedy.name for remedy in find_remedies(seen["remedies"])}
    assert gather_config(flags=seen["settings"]).backbone.name == "small-cnn"


@pytest.mark.slow
def test_the_demo_runs_to_its_report(tmp_path):
    command = [sys.executable, "-m", "classmargin", "demo", "--out", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "Remedies" in answer.stdout
    assert (tmp_path / "report.html").stat().st_size > 100_000
