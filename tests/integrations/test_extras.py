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
    *("sklearn", "lightning", "huggingface", "timm", "open_clip", "torchmetrics"),
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
        if name not in ("timm", "open_clip"):
            assert not re.search(r"timm|open_clip", " ".join(packages)), name
