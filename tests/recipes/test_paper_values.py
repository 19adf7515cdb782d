from classmargin.methods import list_methods
from classmargin.recipes.compare_methods import MethodComparison, MethodResult
from classmargin.recipes.method_table import printed_table
from classmargin.recipes.paper_values import TABLE_1A
from classmargin.report.text import latex_report, markdown_report


def comparison_of(*names):
    values = dict.fromkeys(("overall", "easy", "medium", "hard", "worst"), (0.5, 0.4, 0.6))
    results = [MethodResult(name, name.upper(), 1, values) for name in names]
    return MethodComparison(results=results, paired=None, failed={})


def test_every_printed_row_belongs_to_a_registered_method():
    assert set(TABLE_1A) <= {info.name for info in list_methods()}


def test_overall_lies_within_its_thirds_as_printed():
    for row in TABLE_1A.values():
        assert row.hard < row.overall < row.easy
        assert (
            abs((row.easy + row.medium + row.hard) / 3 - row.overall) < 0.7
        )  # thirds of 34, 33 and 33 classes


def test_printed_values_stand_beside_the_methods_compared_in_every_format():
    table = printed_table(comparison_of("erm", "focal", "mr2"))
    assert [row["title"] for row in table.rows] == ["ERM", "MR2"]
    assert table.rows[1]["hard"] == "61.9"
    assert "norm table" in table.rows[1]["doubt"]
    assert "61.9" in markdown_report("verdict", [table])
    assert "61.9" in latex_report("verdict", [table])


def test_methods_that_the_paper_does_not_have_give_no_table():
    assert printed_table(comparison_of("focal")) is None
