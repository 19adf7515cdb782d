from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile

import pytest
import typer

from classmargin.cli import main as module
from classmargin.cli._shared import as_command


def test_help_names_every_verb(run):
    outcome = run("--help")
    assert outcome.code == 0
    for verb in module.VERBS:
        assert verb in outcome.out


@pytest.mark.parametrize("verb", sorted(module.VERBS))
def test_every_verb_has_help(run, verb):
    outcome = run(verb, "--help")
    assert outcome.code == 0
    assert "--class-names" in outcome.out or verb not in ("audit", "compare", "gate")


def test_help_has_no_list_of_options_twice_where_python_keeps_docstrings_without_indentation():
    def verb(candidate: str, *, see: float | None = None, alpha: float = 0.05) -> None:
        """Say it.

        Options:
            see: Points.
        """

    for text in (verb.__doc__, inspect.cleandoc(verb.__doc__)):  # until Python 3.12, and from 3.13 on
        verb.__doc__ = text
        command = as_command(verb)
        assert command.__doc__ == "Say it."
        candidate, see, alpha = (
            one.annotation.__metadata__[0] for one in inspect.signature(command).parameters.values()
        )
        assert see.help == "Points."
        assert [candidate.show_default, see.show_default, alpha.show_default] == [False, False, True]


def test_help_names_arguments_in_capitals_as_the_pages_do(run):
    assert "CANDIDATE" in run("gate", "--help").out


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from classmargin.cli.main import main; main(['--help'])\n"
        "heavy = {'torch', 'numpy', 'pandas', 'plotly', 'scipy', 'sklearn', 'jinja2', 'lightning'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_packages(run):
    import classmargin

    assert run("--version") == (0, f"classmargin {classmargin.__version__}\n", "")


@pytest.mark.parametrize("words", [["nonsense"], ["audit"], ["audit", "x.npz", "--format", "xml"], ["gate", "x.npz"]])
def test_wrong_usage_is_bad_input(run, words):
    outcome = run(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


@pytest.fixture
def failing_verb(monkeypatch):
    def install(error):
        def fail() -> None:
            raise error

        def also() -> None:
            """A second verb, because a single one would be the command itself."""

        monkeypatch.setattr(module, "VERBS", {"fail": fail, "also": also})

    return install


@pytest.mark.parametrize("kind", [ValueError, TypeError, OSError, ImportError])
def test_errors_of_the_input_become_one_line_and_code_two(run, failing_verb, kind):
    failing_verb(kind("labels must\n be right"))
    assert run("fail") == (2, "", "classmargin: error: labels must be right\n")


def test_an_error_without_words_shows_its_type(run, failing_verb):
    failing_verb(ValueError())
    assert run("fail").err == "classmargin: error: ValueError\n"


def test_escape_sequences_in_messages_do_not_reach_the_terminal(run, failing_verb):
    failing_verb(ValueError("class \x1b[31mred"))
    assert "\x1b" not in run("fail").err


def test_debug_shows_the_traceback(run, failing_verb, monkeypatch):
    failing_verb(ValueError("broken"))
    assert "Traceback" in run("--debug", "fail").err
    monkeypatch.setenv("CLASSMARGIN_DEBUG", "1")
    outcome = run("fail")
    assert "Traceback" in outcome.err
    assert outcome.code == 2


def test_an_internal_error_has_a_code_of_its_own_and_keeps_its_traceback(run, failing_verb, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing_verb(ZeroDivisionError("a bug\x1b[31m"))
    outcome = run("fail")
    assert outcome.code == module.INTERNAL_ERROR == 70
    assert outcome.out == ""
    assert outcome.err.startswith("classmargin: internal error: ZeroDivisionError: a bug")
    assert "open an issue" in outcome.err
    assert "Traceback" not in outcome.err
    assert "\x1b" not in outcome.err
    (log,) = tmp_path.iterdir()
    assert str(log) in outcome.err
    kept = log.read_text(encoding="utf-8")
    assert "\nfail\n" in kept
    assert "Traceback" in kept
    assert "ZeroDivisionError: a bug" in kept


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("x"), AssertionError(), RecursionError(), IndexError("x")]
)
def test_no_mistake_of_the_program_is_taken_for_the_answer_of_a_gate(run, failing_verb, tmp_path, monkeypatch, error):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing_verb(error)
    assert run("fail").code == 70


def test_an_internal_error_is_told_even_when_nothing_can_be_written(run, failing_verb, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    failing_verb(ZeroDivisionError())
    outcome = run("fail")
    assert outcome.code == 70
    assert "--debug" in outcome.err


def test_memory_that_is_refused_is_no_internal_error(run, failing_verb):
    failing_verb(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert run("fail").code == 2


def test_help_lists_the_exit_codes(run):
    words = " ".join(run("--help").out.split())
    for code in ("1 the gate says no", "2 bad input", "70 an internal error"):
        assert code in words


def test_a_verb_decides_its_exit_code(run, failing_verb):
    failing_verb(typer.Exit(1))
    assert run("fail").code == 1


def test_warnings_are_one_line_each(run, monkeypatch):
    import warnings

    def warn() -> None:
        warnings.simplefilter("always")
        warnings.warn("few samples", stacklevel=1)

    def also() -> None:
        pass

    monkeypatch.setattr(module, "VERBS", {"warn": warn, "also": also})
    assert run("warn") == (0, "", "classmargin: warning: few samples\n")


def test_module_and_command_are_the_same(run_process):
    outcome = run_process("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("classmargin ")
