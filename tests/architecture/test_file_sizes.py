"""Files stay small enough to be read in one sitting, and the whole small enough to be known.

``python scripts/measure_house.py`` prints the figures behind these limits.
"""

from collections import defaultdict

from import_graph import ROOT, module_name, source_files

LONGEST_FILE = 450
MOST_FILES = 190
MOST_LINES = 34_300


def lengths(paths):
    """Return the number of lines of each file by its path below the package."""
    return {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf8").splitlines()) for path in paths}


def shared_names():
    """Return the last names that several modules have, with the modules."""
    homes = defaultdict(list)
    for path in source_files():
        if not path.name.startswith("__"):
            homes[path.stem].append(module_name(path))
    return {stem: names for stem, names in sorted(homes.items()) if len(names) > 1}


def test_no_source_file_is_longer_than_450_lines():
    assert {name: size for name, size in lengths(source_files()).items() if size > LONGEST_FILE} == {}


def test_the_source_has_no_more_files_and_lines_than_agreed():
    every = lengths(source_files())
    assert len(every) <= MOST_FILES
    assert sum(every.values()) <= MOST_LINES


def test_no_two_modules_have_the_same_name():
    assert shared_names() == {}


def test_the_core_is_at_most_8_files_and_1500_lines():
    core = lengths(path for path in source_files() if path.parent.name == "mr2")
    assert len(core) <= 8
    assert sum(core.values()) <= 1500
