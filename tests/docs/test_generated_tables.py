import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_methods_page_is_what_the_registry_says():
    spec = importlib.util.spec_from_file_location("make_docs_tables", ROOT / "scripts" / "make_docs_tables.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == script.methods_page()
