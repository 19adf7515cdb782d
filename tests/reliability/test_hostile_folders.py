"""Small files of run folders, damaged or written by somebody else; links that lead out; names on the terminal."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import platform
import shutil
from pathlib import Path

import hostile
import numpy as np
import pytest
from hostile import harmless, hostile_bytes, little_memory, long, quick
from hypothesis import given
from hypothesis import strategies as st
from soak.tiny_task import train_words, write_features

from classmargin.cli.main import main
from classmargin.recipes.class_measures import read_audit_part, read_spreads
from classmargin.recipes.record import read_record
from classmargin.recipes.record_pages import render_records
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_parts import read_record as read_model_record
from classmargin.recipes.train_run import (
    default_folder,
    read_progress,
    read_summary,
    train,
    validation_accuracies,
)
from classmargin.training.config import DataConfig, RunConfig
from classmargin.training.metric_logs import LogFiles, safe_cell
from classmargin.training.run_folder import RunFolder, add_session, hold_lock, read_owner, write_json
from classmargin.training.run_progress import Watchers, words_of

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = [path for path in sorted(RESULTS.rglob("*.json")) if '"classmargin-record"' in path.read_text("utf-8")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one epoch in which one class has no test sample, so that some accuracies are no numbers."""
    folder = tmp_path_factory.mktemp("finished")
    data = write_features(folder / "features.npz")
    with np.load(data) as arrays:
        content = dict(arrays)
    kept = content["y_test"] != 4
    content |= {"x_test": content["x_test"][kept], "y_test": content["y_test"][kept]}
    np.savez(data, **content)
    words = train_words(data, "erm", folder / "run", epochs=1, extra=("data.allow_absent=true",))
    assert main(words) == 0
    return folder / "run"


# Strict JSON


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("name", ["done", "audit.json", "run.json", "model.json", "progress.json"])
def test_every_small_file_of_a_run_is_strict_json(finished, name):
    json.loads((finished / name).read_text(encoding="utf-8"), parse_constant=refuse_constant)
    for line in (finished / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse_constant)


def test_numbers_that_are_none_become_null_and_come_back_as_no_number(tmp_path):
    run = RunFolder(tmp_path)
    write_json(tmp_path / "done", {"steps": 3, "test": {"overall": 0.5, "hard": float("nan")}})
    assert "null" in (tmp_path / "done").read_text(encoding="utf-8")
    summary = read_summary(run)
    assert summary["test"]["overall"] == 0.5
    assert np.isnan(summary["test"]["hard"])


# Damaged small files

GOOD = {
    "done": json.dumps({"identity": "x", "steps": 3, "seconds": 1.5, "test": {"overall": 0.5, "hard": None}}),
    "run.json": json.dumps({"identity": "x", "seed": 0, "sessions": [{"resumed_from_step": None}]}),
    "audit.json": json.dumps({"by_class": [{"accuracy": 0.5}], "geometry": {"output_margin": None}}),
    "progress.json": json.dumps({"done": 3, "total": 5, "words": "epoch 1/2"}),
    "metrics.jsonl": json.dumps({"epoch": 1, "step": 3, "overall": 0.5, "hard": 0.25}) + "\n",
    "spread.jsonl": json.dumps({"epoch": 1, "spread": [0.5, None]}) + "\n",
    ".lock": f"{os.getpid()}\n{platform.node()}\n",
}
READERS = {
    "done": lambda folder: read_summary(RunFolder(folder)),
    "run.json": lambda folder: add_session(RunFolder(folder), RunConfig(), 3),
    "audit.json": lambda folder: read_audit_part(RunFolder(folder), "by_class"),
    "progress.json": lambda folder: read_progress(folder / "progress.json"),
    "metrics.jsonl": validation_accuracies,
    "spread.jsonl": lambda folder: read_spreads(RunFolder(folder)),
    ".lock": lambda folder: (owner := read_owner(folder / ".lock")) and (owner.is_dead, str(owner)),
}
TOWERS = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 10_000,
    b"null",
    b"[]",
    b"{}",
    b"1e999",
    b"\xff\xfe{",
    b"",
]


