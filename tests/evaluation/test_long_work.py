import sys

import numpy as np
import pytest

from classmargin import _array_files
from classmargin._progress import progress_if_long


class Terminal:
    """Standard error that claims to be a terminal and remembers what was written."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_many_pieces_show_a_bar_on_a_terminal_and_few_do_not(monkeypatch):
    for count, shown in ((3, False), (50, True)):
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        assert list(progress_if_long(range(count), "reading scores")) == list(range(count))
        assert ("reading scores" in screen.text) == shown


@pytest.mark.parametrize(("small_enough", "shown"), [(100, True), (10**6, False)])
def test_reading_a_large_file_shows_a_bar(tmp_path, monkeypatch, small_enough, shown):
    np.savez(tmp_path / "a.npz", labels=np.arange(100), logits=np.zeros((100, 3)))
    monkeypatch.setattr(_array_files, "SMALL_ENOUGH", small_enough)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    arrays = _array_files.read_npz_arrays(tmp_path / "a.npz", ["labels", "logits"], max_bytes=10**9)
    assert set(arrays) == {"labels", "logits"}
    assert ("reading arrays" in screen.text) == shown


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    assert list(progress_if_long(range(50), "reading scores")) == list(range(50))
    assert capsys.readouterr().err == ""
