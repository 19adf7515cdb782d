"""One run from its folder's point of view: begin, resume, or leave alone what is finished; and what it left there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from classmargin._distributed import is_distributed, rank
from classmargin._files import LONG_FILE, read_json, read_text
from classmargin._progress import progress
from classmargin.data.bundle import Split
from classmargin.recipes.run_parts import RunParts, build_run, effective, write_record
from classmargin.training import devices
from classmargin.training.config import RunConfig, identity
from classmargin.training.config_reader import differences, replace_machine
from classmargin.training.evaluate import Arrays, finish_run, predict_arrays, write_predictions
from classmargin.training.loop import Loop
from classmargin.training.metric_logs import Logger, send_run_report
from classmargin.training.recorder import Recorder
from classmargin.training.run_folder import RunFolder, recorded_numerics
from classmargin.training.run_progress import Watchers, say, say_once

VALIDATION_FILE = "validation.npz"
# Accuracies that every evaluation logs.
METRICS = ("overall", "easy", "medium", "hard", "worst")


def default_folder(config: RunConfig, parent: str | Path = "runs") -> Path:
    """Return the folder of a run: its names for people and its identity for certainty."""
    words = [Path(config.data.name).stem, config.backbone.name, config.method.name, f"seed{config.loop.seed}"]
    readable = "-".join("".join(c if c.isalnum() or c in "-_." else "_" for c in word) for word in words)
    # File systems take names of 255 bytes; the identity at the end tells runs apart.
    short = readable.encode("utf-8", "replace")[:180].decode("utf-8", "ignore")
    return Path(parent) / f"{short}-{identity(effective(config))}"


def train(
    config: RunConfig,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    show: bool | None = None,
    test: bool = True,
    observers: Sequence[Logger] = (),
    watch_spread: bool = False,
    notices: bool = True,
    validation: bool = False,
) -> dict[str, Any]:
    """Train a run to its end and return its summary (accuracies on the test set under ``test``).

    Without ``resume`` a folder in use is refused. Without ``test`` the run stops with its last checkpoint and is not marked as
    done. Observers are told about each evaluation on validation; ``watch_spread`` notes the spread of every class then.
    ``validation`` also writes the predictions on validation (:data:`VALIDATION_FILE`). ``show`` forces the progress bar on or off.
    """
    run, helper = RunFolder(folder), is_helper_process()
    config = effective(_as_begun(config, run))
    if not helper:
        _check_folder(run, config, resume)
    if run.done:
        say(f"{run.path} is finished; nothing to do")
        return read_summary(run)
    # Before other processes are started: a second writer is told so by one line, not by several processes.
    lock = contextlib.nullcontext() if helper else _locked(run, made_here=not run.path.exists())
    with lock, devices.using_threads(config.machine.threads):
        if not helper:
            _check_folder(run, config, resume)  # again: another process may have been here before the lock
            if run.done:
                return read_summary(run)
            if config.machine.devices > 1:
                build_run(config)  # bad input must show before other processes are started
        with devices.started(config) as fabric:
            begin = time.perf_counter()
            session = build_run(config)
            for note in session.bundle.notes if notices else ():
                say_once(note)
            if watch_spread:
                from classmargin.recipes.class_measures import SpreadLog

                observers = [*observers, SpreadLog(run, session)]
            loop = _loop_of(session, run, fabric, show, observers)
            network = loop.run()
            summary = {
                "identity": identity(config),
                "steps": loop.position.global_step,
                "selected_epoch": loop.weights.best_epoch,
            }
            shown = show if rank() == 0 else False
            if validation:
                arrays = _arrays_of("validation", session, loop, network, fabric, shown)
                if rank() == 0:
                    write_predictions(run.path / VALIDATION_FILE, arrays)
            if test:
                arrays = _arrays_of("test", session, loop, network, fabric, shown)
                summary["seconds"] = round(time.perf_counter() - begin, 3)
                _finish(session, run, arrays, summary)
            if is_distributed():
                dist.barrier()
            return read_summary(run) if test else summary


def _as_begun(config: RunConfig, run: RunFolder) -> RunConfig:
    """Take what the settings leave open from the run that is there: it must keep rounding as it began."""
    if not run.started:
        return config
    began, machine, precision = run.read_config(), config.machine, config.loop.precision
    if precision in ("auto", "default"):
        precision = began.loop.precision
    layout = began.machine.memory_format if machine.memory_format == "auto" else machine.memory_format
    threads = machine.threads or began.machine.threads
    config = replace_machine(config, threads=threads, memory_format=layout)
    return replace(config, loop=replace(config.loop, precision=precision))


@contextlib.contextmanager
def _locked(run: RunFolder, *, made_here: bool) -> Iterator[None]:
    """Hold the right to write; bad input found before the run began leaves no folder that was not there."""
    with run.lock():
        try:
            yield
        except Exception:
            if made_here:
                run.remove_unbegun()
            raise


def is_helper_process() -> bool:
    """Whether this process was started to be another rank of a run that rank 0 has checked already."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    return any(int(os.environ.get(name, "0")) > 0 for name in names)