def read_small(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with little_memory(), harmless(name):
        READERS[name](folder)


@pytest.mark.parametrize("name", GOOD)
def test_good_small_files_are_read(name, tmp_path):
    (tmp_path / name).write_text(GOOD[name], encoding="utf-8")
    READERS[name](tmp_path)


@pytest.mark.parametrize("name", GOOD)
def test_towers_and_other_values_in_small_files_end_in_words(name, tmp_path):
    for content in TOWERS:
        read_small(tmp_path, name, content)


@pytest.mark.parametrize("name", GOOD)
@quick(20)
@given(data=st.data())
def test_damaged_small_files_end_in_words(name, tmp_path, data):
    read_small(tmp_path, name, data.draw(hostile_bytes(GOOD[name].encode())))


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
@long(400)
@given(data=st.data())
def test_many_damaged_small_files_end_in_words(name, tmp_path, data):
    read_small(tmp_path, name, data.draw(hostile_bytes(GOOD[name].encode())))


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


@quick(40)
@given(pid=values, host=values)
def test_an_owner_of_any_kind_is_judged_without_harm(tmp_path, pid, host):
    read_small(tmp_path, ".lock", f"{pid}\n{host}\n".encode("utf-8", "replace"))


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70])
def test_a_number_that_no_process_has_signals_nobody(tmp_path, pid, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda number, signal: pytest.fail(f"signalled {number}") if number < 1 else None)
    (tmp_path / "owner").write_text(f"{pid}\n{platform.node()}\n", encoding="utf-8")
    owner = read_owner(tmp_path / "owner")
    assert owner is None if pid < 1 else owner.pid == pid and not owner.is_dead


@pytest.mark.skipif(not RECORDS, reason="no published record in results/")
class TestRecords:
    def test_a_published_record_is_rendered(self):
        assert render_records(RECORDS[:1]).startswith("## ")

    @quick(15)
    @given(data=st.data())
    def test_damaged_records_end_in_words(self, tmp_path, data):
        content = data.draw(hostile_bytes(RECORDS[0].read_bytes()))
        (tmp_path / "record.json").write_bytes(content)
        with little_memory(), harmless("record.json"):
            render_records([tmp_path])

    @quick(30)
    @given(data=st.data())
    def test_records_with_a_value_of_another_kind_end_in_words(self, tmp_path, data):
        tree = json.loads(RECORDS[0].read_text(encoding="utf-8"))
        replace_one(tree, data)
        (tmp_path / "record.json").write_text(json.dumps(tree), encoding="utf-8")
        with little_memory(), harmless("record.json"):
            render_records([tmp_path])

    def test_a_tower_is_no_record(self, tmp_path):
        (tmp_path / "record.json").write_bytes(b"[" * 100_000)
        with pytest.raises(ValueError, match="is not a record"):
            read_record(tmp_path)

    def test_control_characters_and_html_of_a_record_reach_nobody(self, tmp_path):
        tree = json.loads(RECORDS[0].read_text(encoding="utf-8"))
        tree |= {"question": "<script>alert(1)</script>\x1b[31m", "command": "x` <b>\x1b[2J"}
        (tmp_path / "record.json").write_text(json.dumps(tree), encoding="utf-8")
        shown = render_records([tmp_path])
        assert "<script>" not in shown
        assert "\x1b" not in shown
        assert "`x? <b>" in shown, "a code span shows it as it is, and cannot be left"


