"""The site builds without warnings and without network, and its pages ask for nothing outside themselves."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED = importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None
pytestmark = pytest.mark.skipif(NOT_INSTALLED, reason="mkdocs-material is not installed (extra docs)")
OUTSIDE = re.compile(r"^(https?:)?//")


# mkdocs with every way to the net closed: a step that connects anywhere ends the build.
OFFLINE = """
import socket, sys

def refuse(*_):
    raise SystemExit("the build wants the network")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli

cli(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as ``make docs`` does, without network, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


class Requests(HTMLParser):
    """Collects what a browser would fetch for a page, and what tags it has."""

    def __init__(self):
        super().__init__()
        self.urls, self.tags, self.ids = [], set(), set()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.add(tag)
        self.ids.add(values.get("id"))
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.urls.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(values.get("href") or "")


def parsed(page):
    reader = Requests()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def test_pages_ask_for_nothing_outside_the_site(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    assert [(page.name, url) for page in pages for url in parsed(page).urls if OUTSIDE.match(url)] == []


def test_style_sheets_ask_for_nothing_outside_the_site(site):
    sheets = list(site.rglob("*.css"))
    assert sheets
    found = [
        (sheet.name, url)
        for sheet in sheets
        for url in re.findall(r"url\(([^)]*)\)|@import ([^;]*)", sheet.read_text())
    ]
    assert [entry for entry in found if any(OUTSIDE.match(url.strip("\"'")) for url in entry[1])] == []


def test_formulas_are_mathml_and_none_is_left_as_latex(site):
    assert "math" in parsed(site / "theory.html").tags
    left = [page.name for page in site.rglob("*.html") if 'class="arithmatex"' in page.read_text(encoding="utf-8")]
    assert left == []


def test_every_method_has_a_card_that_the_table_links_to(site):
    from classmargin.methods import list_methods

    cards, table = parsed(site / "method_cards.html").ids, (site / "methods.html").read_text(encoding="utf-8")
    for info in list_methods():
        assert info.name in cards
        assert f'href="method_cards.html#{info.name}"' in table


def test_docstrings_show_no_sphinx_roles_and_no_unfilled_markers(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r":(func|class|mod|meth|attr):", text), page.name
        assert "from code:" not in text, page.name
