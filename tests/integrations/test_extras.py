"""Every integration is an extra, and the versions it was tested with are pinned."""

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
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
