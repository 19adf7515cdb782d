"""Nothing from a user's file is ever unpickled: a pickle can run any program."""

import ast

import pytest
from import_graph import ROOT, source_files

TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf8")) for path in source_files()}


# (file, "module.name", call) of every call that is written as module.name(...)
CALLS = [
    (file, ast.unparse(node.func), node)
    for file, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Call)
    and isinstance(node.func, ast.Attribute)
    and node.func.attr in ("load", "loads", "open")
]


def keyword(call, name):
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def places(module, names, is_bad=lambda call: True):
    """Return ``file: line`` of every bad call of one of the names."""
    wanted = {f"{module}.{name}" for name in names}
    return [f"{file}: {call.lineno}" for file, name, call in CALLS if name in wanted and is_bad(call)]


@pytest.mark.parametrize("module", ["pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"])
def test_modules_that_run_what_they_read_are_not_used_for_reading(module):
    assert places(module, ("load", "loads", "open")) == []


def test_torch_loads_weights_only():
    assert places("torch", ("load",), lambda call: keyword(call, "weights_only") != "True") == []


@pytest.mark.parametrize("module", ["np", "numpy"])
def test_numpy_never_allows_pickles(module):
    assert places(module, ("load",), lambda call: keyword(call, "allow_pickle") not in (None, "False")) == []


def test_every_unpickler_of_ours_decides_which_names_it_takes():
    unpicklers = [
        (file, node)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases)
    ]
    open_ones = [
        f"{file}: {node.name}"
        for file, node in unpicklers
        if "find_class" not in {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
    ]
    assert open_ones == []


def test_reader_sees_the_loads_of_this_package():
    """The lists above are not empty for want of looking."""
    assert {"torch.load", "np.load"} <= {name for _, name, _ in CALLS}
