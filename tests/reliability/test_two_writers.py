"""One writer a run folder: a second one is told who is there, and a dead one blocks nobody."""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict

import pytest

from classmargin.cli.main import main
from classmargin.training import run_lock
from classmargin.training.run_lock import Owner, hold_lock, read_owner


def script(text: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path):
    """A living process that holds the lock of the folder."""
    process = script(f"""
        import pathlib, time
        from classmargin.training.run_lock import hold_lock
        with hold_lock(pathlib.Path({str(tmp_path / ".lock")!r})):
            print("locked", flush=True)
            time.sleep(60)
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


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path, holder):
    holder.kill()
    holder.wait()
    begin = time.monotonic()
    with hold_lock(tmp_path / ".lock"):
        assert read_owner(tmp_path / ".lock") == Owner.myself()
    assert time.monotonic() - begin < 2


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


def write_owner(folder, **changes) -> None:
    record = {**asdict(Owner.myself()), **changes}
    (folder / ".lock.owner").write_text(json.dumps(record))


def no_links(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.usefixtures("without_flock")
class TestWithoutFlock:
    def test_the_file_itself_is_the_lock_and_goes_with_it(self, tmp_path):
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock.owner") == Owner.myself()
            with pytest.raises(ValueError, match="in use by process"), hold_lock(tmp_path / ".lock"):
                pass
        assert not (tmp_path / ".lock.owner").exists()

    @pytest.mark.parametrize(
        "changes", [{"pid": dead_process}, {"started": lambda: "1"}], ids=["dead", "number used again"]
    )
    def test_the_lock_of_a_dead_process_is_taken_over(self, tmp_path, changes):
        write_owner(tmp_path, **{name: value() for name, value in changes.items()})
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock.owner") == Owner.myself()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]

    @pytest.mark.parametrize(
        "changes", [{}, {"host": "another-machine", "pid": 1}], ids=["here", "elsewhere"]
    )
    def test_an_owner_that_may_live_is_respected_and_the_way_out_is_said(self, tmp_path, changes):
        write_owner(tmp_path, **changes)
        message = r"in use by process .* If that process is gone, delete .*\.lock\.owner"
        with pytest.raises(ValueError, match=message), hold_lock(tmp_path / ".lock"):
            pass
        assert (tmp_path / ".lock.owner").exists()

    def test_a_killed_process_that_nobody_has_asked_about_counts_as_dead(self, tmp_path):
        """It keeps its number until its parent asks how it ended; in some containers nobody ever does."""
        process = script("import time; print('here', flush=True); time.sleep(60)")
        assert process.stdout.readline() == "here\n"
        started = run_lock._start_of(process.pid)
        process.kill()
        while run_lock._start_of(process.pid) == started:
            time.sleep(0.01)
        write_owner(tmp_path, pid=process.pid, started=started)
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock.owner") == Owner.myself()
        process.communicate()

    @pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
    def test_a_full_disk_leaves_no_lock_of_nobody(self, tmp_path, monkeypatch, links):
        """The file that is the lock never lies there without a name in it."""
        plain = json.dumps
        if not links:
            monkeypatch.setattr("os.link", no_links)
        broken = iter([True] if links else [False, True])

        def full(value):
            if next(broken, False):
                raise OSError(errno.ENOSPC, "No space left on device")
            return plain(value)

        monkeypatch.setattr(run_lock.json, "dumps", full)
        with pytest.raises(OSError, match="No space"), hold_lock(tmp_path / ".lock"):
            pass
        with hold_lock(tmp_path / ".lock"):
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]

    def test_without_hard_links_the_lock_works_as_well(self, tmp_path, monkeypatch):
        monkeypatch.setattr("os.link", no_links)
        with hold_lock(tmp_path / ".lock"):
            assert read_owner(tmp_path / ".lock.owner") == Owner.myself()
            with pytest.raises(ValueError, match="in use by process"), hold_lock(tmp_path / ".lock"):
                pass
        assert not (tmp_path / ".lock.owner").exists()

    def test_an_unreadable_owner_is_respected(self, tmp_path):
        (tmp_path / ".lock.owner").write_text("")
        with pytest.raises(ValueError, match="in use by another process"), hold_lock(tmp_path / ".lock"):
            pass


def test_of_many_that_take_over_a_dead_lock_only_one_holds_it_at_a_time(tmp_path):
    write_owner(tmp_path, pid=dead_process())
    text = f"""
        import errno, fcntl, os, pathlib, sys, time
        from classmargin.training.run_lock import hold_lock
        def refuse(*_): raise OSError(errno.ENOSYS, "")
        fcntl.flock = refuse
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
    answers = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(map(int, answers)) > 0


def test_an_error_of_the_disk_is_not_taken_for_another_writer(tmp_path, monkeypatch):
    import fcntl

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"), hold_lock(tmp_path / ".lock"):
        pass


def test_a_lock_inherited_by_dying_workers_is_waited_for(tmp_path, monkeypatch):
    """The owner written down is dead, the lock is still held: its forked workers need a moment to notice."""
    process = script(f"""
        import json, pathlib, time
        from classmargin.training.run_lock import hold_lock
        path = pathlib.Path({str(tmp_path / ".lock")!r})
        with hold_lock(path):
            record = json.loads(path.read_text())
            path.write_text(json.dumps({{**record, "pid": {dead_process()}}}))
            print("locked", flush=True)
            time.sleep(1)
    """)
    assert process.stdout.readline() == "locked\n"
    with hold_lock(tmp_path / ".lock"):
        pass
    process.communicate()
    assert run_lock.PATIENCE >= 10
