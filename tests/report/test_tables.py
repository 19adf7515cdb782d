from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from classmargin._printable import escape_markdown, printable
from classmargin.evaluation.json_values import json_text
from classmargin.report.audit_tables import report_tables
from classmargin.report.tables import (
    Column,
    Table,
    format_value,
    frame_rows,
    is_missing,
    to_latex,
    to_markdown,
    to_rich,
)

COLUMNS = (Column("name", "Class"), Column("accuracy", "Accuracy", "percent"))


def table(*names: str, note: str = "") -> Table:
    return Table("Classes", COLUMNS, [{"name": name, "accuracy": 0.5} for name in names], note)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0.12345, "percent", "12.3%"),
        (1.0, "percent", "100.0%"),
        (-0.021, "points", "-2.1"),
        (0.021, "points", "+2.1"),
        (-0.0001, "points", "+0.0"),
        (np.int64(7), "count", "7"),
        (3.0, "count", "3"),
        (2.5, "count", "2.5"),
        (np.float64(17 / 3), "count", "5.7"),
        (0, "count", "0"),
        (50_000_000_000, "count", "50000000000"),
        (0.0004, "p_value", "<0.001"),
        (0.04, "p_value", "0.040"),
        (0.0, "number", "0"),
        (0.12345, "number", "0.123"),
        (1234.5, "number", "1234"),
        (1e-6, "number", "1.00e-06"),
        (2.5e7, "number", "2.50e+07"),
        (math.inf, "number", "∞"),
        (-math.inf, "number", "-∞"),
        ((0.1, 0.2), "interval", "10.0–20.0%"),
        ((-0.1, 0.2), "points_interval", "-10.0 to +20.0"),
        ((math.nan, 0.2), "interval", "–"),
        (None, "interval", "–"),
        (math.nan, "percent", "–"),
        (None, "text", "–"),
        ("a\nb", "text", "a b"),
    ],
)
def test_values_are_shown_as_readers_write_them(value, kind, shown):
    assert format_value(value, kind) == shown


def test_pandas_na_counts_as_missing():
    import pandas as pd

    assert is_missing(pd.NA)
    assert not is_missing("")
    assert not is_missing(0)


def test_control_characters_and_direction_overrides_never_pass():
    assert printable("a\x1b[31m\x9b\u202eb\ud800") == "a�[31m��b�"
    assert printable("naïve 犬 👩\u200d🚀 क्\u200dष") == "naïve 犬 👩\u200d🚀 क्\u200dष"


def test_markdown_has_one_line_a_row_and_escapes_the_data():
    text = to_markdown(table("a|b", "<script>x</script>", "line\nbreak", "*_`[x](y)", note="and <more>"))
    lines = text.splitlines()
    assert lines[2] == "| Class | Accuracy |"
    assert lines[3] == "|:---|---:|"
    assert lines[4] == r"| a\|b | 50.0% |"
    assert lines[5] == "| &lt;script>x&lt;/script> | 50.0% |"
    assert lines[6] == "| line break | 50.0% |"
    assert lines[7] == r"| \*\_\`\[x\](y) | 50.0% |"
    assert lines[-1] == "and &lt;more>"


def test_markdown_ampersand_cannot_start_an_entity():
    assert escape_markdown("&lt;b>") == "&amp;lt;b>"


def test_latex_escapes_every_special_sign():
    text = to_latex(table(r"\input{x} & 5% $a_b^c$ #1 ~<>|" + '"'))
    row = next(line for line in text.splitlines() if "input" in line)
    assert row == (
        r"\textbackslash{}input\{x\} \& 5\% \$a\_b\textasciicircum{}c\$ \#1 \textasciitilde{}"
        r"\textless{}\textgreater{}\textbar{}\textquotedbl{} & 50.0\% \\"
    )
    assert text.startswith("\\begin{table}")
    assert text.endswith("\\end{table}")
    assert r"\begin{tabular}{lr}" in text


def test_terminal_shows_markup_in_names_literally():
    console = Console(width=80, color_system=None, record=True, file=io.StringIO())
    console.print(to_rich(table("[red]x[/red]", ":smile:", note="[b]rest[/b]")))
    shown = console.export_text()
    assert "[red]x[/red]" in shown
    assert ":smile:" in shown
    assert "[b]rest[/b]" in shown


def test_json_is_strict_and_knows_numpy():
    data = {
        "a": np.array([1.0, np.nan, np.inf]),
        "b": np.float32(0.5),
        "c": (1, True, None),
        "d": "é</script>",
    }
    text = json_text(data)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1.0, None, None],
        "b": 0.5,
        "c": [1, True, None],
        "d": "é</script>",
    }
    assert text.isascii()


def test_frame_rows_keep_values_and_order():
    import pandas as pd

    assert frame_rows(pd.DataFrame({"x": [2, 1], "y": ["b", "a"]})) == [
        {"x": 2, "y": "b"},
        {"x": 1, "y": "a"},
    ]


def test_numbers_are_set_flush_right_and_words_flush_left():
    assert [column.is_text for column in (*COLUMNS, Column("v", "Value", "value"))] == [True, False, False]


def test_latex_holds_no_letter_that_it_cannot_set(make_audit):
    text = "".join(to_latex(table) for table in report_tables(make_audit(), 3, full=True))
    # What LaTeX knows without further packages: Latin letters with accents, and quotation marks.
    unknown = {sign for sign in text if ord(sign) > 0x17F} - set("“”…")
    assert not unknown
    assert r"$\Vert$$\hat{\mu}$$\Vert$" in text
    assert r"$\alpha$ = 2" in text