def replace_one(tree, data) -> None:
    """Replace one value somewhere in a nest of dictionaries and lists."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(tree[key], (dict, list)) and tree[key] and data.draw(st.booleans()):
            tree = tree[key]
        else:
            tree[key] = data.draw(values)
            return


# Commands on them: one line, code 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"steps": 1, "test": []}', b"NaN", b"[" * 100_000])
def test_a_damaged_mark_of_a_finished_run_says_one_line(finished, tmp_path, content, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "done").write_bytes(content)
    capsys.readouterr()
    hostile.counted["command line"] += 1
    assert main(["train", "--out", str(run), "--resume"]) == 2
    errors = capsys.readouterr().err
    assert "done is damaged" in errors
    assert "Traceback" not in errors


def test_after_deleting_a_damaged_mark_the_run_is_tested_anew(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = (run / "predictions.npz").read_bytes()
    (run / "done").unlink()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    with np.load(io.BytesIO(before)) as old, np.load(run / "predictions.npz") as new:
        assert all(np.array_equal(old[name], new[name]) for name in old.files)


# Links and names that would lead out


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "metrics.csv", "class_accuracy.csv"])
def test_a_link_in_a_run_folder_leads_nobody_out_of_it(finished, tmp_path, name, capsys):
    """A run folder of somebody else whose log is a link to a file of mine: going on must not cut or fill that."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(finished, run)
    (run / "done").unlink()
    (run / name).unlink()
    precious.write_text("mine")
    (run / name).symlink_to(precious)
    hostile.counted["names"] += 1
    assert main(["train", "--out", str(run), "--resume"]) == 2
    assert f"{name} is a link" in capsys.readouterr().err
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["done", "predictions.npz", "audit.json", "run.json"])
def test_a_link_in_place_of_a_result_is_replaced_and_not_followed(finished, tmp_path, name):
    run, precious = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(finished, run)
    content = (run / name).read_bytes()
    (run / "done").unlink()
    (run / name).unlink(missing_ok=True)
    precious.write_bytes(b"" if name == "done" else content)
    if name == "done":  # one that leads nowhere: the run is not finished
        precious.unlink()
    (run / name).symlink_to(precious)
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert not (run / name).is_symlink()
    assert not precious.exists() if name == "done" else precious.read_bytes() == content


def test_a_run_folder_may_itself_be_a_link_and_both_names_share_one_lock(finished, tmp_path, capsys):
    run = tmp_path / "real"
    shutil.copytree(finished, run)
    (run / "done").unlink()
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    with hold_lock(run / ".lock"):
        assert main(["train", "--out", str(tmp_path / "link"), "--resume"]) == 2
    assert "in use by process" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "link"), "--resume"]) == 0
    assert (run / "done").exists()
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\ud800"])
def test_a_run_folder_that_no_file_system_takes_says_one_line(tmp_path, name, capsys):
    data = write_features(tmp_path / "features.npz")
    words = train_words(data, "erm", tmp_path / "run", epochs=1)
    words[words.index("--out") + 1] = str(tmp_path / name)
    hostile.counted["names"] += 1
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "error" in errors.lower()
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "features.npz"


def test_names_of_any_length_make_a_folder_name_that_fits():
    for name in ("犬" * 250, "a" * 5000, "\0", "\x1b[31m", "..", "a/../../b"):
        folder = default_folder(RunConfig(data=DataConfig(name=name)), "runs")
        assert len(folder.name.encode()) <= 255
        assert folder.parent == Path("runs")
        assert folder.name.isprintable()


# What a spreadsheet would compute


@pytest.mark.parametrize(
    "name",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "  =1",
        "\t=1",
        "\r=1",
        "\ufeff=1",
        "\u200b=1",
        "＝1",
        "－1",
        "a;=1",
        "a\t@x",
    ],
)
def test_no_cell_of_any_table_begins_like_a_formula(name):
    hostile.counted["CSV cells"] += 1
    text = io.StringIO()
    csv.writer(text).writerow([safe_cell(name)])
    for separator in ",;\t":
        for row in csv.reader(io.StringIO(text.getvalue()), delimiter=separator):
            for cell in row:
                start = cell.lstrip("\"' \t\r\n\ufeff\u200b\0") if not cell.lstrip('"').startswith("'") else ""
                assert not start.startswith(tuple("=+-@＝＋－＠")), cell


@pytest.mark.parametrize("name", ["t-shirt", "a+b", "me@home", "5=5", "犬"])
def test_ordinary_names_stay_as_they_are(name):
    assert safe_cell(name) == name


# What a terminal would obey

NASTY = "[/b][red]\x1b[2J\x07\u202ecat\n[link=http://x]"


def test_a_class_called_like_markup_neither_breaks_nor_colours_the_bar(monkeypatch):
    from rich.console import Console

    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=shown, force_terminal=True, width=200))
    bar = Watchers(title=NASTY.replace("\x1b", "").replace("\x07", ""), show=True)
    bar.start(10, 0)
    bar.advance(5, words_of(0, 2, {"loss": 0.5}, {"worst": 0.25, "class": NASTY}))
    bar.close()
    assert "[/b][red]" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()
    assert "\x07" not in shown.getvalue()


