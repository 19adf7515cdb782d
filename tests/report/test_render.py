from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from classmargin.report import html_pages
from classmargin.report.html_pages import sort_value, write_audit_html, write_comparison_html


class Page(HTMLParser):
    """The parts of a page that the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str | None, str] = {}
        self.words: list[str] = []
        self._script: str | None = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self._script = dict(attrs).get("id")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(small_audit, tmp_path_factory):
    path = write_audit_html(small_audit, tmp_path_factory.mktemp("page") / "report.html")
    return Page(path.read_text("utf-8"))


def test_page_needs_nothing_from_outside(page):
    assert not page.all("link")
    assert not page.all("img")
    assert not any("src" in attributes for attributes in page.all("script"))
    assert all(attributes["href"].startswith("#") for attributes in page.all("a"))
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "form-action 'none'" in policy


def test_plotly_is_inlined_once(page):
    assert page.scripts[None].count("plotly.js v") == 1


def test_ids_are_unique_and_links_lead_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a")} <= set(ids)


def test_every_figure_has_a_place_and_a_text_for_those_who_cannot_see_it(page):
    figures = json.loads(page.scripts["figure-data"])
    places = {a["id"].removeprefix("figure-"): a for a in page.all("div") if (a.get("id") or "").startswith("figure-")}
    assert set(places) == set(figures)
    assert {"thirds", "accuracy", "spread", "confusion", "map"} <= set(figures)
    assert all(attributes["aria-label"] for attributes in places.values())


def test_class_table_can_be_sorted_and_searched_by_keyboard(page):
    labels = {attributes["for"] for attributes in page.all("label")}
    search = next(attributes for attributes in page.all("input"))
    assert search["id"] in labels
    assert search["type"] == "search"
    sorted_heads = [attributes for attributes in page.all("th") if attributes.get("aria-sort")]
    assert [attributes["aria-sort"] for attributes in sorted_heads] == ["ascending"]
    assert len(page.all("button")) >= 10


def test_verdict_comes_before_everything_else(page):
    order = [
        attributes.get("class") or attributes.get("id") for tag, attributes in page.tags if tag in ("p", "section")
    ]
    assert order[0] == "verdict"
    assert [name for name in order if name in ("failing", "samples", "thirds", "accuracy", "classes")] == [
        "failing",
        "samples",
        "thirds",
        "accuracy",
        "classes",
    ]


def test_nothing_that_is_missing_is_printed_as_nan(page):
    assert not [text for text in page.words if re.search(r"\b(nan|None|NaN)\b", text)]


def test_nasty_names_create_no_element_and_appear_literally(nasty_audit, nasty_names, small_audit, tmp_path):
    nasty = Page(write_audit_html(nasty_audit, tmp_path / "nasty.html", feature_map=False).read_text("utf-8"))
    plain = Page(write_audit_html(small_audit, tmp_path / "plain.html", feature_map=False).read_text("utf-8"))
    count = lambda page: {tag: len(page.all(tag)) for tag in ("script", "img", "svg", "a", "b", "i")}
    assert count(nasty) == count(plain)
    assert not any(key.startswith("on") for _, attributes in nasty.tags for key in attributes)
    words = "".join(nasty.words)
    for name in nasty_names[:5]:
        assert name in words
    assert "\x1b" not in words


def test_script_data_cannot_end_its_element(nasty_audit, tmp_path):
    text = write_audit_html(nasty_audit, tmp_path / "nasty.html", feature_map=False).read_text("utf-8")
    data = re.search(r'<script type="application/json" id="figure-data">(.*?)</script>', text, re.DOTALL).group(1)
    assert "<" not in data
    assert json.loads(data)["accuracy"]["data"]


def test_names_of_models_and_titles_are_escaped(comparison, tmp_path):
    page = Page(write_comparison_html(comparison, tmp_path / "c.html", title="<u>title</u>").read_text("utf-8"))
    assert not page.all("i")
    assert not page.all("u")
    assert any("<i>old</i>" in text for text in page.words)


def test_comparison_page_shows_changes_and_every_class(comparison, tmp_path):
    page = Page(write_comparison_html(comparison, tmp_path / "c.html").read_text("utf-8"))
    figures = json.loads(page.scripts["figure-data"])
    assert set(figures) == {"changes", "gains-1"}
    bars = sum(len(trace["text"]) for trace in figures["gains-1"]["data"])
    assert bars == len(comparison.class_names)


def test_audit_against_a_baseline_shows_both(make_audit, tmp_path):
    old, new = make_audit(noise=3.0), make_audit(noise=0.2)
    page = Page(write_audit_html(new, tmp_path / "both.html", baseline=old, feature_map=False).read_text("utf-8"))
    figures = json.loads(page.scripts["figure-data"])
    assert "gains" in figures
    assert len(figures["thirds"]["data"]) == 2
    assert "Against the baseline" in page.words


def test_many_classes_are_shown_in_blocks(wide_audit, tmp_path):
    page = Page(write_audit_html(wide_audit, tmp_path / "wide.html", feature_map=False).read_text("utf-8"))
    cells = json.loads(page.scripts["confusion-data"])
    assert len(cells["labels"]) == 200
    assert len(page.all("option")) == len(cells["starts"]) == 40
    assert sum("selected" in option for option in page.all("option")) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_classes": 1, "keep": ("logits",)},
        {"num_classes": 2, "per_class": 1},
        {"num_classes": 3, "noise": 0.0, "keep": ("logits", "features")},
    ],
)
def test_degenerate_audits_have_a_page(make_audit, options, tmp_path):
    page = Page(write_audit_html(make_audit(**options), tmp_path / "d.html").read_text("utf-8"))
    assert json.loads(page.scripts["figure-data"], parse_constant=pytest.fail)
    assert not [text for text in page.words if re.search(r"\bnan\b", text)]


def test_all_wrong_has_a_page(tmp_path):
    from classmargin.evaluation.auditing import audit

    result = audit([0, 1, 2], predictions=[1, 2, 0], num_classes=3, bootstrap=200)
    assert "0.0%" in write_audit_html(result, tmp_path / "wrong.html").read_text("utf-8")


def test_a_report_that_fails_leaves_the_old_one_untouched(small_audit, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(html_pages, "atomic_path", broken_atomic_path)
    with pytest.raises(OSError, match="disk full"):
        write_audit_html(small_audit, path, feature_map=False)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def broken_atomic_path(path):
    raise OSError("disk full")


def test_report_folder_is_created(small_audit, tmp_path):
    assert write_audit_html(small_audit, tmp_path / "a" / "b" / "r.html", feature_map=False).is_file()


def test_missing_extra_is_named(small_audit, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=r"classmargin\[report\]"):
        write_audit_html(small_audit, tmp_path / "r.html", feature_map=False)
    assert not list(tmp_path.iterdir())


def test_sort_values_are_numbers_or_empty():
    assert sort_value(0.123456789) == "0.1234568"
    assert sort_value((0.5, 0.9)) == "0.5"
    assert sort_value(float("nan")) == ""
    assert sort_value(None) == ""


@pytest.mark.slow
def test_a_thousand_classes_fit_in_fifteen_megabytes(make_audit, tmp_path):
    names = [f"class number {k} with a long name" for k in range(1000)]
    result, baseline = (make_audit(1000, 20, noise=noise, class_names=names) for noise in (1.2, 2.0))
    path = write_audit_html(result, tmp_path / "r.html", baseline)
    assert path.stat().st_size < 15e6
