"""Who may import whom: arrows between the packages point one way, late imports included."""

import pytest
from import_graph import Import, all_imports, imports_in, module_names

SHARED = {
    "_types",
    "_checks",
    "_distributed",
    "_precision",
    "_progress",
    "_atomic",
    "_files",
    "_array_files",
    "_printable",
}
EVERYTHING = {
    "mr2",
    "data",
    "backbones",
    "theory",
    "evaluation",
    "methods",
    "training",
    "report",
    "functional",
    "recipes",
    "integrations",
}

# Package -> what it may import besides SHARED and itself. A dotted name allows that module only.
MAY_IMPORT = {
    **{name: set() for name in SHARED},
    "mr2": set(),
    "data": set(),
    "backbones": set(),
    "theory": {"mr2"},
    "evaluation": {"mr2", "theory"},
    "methods": {"mr2"},
    "training": {"methods.base", "evaluation"},
    "report": {"evaluation"},
    "functional": {"mr2", "theory", "evaluation"},
    "integrations": {"mr2", "methods", "backbones.contract", "evaluation"},
    "recipes": EVERYTHING,
    "cli": EVERYTHING - {"integrations"},
    "__main__": {"cli"},
}

# (importer, imported) that break the table, each with its reason; they must be late.
EXCEPTIONS = {
    (
        "evaluation.audit_result",
        "report",
    ): "Audit.to_html and Audit.to_markdown hand the audit to the report; audits work without the report installed",
}

# What a method may import from its own package.
METHOD_PARTS = {"methods.base", "methods.loss_parts", "methods.method_registry"}


def top(name: str) -> str:
    return name.split(".")[0]


def is_allowed(found: Import) -> bool:
    package, target = top(found.importer), found.inside
    if target == "" or top(target) in SHARED | {package}:  # "from classmargin import __version__"
        return True
    return any(target == entry or target.startswith(f"{entry}.") for entry in MAY_IMPORT[package])


def is_exception(found: Import) -> bool:
    return any(
        found.importer == importer and top(found.inside) == target and (found.late or found.typing)
        for importer, target in EXCEPTIONS
    )


OURS = [found for found in all_imports() if found.is_ours and found.importer]  # the root only re-exports


def test_every_package_has_its_line_in_the_table():
    assert {top(name) for name in module_names() if name} <= set(MAY_IMPORT)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_package_imports_only_what_its_layer_allows(package):
    mine = [found for found in OURS if top(found.importer) == package]
    assert [str(found) for found in mine if not is_allowed(found) and not is_exception(found)] == []


def test_methods_do_not_import_one_another():
    methods = [found for found in OURS if found.importer.startswith("methods.") and top(found.inside) == "methods"]
    inside = [found for found in methods if found.importer not in METHOD_PARTS]
    assert [str(found) for found in inside if found.inside not in METHOD_PARTS] == []


def test_recipes_import_integrations_late():
    early = [found for found in OURS if top(found.importer) == "recipes" and top(found.inside) == "integrations"]
    assert [str(found) for found in early if not found.late] == []


def test_root_imports_nothing_of_ours_at_run_time():
    """Public names are loaded when first used."""
    early = [found for found in all_imports() if found.importer == "" and not found.late and not found.typing]
    assert [str(found) for found in early if found.is_ours] == []


def test_reader_sees_early_late_and_hidden_imports():
    source = (
        "from typing import TYPE_CHECKING\n"
        "from classmargin.mr2 import MR2Loss\n"
        "from . import tables\n"
        "from ..evaluation.audit_result import Audit\n"
        "if TYPE_CHECKING:\n    import pandas\n"
        "def f():\n    import plotly.express\n    require_extra('sklearn.manifold', 'report', 'maps')\n"
    )
    found = {(i.target, i.late, i.typing) for i in imports_in(source, "report.figures")}
    assert found == {
        ("typing", False, False),
        ("classmargin.mr2", False, False),
        ("classmargin.report.tables", False, False),
        ("classmargin.evaluation.audit_result", False, False),
        ("pandas", False, True),
        ("plotly.express", True, False),
        ("sklearn.manifold", True, False),
    }


def test_table_refuses_what_it_should():
    refused = Import("mr2.objective", "classmargin.methods.base", True, False, 1)
    partly = Import("training.loop", "classmargin.methods.method_registry", False, False, 1)
    early = Import("evaluation.audit_result", "classmargin.report.html_pages", False, False, 1)
    assert not is_allowed(refused)
    assert not is_allowed(partly)
    assert is_allowed(partly._replace(target="classmargin.methods.base"))
    assert not is_allowed(early)
    assert not is_exception(early)
    assert is_exception(early._replace(late=True))
