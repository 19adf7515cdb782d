"""Everything a running loop writes: checkpoints, log lines, failures. Every rank calls, only rank 0 writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from classmargin._distributed import gather_objects, rank
from classmargin.training.checkpoint import CheckpointStore, write_tree
from classmargin.training.config import RunConfig
from classmargin.training.metric_logs import SERVICES, Evaluation, LogFiles, Logger
from classmargin.training.process_state import capture
from classmargin.training.run_folder import RunFolder, add_session, write_json
from classmargin.training.run_progress import say


class Recorder:
    """Writer of one run folder, whose lock the caller holds; ``observers`` are told of evaluations after the files."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, class_names: tuple[str, ...], observers: Sequence[Logger] = ()
    ) -> None:
        self.folder = folder
        self._config = config
        self._class_names = class_names
        self._store = CheckpointStore(folder.checkpoint_folder, say)
        self._files = LogFiles(folder.path, class_names)
        self._observers = observers
        self._loggers: list[Logger] = []
        self._last_save = time.monotonic()

    def open(self) -> dict[str, Any] | None:
        """Return the newest whole checkpoint, cut the logs back to it and open the loggers."""
        if rank() == 0:
            self._store.repair()
        gather_objects(None)  # wait for rank 0
        found = self._store.load_newest()
        step, tree = found if found is not None else (0, None)
        steps = gather_objects(step)
        if len(set(steps)) > 1:
            raise OSError(
                f"the processes see different checkpoints (steps {steps}): the run folder must be shared by all"
            )
        if rank() == 0:
            if tree is None and self._store.paths():
                say("no checkpoint can be read; starting from the beginning")
            self._files.cut(tree["log_lengths"] if tree is not None else {})
            add_session(self.folder, self._config, None if tree is None else step)
            settings, services = self._config.to_dict(), self._config.machine.loggers
            self._loggers = [
                self._files,
                *(SERVICES[name](self.folder.path, self._class_names, settings, step) for name in services),
                *self._observers,
            ]
        gather_objects(None)
        return tree

    @property
    def save_due(self) -> bool:
        """Whether rank 0 wants a checkpoint because of the time that has passed."""
        seconds = self._config.loop.checkpoint_seconds
        return rank() == 0 and seconds > 0 and time.monotonic() - self._last_save >= seconds

    def save(self, step: int, tree: dict[str, Any]) -> None:
        """Write a checkpoint; every rank calls this. An ``OSError`` leaves the earlier ones intact."""
        states = gather_objects(capture())
        problem: OSError | None = None
        if rank() == 0:
            try:
                self._store.save(step, {**tree, "random": states, "log_lengths": self._files.lengths()})
            except OSError as error:
                problem = error
        # Every process learns how the writing went and waits for it: otherwise the others would proceed to the next step and
        # hang there, and one that leaves while rank 0 still writes makes its launcher kill rank 0.
        words = gather_objects(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        if words[0] is not None:
            raise OSError(words[0])
        self._last_save = time.monotonic()

    def log(self, evaluation: Evaluation) -> None:
        """Hand an evaluation to all loggers."""
        for logger in self._loggers:
            logger.log(evaluation)

    def save_failure(self, step: int, tree: dict[str, Any], record: dict[str, Any]) -> str:
        """Keep the state of a failed step beside the run and say where; checkpoints stay as they are."""
        target = self.folder.failure_folder / f"step-{step:08d}"
        states = gather_objects(capture())
        records = gather_objects(record)
        if rank() == 0:
            try:
                write_tree(target, {**tree, "random": states})
                write_json(target / "failure.json", {"step": step, "processes": records})
            except OSError as error:  # what went wrong first is the news
                return f"its state could not be saved ({error})"
        return f"the state is saved in {target}"

    def close(self) -> None:
        """End all loggers."""
        for logger in self._loggers:
            logger.close()
        self._loggers = []
