"""Input that is wrong, broken or malicious: one clear line, code 2, nothing half-written."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest


def assert_refused(outcome, *words):
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("classmargin: error: ")
    for word in words:
        assert word in lines[0], lines[0]


def spoiled(change):
    """Return the arrays of a model after ``change`` has spoiled them."""
    from numpy import random

    labels = np.repeat(np.arange(3), 10)
    content = {"labels": labels, "logits": random.default_rng(0).normal(size=(30, 3))}
    change(content)
    return content


def softmax(content):
    scores = np.exp(content.pop("logits"))
    content["probabilities"] = scores / scores.sum(axis=1, keepdims=True)


def not_summing(content):
    softmax(content)
    content["probabilities"][4] *= 0.5


def negative(content):
    softmax(content)
    content["probabilities"][2] = [-0.5, 1.0, 0.5]


SPOILED = {
    "fewer labels than logits": (lambda c: c.update(labels=c["labels"][:-1]), "logits", "(30, 3)"),
    "logits in three dimensions": (
        lambda c: c.update(logits=c["logits"][..., None]),
        "logits",
        "2 dimensions",
    ),
    "labels in two dimensions": (lambda c: c.update(labels=c["labels"][:, None]), "labels", "1 dimension"),
    "nan logits": (lambda c: c["logits"].__setitem__((3, 1), np.nan), "logits", "nan"),
    "label too large": (lambda c: c["labels"].__setitem__(0, 3), "labels", "[0, 3)"),
    "negative label": (lambda c: c["labels"].__setitem__(0, -1), "labels", "[0, 3)"),
    "fractional labels": (lambda c: c.update(labels=c["labels"] + 0.5), "labels", "float64"),
    "text labels": (lambda c: c.update(labels=c["labels"].astype(str)), "labels"),
    "no labels": (lambda c: c.pop("labels"), "labels"),
    "labels alone": (lambda c: c.pop("logits"), "logits"),
    "no sample": (lambda c: c.update(labels=c["labels"][:0], logits=c["logits"][:0]), "at least one sample"),
    "no class": (lambda c: c.update(logits=c["logits"][:, :0]), "logits"),
    "probabilities off one": (not_summing, "probabilities"),
    "negative probability": (negative, "probabilities"),
    "too few names": (lambda c: c.update(class_names=np.array(["a"])), "class"),
    "features of other samples": (lambda c: c.update(features=np.zeros((7, 2))), "features", "(7, 2)"),
    "nan features": (lambda c: c.update(features=np.full((30, 2), np.nan)), "features"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_wrong_arrays_are_named(run, tmp_path, case):
    change, *words = SPOILED[case]
    path = tmp_path / "p.npz"
    np.savez(path, **spoiled(change))
    out = tmp_path / "report.html"
    assert_refused(run("audit", path, "--out", out), *words)
    assert not out.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.npz"]


def bomb() -> bytes:
    """Return a small zip whose array claims (and unpacks to) far more than it weighs."""
    header = b"\x93NUMPY\x01\x00"
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000000, 3), }"
    shape += b" " * (63 - (len(header) + 2 + len(shape)) % 64) + b"\n"
    array = header + struct.pack("<H", len(shape)) + shape + bytes(2**22)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", array)
        archive.writestr("logits.npy", array)
    return file.getvalue()


class Trap:
    """Pickles to a call that would be noticed."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle was run')",))


def pickled_npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, labels=np.array([Trap(), Trap()], dtype=object), logits=np.zeros((2, 2)))
    return file.getvalue()


def whole_npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **spoiled(lambda content: None))
    return file.getvalue()


