"""Code blocks of the documentation: found in the pages, with the line they start at."""

import re
import shlex
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^<!-- example: ([\w.]+) -->$", re.MULTILINE)
VARIABLE = re.compile(r"^[A-Z_]+=")
SHELL = ("console", "bash", "sh")


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block.

    Attributes:
        language: What stands behind the fence.
        code: Its text.
        lines_before: Lines of the page above it, so that errors point at the page.
    """

    language: str
    code: str
    lines_before: int


def page_name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def blocks_of(page: Path) -> list[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    return [
        CodeBlock(found["language"], found["code"], text[: found.start("code")].count("\n"))
        for found in BLOCK.finditer(text)
    ]


def examples_of(page: Path) -> list[str]:
    """Return the files of ``examples/`` that a page shows."""
    return EXAMPLE.findall(page.read_text(encoding="utf-8"))


def commands_of(block: CodeBlock) -> list[list[str]]:
    """Return the commands of a shell block as words; comments and variables before a command are left out."""
    lines = block.code.replace("\\\n", " ").splitlines()
    commands = (list(dropwhile(VARIABLE.match, shlex.split(line, comments=True))) for line in lines)
    return [words for words in commands if words]
