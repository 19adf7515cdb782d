"""Files stay small enough to be read in one sitting, and the core small enough to be read in an afternoon."""

from import_graph import ROOT, source_files

LONGEST = 450


def lengths(paths):
    return {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf8").splitlines()) for path in paths}


def test_no_source_file_is_longer_than_450_lines():
    assert {name: length for name, length in lengths(source_files()).items() if length > LONGEST} == {}


def test_the_core_is_at_most_8_files_and_1500_lines():
    core = lengths(path for path in source_files() if path.parent.name == "mr2")
    assert len(core) <= 8
    assert sum(core.values()) <= 1500