BROKEN = {
    "empty": b"",
    "not a zip": b"hello, world" * 100,
    "truncated": whole_npz()[:-100],
    "cut in half": whole_npz()[: len(whole_npz()) // 2],
    "flipped bytes": whole_npz()[:200] + b"\xff" * 40 + whole_npz()[240:],
    "pickled objects": pickled_npz(),
    "a bare pickle": pickle.dumps(Trap()),
    "zip bomb": bomb(),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_and_malicious_files_are_refused(run, tmp_path, case):
    path = tmp_path / "p.npz"
    path.write_bytes(BROKEN[case])
    assert_refused(run("audit", path), "p.npz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.csv", b""),
        ("p.csv", b"a,b\n1,2\n"),
        ("p.csv", b"\xff\xfe\x00binary"),
        ("p.csv", b"label,prediction,p_a,p_b\na,zebra,0.5,0.5\n"),
        ("p.csv", b"label,prediction,p_a,p_b\na,a,x,0.5\n"),
        ("p.parquet", b"PAR1 not really"),
        ("p.txt", b"hello"),
        ("p.pkl", pickle.dumps([1, 2])),
    ],
)
def test_other_broken_files_are_refused(run, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert_refused(run("audit", tmp_path / name), name)


def test_missing_files_and_empty_folders_are_refused(run, tmp_path):
    assert_refused(run("audit", tmp_path / "nowhere.npz"), "nowhere.npz")
    assert_refused(run("audit", tmp_path), "predictions.npz")


def test_class_names_must_be_one_a_class(run, predictions, tmp_path):
    names = tmp_path / "names.txt"
    for content in ("a\nb\n", "", '["a"'):
        names.write_text(content)
        assert_refused(run("audit", predictions(), "--class-names", names))


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.roll(np.repeat(np.arange(5), 40), 1)},
        {"labels": np.repeat(np.arange(5), 20), "logits": np.eye(5)[np.repeat(np.arange(5), 20)]},
        {"sample_id": np.arange(200) + 1000},
        {"labels": np.repeat(np.arange(5), 40), "logits": np.ones((200, 6))},
    ],
    ids=["other labels", "fewer samples", "other samples", "other classes"],
)
@pytest.mark.parametrize("verb", ["compare", "gate", "audit"])
def test_models_on_different_samples_are_not_compared(run, predictions, tmp_path, verb, change):
    first = predictions("first", **({"sample_id": np.arange(200)} if "sample_id" in change else {}))
    second = predictions("second", **change)
    out = tmp_path / "report.html"
    words = {
        "compare": ("compare", first, second, "--out", out),
        "gate": ("gate", second, "--baseline", first),
        "audit": ("audit", second, "--baseline", first, "--out", out),
    }
    assert_refused(run(*words[verb]))
    assert not out.exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--confidence", 1.5),
        ("--confidence", "nan"),
        ("--mean-margin", -1),
        ("--norm-order", 0.5),
        ("--seed", -1),
    ],
)
def test_impossible_options_are_refused(run, predictions, options):
    assert_refused(run("audit", predictions(), *options))


def test_a_folder_as_report_is_refused_before_the_work(run, predictions, tmp_path):
    assert_refused(run("audit", predictions(), "--out", tmp_path), "--out")


@pytest.mark.parametrize("name", ["report.pdf", "report", "report.html.gz"])
def test_a_report_of_another_kind_is_refused_before_the_work(run, tmp_path, name):
    missing = tmp_path / "missing.npz"  # it would be complained of first, if it were looked at
    for words in (("audit", missing), ("compare", missing, missing)):
        assert_refused(run(*words, "--out", tmp_path / name), "--out must end in .html or .htm", name)


