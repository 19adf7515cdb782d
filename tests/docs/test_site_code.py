"""What a reader copies from the site works: its Python runs, its commands exist and take their arguments.

Each page is run from top to bottom in a folder of its own. Python blocks share one namespace, as in a notebook. Commands that
only read predictions are run; commands that train are parsed by the command line itself, every option and value of them.
"""

import contextlib
import io
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from site_blocks import DOCS, PAGES, ROOT, SHELL, blocks_of, commands_of, examples_of, page_name

from classmargin.cli.main import build_app, main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN = {"audit", "compare", "gate", "list"}
# Folders of finished trainings do not exist here; commands that read one are parsed only.
NEEDS_A_RUN = re.compile(r"^runs/")
LANGUAGES = {*SHELL, "python", "toml", "yaml", "text", ""}
WITH_CODE = [page for page in PAGES if any(block.language in ("python", *SHELL) for block in blocks_of(page))]


@pytest.fixture(scope="module")
def extras():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(content["project"]["optional-dependencies"])


@pytest.fixture(scope="module")
def make_targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", WITH_CODE, ids=page_name)
def test_code_of_the_page_runs(page, tmp_path, monkeypatch, extras, make_targets):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page):
        if block.language == "python":
            code = compile("\n" * block.lines_before + block.code, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)
        elif block.language in SHELL:
            for words in commands_of(block):
                check_command(words, strict=block.language == "console", extras=extras, targets=make_targets)


def check_command(words, *, strict, extras, targets):
    """Run or parse one command of a page."""
    match words:
        case ["classmargin", verb, *arguments] if verb in RUN and not any(map(NEEDS_A_RUN.match, arguments)):
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as errors,
            ):
                code = main([verb, *arguments])
            assert code == 0, f"{' '.join(words)}: exit code {code}: {errors.getvalue()}"
        case ["classmargin", *arguments]:
            parse(arguments)
        case ["make", *names]:
            names = [name for name in names if "=" not in name]
            assert set(names) <= targets, f"the Makefile has no {names}"
        case ["pip", "install", *arguments]:
            named = re.findall(r"\[([\w,-]+)\]", " ".join(arguments))
            assert {extra for group in named for extra in group.split(",")} <= extras, words
        case ["python", script, *_]:
            assert (ROOT / script).exists(), f"there is no {script}"
        case _:
            assert not strict, f"nothing checks the command {' '.join(words)!r}"


def parse(arguments):
    """Parse a command as the command line would, without running it; wrong options and values raise."""
    group = typer.main.get_command(build_app())
    context = group.make_context("classmargin", list(arguments), resilient_parsing=False)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    for position, word in enumerate(rest):  # run folders and settings files must exist to be parsed
        if name in ("predict", "export") and position == 0:
            Path(word).mkdir(parents=True, exist_ok=True)
        elif word.endswith(".toml"):
            Path(word).touch()
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("arguments", [["train", "--epoch", "3"], ["train", "--epochs", "0"], ["trian"], ["sweep"]])
def test_a_wrong_command_on_a_page_would_be_noticed(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r".") as refused:  # its class is private to typer
        parse(arguments)
    assert "UsageError" in [kind.__name__ for kind in type(refused.value).__mro__]


def test_every_block_says_a_known_language():
    odd = [
        f"{page_name(page)}:{block.lines_before} {block.language}"
        for page in PAGES
        for block in blocks_of(page)
        if block.language not in LANGUAGES
    ]
    assert odd == []


def test_methods_named_in_commands_exist():
    from classmargin.methods import method_info

    named = set()
    for page in PAGES:
        for block in blocks_of(page):
            if block.language in SHELL:
                text = block.code.replace("\\\n", " ")
                for found in re.finditer(r"--methods? +(\S+)", text):
                    named |= set(found[1].split(","))
    assert named
    for name in named - {"all"}:
        method_info(name)


def test_recipes_named_in_commands_exist():
    from classmargin.recipes.recipe import find_recipe

    named = {
        words[2]
        for page in PAGES
        for block in blocks_of(page)
        if block.language in SHELL
        for words in commands_of(block)
        if words[:2] == ["classmargin", "reproduce"] and not words[2].startswith("-")
    }
    assert named
    for name in named - {"custom", "NAME"}:
        find_recipe(name)


def test_searches_and_objectives_in_commands_are_understood():
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.sweep_space import parse_objective, parse_search

    seen = 0
    for page in PAGES:
        for block in blocks_of(page):
            for words in commands_of(block) if block.language in SHELL else []:
                if words[:2] != ["classmargin", "sweep"]:
                    continue
                given: dict[str, list[str]] = {}
                for name, value in pairwise(words):
                    given.setdefault(name, []).append(value)
                method = (given.get("--method") or ["mr2"])[0]
                run = gather_config(flags={"method": {"name": method}}, overrides=given.get("--set", []))
                parse_search(given.get("--search", []), run)
                parse_objective((given.get("--objective") or ["hard"])[0])
                seen += 1
    assert seen >= 3


def test_table_of_extras_names_all_of_them(extras):
    text = (DOCS / "integrations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras - {"test"}


class TestExamples:
    def test_every_example_is_on_the_site_and_no_other_file(self):
        shown = sorted(name for page in PAGES for name in examples_of(page))
        assert shown == sorted(path.name for path in (ROOT / "examples").glob("*.py"))

    def test_every_example_is_run_by_a_test_of_its_integration(self):
        tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "integrations").glob("*.py"))
        assert [path.name for path in (ROOT / "examples").glob("*.py") if path.stem not in tests] == []
