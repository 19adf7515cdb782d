"""Files stay small enough to be read in one sitting."""

from import_graph import ROOT, source_files

LONGEST = 600


def test_no_file_is_longer_than_five_hundred_lines():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf8").splitlines())
        for path in source_files()
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
