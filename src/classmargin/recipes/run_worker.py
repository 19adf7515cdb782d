"""The worker program of the runner: trains one run after another; ``python -m classmargin.recipes.run_worker``.

Messages are JSON lines: in ``{"run": task}`` and ``{"may_go_on": true}``, out ``{"evaluation": {"epoch": 3, "accuracies": {…}}}``
and ``{"ended": {"kind": "finished"}}``. When its input ends while it trains, its parent is gone: it saves and ends. Other ranks of
a run of several devices are started by Fabric as the same program and find their task in an environment variable.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from classmargin.training.metric_logs import Evaluation
from classmargin.training.run_folder import RunFolder

PATIENCE_SECONDS = 60.0
TASK_VARIABLE = "CLASSMARGIN_TASK"
Judge = Callable[[int, Mapping[str, float]], bool]


class FellBehindError(RuntimeError):
    """The run was stopped because others are better at the same epoch."""


def train_task(task: Mapping[str, Any], judge: Judge) -> dict[str, Any]:
    """Train a run (:meth:`PlannedRun.task`) and return how it ended, as the fields of :class:`Ending` of the runner."""
    from classmargin.recipes.train_run import train
    from classmargin.training.config_reader import build
    from classmargin.training.stopping import DivergedError, StoppedError

    config, observers = build(task["config"]), list[Any]()
    # Several processes must end together, and only the first of them could be told.
    if task["judged"] and config.machine.devices * config.machine.nodes == 1:

        def ask(evaluation: Evaluation) -> None:
            if not judge(evaluation.epoch, dict(evaluation.scalars)):
                raise FellBehindError(f"worse than the others after epoch {evaluation.epoch}")

        observers.append(SimpleNamespace(log=ask, close=lambda: None))
    try:
        if task.get("wait"):
            _wait_for_folder(RunFolder(task["folder"]))
        options = {name: task[name] for name in ("test", "watch_spread", "notices", "validation")}
        summary = train(config, task["folder"], resume=True, show=False, observers=observers, **options)
    except FellBehindError as error:
        return {"kind": "fell_behind", "words": str(error)}
    except StoppedError:
        raise
    except Exception as error:  # whoever planned the run decides what a failure means
        refused = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        kind = "diverged" if isinstance(error, DivergedError) else "unwritable" if refused else "failed"
        return {"kind": kind, "words": f"{type(error).__name__}: {error}"}
    return {"kind": "finished", "selected_epoch": summary.get("selected_epoch")}


def _wait_for_folder(folder: RunFolder) -> None:
    """Wait for a while until nobody holds the right to write in a run folder."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            with folder.lock():
                return
        except ValueError:
            time.sleep(0.2)


class _Inbox:
    """Messages from standard input, told apart as they come."""

    def __init__(self) -> None:
        self.tasks: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers: queue.Queue[bool] = queue.Queue()
        self._training, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "run" in message:
                self.tasks.put(message["run"])
            else:
                self._answers.put(message["may_go_on"])
        self._closed.set()
        self.tasks.put(None)
        self._answers.put(True)  # nobody answers any more; the signal below ends the run at its next step
        if self._training.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def end_task(self) -> None:
        self._training.clear()  # before the answer: a parent that closes the input then has no need to stop anything

    def next_task(self) -> dict[str, Any] | None:
        task = self.tasks.get()
        self._training.set()
        return None if self._closed.is_set() else task

    def answer(self) -> bool:
        return True if self._closed.is_set() else self._answers.get()


def main() -> int:
    """Serve runs until the input ends."""
    from classmargin.recipes.train_run import exit_code_of_rank, is_helper_process
    from classmargin.training.stopping import StoppedError

    try:
        if is_helper_process():
            train_task(json.loads(os.environ[TASK_VARIABLE]), lambda *_: True)
        else:
            _serve()
    except StoppedError as stopped:
        return exit_code_of_rank(stopped.exit_code)
    return 0


def _serve() -> None:
    # Replies go through a private copy of standard output: a library that prints must not break the protocol.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    def judge(epoch: int, accuracies: Mapping[str, float]) -> bool:
        reply({"evaluation": {"epoch": epoch, "accuracies": dict(accuracies)}})
        return inbox.answer()

    inbox = _Inbox()
    while (task := inbox.next_task()) is not None:
        os.environ[TASK_VARIABLE] = json.dumps(task)
        ended = train_task(task, judge)
        inbox.end_task()
        reply({"ended": ended})
        if task["config"]["machine"]["devices"] > 1:
            return


if __name__ == "__main__":
    sys.exit(main())
