"""``make soak`` ends in time, says what it did not run, and counts nothing that was not proved."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import types

import pytest
import soak.__main__ as harness
from soak import children
from soak.budget import OutOfTimeError, share, time_until
from soak.crash_matrix import Breaker, Scenario, Tally
from soak.figures import with_figures, write_figures


def part(run):
    return types.SimpleNamespace(run=run)


@pytest.fixture
def run_parts(monkeypatch, tmp_path):
    """Run the harness with made-up parts; return its exit code and the records it wrote."""
    monkeypatch.setattr(harness, "_code_digest", lambda: "same")
    monkeypatch.setattr(harness, "RESERVE", 0.0)

    def run(minutes: float, **parts):
        monkeypatch.setattr(harness, "PARTS", dict.fromkeys(parts, 1.0))
        for name, body in parts.items():
            monkeypatch.setitem(sys.modules, f"soak.{name}", part(body))
        code = harness.main(["--minutes", str(minutes), "--out", str(tmp_path)])
        names = [*parts, "summary"]
        return code, {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}

    return run


def good(folder, *, seed, quick):
    return {"totals": {"things": 2}}


def endless(folder, *, seed, quick):
    signal.raise_signal(signal.SIGALRM)  # its time is over
    return {"totals": {"things": 100}}


def broken(folder, *, seed, quick):
    raise AssertionError("a promise")


def buggy(folder, *, seed, quick):
    raise KeyError("a bug of the harness")


def partly(folder, *, seed, quick):
    return {"totals": {"things": 3}, "cut short": "the second half was not tried"}


def test_all_parts_run_and_their_numbers_are_summed(run_parts):
    code, records = run_parts(1, one=good, other=good)
    assert code == 0
    assert records["summary"]["totals"] == {"things": 4}
    assert records["summary"]["cut short"] == {}


def test_a_part_that_does_not_end_is_ended_and_nothing_is_claimed_for_it(run_parts, capsys):
    code, records = run_parts(60, one=endless, other=good)
    assert code == 2
    assert "result" not in records["one"]
    assert records["summary"]["totals"] == {"things": 2}, "a slow part does not cost the later ones their time"
    shown = capsys.readouterr().out
    assert "NOT ALL RUN: one" in shown
    assert "every promise held" not in shown


def test_a_part_that_was_not_begun_is_named(run_parts):
    code, records = run_parts(0.0, one=good)
    assert code == 2
    assert records["summary"]["cut short"] == {"one": "not begun"}


def test_a_part_that_ran_in_part_is_named_and_only_what_ran_counts(run_parts):
    code, records = run_parts(1, one=partly)
    assert code == 2
    assert records["summary"]["totals"] == {"things": 3}
    assert records["summary"]["cut short"] == {"one": "the second half was not tried"}


@pytest.mark.parametrize("body", [broken, buggy])
def test_a_broken_promise_is_the_exit_code_and_the_other_parts_still_run(run_parts, body):
    code, records = run_parts(1, one=body, other=good)
    assert code == 1
    assert records["summary"]["broken"] == ["one"]
    assert records["summary"]["totals"] == {"things": 2}


def test_processes_that_are_left_are_ended(tmp_path, run_parts):
    begun = []

    def leaves_one(folder, *, seed, quick):
        pid = os.fork()
        if pid == 0:
            wait_without_end()
        begun.append(children.Child(pid, tmp_path / "log"))
        return {}

    run_parts(1, one=leaves_one)
    assert begun[0].poll() == -9


def test_time_is_shared_so_that_every_part_gets_some():
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert share(weights, "a", ["a", "b", "c"], 100.0) == 25.0
    assert share(weights, "c", ["a", "b", "c"], 60.0) == 60.0
    assert sum(harness.PARTS.values()) > 0
    assert harness.MINUTES == 20


def wait_without_end():
    while True:
        signal.pause()


def test_the_alarm_ends_what_waits_and_is_not_left_behind():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(OutOfTimeError), time_until(time.monotonic() + 0.01):
        wait_without_end()
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0, "nothing rings again"


def test_kills_of_a_run_that_was_never_compared_do_not_count(tmp_path):
    proved = Tally()
    breaker = Breaker.__new__(Breaker)
    breaker.scenario, breaker.rng, breaker.tally, breaker._proved = (
        Scenario("mr2"),
        random.Random(0),
        Tally(),
        proved,
    )
    breaker.tally.kills["mr2, 1 process, SIGKILL"] += 3
    breaker.start = lambda run: []

    def out_of_time(children, run):
        raise OutOfTimeError

    breaker._must_end_well = out_of_time
    with pytest.raises(OutOfTimeError):
        breaker._end_and_compare(tmp_path)
    assert proved.kills_of(1) == 0
    proved.add(breaker.tally)
    assert (proved.kills_of(1), proved.kills_of(2)) == (3, 0)


# --- the figures on the page ---------------------------------------------------------------------------------------


def test_figures_of_what_ran_to_its_end_take_the_place_of_the_old_ones(tmp_path):
    page = tmp_path / "page.md"
    rows = [
        "| `python -m soak one` | kills | old |",
        "| `python -m soak other` | steps | old |",
        "| `make soak` | all | old |",
    ]
    page.write_text("\n".join(rows))
    ran = {"part": "one", "seconds": 3.0, "result": {"totals": {"kills survived": 7, "runs compared": 2}}}
    cut = {"part": "other", "seconds": 3.0, "result": {"totals": {"steps": 1}}, "cut short": "by the clock"}
    write_figures(page, [ran, cut])
    assert page.read_text().splitlines() == [
        "| `python -m soak one` | kills | 7 kills survived; 2 runs compared |",
        *rows[1:],
    ]
    with pytest.raises(ValueError, match="one row of `python -m soak third`"):
        write_figures(page, [{**ran, "part": "third"}])


def test_the_page_has_a_row_for_every_part():
    text = harness.PAGE.read_text(encoding="utf-8")
    for name in harness.PARTS:
        assert "| 0 kept |" in with_figures(text, f"python -m soak {name}", "0 kept")
