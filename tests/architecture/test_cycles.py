"""Data flows forward: what is imported when a module loads never leads back to it.

Imports inside functions and imports for type checkers are left out: they draw no line at run time until somebody calls.
"""

from collections.abc import Iterable, Mapping

from import_graph import all_imports, module_names


def loaded_by(importers: Iterable[str]) -> dict[str, set[str]]:
    """Return which of our modules each of the given modules loads."""
    graph: dict[str, set[str]] = {name: set() for name in importers}
    for found in all_imports():
        if found.is_ours and found.importer in graph and not found.late and not found.typing:
            graph[found.importer].add(found.inside)
    return graph


def between_packages() -> dict[str, set[str]]:
    """Return which packages (and single modules of the root) each of them loads."""
    graph: dict[str, set[str]] = {}
    for importer, targets in loaded_by(name for name in module_names() if name).items():
        package = importer.split(".")[0]
        others = {target.split(".")[0] for target in targets if target}
        graph.setdefault(package, set()).update(others - {package})
    return graph


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the names along one cycle, the first repeated at the end; empty if there is none."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for target in sorted(graph.get(name, ())):
            if found := visit(target, [*path, name]):
                return found
        finished.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_packages_do_not_import_one_another_in_a_circle():
    assert cycle_in(between_packages()) == []


def test_modules_do_not_import_one_another_in_a_circle():
    modules = {name for name in module_names() if name}
    graph = {name: (targets & modules) - {name} for name, targets in loaded_by(modules).items()}
    assert sum(map(len, graph.values())) > len(modules), "the graph must not be empty"
    assert cycle_in(graph) == []


def test_a_cycle_is_found_and_a_shared_target_is_none():
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_in({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
