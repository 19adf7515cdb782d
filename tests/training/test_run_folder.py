"""Run folder: one writer, stale locks, small files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from classmargin.training.config import LoopConfig, RunConfig
from classmargin.training.run_folder import RunFolder, add_session, git_state


def holder(folder) -> subprocess.Popen:
    script = f"""
        import sys
        from classmargin.training.run_folder import RunFolder
        with RunFolder({str(folder)!r}).lock():
            print("locked", flush=True)
            sys.stdin.read()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], text=True, **pipes)
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_second_writer_is_refused_and_a_killed_ones_lock_is_free(tmp_path):
    process = holder(tmp_path)
    try:
        with pytest.raises(ValueError, match=f"in use by process {process.pid}"), RunFolder(tmp_path).lock():
            pass
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    with RunFolder(tmp_path).lock():
        assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()}\n")


def test_the_lock_is_free_after_an_error_inside(tmp_path):
    with pytest.raises(RuntimeError, match="inside"), RunFolder(tmp_path).lock():
        raise RuntimeError("inside")
    with RunFolder(tmp_path).lock():
        pass


def test_configuration_reads_back_and_other_folders_are_refused(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ValueError, match="is not a run folder"):
        folder.read_config()
    folder.write_config(RunConfig(loop=LoopConfig(epochs=4)))
    assert folder.read_config().loop.epochs == 4
    assert folder.started
    assert not folder.done
    folder.mark_done({"a": 1})
    assert folder.done


def test_every_start_is_recorded_with_versions_and_git_state(tmp_path):
    folder = RunFolder(tmp_path)
    add_session(folder, RunConfig(), None)
    add_session(folder, RunConfig(), 12)
    record = json.loads(folder.record_file.read_text())
    assert [session["resumed_from_step"] for session in record["sessions"]] == [None, 12]
    assert {"python", "torch", "classmargin", "lightning"} <= set(record["sessions"][0]["versions"])
    assert record["seed"] == 0


def test_git_state_names_the_commit_and_whether_files_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_state() is None
    run = lambda *words: subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=b", *words], check=True, capture_output=True
    )
    run("init", "-q")
    assert git_state() is None, "nothing is committed yet"
    (tmp_path / "file").write_text("1")
    run("add", "file")
    run("commit", "-q", "-m", "first")
    state = git_state()
    assert len(state["commit"]) == 40
    assert state["modified"] is False
    (tmp_path / "file").write_text("2")
    assert git_state()["modified"] is True