def exit_code_of_rank(code: int) -> int:
    """Return the exit code of this process for a run that ends with ``code``.

    Lightning's launcher kills rank 0 when a helper ends with another code than 0; other launchers look at every rank.
    """
    external = any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_PROCID"))
    return 0 if is_helper_process() and not external else code


def _check_folder(run: RunFolder, config: RunConfig, resume: bool) -> None:
    there = next((path for path in (run.path, *run.path.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ValueError(f"--out must be a folder, got {str(run.path)!r}, and {str(there)!r} is a file")
    if not run.started:
        if run.path.exists() and any(run.path.iterdir()) and not (run.path / ".lock").exists():
            raise ValueError(f"{run.path} exists and is not a run folder; choose another --out")
        return
    changed = differences(run.read_config(), config)
    if changed:
        raise ValueError(f"{run.path} holds a run with another configuration ({'; '.join(changed)})")
    if not resume:
        words = "a finished run;" if run.done else "an unfinished run; add --resume or"
        raise ValueError(f"{run.path} holds {words} choose another --out")


def _loop_of(session: RunParts, run: RunFolder, fabric: Any, show: bool | None, observers: Sequence[Logger]) -> Loop:
    """Return the loop, ready to run; the run has begun then: its settings are in its folder."""
    config = session.config
    here = devices.device_kind(config.machine.accelerator)
    before = {numerics["device"] for numerics in recorded_numerics(run)} - {here}
    if before:
        begun = ", ".join(sorted(before))
        say(f"the run was begun on {begun} and resumes on {here}: it will not end bit-identical")
    devices.apply_memory_format(session.network, config.machine.memory_format)
    recorder = Recorder(run, config, tuple(session.bundle.class_names), observers)
    title = f"{config.method.name} seed {config.loop.seed}"
    watchers = Watchers(run.progress_file, title, show=show) if rank() == 0 else Watchers()
    loop = Loop(config, session.ingredients(), fabric, recorder, watchers)
    if rank() == 0 and not run.started:  # only now: bad settings that the loop finds begin no run
        write_record(run, session.record)
        run.write_config(config)
    return loop


def _arrays_of(part: str, session: RunParts, loop: Loop, network: nn.Module, fabric: Any, show: bool | None) -> Arrays:
    loader = session.loaders.evaluation(part)
    assert loader is not None, f"the caller knows that there are {part} samples"
    batches = progress(loop.batches(loader), f"{part} set", total=len(loader), show=show)
    return predict_arrays(network, session.method, batches, tuple(session.bundle.class_names), fabric)


def _finish(session: RunParts, run: RunFolder, arrays: Arrays, summary: dict[str, Any]) -> None:
    """Audit the answers on the test set, and give the report to the trackers the run logged to."""
    machine, options = session.config.machine, session.config.method.options
    finish_run(
        run,
        arrays,
        report=machine.report,
        summary=summary,
        norm_order=float(options.get("norm_order", 2.0)),  # margins as the method gave them
        images=pictures_of(session.bundle.test, arrays["sample_id"]) if machine.report else None,
    )
    if rank() == 0 and machine.loggers and run.report_file.exists():
        send_run_report(machine.loggers, run.path, run.report_file, say)


def pictures_of(split: Split, sample_id: np.ndarray[Any, Any]) -> Any:
    """Return the pictures of samples of a split in the order of ``sample_id``, or ``None`` where they are no pictures."""
    order = np.argsort(split.index.numpy(), kind="stable")
    rows = order[np.searchsorted(split.index.numpy()[order], sample_id)]
    if split.images is not None:
        return split.images.take(rows)
    if split.inputs is None or split.inputs.dim() != 4:
        return None
    return split.inputs.numpy()[rows]


# What a run left in its folder


def read_summary(run: RunFolder) -> dict[str, Any]:
    """Return the summary of a finished run; an accuracy that nothing was measured for is NaN."""
    try:
        summary: dict[str, Any] = read_json(run.done_file)
        test = {name: math.nan if value is None else float(value) for name, value in summary["test"].items()}
        return {**summary, "steps": int(summary["steps"]), "test": test}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        words = f"{run.done_file} is damaged ({type(error).__name__}: {error})"
        raise ValueError(f"{words}; delete it and give the same command again, which tests the run anew") from error


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the last record of a run's progress, or None while there is none."""
    try:
        record = read_json(path)
        return {name: record[name] for name in ("total", "done", "words")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def validation_accuracies(folder: str | Path, epoch: int | None = None) -> dict[str, float]:
    """Return the accuracies on validation that a run logged, at an epoch or last of all; a run without any is refused."""
    kept = [record for record in read_evaluations(folder) if epoch is None or record.get("epoch") == epoch]
    if not kept or kept[-1].get("overall") is None:
        raise ValueError(f"{folder} has no evaluation on validation samples to choose by")
    return {metric: kept[-1][metric] for metric in METRICS if kept[-1].get(metric) is not None}


def read_evaluations(folder: str | Path) -> list[dict[str, Any]]:
    """Return every evaluation that a run logged (``metrics.jsonl``)."""
    file = RunFolder(folder).metrics_file
    return list(read_json_lines(file)) if file.exists() else []


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole record of a file of JSON lines; a killed writer may leave half a line, and notes it again."""
    for line in read_text(path, max_bytes=LONG_FILE, errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
