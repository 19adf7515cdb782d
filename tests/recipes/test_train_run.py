"""One run from begin to end: files, resuming, refusing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from classmargin.cli.main import main
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.run_parts import build_run, load_bundle
from classmargin.recipes.train_run import default_folder, train
from classmargin.training.run_folder import RunFolder


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


def test_a_run_folder_holds_everything(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    assert {
        "config.toml",
        "metrics.jsonl",
        "metrics.csv",
        "class_accuracy.csv",
        "checkpoint",
        "predictions.npz",
    } <= names
    assert {"audit.json", "run.json", "done", "model.json"} <= names
    with np.load(finished_run / "predictions.npz", allow_pickle=False) as arrays:
        assert arrays["logits"].shape == (100, 10)
        assert arrays["features"].shape == (100, 160)
        assert arrays["classifier_weight"].shape == (10, 160)
        assert len(set(arrays["sample_id"].tolist())) == 100
        right = (arrays["logits"].argmax(axis=1) == arrays["labels"]).mean()
    done = json.loads((finished_run / "done").read_text())
    assert done["test"]["overall"] == pytest.approx(right)
    assert json.loads((finished_run / "audit.json").read_text())["overall"] == pytest.approx(right)


def test_the_report_of_a_run_shows_pictures_of_its_errors(tmp_path, small):
    pytest.importorskip("plotly")
    train(small("machine.report=true"), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    data = json.loads(page.split('id="sample-data">')[1].split("</script>")[0])
    errors = [row for row in data["rows"] if row[1] == 0]
    assert errors
    assert all(row[7] >= 0 for row in errors)
    assert data["pictures"][errors[0][7]].startswith("data:image/png;base64,")


def test_every_hyperparameter_is_written_out(finished_run):
    config = RunFolder(finished_run).read_config()
    assert config.method.name == "mr2"
    assert "mean_margin" in config.method.options
    assert config.machine.threads == 1


def test_a_finished_run_is_left_alone(finished_run, small):
    before = files(finished_run)
    summary = train(small(method="mr2"), finished_run, resume=True, show=False)
    assert summary == json.loads((finished_run / "done").read_text())
    assert files(finished_run) == before


def test_a_folder_in_use_is_refused_without_resume(finished_run, small):
    before = files(finished_run)
    with pytest.raises(ValueError, match=r"holds a finished run; choose another --out"):
        train(small(method="mr2"), finished_run, show=False)
    assert files(finished_run) == before


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_place_of_the_folder_is_named(below, tmp_path, small):
    file = tmp_path / "report"
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"--out must be a folder, got .*report.* is a file"):
        train(small(), file / below, show=False)
    assert file.read_text() == "mine"


def test_an_unfinished_run_is_refused_with_the_word_that_goes_on_with_it(tmp_path, small):
    train(small("loop.epochs=1"), tmp_path / "run", show=False, test=False)
    with pytest.raises(ValueError, match=r"holds an unfinished run; add --resume or choose another --out"):
        train(small("loop.epochs=1"), tmp_path / "run", show=False)


def test_another_configuration_is_refused_and_named(finished_run, small):
    with pytest.raises(ValueError, match=r"another configuration .*loop\.epochs: 2 -> 3"):
        train(small("loop.epochs=3", method="mr2"), finished_run, resume=True, show=False)


@pytest.mark.parametrize("setting", ["machine.threads=2", "machine.memory_format=contiguous"])
def test_a_run_does_not_go_on_rounding_otherwise(setting, tmp_path, small):
    train(small("loop.epochs=1"), tmp_path / "run", show=False, test=False)
    name, _, value = setting.partition("=")
    with pytest.raises(ValueError, match=rf"another configuration \({name}: .* -> '?{value}'?\)"):
        train(small("loop.epochs=1", setting), tmp_path / "run", resume=True, show=False)


def test_what_is_left_open_is_what_the_run_began_with(tmp_path, small):
    begun = ("machine.threads=2", "machine.memory_format=contiguous")
    train(small("loop.epochs=1", *begun), tmp_path / "run", show=False, test=False)
    left_open = ("machine.threads=0", "machine.memory_format=auto", "loop.precision=auto")
    train(small("loop.epochs=1", *left_open), tmp_path / "run", resume=True, show=False)
    sessions = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]
    assert len(sessions) == 2
    assert sessions[0]["numerics"] == sessions[1]["numerics"]
    assert sessions[0]["numerics"]["memory_format"] == "contiguous"
    assert sessions[0]["numerics"]["threads"] == 2


def test_going_on_on_another_device_is_told(tmp_path, small, capsys):
    train(small("loop.epochs=1"), tmp_path / "run", show=False, test=False)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["sessions"][0]["numerics"]["device"] = "cuda"
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    train(small("loop.epochs=1"), tmp_path / "run", resume=True, show=False)
    assert "begun on cuda and resumes on cpu: it will not end bit-identical" in capsys.readouterr().err


def test_going_on_with_another_method_names_the_method(finished_run, capsys):
    assert main(["train", "--method", "erm", "--out", str(finished_run), "--resume"]) == 2
    assert "another configuration (method.name: 'mr2' -> 'erm'" in capsys.readouterr().err


def test_a_folder_of_something_else_is_refused(tmp_path, small):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not a run folder"):
        train(small(), tmp_path, show=False)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_folders_are_named_by_what_they_compute(small):
    assert default_folder(small("loop.seed=1")).name.startswith("tiny-small-cnn-erm-seed1-")
    assert default_folder(small()) == default_folder(small("machine.report=true"))
    assert default_folder(small()) != default_folder(small("machine.threads=2"))
    assert default_folder(small()) != default_folder(small("optimizer.momentum=0.8"))
    assert default_folder(small(), "elsewhere").parent.name == "elsewhere"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.name=mr22"], "did you mean 'mr2'"),
        (
            ["method.name=mr2", "method.mean_margn=2"],
            r"no hyper-parameter 'mean_margn'.*did you mean 'mean_margin'",
        ),
        (["method.name=mr2", "method.preset=papr"], "did you mean 'paper'"),
        (["backbone.name=smal-cnn"], "did you mean 'small-cnn'"),
        (["backbone.name=linear"], "reads features, but data .*tiny.npz holds images"),
        (["backbone.head=cosine", "method.name=lgm"], "needs a gaussian head"),
        (["data.name=fashion-mnist-min"], "fashion-mnist-mini"),
        (["data.validation=0", "loop.select=hard"], "needs validation samples"),
        (["backbone.checkpoint=/nowhere/x.safetensors"], "does not exist"),
    ],
)
def test_bad_input_is_refused_before_a_run_begins(tmp_path, small, overrides, words):
    with pytest.raises((ValueError, OSError), match=words):
        train(small(*overrides), tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_disk_that_is_full_when_a_run_begins_does_not_spoil_its_folder(tmp_path, small, monkeypatch):
    def full(self, config):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_config", full)
        with pytest.raises(OSError, match="No space"):
            train(small("loop.epochs=1"), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/.lock").touch()  # as a run leaves it that was killed before it began
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_config", full)
        with pytest.raises(OSError, match="No space"):
            train(small("loop.epochs=1"), tmp_path / "mine", show=False)
    assert train(small("loop.epochs=1"), tmp_path / "mine", show=False)["steps"] > 0


def test_a_network_with_statistics_of_its_own_refuses_other_units(tmp_path, small, tiny_images):
    with np.load(tiny_images) as found:
        arrays = dict(found)
    for unit in (255.0, 1.0):
        floats = {k: v / np.float32(255 / unit) if k.startswith("x_") else v for k, v in arrays.items()}
        np.savez(tmp_path / f"{unit:g}.npz", **floats)
    backbone = ("backbone.name=resnet18", "loop.epochs=1")
    assert build_run(small(*backbone, f"data.name={tmp_path}/1.npz")).bundle.mean
    with pytest.raises(ValueError, match=r"resnet18 expects images as bytes or .* got numbers between 0 and 255"):
        build_run(small(*backbone, f"data.name={tmp_path}/255.npz"))


@pytest.mark.parametrize(
    "overrides",
    [["data.name=nowhere"], ["backbone.name=linear"], ["data.validation=0", "loop.select=hard"]],
)
def test_bad_input_leaves_no_folder_that_was_not_there(tmp_path, small, overrides):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "new"):
        with pytest.raises(ValueError, match=r"nowhere|reads features|needs validation"):
            train(small(*overrides), tmp_path / name, show=False)
    assert (tmp_path / "mine").exists(), "somebody else made it"
    assert not (tmp_path / "new").exists()


def test_hyperparameters_under_the_name_of_the_method_are_pointed_to_their_place(tmp_path, capsys):
    words = ["train", "--method", "mr2", "--set", "mr2.mean_margin=2", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "--set method.mean_margin=2" in capsys.readouterr().err


# Warm-up. The short runs have 2 epochs of 5 steps.


def test_a_checkpoint_of_another_network_is_refused_with_words(tmp_path, small):
    train(small("loop.epochs=1"), tmp_path / "run", show=False)
    (tmp_path / "run" / "done").unlink()
    text = (tmp_path / "run" / "config.toml").read_text().replace('name = "small-cnn"', 'name = "resnet20"')
    (tmp_path / "run" / "config.toml").write_text(text)
    config = small("loop.epochs=1", "backbone.name=resnet20")
    with pytest.raises(ValueError, match="does not fit the network"):
        train(config, tmp_path / "run", resume=True, show=False)


@pytest.mark.parametrize(
    "extra",
    [
        ["loop.ema_decay=0.9", "loop.select=overall"],
        ["loop.accumulate=2"],
        # Emulated bfloat16 is an order of magnitude slower than float32 here.
        pytest.param(["loop.precision=bf16-mixed"], marks=pytest.mark.slow),
        ["loop.precision=64-true"],
        ["optimizer.name=adamw", "optimizer.learning_rate=0.001", "optimizer.clip_norm=1.0"],
    ],
)
def test_options_of_the_loop_run_end_to_end(tmp_path, small, extra):
    summary = train(small("loop.epochs=1", *extra), tmp_path / "run", show=False)
    assert 0.0 <= summary["test"]["overall"] <= 1.0


def test_streamed_images_come_through_workers_and_train_the_same(tmp_path, small, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    import classmargin.data.load as prepare
    from classmargin.recipes.run_parts import build_run

    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 5)):
        for label in ("dark", "light"):
            folder = tmp_path / "images" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 100, (16, 16, 3), dtype=np.uint8) + (155 if label == "light" else 0)
                image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    settings = (f"data.name={tmp_path / 'images'}", "loop.batch_size=8", "loop.epochs=1")
    session = build_run(small(*settings))
    assert not session.bundle.streamed, "few images live in memory"
    assert session.loaders.workers == 0
    monkeypatch.setattr(prepare, "MEMORY_LIMIT", 1)
    streamed = build_run(small(*settings))
    assert streamed.bundle.streamed
    assert streamed.loaders.workers >= 1
    results = []
    for workers in (0, 2):
        name = f"run{workers}"
        train(small(*settings, f"machine.workers={workers}"), tmp_path / name, show=False)
        results.append((tmp_path / name / "metrics.jsonl").read_bytes())
    assert results[0] == results[1]


def test_the_audit_of_a_run_measures_features_by_the_norm_of_its_method(tmp_path, small):
    train(small("method.norm_order=3", "loop.epochs=1", method="mr2"), tmp_path / "run", show=False)
    written = json.loads((tmp_path / "run" / "audit.json").read_text())["by_class"]
    predictions = read_predictions(tmp_path / "run")
    cubic, square = (predictions.audit(norm_order=p, bootstrap=0).by_class["margin"] for p in (3.0, 2.0))
    assert [row["margin"] for row in written] == pytest.approx(cubic.tolist())
    assert cubic.tolist() != pytest.approx(square.tolist())


def test_a_fold_takes_the_place_of_validation_and_left_out_samples_are_not_trained_on(small, tmp_path):
    whole = load_bundle(small("data.validation=0"))
    folds = [load_bundle(small("data.validation=0", f"data.fold=[{fold},3]")) for fold in range(3)]
    held = np.concatenate([one.validation.index.numpy() for one in folds])
    assert sorted(held) == sorted(whole.train.index.tolist())
    for one in folds:
        assert not set(one.validation.index.tolist()) & set(one.train.index.tolist())
        assert one.train.inputs.shape[0] == len(one.train.labels) == len(whole.train) - len(one.validation)
    file = tmp_path / "doubted.csv"
    file.write_text("sample_id,class_name\n" + "".join(f"{index},x\n" for index in whole.train.index[:7].tolist()))
    left = load_bundle(small("data.validation=0", f"data.left_out={file}"))
    assert left.train.index.tolist() == whole.train.index[7:].tolist()
    file.write_text("name\nx\n")
    with pytest.raises(ValueError, match="must be a CSV file with a column sample_id"):
        load_bundle(small(f"data.left_out={file}"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.spared_classes=Bag"], "did you mean 'bag'"),
        (["data.spared_classes=bag", "data.augmentation=none"], "is not augmented at all"),
    ],
)
def test_classes_that_cannot_be_spared_are_refused(small, settings, message):
    with pytest.raises(ValueError, match=message):
        build_run(small(*settings))
