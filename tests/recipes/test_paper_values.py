from classmargin.methods import list_methods
from classmargin.recipes.paper_values import TABLE_1A


def test_every_printed_row_belongs_to_a_registered_method():
    assert set(TABLE_1A) <= {info.name for info in list_methods()}


def test_overall_lies_within_its_thirds_as_printed():
    for row in TABLE_1A.values():
        assert row.hard < row.overall < row.easy
        assert abs((row.easy + row.medium + row.hard) / 3 - row.overall) < 0.7  # thirds of 34, 33 and 33 classes
