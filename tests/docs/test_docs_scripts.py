"""The steps of the documentation's build, one by one: parts from code, formulas, docstrings, the list of the reference."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "docs" / "api"


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parts():
    return script("docs_parts")


class TestParts:
    def test_marker_is_replaced_and_the_rest_stays(self, parts):
        page = parts.fill_in("# A\n\n<!-- from code: loss-presets -->\n\nend\n")
        assert page.startswith("# A\n\n| argument |")
        assert page.endswith("|\n\nend\n")

    def test_unknown_marker_is_an_error_that_names_the_parts(self, parts):
        with pytest.raises(ValueError, match=r"'nothing'.*method-cards"):
            parts.fill_in("<!-- from code: nothing -->")

    def test_an_example_is_shown_as_it_is_and_a_missing_one_is_an_error(self, parts):
        code = (ROOT / "examples" / "own_loop.py").read_text(encoding="utf-8")
        assert code in parts.fill_in("<!-- example: own_loop.py -->") + "\n"
        with pytest.raises(ValueError, match=r"no example 'none\.py'"):
            parts.fill_in("<!-- example: none.py -->")

    def test_every_part_is_used_on_a_page_and_every_marker_is_a_part(self, parts):
        used = {
            name for page in (ROOT / "docs").rglob("*.md") for name in parts.MARKER.findall(page.read_text("utf-8"))
        }
        assert used == set(parts.PARTS)

    def test_cards_have_every_method_with_its_defaults_and_source(self, parts):
        from classmargin.methods import default_hyperparameters, list_methods

        cards = re.split(r"^## ", parts.method_cards(), flags=re.MULTILINE)[1:]
        assert len(cards) == len(list_methods())
        for info, card in zip(list_methods(), cards, strict=True):
            assert f"{{ #{info.name} }}" in card
            assert "**Idea:**" in card
            assert info.paper in card
            assert all(f"`{key}`" in card for key in default_hyperparameters(info.name))

    def test_preset_table_shows_the_values_that_the_presets_have(self, parts):
        from classmargin.mr2 import MR2Loss

        rows = {
            cells[1].strip(" `"): cells[2:-1]
            for cells in (line.split("|") for line in parts.loss_presets().splitlines())
        }
        for column, name in enumerate(("recommended", "paper", "release")):
            loss = MR2Loss.preset(name, 3)
            assert float(rows["representation_weight"][column]) == pytest.approx(loss.representation_weight)
            assert float(rows["mean_margin"][column]) == pytest.approx(loss.mean_margin)

    def test_recipes_and_commands_are_all_listed(self, parts):
        from classmargin.cli.main import VERBS
        from classmargin.recipes.recipe import list_recipes

        assert parts.recipes().count("\n") == len(list_recipes()) + 1
        assert re.findall(r"\{ #([\w-]+) \}", parts.command_line()) == list(VERBS)
        assert "`--representation" not in parts.command_line()
        assert "`--seeds`" in parts.command_line()

    def test_bars_in_cells_do_not_break_a_table(self, parts):
        rows = parts.table(("a", "b"), [("x|y", "two\nlines"), ("`x|y`", "")]).splitlines()
        assert rows[2:] == ["| x\\|y | two lines |", "| `x|y` |  |"]


class TestFormulas:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("latex2mathml", reason="latex2mathml is not installed (extra docs)")
        self.formulas = script("docs_formulas")

    def test_inline_and_display_formulas_become_mathml(self):
        page = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\nx^2\n\\]</div>'
        made = self.formulas.with_mathml(page)
        assert made.count("<math") == 2
        assert 'display="block"' in made
        assert "arithmatex" not in made
        assert "<mo>&#x0003C;</mo>" in made

    def test_a_command_that_the_converter_does_not_know_is_an_error(self):
        with pytest.raises(self.formulas.FormulaError, match="nosuchcommand"):
            self.formulas.to_mathml(r"\nosuchcommand{x}", display=False)

    def test_a_stray_backslash_in_the_output_is_an_error(self):
        with pytest.raises(self.formulas.FormulaError, match="does not know"):
            self.formulas.to_mathml(r"\Big\| x \Big\|", display=False)

    def test_an_unbalanced_formula_is_an_error_that_shows_it(self):
        with pytest.raises(self.formulas.FormulaError, match="braces"):
            self.formulas.to_mathml(r"\frac{1", display=False)


class TestDocstrings:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("griffe", reason="griffe is not installed (extra docs)")
        self.griffe = script("docs_griffe")

    def test_roles_become_links_where_the_site_has_an_entry_and_code_elsewhere(self):
        known = {"f": "classmargin.f"}
        text = self.griffe.readable("Use :func:`~a.b.f` or :func:`f`; not :class:`torch.Tensor`.", known.get)
        assert text == "Use `f` or [`f`][classmargin.f]; not `torch.Tensor`."

    def test_literal_blocks_and_examples_become_markdown(self):
        assert self.griffe.readable("As here::\n\n    x\n\nExample:\n    >>> 1", lambda name: None) == (
            "As here:\n\n    x\n\nExamples:\n    >>> 1"
        )

    def test_a_colon_in_what_is_returned_is_not_taken_for_a_type(self):
        text = "Do.\n\nReturns:\n    Two rows: right, all."
        assert self.griffe.with_return_type(text, "Tensor").endswith("    Tensor: Two rows: right, all.")
        assert self.griffe.with_return_type("Returns:\n    Rows.", "Tensor") == "Returns:\n    Rows."

    def test_entries_are_those_of_the_reference(self):
        assert "classmargin.mr2.loss.MR2Loss" in self.griffe.entries()


class TestReference:
    def entries(self):
        return {
            name
            for page in API.glob("*.md")
            for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        }

    @pytest.mark.parametrize(
        "package",
        [
            "classmargin",
            *(f"classmargin.{name}" for name in ("functional", "theory", "evaluation", "methods", "data", "backbones")),
        ],
    )
    def test_every_public_name_of_the_package_has_an_entry(self, package):
        module, entries, missing = importlib.import_module(package), self.entries(), []
        for name in module.__all__:
            value = getattr(module, name)
            home = getattr(value, "__module__", None)
            if isinstance(value, (str, type(sys))):
                continue  # __version__ and submodules
            if f"{home}.{name}" not in entries:
                missing.append(f"{home}.{name}")
        assert missing == []

    def test_every_entry_names_something_that_exists(self):
        for entry in self.entries():
            module, _, name = entry.rpartition(".")
            if entry.startswith("classmargin.integrations.") and entry.count(".") == 2:
                importlib.import_module(entry)
            else:
                assert hasattr(importlib.import_module(module), name), entry
