import sys

from classmargin.evaluation.long_work import watched


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
        assert list(watched(range(count), "reading scores")) == list(range(count))
        assert ("reading scores" in screen.text) == shown


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    assert list(watched(range(50), "reading scores")) == list(range(50))
    assert capsys.readouterr().err == ""