def test_a_report_that_cannot_be_written_is_refused_before_the_work(run, predictions, tmp_path):
    missing, file = tmp_path / "missing.npz", predictions()
    (tmp_path / "nowhere").symlink_to(tmp_path / "not there")
    places = (file / "x.html", file / "deep" / "x.html", tmp_path / "nowhere" / "x.html", "/proc/x.html")
    for place in (*places, "/proc/deep/x.html", tmp_path / f"{'x' * 300}.html"):
        for words in (("audit", missing), ("compare", missing, missing)):
            assert_refused(run(*words, "--out", place), "--out", "cannot be written (", str(place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.npz", "nowhere"]


@pytest.mark.parametrize("verb", ["baseline", "compare", "gate"])
@pytest.mark.parametrize("arrays", ["numbers", "text", "table"])
def test_classes_that_were_only_seen_do_not_fit_those_of_a_head(run, predictions, tmp_path, verb, arrays):
    good = predictions("good")
    bad = tmp_path / "bad.npz"
    classes = np.repeat(["a", "b"], 5) if arrays == "text" else np.repeat([0, 1], 5)
    np.savez(bad, labels=classes, predictions=classes)
    if arrays == "table":
        bad = bad.with_suffix(".csv")
        bad.write_text("label,prediction\na,b\n")
    words = {
        "baseline": ("audit", good, "--baseline", bad),
        "compare": ("compare", good, bad),
        "gate": ("gate", bad, "--baseline", good),
    }
    assert_refused(run(*words[verb]), "classes", "give num_classes or class_names")


def test_a_label_outside_the_named_classes_tells_where_they_come_from(run, tmp_path):
    names, file = tmp_path / "names.txt", tmp_path / "p.csv"
    names.write_text("ant\nbee\n")
    file.write_text("label,prediction\ncat,ant\n")
    words = ("'cat' in row 1", "not among the classes ant, bee (from class_names)")
    assert_refused(run("audit", file, "--class-names", names), "p.csv", *words)
    file.write_text("label,logit_0,logit_1\ncat,0.5,0.5\n")
    assert_refused(run("audit", file), "not among the classes 0, 1 (from the logit_<class> columns)")


def test_a_number_of_classes_that_contradicts_the_file_is_named(run, predictions):
    assert_refused(run("audit", predictions(), "--num-classes", 7), "model.npz", "7 from num_classes, 5 from")


def test_unfinished_runs_say_how_to_finish_them(run, tmp_path):
    (tmp_path / "config.toml").touch()
    words = ("unfinished run", f"classmargin train --out {tmp_path} --resume")
    assert_refused(run("audit", tmp_path), *words)
    assert_refused(run("compare", tmp_path, tmp_path / "other"), *words)


DEGENERATE = {
    "one class": {"labels": [0, 0, 0], "logits": [[1.0], [2.0], [0.0]]},
    "one sample": {"labels": [1], "logits": [[0.0, 1.0, 2.0]]},
    "all correct": {"labels": [0, 1, 2], "logits": np.eye(3)},
    "all wrong": {"labels": [1, 2, 0], "logits": np.eye(3)},
    "absent classes": {"labels": [0, 0, 3], "logits": np.eye(9)[[0, 1, 3]]},
    "infinite margin": {"labels": [0, 1], "logits": [[1e30, -1e30], [-1e30, 1e30]]},
    "one feature": {"labels": [0, 1, 0], "logits": np.eye(2)[[0, 1, 1]], "features": [[1.0], [2.0], [3.0]]},
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("style", ["table", "json", "markdown", "latex"])
def test_degenerate_test_sets_are_audited_not_refused(run, tmp_path, case, style):
    path = tmp_path / "p.npz"
    np.savez(path, **{key: np.asarray(value) for key, value in DEGENERATE[case].items()})
    outcome = run("audit", path, "--bootstrap", 100, "--format", style)
    assert outcome.code == 0, outcome.err
    assert "nan" not in outcome.out.lower().replace("finance", "")


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_test_sets_can_be_compared_and_the_gate_says_that_it_cannot_tell(run, tmp_path, case):
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **{key: np.asarray(value) for key, value in DEGENERATE[case].items()})
    files = (tmp_path / "a.npz", tmp_path / "b.npz")
    assert run("compare", *files, "--bootstrap", 100, "--out", tmp_path / "c.html").code == 0
    assert run("gate", files[0], "--baseline", files[1]).code == 3
    assert run("gate", files[0], "--baseline", files[1], "--allow-blind").code == 0


def test_names_with_html_and_escape_sequences_are_harmless_everywhere(run, predictions, tmp_path):
    names = np.array(["<script>alert(1)</script>", "[red]x[/red]", "\x1b[31mred", "a|b\\c", "50% & $x_1$"])
    path = predictions(class_names=names)
    out = tmp_path / "r.html"
    shown = run("audit", path, "--bootstrap", 100, "--full", "--out", out).out
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown
    assert "<script>alert(1)" not in out.read_text("utf-8")
    assert "<script>" not in run("audit", path, "--bootstrap", 100, "--format", "markdown").out
    assert r"50\% \& \$x\_1\$" in run("audit", path, "--bootstrap", 100, "--format", "latex").out


def test_a_process_shows_no_traceback_and_leaves_nothing(run_process, tmp_path):
    path = tmp_path / "p.npz"
    path.write_bytes(BROKEN["truncated"])
    assert_refused(run_process("audit", path, "--out", tmp_path / "report.html"), "p.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["p.npz"]


def test_pipes_get_no_colour_codes_and_gates_their_codes(run_process, predictions):
    good, bad = predictions("good", noise=0.4), predictions("bad", noise=4.0)
    outcome = run_process("gate", bad, "--baseline", good, env={"FORCE_COLOR": "", "TERM": "xterm-256color"})
    assert outcome.code == 1
    assert outcome.err == ""
    assert "\x1b" not in outcome.out


def test_an_encoding_without_the_letters_of_a_name_is_survived(run_process, predictions):
    names = np.array(["犬", "猫", "naïve", "ß", "–"])
    outcome = run_process(
        "audit",
        predictions(class_names=names),
        "--bootstrap",
        100,
        "--full",
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert outcome.code == 0, outcome.err
    assert "\\u72ac" in outcome.out


def test_improve_without_data_names_its_options(run):
    assert_refused(run("improve"), "--data must be a data set, or --baseline a run or predictions; got neither")
