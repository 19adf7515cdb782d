"""Few packages in the core, every package of the test environment pinned with its checksum, no hosts written."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {"numpy", "pandas", "rich", "safetensors", "scipy", "tomli", "torch", "typer"}


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hashes = load_script("make_ci_hashes")


def names(requirements: list[str]) -> set[str]:
    return {hashes.normal_name(re.match(r"[\w.-]+", line)[0]) for line in requirements}


def test_the_core_has_eight_dependencies_and_no_more():
    assert names(PROJECT["dependencies"]) == CORE


def test_the_core_brings_no_package_that_talks_to_a_service():
    services = {"wandb", "mlflow", "huggingface-hub", "requests", "aiohttp", "sentry-sdk", "boto3"}
    assert names(PROJECT["dependencies"]) & services == set()


def pins(text: str) -> dict[str, str]:
    lines = (line.partition("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {hashes.normal_name(name): version for name, _, version in lines}


def test_every_pinned_package_has_a_checksum_and_the_version_of_the_constraints():
    locked = hashes.read(hashes.FILE.read_text())
    constraints = pins((ROOT / "constraints.txt").read_text())
    assert len(locked) > 60
    differing = {n: (v, constraints.get(n)) for n, (v, _) in locked.items() if constraints.get(n) != v}
    assert differing == {}, "run scripts/make_ci_hashes.py"
    assert all(marks for _, marks in locked.values())


def test_every_direct_dependency_of_the_tests_is_locked():
    extras = PROJECT["optional-dependencies"]
    direct = set(PROJECT["dependencies"]) | set(extras["test"])
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(extras["test"])):
        direct |= {line for name in extra.split(",") for line in extras[name]}
    wanted = names(sorted(direct)) - {"classmargin", "tomli"}
    assert wanted - set(hashes.read(hashes.FILE.read_text())) == set()


def test_no_registry_is_named_in_the_lock():
    assert not re.search(r"https?://|index-url|find-links|file:", hashes.FILE.read_text())


REPORT = {
    "install": [
        {"metadata": {"name": "Some_Pkg", "version": "1.0"},
         "download_info": {"url": "x", "archive_info": {"hashes": {"sha256": "a" * 64}}}},
        {"metadata": {"name": "torch", "version": "2.0+cpu"},
         "download_info": {"url": "x", "archive_info": {"hashes": {"sha256": "b" * 64}}}},
        {"metadata": {"name": "classmargin", "version": "0"}, "download_info": {"url": "x", "dir_info": {}}},
    ]
}  # fmt: skip


def test_a_report_of_pip_becomes_pins_that_read_back():
    wanted = hashes.pins_of(REPORT)
    assert wanted == {"some-pkg": ("1.0", {"a" * 64}), "torch": ("2.0", {"b" * 64})}
    assert hashes.read(hashes.text_of(wanted)) == wanted


def test_checksums_of_other_machines_are_kept_for_the_same_version_only():
    wanted = hashes.pins_of(REPORT)
    written = {"some-pkg": ("1.0", {"c" * 64}), "torch": ("1.9", {"d" * 64})}
    assert hashes.merged(wanted, written) == {
        "some-pkg": ("1.0", {"a" * 64, "c" * 64}),
        "torch": ("2.0", {"b" * 64}),
    }


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "is not in the file"),
        ({"some-pkg": ("1.1", {"a" * 64})}, "the file has 1.1"),
        ({"some-pkg": ("1.0", {"c" * 64})}, "checksum is not one"),
    ],
)
def test_what_pip_would_install_differently_is_named(written, words):
    wanted = {"some-pkg": ("1.0", {"a" * 64})}
    (line,) = hashes.disagreements(wanted, written)
    assert words in line
    assert hashes.disagreements(wanted, {"some-pkg": ("1.0", {"a" * 64, "c" * 64})}) == []


def test_a_pin_without_checksum_is_refused():
    with pytest.raises(ValueError, match="without version and checksum"):
        hashes.read("numpy==1.0\n")
