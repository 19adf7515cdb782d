"""What starts quickly, and what works without the optional packages, seen from a fresh interpreter."""

import json
import subprocess
import sys

from import_graph import FACES, module_names

HEAVY = [
    "accelerate",
    "datasets",
    "jinja2",
    "kornia",
    "lightning",
    "matplotlib",
    "onnx",
    "pandas",
    "plotly",
    "pyarrow",
    "scipy",
    "sklearn",
    "tensorboard",
    "torchmetrics",
    "torchvision",
    "transformers",
]


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules in a fresh interpreter after ``code``."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy_not_even_torch():
    assert loaded_after("import classmargin") & {*HEAVY, "torch", "numpy", "typer", "rich"} == set()


def test_help_of_the_command_line_loads_nothing_heavy():
    code = (
        "from classmargin.cli.main import main\n"
        "import contextlib, io\n"
        "sys.argv = ['classmargin', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()) as page:\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code, end.code\n"
        "assert 'audit' in page.getvalue()"
    )
    assert loaded_after(code) & {*HEAVY, "torch"} == set()


def test_every_module_can_be_imported_without_loading_an_optional_package():
    names = [
        ".".join(filter(None, ("classmargin", name)))
        for name in sorted(module_names() - set(FACES))
        if name != "__main__"
    ]
    code = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)"
    assert loaded_after(code) & set(HEAVY) == set()


def test_an_audit_its_samples_and_its_page_need_no_torch(tmp_path):
    code = (
        "import numpy as np\n"
        "from classmargin.evaluation import audit\n"
        "rng = np.random.default_rng(0)\n"
        "result = audit(np.arange(60) % 3, logits=rng.normal(size=(60, 3)), features=rng.normal(size=(60, 4)), bootstrap=50)\n"
        "result.samples, str(result), result._repr_html_(), result.merge('0', '1')\n"
        f"result.to_html({str(tmp_path / 'page.html')!r}, images=np.zeros((60, 8, 8)))"
    )
    assert "torch" not in loaded_after(code)
