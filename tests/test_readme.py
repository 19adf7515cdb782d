"""What a reader copies from the README works: its Python runs, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def text() -> str:
    return README.read_text(encoding="utf8")


def blocks(language: str) -> list[tuple[int, str]]:
    """Return first line number and code of every fenced block in a language."""
    return [
        (text()[: found.start("code")].count("\n"), found["code"])
        for found in BLOCK.finditer(text())
        if found["language"] == language
    ]


def test_python_examples_run_in_order(tmp_path, monkeypatch):
    """All blocks share one namespace, as in a notebook; errors point at the line of the README."""
    examples = blocks("python")
    assert examples, "README.md has no ```python block"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    for lines_before, code in examples:
        exec(compile("\n" * lines_before + code, str(README), "exec"), namespace)


def test_in_your_own_loop_example_uses_the_loss():
    """The example is about ten lines long and calls backward on MR2Loss."""
    own_loop = [code for _, code in blocks("python") if "MR2Loss" in code and ".backward()" in code]
    assert own_loop
    assert min(len([line for line in code.splitlines() if line.strip()]) for code in own_loop) <= 20


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_in_the_readme_and_in_the_makefile(target):
    assert f"make {target}" in text()
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)


def test_every_make_command_of_the_readme_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE))
    assert (
        set(re.findall(r"\bmake ([a-z][\w-]*)\b", "\n".join(code for _, code in blocks("sh") + blocks("bash"))))
        <= targets
    )


def test_links_and_pictures_lead_to_files_that_exist():
    links = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text()) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text())
    local = [link.split("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in local if link and not (ROOT / link).exists()] == []


def test_readme_shows_a_figure():
    assert re.search(r"!\[[^\]]+\]\([^)]+\.(svg|png|jpg)\)|<img ", text())
