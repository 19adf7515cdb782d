"""Every integration is an extra, and the versions it was tested with are pinned."""

import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from classmargin._checks import require_extra
from classmargin.cli.main import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
INTEGRATIONS = (
    *("sklearn", "lightning", "huggingface", "timm", "open-clip", "torchmetrics"),
    *("tensorboard", "wandb", "mlflow", "fairlearn", "polars"),
)


def normal(name):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()


@pytest.mark.parametrize("extra", INTEGRATIONS)
def test_packages_of_the_extra_are_pinned(extra):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {normal(line) for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)}
    assert {normal(package) for package in EXTRAS[extra]} <= pinned


def test_packages_that_break_others_are_in_no_other_extra():
    """timm and open_clip bring torchvision."""
    for name, packages in EXTRAS.items():
        if name not in ("timm", "open-clip"):
            assert not re.search(r"timm|open_clip", " ".join(packages)), name


def test_extras_have_names_that_every_pip_finds():
    """Metadata spell them with hyphens; older pips compare letter by letter, warn, and install nothing."""
    assert [name for name in EXTRAS if not re.fullmatch(r"[a-z0-9-]+", name)] == []


def test_extras_that_messages_name_exist():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"require_extra\(\s*\"[\w.]+\",\s*\"([\w-]+)\"", source))
    assert len(named) > 8
    assert named <= EXTRAS.keys()


def test_torch_has_no_upper_bound_for_users_and_a_pin_for_development():
    core = PROJECT["dependencies"]
    assert [line for line in core if re.search(r"<|==", line.split(";")[0])] == []
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_extra_all_has_every_extra_that_installs_beside_the_others():
    (together,) = EXTRAS["all"]
    named = set(re.fullmatch(r"classmargin\[([\w,-]+)\]", together)[1].split(","))
    assert named == EXTRAS.keys() - {"all", "demo", "docs", "test", "timm", "open-clip", "mlflow", "ray"}


def test_lowest_versions_are_those_of_pyproject():
    listed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "lowest_versions.py", "sweep,sklearn"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "torch==2.4" in listed
    assert "scikit-learn==1.6" in listed  # report wants 1.4: the higher bound counts
    assert "lightning==2.4" in listed  # by way of sweep


def test_missing_package_is_named_with_both_ways_to_install_it():
    with pytest.raises(ImportError) as error:
        require_extra("no_such_package", "report", "a report")
    assert "pip install 'classmargin[report]'" in str(error.value)
    assert "pip install -c constraints.txt -e '.[report]'" in str(error.value)


def test_demo_without_its_extra_says_so_before_it_trains(without_package, capsys, tmp_path):
    without_package("plotly")
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert "classmargin[demo]" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_files_of_the_wheel_take_less_than_five_megabytes():
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < 5 * 10**6


def test_licences_of_all_core_packages_are_stated():
    listed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "list_licences.py"], capture_output=True, text=True, check=True
    ).stdout
    rows = {
        normal(cells[1].strip()): cells[3].strip() for line in listed.splitlines() if len(cells := line.split("|")) > 3
    }
    for package in ("numpy", "pandas", "rich", "safetensors", "scipy", "torch", "typer"):
        assert rows[package] not in ("", "not stated"), package