def test_the_words_of_the_progress_hold_one_line_without_control_characters():
    words = words_of(0, 2, {"loss": 0.5}, {"class": NASTY})
    assert words.isprintable()


def test_lines_and_warnings_on_standard_error_hold_no_control_characters(capsys, monkeypatch):
    import warnings

    from classmargin.cli import main as module
    from classmargin.training.run_progress import say

    def warns() -> None:
        warnings.simplefilter("always")
        warnings.warn(f"class {NASTY}", stacklevel=1)
        say(f"class {NASTY}")
        raise ValueError(f"class {NASTY}")

    monkeypatch.setitem(module.VERBS, "audit", warns)
    assert main(["audit"]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 3
    assert all(line.isprintable() for line in errors.splitlines())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
    ids=["python", "cpu", "gpu"],
)
def test_memory_that_is_refused_is_one_line(error, capsys, monkeypatch):
    from classmargin.cli import main as module

    def asks() -> None:
        raise error

    monkeypatch.setitem(module.VERBS, "audit", asks)
    assert main(["audit"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("classmargin: error: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("shape", [[10**12], [3, 10**6, 10**6], [0], [-1, 4]])
def test_a_record_of_inputs_beyond_all_reason_builds_no_network(finished, tmp_path, shape):
    record = json.loads((finished / "model.json").read_text(encoding="utf-8"))
    (tmp_path / "model.json").write_text(json.dumps({**record, "input_shape": shape}), encoding="utf-8")
    hostile.counted["model.json"] += 1
    with pytest.raises(ValueError, match="input_shape must hold"):
        read_model_record(RunFolder(tmp_path))


# Disks that refuse


def test_a_full_disk_under_the_log_is_told_with_the_name_of_the_file(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*metrics\.jsonl"):
        LogFiles(tmp_path, []).append("metrics.jsonl", "{}\n" * 10_000)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_run_folder_that_cannot_be_written_says_one_line(finished, tmp_path, number, capsys, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "done").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    plain = os.open

    def refused(path, flags, *arguments, **options):
        if str(path).startswith(str(run)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    assert main(["train", "--out", str(run), "--resume"]) == 2
    errors = capsys.readouterr().err
    assert os.strerror(number) in errors
    assert str(run) in errors
    assert "Traceback" not in errors
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_is_read_from_a_disk_that_cannot_be_written(finished, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    plain = os.open

    def refused(path, flags, *arguments, **options):
        if str(path).startswith(str(run)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    data = str(finished.parent / "features.npz")
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert main(["audit", str(run)]) == 0
    assert main(["predict", str(run), data, "--out", str(tmp_path / "out.npz")]) == 0


def test_a_checkpoint_of_another_network_is_refused_by_name(finished, tmp_path, capsys):
    """Two runs whose checkpoint folders were exchanged: the shapes do not fit, and nothing is lost."""
    data = finished.parent / "features.npz"
    words = train_words(data, "erm", tmp_path / "run", epochs=2, extra=("data.allow_absent=true", "backbone.hidden=24"))
    assert main(words) == 0
    (tmp_path / "run" / "done").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    shutil.copytree(finished / "checkpoint", tmp_path / "run" / "checkpoint")
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    capsys.readouterr()
    assert main(words) == 2
    assert "the checkpoint does not fit the network" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir()) == before


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    """Time of day serves notes only; what decides is counted from the start of the machine."""
    import time

    moments = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    data = write_features(tmp_path / "features.npz")
    config = gather_config(
        flags={
            "data": {"name": str(data)},
            "backbone": {"name": "linear"},
            "loop": {"epochs": 1, "batch_size": 64, "checkpoint_seconds": 1e-6},
            "machine": {"threads": 1, "accelerator": "cpu", "memory_format": "contiguous", "report": False},
        }
    )
    summary = train(config, tmp_path / "run", show=False)
    assert summary["steps"] > 0
    assert summary["seconds"] >= 0
