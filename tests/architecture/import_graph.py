"""Reads who imports whom from the source itself; nothing of the package is executed.

A *late* import stands inside a function; ``require_extra("name", ...)`` and ``import_module("name")`` are late imports
by another name. Imports for type checkers only count as dependencies too, but never as early ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / "src" / "classmargin"
PACKAGE = "classmargin"

# Modules that *are* a class of another framework (they subclass one of its classes) and therefore import it at once. They
# are reached only through a lazy public name, and start with require_extra, which names the extra where it is missing.
FACES = {
    "integrations.huggingface": "transformers",
    "integrations.lightning": "lightning",
    "integrations.sklearn_classifier": "sklearn",
    "integrations.sklearn_offsets": "sklearn",
    "integrations.torchmetrics": "torchmetrics",
}


class Import(NamedTuple):
    """One import of one module.

    Attributes:
        importer: Dotted name of the importing module below the package: ``"evaluation.auditing"``, ``""`` for the root.
        target: Dotted name of what is imported: ``"classmargin.report.html_pages"`` or ``"numpy"``.
        late: Whether it runs only when a function is called.
        typing: Whether it is for type checkers only.
        line: Line of the file.
    """

    importer: str
    target: str
    late: bool
    typing: bool
    line: int

    @property
    def is_ours(self) -> bool:
        return self.target.split(".")[0] == PACKAGE

    @property
    def inside(self) -> str:
        """Dotted name below the package."""
        return self.target.partition(".")[2]

    def __str__(self) -> str:
        return f"{self.importer or '__init__'} (line {self.line}) imports {self.target}{' late' if self.late else ''}"


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def source_files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def module_names() -> frozenset[str]:
    return frozenset(module_name(path) for path in source_files())


@cache
def all_imports() -> list[Import]:
    return [found for path in source_files() for found in imports_of(path)]


def imports_of(path: Path) -> list[Import]:
    return imports_in(path.read_text(encoding="utf8"), module_name(path), path.name == "__init__.py")


def imports_in(source: str, importer: str, is_package: bool = False) -> list[Import]:
    found = []
    for node, late, typing in walk(ast.parse(source)):
        for target in targets(node, importer, is_package):
            found.append(Import(importer, target, late or isinstance(node, ast.Call), typing, node.lineno))
    return found


def walk(node: ast.AST, late: bool = False, typing: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Yield every node with whether it is inside a function and inside ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        inside = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        only_types = typing or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and child in node.body
        )
        yield child, inside, only_types
        yield from walk(child, inside, only_types)


def targets(node: ast.AST, importer: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, importer, is_package)
        # "from classmargin.report import tables" may name a module: the longer name is the safer one to judge by
        names = {f"{base}.{alias.name}" for alias in node.names}
        known = {f"{PACKAGE}.{name}" for name in module_names()}
        return sorted(names & known) or [base]
    if isinstance(node, ast.Call) and called_name(node) in ("require_extra", "import_module") and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return [first.value]
    return []


def absolute(node: ast.ImportFrom, importer: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = [PACKAGE, *importer.split(".")] if importer else [PACKAGE]
    keep = len(parts) - node.level + (1 if is_package else 0)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
