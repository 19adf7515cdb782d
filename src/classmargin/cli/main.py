"""The command ``classmargin``: collects the verbs and turns bad input into one clear line.

A verb is a function whose parameters are the command's (:mod:`classmargin.cli._shared`). It imports what it calls *inside* the
function, so that ``classmargin --help`` never pays for torch, pandas or plotly. Adding a verb is one line of :data:`VERBS`.
"""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from classmargin._printable import printable
from classmargin.cli import _shared as shared
from classmargin.cli.audit import audit
from classmargin.cli.compare import compare
from classmargin.cli.gate import gate, plan
from classmargin.cli.improve import demo, improve
from classmargin.cli.list_things import list_things
from classmargin.cli.reproduce import reproduce
from classmargin.cli.saved_runs import ensemble, export, predict
from classmargin.cli.sweep import sweep
from classmargin.cli.train import compare_methods, train
from classmargin.training.stopping import StoppedError

VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "audit": audit,
    "compare": compare,
    "gate": gate,
    "plan": plan,
    "improve": improve,
    "train": train,
    "compare-methods": compare_methods,
    "reproduce": reproduce,
    "sweep": sweep,
    "list": list_things,
    "predict": predict,
    "export": export,
    "ensemble": ensemble,
}

# Bad input ends with this code; 1 is left to verbs whose answer is "no" (the gate).
BAD_INPUT = 2
# A mistake of the program itself (EX_SOFTWARE of sysexits.h): a pipeline must not take it for an answer.
INTERNAL_ERROR = 70
INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done, 1 the gate says no, 2 bad input, 3 a training diverged or the gate cannot tell, 70 an internal error, "
    "128 + n stopped by signal n."
)


def build_app() -> typer.Typer:
    """Return the application with every verb of :data:`VERBS`."""
    app = typer.Typer(
        name="classmargin",
        help="Find, fix and prove: the toolkit for classifiers that leave some classes behind.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        epilog=EXIT_CODES,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, verb in VERBS.items():
        app.command(name)(shared.as_command(verb))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with words, those of the process when left out, and return its exit code (:data:`EXIT_CODES`).

    128 + n is 143 for the SIGTERM of a scheduler and 130 for Ctrl-C, with the state saved.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    session = SimpleNamespace(debug=False)
    # An encoding that lacks a letter of a class name must not end the program.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(build_app())
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command.main(args=words, prog_name="classmargin", obj=session)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except StoppedError as stopped:
        typer.echo(f"classmargin: {printable(str(stopped))}", err=True)
        return stopped.exit_code
    except Exception as error:
        if session.debug:
            traceback.print_exception(error)
        sentence, kind = printable(" ".join(str(error).split())), type(error).__name__
        # PyTorch has no type of its own for memory that was refused on the CPU.
        refused = "allocate memory" in sentence or "out of memory" in sentence
        if refused or isinstance(error, (ValueError, TypeError, OSError, ImportError, MemoryError)):
            # Some libraries raise without words; the type is then better than an empty line.
            typer.echo(f"classmargin: error: {sentence or kind}", err=True)
            return BAD_INPUT
        about = f"{kind}: {sentence[:300]}" if sentence else kind
        typer.echo(f"classmargin: internal error: {about}", err=True)
        blame = "classmargin: this is a mistake of the program, not an answer about your data."
        typer.echo(f"{blame} {_kept_traceback(error, words)}", err=True)
        return INTERNAL_ERROR
    except KeyboardInterrupt:  # before or after the verb; within it typer and the loop have their say
        return INTERRUPTED
    return 0


def _print_version(asked: bool) -> None:
    if asked:
        from classmargin import __version__

        typer.echo(f"classmargin {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CLASSMARGIN_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    context.obj.debug = debug


def _kept_traceback(error: Exception, arguments: Sequence[str]) -> str:
    """Keep for the authors what they need to know, and say where."""
    from classmargin import __version__

    text = "".join(traceback.format_exception(error))
    about = f"classmargin {__version__}, Python {platform.python_version()}, {platform.platform()}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="classmargin-error-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(f"{about}\n{shlex.join(arguments)}\n\n{text}")
    except OSError:  # a full disk may be what broke the program
        return "Its traceback could not be written; please report what --debug before the command shows."
    return (
        f"The command and its traceback are in {file.name}; please open an issue in the tracker of the project and attach "
        "that file"
    )


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(f"classmargin: warning: {printable(str(message))}", err=True)
