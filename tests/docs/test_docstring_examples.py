"""The examples of the docstrings, which the reference shows, give what they say."""

import doctest
import importlib.util
import sys

import pytest
from site_blocks import ROOT

FOLDERS = (ROOT / "src" / "classmargin", ROOT / "scripts")
WITH_EXAMPLES = [
    path for folder in FOLDERS for path in sorted(folder.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]


def module_of(path):
    """Return the module of a file: part of the package, or a script."""
    if path.is_relative_to(FOLDERS[0]):
        parts = path.relative_to(FOLDERS[0].parent).with_suffix("").parts
        return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


def run_examples(thing, **names):
    """Return how many examples a module or function has, and what is wrong with them."""
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    for test in doctest.DocTestFinder().find(thing, extraglobs=names):
        runner.run(test, out=said.append)
    return runner.tries, "".join(said)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_of_the_docstrings_give_what_they_say(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tries, wrong = run_examples(module_of(path))
    assert not wrong, wrong
    assert tries, f"no example of {path.name} is in a docstring"


def test_a_wrong_example_would_be_noticed():
    def half(x):
        """Halve.

        >>> half(4)
        3
        """
        return x / 2

    tries, wrong = run_examples(half, half=half)
    assert tries == 1
    assert "Got:\n    2.0" in wrong
