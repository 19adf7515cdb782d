"""The gate where pipelines show it."""

from xml.etree import ElementTree

import pytest

from classmargin.cli.main import main
from classmargin.evaluation import audit
from classmargin.evaluation.release_gate import gate
from classmargin.report.comparison_tables import append_summary, write_junit

NAMES = ["cat|<b>", "dog\x07"]


@pytest.fixture
def failed():
    labels = [0, 1] * 100
    old = audit(labels, predictions=labels, num_classes=2, bootstrap=0, class_names=NAMES)
    new = audit(labels, predictions=[0, 1] * 80 + [0, 0] * 20, num_classes=2, bootstrap=0, class_names=NAMES)
    return gate(new, old)


def test_junit_has_a_test_for_each_class_and_a_failure_for_each_reason(failed, tmp_path):
    root = ElementTree.parse(write_junit(failed, tmp_path / "gate.xml")).getroot()
    (suite,) = root
    assert (root.tag, suite.get("tests"), suite.get("failures")) == ("testsuites", "3", "2")
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert list(cases) == ["overall accuracy", "class cat|<b>", "class dog"]
    assert cases["class cat|<b>"] is None
    messages = [failure.get("message") for failure in cases.values() if failure is not None]
    assert len(messages) == len(failed.reasons)
    assert all("drop" in message or "fell" in message or "from" in message for message in messages)


def test_summary_is_appended_and_names_cannot_break_it(failed, tmp_path):
    file = tmp_path / "summary.md"
    file.write_text("before\n", encoding="utf-8")
    text = append_summary(failed, file).read_text(encoding="utf-8")
    assert text.startswith("before\n### Gate: failed\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "<b>" not in text


def test_command_writes_both_whatever_the_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, predictions in (("old", [0, 1] * 100), ("new", [0, 0] * 100)):
        lines = [f"{label},{guess}" for label, guess in zip([0, 1] * 100, predictions, strict=True)]
        (tmp_path / f"{name}.csv").write_text("label,prediction\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = ["gate", "new.csv", "--baseline", "old.csv", "--junit", "gate.xml", "--summary", "summary.md"]
    words += ["--num-classes", "2"]
    assert main(words) == 1
    capsys.readouterr()
    assert ElementTree.parse("gate.xml").getroot().get("failures") == "2"
    assert "### Gate: failed" in (tmp_path / "summary.md").read_text(encoding="utf-8")
