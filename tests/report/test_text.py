from __future__ import annotations

from classmargin.report.tables import Column, Table, latex_report, markdown_report, print_report

TABLE = Table("T", (Column("name", "Class"),), [{"name": "[bold]" + "x" * 200}, {"name": "\x1b[31mred"}], "")


def test_markdown_report_is_verdict_tables_notes():
    text = markdown_report("All <well>.", [TABLE], ["first\nnote"])
    assert text.startswith("All &lt;well>.\n\n**T**")
    assert text.endswith("- first note")


def test_latex_report_keeps_verdict_and_notes_as_comments():
    lines = latex_report("50% right\n\\input{x}", [TABLE], ["note"]).splitlines()
    assert lines[:2] == ["% 50% right \\input{x}", "% note"]
    assert sum(line.startswith("\\begin{table}") for line in lines) == 1


def test_piped_tables_are_neither_cut_nor_coloured(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_report("verdict", [TABLE], ["note"])
    shown = capsys.readouterr().out
    assert "[bold]" + "x" * 200 in shown
    assert "\x1b" not in shown
    assert "· note" in shown
