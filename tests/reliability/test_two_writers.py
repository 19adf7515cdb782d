"""One writer per run folder: a second one is told who is there, and a dead one blocks nobody."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import textwrap

import pytest

from classmargin.cli.main import main
from classmargin.training import run_folder
from classmargin.training.run_folder import Owner, hold_lock, read_owner

MYSELF = Owner(os.getpid(), platform.node())


def script(text: str) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], text=True, **pipes)


@pytest.fixture
def holder(tmp_path):
    """A living process that holds the lock of the folder."""
    process = script(f"""
        import pathlib, sys
        from classmargin.training.run_folder import hold_lock
        with hold_lock(pathlib.Path({str(tmp_path / ".lock")!r})):
            print("locked", flush=True)
            sys.stdin.read()
    """)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_train_command_stops_with_code_2_and_names_the_first(tmp_path, holder, capsys):
    from soak.tiny_task import train_words, write_features

    data = write_features(tmp_path / "features.npz")
    (tmp_path / "features.npz").rename(data := tmp_path.parent / f"{tmp_path.name}.npz")
    assert main(train_words(data, "erm", tmp_path)) == 2
    error = capsys.readouterr().err
    assert f"in use by process {holder.pid} on {platform.node()}" in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"], "the second one wrote nothing"


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path, holder, monkeypatch):
    holder.kill()
    holder.wait()
    monkeypatch.setattr(run_folder, "PATIENCE", 0)  # nothing has to be waited for
    with hold_lock(tmp_path / ".lock"):
        assert read_owner(tmp_path / ".lock") == MYSELF


def test_whoever_gets_the_lock_clears_away_what_a_killed_writer_left(tmp_path):
    from classmargin.training.run_folder import RunFolder

    (tmp_path / ".done.part-abc").write_text("hal")
    (tmp_path / ".gitignore").write_text("*")
    with RunFolder(tmp_path).lock():
        assert not (tmp_path / ".done.part-abc").exists()
    assert (tmp_path / ".gitignore").exists()


@pytest.fixture
def without_flock(monkeypatch):
    """A file system that has no flock, as some network ones."""
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("without_flock")
@pytest.mark.filterwarnings("ignore:flock not supported")
class TestWithoutFlock:
    def test_the_file_itself_is_the_lock_and_goes_with_it(self, tmp_path):
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock") == MYSELF
            with pytest.raises(ValueError, match="in use by process"), hold_lock(tmp_path / ".lock"):
                pass
        assert not (tmp_path / ".lock").exists()

    def test_the_lock_of_a_dead_process_is_taken_over(self, tmp_path):
        (tmp_path / ".lock").write_text(f"{dead_process()}\n{platform.node()}\n")
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock") == MYSELF

    def test_an_owner_on_another_machine_is_respected_and_the_way_out_is_told(self, tmp_path):
        (tmp_path / ".lock").write_text("1\nanother-machine\n")
        message = r"in use by process 1 on another-machine; .* If that process is gone, delete .*\.lock"
        with pytest.raises(ValueError, match=message), hold_lock(tmp_path / ".lock"):
            pass
        assert (tmp_path / ".lock").exists()


def test_of_many_that_take_over_a_dead_lock_only_one_holds_it_at_a_time(tmp_path):
    (tmp_path / ".lock").write_text(f"{dead_process()}\n{platform.node()}\n")
    text = f"""
        import errno, fcntl, os, pathlib, sys, time, warnings
        from classmargin.training.run_folder import hold_lock
        def refuse(*_): raise OSError(errno.ENOSYS, "")
        fcntl.flock = refuse
        warnings.simplefilter("ignore")
        folder = pathlib.Path({str(tmp_path)!r})
        held = 0
        for _ in range(40):
            try:
                with hold_lock(folder / ".lock"):
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))  # fails if two are inside
                    time.sleep(0.001)
                    os.unlink(folder / "inside")
                    held += 1
            except ValueError:
                time.sleep(0.001)
        print(held)
    """
    processes = [script(text) for _ in range(3)]
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(map(int, answers)) > 0


def test_an_error_of_the_disk_is_not_taken_for_another_writer(tmp_path, monkeypatch):
    import fcntl

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"), hold_lock(tmp_path / ".lock"):
        pass


def test_the_lock_of_a_killed_process_is_free_although_its_workers_live_on(tmp_path, wait_until):
    """A forked worker inherits the open file of the lock, and needs some seconds to notice that its parent is gone."""
    process = script(f"""
        import os, pathlib, sys, time
        from classmargin.training.run_folder import hold_lock
        with hold_lock(pathlib.Path({str(tmp_path / ".lock")!r})):
            if os.fork() == 0:
                sys.stdin.read()
                os._exit(0)
            print("locked", flush=True)
            time.sleep(600)
    """)
    assert process.stdout.readline() == "locked\n"
    process.kill()
    process.wait()
    with hold_lock(tmp_path / ".lock"):
        assert read_owner(tmp_path / ".lock") == MYSELF
    process.communicate()


def test_a_lock_that_nobody_lets_go_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "PATIENCE", 0.01)
    with hold_lock(tmp_path / ".lock"):
        (tmp_path / ".lock").write_text(f"{dead_process()}\n{platform.node()}\n")
        with pytest.raises(ValueError, match="in use by process"), hold_lock(tmp_path / ".lock"):
            pass
