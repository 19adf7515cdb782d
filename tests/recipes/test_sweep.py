"""Sweeps on features of a toy data set: what is tried, stopped, taken over and chosen."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from classmargin.recipes import run_worker
from classmargin.recipes import sweep_result as pages
from classmargin.recipes import sweep_study as study_module
from classmargin.recipes.out_folder import read_question
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_sweep import check_plan, run_sweep
from classmargin.recipes.sweep_result import SweepResult, TrialRow, choose, read_result
from classmargin.recipes.sweep_study import SweepPlan, open_study, safe_address, settle_plan
from classmargin.recipes.train_run import read_evaluations, train, validation_accuracies
from classmargin.training.config_reader import build
from classmargin.training.run_folder import RunFolder
from classmargin.training.stopping import StoppedError

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


def sweep(plan, folder, **more):
    return run_sweep(plan, folder, engine="inline", show=False, **more)


def count_training(monkeypatch):
    """Return a list that grows by the folder of each run that is trained."""
    trained, original = [], run_worker.train_task
    count = lambda task, judge: trained.append(Path(task["folder"]).name) or original(task, judge)
    monkeypatch.setattr(run_worker, "train_task", count)
    return trained


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


def test_label_smoothing_of_erm_can_be_searched(make_plan, tmp_path):
    plan = make_plan("label_smoothing=0.0,0.1", method="erm", keep_easy=False)
    result = sweep(plan, tmp_path / "out", test=False)
    assert {result.settings(row)["label_smoothing"] for row in result.rows} == {0.0, 0.1}


def test_trial_n_draws_the_same_whoever_runs_it(make_plan, tmp_path):
    draws = []
    for name in ("a", "b"):
        plan = make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False, storage=f"sqlite:///{tmp_path / name}.db")
        result = sweep(plan, tmp_path / name, test=False)
        draws.append([row.labels["method.mean_margin"] for row in result.rows])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 3


def test_a_finished_sweep_trains_nothing_when_called_again_and_more_trials_can_be_added(
    make_plan, tmp_path, monkeypatch
):
    plan = make_plan("mean_margin=1.0:3.0", trials=2, keep_easy=False)
    first = sweep(plan, tmp_path / "out")
    trained = count_training(monkeypatch)
    again = sweep(plan, tmp_path / "out")
    assert (again.rows, again.test, trained) == (first.rows, first.test, [])
    more = sweep(make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False), tmp_path / "out", test=False)
    assert len(trained) == 1
    assert more.rows[:2] == first.rows


def test_asking_for_fewer_trials_ends_the_sweep_with_those_that_ended(make_plan, tmp_path, monkeypatch, capsys):
    scripted(monkeypatch, [[0.5, 0.6], [0.4, 0.5], [0.3, 0.4], [StoppedError("stopped by signal 15", 143)]])
    with pytest.raises(StoppedError):
        sweep(make_plan("mean_margin=1.0:3.0", trials=4, keep_easy=False), tmp_path / "out")
    fewer = make_plan("mean_margin=1.0:3.0", trials=2, keep_easy=False)
    result = run_sweep(fewer, tmp_path / "out", test=False)  # nothing is left to do: no process is started
    assert "3 of 2 runs are finished already" in capsys.readouterr().err
    assert [row.outcome for row in result.rows] == ["finished"] * 3
    assert result.is_complete
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
    result = SweepResult(make_plan("mean_margin=1,2"), tuple(rows), choose(rows), {"easy": 0.9})
    assert "NO trial keeps the easy third" in pages.verdict_of(result)
    (only,) = rows_of((0.5, -0.05))
    kept = SweepResult(make_plan("mean_margin=1,2"), (only,), only, {"easy": 0.9})
    assert "The easy third does not drop: 95.0 % against 90.0 %" in pages.verdict_of(kept)


def test_ties_go_to_the_earlier_trial_and_unfinished_ones_are_never_chosen():
    rows = [TrialRow(0, "pruned", {}, 0.9), *[TrialRow(n, "finished", {}, 0.5) for n in (1, 2)]]
    assert choose(rows).number == 1
    assert choose(rows[:1]) is None


def test_of_equal_trials_the_one_begun_first_is_chosen_even_when_its_worker_died():
    rows = [TrialRow(n, "finished", {}, 0.5, begun_as=begun) for n, begun in ((1, None), (2, None), (3, 0))]
    assert choose(rows).number == 3


# Pruning and failures


def scripted(monkeypatch, curves):
    """Let trials report given values instead of training; a curve may end with an error."""

    def fake(task, judge):
        folder = RunFolder(task["folder"])
        folder.write_config(build(task["config"]))
        for epoch, value in enumerate(curves[int(folder.path.name.removeprefix("trial-"))], start=1):
            if isinstance(value, Exception):
                raise value
            if isinstance(value, tuple):
                return dict(zip(("kind", "words"), value, strict=True))
            record = {
                "epoch": epoch,
                "hard": value,
                "easy": 1.0,
                "overall": 1.0,
                "medium": 1.0,
                "worst": value,
            }
            with folder.metrics_file.open("a") as file:
                file.write(json.dumps(record) + "\n")
            if not judge(epoch, record):
                return {"kind": "fell_behind", "words": f"worse than the others after epoch {epoch}"}
        return {"kind": "finished"}

    monkeypatch.setattr(run_worker, "train_task", fake)


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
    scripted(monkeypatch, [[0.5, ("diverged", "no number")], [("failed", "ValueError: bad mix")], [0.4, 0.5]])
    plan = make_plan("mean_margin=1.0:3.0", trials=3, keep_easy=False)
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["diverged", "failed", "finished"]
    assert result.best.number == 2
    notes = " ".join(pages.notes_of(result))
    assert "trial 0 diverged: no number" in notes
    assert "trial 1 failed: ValueError: bad mix" in notes


# Interruptions and several workers


def test_the_trial_of_an_interrupted_sweep_is_resumed_from_its_checkpoint(
    real_storage, make_plan, tmp_path, monkeypatch
):
    plan = make_plan("mean_margin=1,2", epochs=3, keep_easy=False)
    original = run_worker.train_task

    def interrupted(task, judge):
        def stop_after_two(epoch, accuracies):
            if epoch == 3:
                raise StoppedError("stopped by signal 15", 143)
            return judge(epoch, accuracies)

        return original(task, stop_after_two)

    monkeypatch.setattr(run_worker, "train_task", interrupted)
    with pytest.raises(StoppedError):
        sweep(plan, tmp_path / "out")
    assert [t.state.name for t in open_study(plan).trials] == ["FAIL", "WAITING", "WAITING"]
    monkeypatch.setattr(run_worker, "train_task", original)
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    resumed = next(row for row in result.rows if Path(row.folder).name == "trial-0000")
    sessions = json.loads(RunFolder(resumed.folder).record_file.read_text())["sessions"]
    assert len(sessions) == 2, "the run was resumed, not begun again"
    assert [e["epoch"] for e in read_evaluations(resumed.folder)] == [1, 2, 3]
    train(plan.trial_config(resumed.labels), tmp_path / "straight", show=False, test=False)
    assert validation_accuracies(tmp_path / "straight") == resumed.accuracies


def begun_trial(study, pid, host):
    """Ask for a trial as another process would."""
    study.enqueue_trial({"method.mean_margin": 2})
    trial = study.ask()
    trial.suggest_categorical("method.mean_margin", (1, 2))
    trial.set_user_attr("worker", {"pid": pid, "host": host, "folder": "/nowhere/runs/trial-0000"})
    return trial


def test_the_trial_of_a_living_process_is_left_alone_and_that_of_a_dead_one_is_not(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    trial = begun_trial(study, os.getpid(), platform.node())
    result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["running", "finished"]
    assert result.test is None, "the choice may still change"
    assert "1 trials are still under way" in pages.verdict_of(result)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    trial.set_user_attr("worker", {"pid": gone.pid, "host": platform.node(), "folder": "/nowhere"})
    result = sweep(plan, tmp_path / "out")
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2]
    assert result.test is not None


def test_the_trial_of_a_silent_machine_is_begun_again_and_counts_once(real_storage, make_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(study_module, "GRACE_SECONDS", 1)
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    trial = begun_trial(study, 1, "elsewhere")
    study_module._beat(trial)
    with study._storage._backend.engine.begin() as connection:  # the machine was last heard of long ago
        from sqlalchemy import text

        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'"))
    result = sweep(plan, tmp_path / "out", test=False)
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2]


@pytest.mark.parametrize("moment", ["while it trains", "at its end"])
def test_a_trial_that_was_taken_for_dead_is_not_counted_twice(make_plan, tmp_path, monkeypatch, moment, capsys):
    """This machine slept, or a clock was set: another one lined the trial up again."""
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original, slept = run_worker.train_task, []

    def overslept(task, judge):
        if not slept:
            slept.append(True)
            study_module.line_up_again(open_study(plan), 0)
        if moment == "at its end":
            return original({**task, "judged": False}, judge)
        return original(task, judge)

    monkeypatch.setattr(run_worker, "train_task", overslept)
    result = sweep(plan, tmp_path / "out", test=False)
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2]
    assert [row.outcome for row in result.rows] == ["finished", "finished"]
    assert "trial 0 was taken over by another machine" in capsys.readouterr().err


def test_a_trial_that_kills_the_commands_that_train_it_is_given_up(make_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(study_module, "MOST_RETRIES", 2)
    plan = make_plan("mean_margin=1,2", trials=2, keep_easy=False)
    original = run_worker.train_task

    def killer(task, judge):
        if task["config"]["method"]["mean_margin"] == 1:
            raise KeyboardInterrupt
        return original(task, judge)

    monkeypatch.setattr(run_worker, "train_task", killer)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sweep(plan, tmp_path / "out")
    states = [trial.state.name for trial in open_study(plan).trials]
    assert states.count("FAIL") >= 3
    assert [trial.params for trial in open_study(plan).trials if trial.state.name == "WAITING"] in (
        [],
        [{"method.mean_margin": 2}],
    )


def test_a_full_disk_stops_the_sweep_and_loses_no_trial(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = run_worker.train_task
    full = lambda *_: {"kind": "unwritable", "words": "OSError: [Errno 28] No space left on device"}
    monkeypatch.setattr(run_worker, "train_task", full)
    with pytest.raises(OSError, match="No space"):
        sweep(plan, tmp_path / "out")
    monkeypatch.setattr(run_worker, "train_task", original)
    assert sweep(plan, tmp_path / "out", test=False).count("finished") == 2


def test_a_data_base_that_goes_away_stops_the_sweep_and_loses_no_trial(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1,2", keep_easy=False)
    original = run_worker.train_task

    def gone(*_):
        raise optuna.exceptions.StorageInternalError("server closed the connection")

    monkeypatch.setattr(run_worker, "train_task", gone)
    with pytest.raises(ValueError, match="cannot be used: server closed the connection"):
        sweep(plan, tmp_path / "out")
    monkeypatch.setattr(run_worker, "train_task", original)
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
            study_module.sign(asked[0], tmp_path / "runs" / "x")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(optuna.Study, "ask", late)
    trained = count_training(monkeypatch)
    sweep(plan, tmp_path / "out", test=False)
    assert trained == []
    assert len(read_result(study, plan).rows) == 1


def test_a_grid_of_steps_and_values_is_tried_whole_whatever_the_number_of_trials(make_plan, tmp_path):
    search = ("mean_margin=1,2", "representation_weight=0.1:0.3:0.1")
    plan = make_plan(*search, trials=2, keep_easy=False, epochs=1, sampler="grid")
    assert plan.budget == 6
    result = sweep(plan, tmp_path / "out", test=False)
    tried = {tuple(result.settings(row).values()) for row in result.rows}
    assert tried == {(margin, weight) for margin in (1, 2) for weight in (0.1, 0.2, 0.3)}
    with pytest.raises(ValueError, match="--sampler grid needs values to combine"):
        make_plan("representation_weight=0.1:0.3", sampler="grid")


# Plans, storages, files


def test_a_folder_with_another_question_is_refused(make_plan, tmp_path):
    settle_plan(make_plan("mean_margin=1,2"), tmp_path / "out")
    for other, words in [
        (make_plan("mean_margin=1,3"), "--search"),
        (make_plan("mean_margin=1,2", objective="worst"), "--objective: hard -> worst"),
        (make_plan("mean_margin=1,2", epochs=5), "loop.epochs: 2 -> 5"),
        (make_plan("mean_margin=1,2", easy_slack=0.01), "easy_slack"),
    ]:
        with pytest.raises(ValueError, match=f"ask something else.*{words}"):
            settle_plan(other, tmp_path / "out")
    settle_plan(make_plan("mean_margin=1,2", trials=50), tmp_path / "out")
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no results of this sweep"):
        settle_plan(make_plan("mean_margin=1,2"), tmp_path / "busy")


def test_a_named_study_with_another_question_is_refused(make_plan, tmp_path):
    open_study(make_plan("mean_margin=1,2", study="mine"))
    with pytest.raises(ValueError, match=r"study mine in sqlite.*--search"):
        open_study(make_plan("mean_margin=1,3", study="mine"))


def test_a_named_study_that_does_not_say_what_it_asks_is_refused(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", study="mine")
    place = study_module._open_storage(plan.storage)
    study = optuna.create_study(storage=place, study_name="mine", direction="maximize")
    study.set_user_attr("plan", {"objective": {"worst": 1.0}})  # as versions before 0.5 kept it
    with pytest.raises(ValueError, match=r"study mine in sqlite.*does not say what it asks"):
        open_study(plan)


def test_the_question_survives_a_file(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2", "optimizer.betas=[0.9,0.99],[0.8,0.9]", objective="hard:2,worst:1")
    settle_plan(plan, tmp_path / "out")
    assert read_question(tmp_path / "out" / "question.json") == plan.question()


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
            {"method.mean_margin": n % 2 + 1, "backbone.note": "<script>alert(1)</script>"},
            0.4 + 0.1 * (n % 2),
            {"hard": 0.5, "easy": 0.9},
            0.0,
        )
        for n in range(6)
    ]
    plan = make_plan("mean_margin=1,2", "optimizer.name=sgd,adamw")
    hostile = plan.parameters[1].__class__("backbone.note", choices=("<script>alert(1)</script>", "sgd"))
    plan = SweepPlan(plan.config, (plan.parameters[0], hostile), plan.objective, 6, "s", plan.storage)
    result = SweepResult(plan, tuple(rows), choose(rows), {"easy": 0.8})
    text = pages.write_result(result, tmp_path)[-1].read_text()
    assert "<script>alert(1)</script>" not in text
    assert 'src="http' not in text


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
    assert "The choice on validation and on the test set" in markdown
    best = gather_config(file=tmp_path / "out" / "best.toml")
    assert best.method.options["mean_margin"] == result.best.labels["method.mean_margin"]


# Real processes


def sweep_command(plan_words, out):
    words = [sys.executable, "-m", "classmargin", "sweep", *plan_words, "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_of_two_processes_survives_signals(toy_features, tmp_path, number, wait_until, family_of):
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
    wait_until(lambda: list((tmp_path / "out").glob("runs/*/metrics.jsonl")), interrupted)
    workers_ended = family_of(interrupted.pid)
    os.kill(interrupted.pid, number)
    interrupted.communicate()
    assert interrupted.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until(workers_ended)  # they notice that their parent is gone, save and end
    out, err = sweep_command(words, tmp_path / "out").communicate()
    result = json.loads(out)
    assert [row["outcome"] for row in result["trials"]] == ["finished"] * 3, err
    straight, _ = sweep_command(words, tmp_path / "straight").communicate()
    again = json.loads(straight)
    key = lambda row: row["settings"]["mean_margin"]
    assert [row["validation"] for row in sorted(result["trials"], key=key)] == [
        row["validation"] for row in sorted(again["trials"], key=key)
    ]
    assert result["test_of_best"] == again["test_of_best"]
