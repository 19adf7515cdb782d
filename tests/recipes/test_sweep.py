"""Sweeps on features of a toy data set: what is tried, stopped, taken over and chosen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from classmargin.recipes.run_options import gather_config
from classmargin.recipes.sweep import pages, worker
from classmargin.recipes.sweep import study as study_module
from classmargin.recipes.sweep.plan import SweepPlan, read_plan, settle_plan
from classmargin.recipes.sweep.result import TrialRow, choose, make_result, read_result
from classmargin.recipes.sweep.run import check_plan, run_sweep
from classmargin.recipes.sweep.study import open_study, safe_address
from classmargin.recipes.sweep.trial import read_evaluations, validation_accuracies
from classmargin.recipes.train_run import train
from classmargin.training.errors import DivergedError, StoppedError
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_lock import hold_lock

optuna = pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def storages_in_memory(request, monkeypatch):
    """A data base file costs half a second to make and 30 ms to write: most tests do without."""
    if "real_storage" in request.fixturenames:
        return
    kept = {}
    opened = lambda address: kept.setdefault(address, optuna.storages.InMemoryStorage())
    monkeypatch.setattr(study_module, "_open_storage", opened)


@pytest.fixture
def real_storage():
    """Asked for by tests in which the data base matters."""


def in_process(study, plan, folder, jobs):
    """Stands for the processes of a sweep where only what they do matters."""
    worker.work(plan, folder)


def sweep(plan, folder, **more):
    return run_sweep(plan, folder, workers=in_process, **more)


def test_a_small_grid_is_tried_once_each_and_the_best_on_validation_is_tested(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2,3", trials=30, keep_easy=False)
    result = sweep(plan, tmp_path / "out")
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2, 3]
    assert result.is_complete
    values = {row.number: row.value for row in result.rows}
    assert result.best.value == max(values.values())
    for row in result.rows:
        folder = RunFolder(row.folder)
        assert row.accuracies == validation_accuracies(folder.path)
        assert row.value == row.accuracies["hard"]
        assert folder.done == (row.number == result.best.number), "nobody else may see the test set"
        assert folder.predictions_file.exists() == (row.number == result.best.number)
    stored = json.loads(RunFolder(result.best.folder).done_file.read_text())
    assert result.test == stored["test"]


def test_without_test_no_trial_is_ever_tested(make_plan, tmp_path):
    result = sweep(make_plan("mean_margin=1,2", keep_easy=False), tmp_path / "out", test=False)
    assert result.test is None
    assert not list((tmp_path / "out").rglob("predictions.npz"))
    assert "test set, looked at once" not in pages.verdict_of(result)


def test_ranges_of_numbers_and_settings_of_any_part_are_drawn_within_their_ends(make_plan, tmp_path):
    plan = make_plan(
        "representation_weight=0.01:1:log",
        "optimizer.weight_decay=0:0.01",
        "loop.batch_size=20:60:20",
        trials=5,
        keep_easy=False,
        pruner="none",
    )
    result = sweep(plan, tmp_path / "out", test=False)
    assert len(result.rows) == 5
    for row in result.rows:
        config = RunFolder(row.folder).read_config()
        assert 0.01 <= config.method.options["representation_weight"] <= 1
        assert 0 <= config.optimizer.weight_decay <= 0.01
        assert config.loop.batch_size in (20, 40, 60)
    assert len({row.labels["method.representation_weight"] for row in result.rows}) == 5
    assert set(result.importance) == {"representation_weight", "optimizer.weight_decay", "loop.batch_size"}
    assert sum(result.importance.values()) == pytest.approx(1.0)


def test_label_smoothing_of_erm_can_be_searched(make_plan, tmp_path):
    plan = make_plan("label_smoothing=0.0,0.1", method="erm", keep_easy=False)
    result = sweep(plan, tmp_path / "out", test=False)
    assert {result.settings(row)["label_smoothing"] for row in result.rows} == {0.0, 0.1}


def test_trial_n_draws_the_same_whoever_runs_it(make_plan, tmp_path):
    draws = []
    for name in ("a", "b"):
        plan = make_plan(
            "mean_margin=1.0:3.0", trials=3, keep_easy=False, storage=f"sqlite:///{tmp_path / name}.db"
        )
        result = sweep(plan, tmp_path / name, test=False)
        draws.append([row.labels["method.mean_margin"] for row in result.rows])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 3


def test_a_finished_sweep_trains_nothing_when_called_again_and_more_trials_can_be_added(
    make_plan, tmp_path, monkeypatch
):
    plan = make_plan("mean_margin=1.0:3.0", trials=2, keep_easy=False)
    first = sweep(plan, tmp_path / "out")
    trained = []
    original = worker.train_trial
    monkeypatch.setattr(worker, "train_trial", lambda *args: trained.append(args) or original(*args))
    again = sweep(plan, tmp_path / "out")
    assert (again.rows, again.test, trained) == (first.rows, first.test, [])
    more = sweep(make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False), tmp_path / "out", test=False)
    assert len(trained) == 1
    assert more.rows[:2] == first.rows


def test_asking_for_fewer_trials_ends_the_sweep_with_those_that_ended(
    make_plan, tmp_path, monkeypatch, capsys
):
    scripted(monkeypatch, [[0.5, 0.6], [0.4, 0.5], [0.3, 0.4], [StoppedError("stopped by signal 15", 143)]])
    with pytest.raises(StoppedError):
        sweep(make_plan("mean_margin=1.0:3.0", trials=4, keep_easy=False), tmp_path / "out")
    fewer = make_plan("mean_margin=1.0:3.0", trials=2, keep_easy=False)
    result = run_sweep(fewer, tmp_path / "out", test=False)  # nothing is left to do: no process is started
    assert "3 trials have ended already, and 2 are asked for" in capsys.readouterr().err
    assert [row.outcome for row in result.rows] == ["finished"] * 3 + ["running"]
    assert result.is_complete
    assert "1 more were begun and are not asked for any more" in pages.verdict_of(result)
    assert "the choice may change" not in pages.verdict_of(result)


# Constraint


def test_easy_is_measured_against_plain_erm_with_the_shared_settings(make_plan, tmp_path):
    result = sweep(make_plan("mean_margin=1,2"), tmp_path / "out", test=False)
    reference = RunFolder(tmp_path / "out" / "reference")
    assert reference.read_config().method.name == "erm"
    assert not reference.done, "nor is the reference tried on the test set"
    assert result.reference == validation_accuracies(reference.path)
    for row in result.rows:
        assert row.violation == pytest.approx(result.reference["easy"] - row.accuracies["easy"])


def test_a_finished_run_can_be_the_reference_if_it_saw_the_same_data(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2")
    train(plan.reference_config(), tmp_path / "erm", show=False)
    result = sweep(plan, tmp_path / "out", reference=tmp_path / "erm", test=False)
    assert result.reference == validation_accuracies(tmp_path / "erm")
    assert not (tmp_path / "out" / "reference").exists()
    other = make_plan("mean_margin=1,2", settings=["data.seed=5"], storage=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(ValueError, match=r"other data \(data.seed: 0 -> 5"):
        sweep(other, tmp_path / "other", reference=tmp_path / "erm")


def rows_of(*numbers):
    return [
        TrialRow(n, "finished", {}, value, {"easy": 0.9 - violation}, violation)
        for n, (value, violation) in enumerate(numbers)
    ]


def test_the_choice_keeps_the_easy_third_even_if_others_score_higher():
    assert choose(rows_of((0.5, 0.0), (0.9, 0.1), (0.6, -0.1))).number == 2


def test_if_none_keeps_the_easy_third_the_one_that_loses_least_is_named_and_said_so(make_plan):
    rows = rows_of((0.9, 0.3), (0.5, 0.1), (0.4, 0.1))
    assert choose(rows).number == 1
    result = make_result(make_plan("mean_margin=1,2"), rows, {"easy": 0.9})
    assert "NO trial keeps the easy third" in pages.verdict_of(result)
    kept = make_result(make_plan("mean_margin=1,2"), rows_of((0.5, -0.05)), {"easy": 0.9})
    assert "The easy third does not drop: 95.0 % against 90.0 %" in pages.verdict_of(kept)


def test_ties_go_to_the_earlier_trial_and_unfinished_ones_are_never_chosen():
    rows = [TrialRow(0, "pruned", {}, 0.9), *[TrialRow(n, "finished", {}, 0.5) for n in (1, 2)]]
    assert choose(rows).number == 1
    assert choose(rows[:1]) is None


# Pruning and failures


def scripted(monkeypatch, curves):
    """Let trials report given values instead of training; a curve may end with an error."""

    def fake(config, folder, report):
        curve = curves[int(folder.name.removeprefix("trial-"))]
        RunFolder(folder).write_config(config)
        for epoch, value in enumerate(curve, start=1):
            if isinstance(value, Exception):
                raise value
            if not report(epoch, {"hard": value, "easy": 1.0}):
                raise worker.FellBehindError(f"worse than the others after epoch {epoch}")
        return {"hard": curve[-1], "easy": 1.0, "overall": 1.0, "medium": 1.0, "worst": curve[-1]}

    monkeypatch.setattr(worker, "train_trial", fake)


def test_a_trial_worse_than_half_of_the_others_is_stopped(make_plan, tmp_path, monkeypatch):
    good = [[0.5, 0.6, 0.7, 0.8]] * 5
    scripted(monkeypatch, [*good, [0.1, 0.1, 0.1, 0.1], [0.6, 0.7, 0.8, 0.9]])
    plan = make_plan("mean_margin=1.0:3.0", trials=7, epochs=4, keep_easy=False)
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["finished"] * 5 + ["pruned", "finished"]
    assert result.best.number == 6
    assert "worse than the others after epoch 1" in result.rows[5].reason
    unpruned = make_plan(
        "mean_margin=1.0:3.0",
        trials=7,
        epochs=4,
        keep_easy=False,
        pruner="none",
        storage=f"sqlite:///{tmp_path}/free.db",
    )
    assert sweep(unpruned, tmp_path / "free", test=False).count("finished") == 7


def test_nothing_is_stopped_after_the_last_epoch(make_plan, tmp_path, monkeypatch):
    scripted(monkeypatch, [[0.5, 0.9]] * 5 + [[0.5, 0.1]])
    plan = make_plan("mean_margin=1.0:3.0", trials=6, epochs=2, keep_easy=False)
    assert sweep(plan, tmp_path / "out", test=False).count("finished") == 6


def test_a_trial_that_diverges_or_breaks_is_told_and_the_others_go_on(make_plan, tmp_path, monkeypatch):
    scripted(monkeypatch, [[0.5, DivergedError("no number")], [ValueError("bad mix")], [0.4, 0.5]])
    plan = make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False)
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["diverged", "failed", "finished"]
    assert result.best.number == 2
    notes = " ".join(pages.notes_of(result))
    assert "trial 0 diverged: no number" in notes
    assert "trial 1 failed: ValueError: bad mix" in notes


def test_the_same_settings_are_not_trained_twice(make_plan, tmp_path, monkeypatch):
    trained = []
    original = worker.train_trial
    monkeypatch.setattr(worker, "train_trial", lambda *args: trained.append(args) or original(*args))
    plan = make_plan("mean_margin=1,2", "norm_order=2.0,3.0", trials=3, keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    for _ in range(2):
        study.enqueue_trial({"method.mean_margin": 2, "method.norm_order": 3.0})
    result = sweep(plan, tmp_path / "out", test=False)
    assert len(trained) == 2
    assert result.rows[1].same_as == 0
    assert result.rows[1].accuracies == result.rows[0].accuracies
    assert result.rows[1].value == result.rows[0].value


# Interruptions and several workers


def test_the_trial_of_an_interrupted_worker_goes_on_from_its_checkpoint(
    real_storage, make_plan, tmp_path, monkeypatch
):
    plan = make_plan("mean_margin=1,2", epochs=3, keep_easy=False)
    original = worker.train_trial

    def interrupted(config, folder, report):
        def stop_after_two(epoch, accuracies):
            if epoch == 3:
                raise StoppedError("stopped by signal 15", 143)
            return report(epoch, accuracies)

        return original(config, folder, stop_after_two)

    monkeypatch.setattr(worker, "train_trial", interrupted)
    with pytest.raises(StoppedError):
        sweep(plan, tmp_path / "out")
    study = open_study(plan)
    assert [t.state.name for t in study.trials] == ["RUNNING", "WAITING"]
    monkeypatch.setattr(worker, "train_trial", original)
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    sessions = json.loads(RunFolder(result.rows[0].folder).record_file.read_text())["sessions"]
    assert len(sessions) == 2, "the run was gone on with, not begun again"
    assert [e["epoch"] for e in read_evaluations(result.rows[0].folder)] == [1, 2, 3]
    train(plan.trial_config(result.rows[0].labels), tmp_path / "straight", show=False, test=False)
    assert validation_accuracies(tmp_path / "straight") == result.rows[0].accuracies


def test_the_trial_of_a_living_worker_is_left_alone(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    study.enqueue_trial({"method.mean_margin": 1})
    trial = study.ask()
    trial.set_user_attr("worker", study_module.signature(tmp_path / "out" / "runs" / "trial-0000"))
    with hold_lock(tmp_path / "out" / "locks" / "trial-0000"):
        result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["running", "finished"]
    assert result.test is None, "the choice may still change"
    assert "1 trials are still under way" in pages.verdict_of(result)
    result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert result.test is not None


def test_the_trial_of_a_silent_machine_is_begun_again_and_counts_once(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    study.enqueue_trial({"method.mean_margin": 2})
    trial = study.ask()
    trial.suggest_categorical("method.mean_margin", (1, 2))
    elsewhere = {"host": "elsewhere", "folder": "/nowhere/runs/trial-0000", "beat": time.time()}
    trial.set_user_attr("worker", elsewhere)
    result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["running", "finished"], "it spoke a moment ago"
    trial.set_user_attr("worker", {**elsewhere, "beat": time.time() - 2 * study_module.GRACE_SECONDS})
    result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2]


@pytest.mark.parametrize("moment", ["while it trains", "at its end"])
def test_a_worker_whose_trial_was_given_up_goes_on_with_the_next(
    make_plan, tmp_path, monkeypatch, moment, capsys
):
    """This machine slept, or a clock was set: another one took the trial for dead."""
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = worker.train_trial

    def overslept(config, folder, report):
        if folder.name == "trial-0000":
            study = open_study(plan, create=False)
            worker._replace(study, study.get_trials(deepcopy=False)[0])
        if moment == "at its end":
            return original(config, folder, lambda epoch, accuracies: True)
        return original(config, folder, report)

    monkeypatch.setattr(worker, "train_trial", overslept)
    result = sweep(plan, tmp_path / "out", test=False)
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2]
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert "trial 0 was taken over by another machine" in capsys.readouterr().err


def test_a_trial_that_kills_its_workers_is_given_up(make_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOST_DEATHS", 2)
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = worker.train_trial

    def killer(config, folder, report):
        if folder.name == "trial-0000":
            raise KeyboardInterrupt
        return original(config, folder, report)

    monkeypatch.setattr(worker, "train_trial", killer)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sweep(plan, tmp_path / "out")
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["failed", "finished"]
    assert "without a word" in result.rows[0].reason


def test_a_full_disk_stops_the_sweep_and_loses_no_trial(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = worker.train_trial

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker, "train_trial", full)
    with pytest.raises(OSError, match="No space"):
        sweep(plan, tmp_path / "out")
    monkeypatch.setattr(worker, "train_trial", original)
    assert sweep(plan, tmp_path / "out", test=False).count("finished") == 2


def test_a_data_base_that_goes_away_stops_the_sweep_and_loses_no_trial(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = worker.train_trial

    def gone(*args):
        raise optuna.exceptions.StorageInternalError("server closed the connection")

    monkeypatch.setattr(worker, "train_trial", gone)
    with pytest.raises(ValueError, match="cannot be used: server closed the connection"):
        sweep(plan, tmp_path / "out")
    monkeypatch.setattr(worker, "train_trial", original)
    assert sweep(plan, tmp_path / "out", test=False).count("finished") == 2


def test_two_machines_share_a_study_and_do_not_exceed_its_trials(real_storage, make_plan, tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    plan = make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False, storage=storage)
    once = make_plan("mean_margin=1.0:3.0", trials=1, keep_easy=False, storage=storage)
    sweep(once, tmp_path / "here", test=False)
    result = sweep(plan, tmp_path / "there", test=False)
    folders = [Path(row.folder).parent.parent.name for row in result.rows]
    assert folders == ["here", "there", "there"]
    again = sweep(plan, tmp_path / "here", test=False)
    assert len(again.rows) == 3


def test_a_trial_asked_for_at_the_same_moment_as_the_last_is_not_run(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1.0:3.0", trials=1, keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    original, asked = optuna.Study.ask, []

    def late(self, *args, **kwargs):
        if not asked:
            asked.append(original(self))  # somebody else is faster between our look and our question
            asked[0].set_user_attr("worker", study_module.signature(tmp_path / "runs" / "x"))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(optuna.Study, "ask", late)
    with hold_lock(tmp_path / "locks" / "x"):
        assert worker.work(plan, tmp_path / "out") == 0
    assert len(read_result(study, plan).rows) == 1


def test_a_waiting_trial_given_to_two_workers_at_once_is_for_the_one_with_its_lock(
    make_plan, tmp_path, monkeypatch
):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    study_module.enqueue_grid(study, plan)
    original, first = optuna.Study.ask, []

    def twice(self, *args, **kwargs):
        if not first:  # the other worker got the same answer; it has the lock and is about to sign
            first.append(original(self, *args, **kwargs))
            return first[0]
        first[0].set_user_attr("worker", study_module.signature(tmp_path / "out" / "runs" / "trial-0000"))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(optuna.Study, "ask", twice)
    with hold_lock(tmp_path / "out" / "locks" / "trial-0000"):
        assert worker.work(plan, tmp_path / "out") == 1
        outcomes = [row.outcome for row in read_result(study, plan).rows]
    assert outcomes == ["running", "finished"], "the trial of the other worker is neither trained nor failed"


# Plans, storages, files


def test_a_folder_with_another_question_is_refused(make_plan, tmp_path):
    settle_plan(make_plan("mean_margin=1,2"), tmp_path / "out")
    for other, words in [
        (make_plan("mean_margin=1,3"), "--search"),
        (make_plan("mean_margin=1,2", objective="worst"), "--objective: hard -> worst"),
        (make_plan("mean_margin=1,2", epochs=5), "loop.epochs: 2 -> 5"),
        (make_plan("mean_margin=1,2", easy_slack=0.01), "easy_slack"),
    ]:
        with pytest.raises(ValueError, match=f"asks something else.*{words}"):
            settle_plan(other, tmp_path / "out")
    settle_plan(make_plan("mean_margin=1,2", trials=50), tmp_path / "out")
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no sweep"):
        settle_plan(make_plan("mean_margin=1,2"), tmp_path / "busy")


def test_a_named_study_with_another_question_is_refused(make_plan, tmp_path):
    open_study(make_plan("mean_margin=1,2", study="mine"))
    with pytest.raises(ValueError, match=r"study mine in sqlite.*--search"):
        open_study(make_plan("mean_margin=1,3", study="mine"))


def test_plans_survive_a_file_and_broken_files_are_named(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", "optimizer.betas=[0.9,0.99],[0.8,0.9]", objective="hard:2,worst:1")
    settle_plan(plan, tmp_path / "out")
    read = read_plan(tmp_path / "out" / "sweep.json")
    assert read.to_dict() == plan.to_dict()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not the plan of a sweep"):
        read_plan(tmp_path / "bad.json")


def test_data_without_validation_samples_cannot_be_swept(make_plan):
    with pytest.raises(ValueError, match=r"chooses on validation samples.*data.validation=0.1"):
        check_plan(make_plan("mean_margin=1,2", settings=["data.validation=0.0"]))


def test_storages_that_cannot_be_used_are_named_without_their_password(real_storage, make_plan, tmp_path):
    assert safe_address("postgresql://me:se@cret@db.host/x") == "postgresql://me:***@db.host/x"
    for address in ("nonsense", "sqlite:////proc/none/study.db", "postgresql://me:secret@127.0.0.1:1/x"):
        with pytest.raises((ValueError, ImportError, OSError)) as caught:
            open_study(make_plan("mean_margin=1,2", storage=address))
        assert "secret" not in str(caught.value)


def test_everything_is_written_and_escaped(make_plan, tmp_path):
    rows = [
        TrialRow(
            n,
            "finished",
            {"method.mean_margin": n % 2 + 1, "optimizer.name": "<script>alert(1)</script>"},
            0.4 + 0.1 * (n % 2),
            {"hard": 0.5, "easy": 0.9},
            0.0,
        )
        for n in range(6)
    ]
    plan = make_plan("mean_margin=1,2", "optimizer.name=sgd,adamw")
    hostile = plan.parameters[1].__class__("optimizer.name", choices=("<script>alert(1)</script>", "sgd"))
    plan = SweepPlan(plan.config, (plan.parameters[0], hostile), plan.objective, 6, "s", plan.storage)
    result = make_result(plan, rows, {"easy": 0.8})
    page = pages._write_page(
        result, tmp_path, pages.verdict_of(result), pages.tables_of(result), pages.notes_of(result)
    )
    text = page[0].read_text()
    assert "<script>alert(1)</script>" not in text
    assert 'src="http' not in text
    assert "figure-importance" in text


def test_files_of_a_sweep_tell_what_was_chosen_and_how(make_plan, tmp_path):
    plan = make_plan("mean_margin=1.0:3.0", "optimizer.learning_rate=0.01,0.1", trials=5, pruner="none")
    result = sweep(plan, tmp_path / "out")
    names = [path.name for path in pages.write_result(result, tmp_path / "out")]
    assert names == ["result.json", "table.md", "best.toml", "report.html"]
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["selected_on"] == "validation"
    assert stored["best"]["number"] == result.best.number
    assert len(stored["trials"]) == 5
    markdown = (tmp_path / "out" / "table.md").read_text()
    assert "on validation" in markdown
    assert "No other trial was ever tried on the test set" in markdown
    best = gather_config(file=tmp_path / "out" / "best.toml")
    assert best.method.options["mean_margin"] == result.best.labels["method.mean_margin"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert ("Importance of parameters" in page) == bool(result.importance)


# Real processes


def sweep_command(plan_words, out):
    words = [sys.executable, "-m", "classmargin", "sweep", *plan_words, "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_of_two_processes_survives_signals(toy_features, tmp_path, number):
    words = [
        "--data",
        toy_features,
        "--backbone",
        "linear",
        "--epochs",
        40,
        "--search",
        "mean_margin=1,2,3",
        "--set",
        "data.validation=0.3",
        "--jobs",
        2,
        "--trials",
        3,
        "--pruner",
        "none",  # which trials a pruner stops depends on who is faster, interrupted or not
        "--format",
        "json",
    ]
    words = [str(word) for word in words]
    interrupted = sweep_command(words, tmp_path / "out")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(interrupted.pid, number)
    interrupted.communicate(timeout=120)
    assert interrupted.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    time.sleep(3)  # workers notice that their parent is gone, save and end
    out, err = sweep_command(words, tmp_path / "out").communicate(timeout=250)
    result = json.loads(out)
    assert [row["outcome"] for row in result["trials"]] == ["finished"] * 3, err
    straight, _ = sweep_command(words, tmp_path / "straight").communicate(timeout=250)
    again = json.loads(straight)
    key = lambda row: row["settings"]["mean_margin"]
    assert [row["validation"] for row in sorted(result["trials"], key=key)] == [
        row["validation"] for row in sorted(again["trials"], key=key)
    ]
    assert result["test_of_best"] == again["test_of_best"]
