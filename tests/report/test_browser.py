"""The reports in a real headless Chromium: what readers see, click and type."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classmargin.report.html_pages import write_audit_html, write_comparison_html

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
# Not everybody's PATH leads to these, and browsers that playwright has fetched are on nobody's.
PLACES = (
    "/usr/bin",
    "/usr/lib/chromium",
    "/usr/local/bin",
    "/snap/bin",
    "/opt/google/chrome",
    "/Applications/Google Chrome.app/Contents/MacOS",
    "/Applications/Chromium.app/Contents/MacOS",
)


def find_browser(places: Sequence[str] = PLACES) -> str | None:
    """Return the path of a Chromium on this machine, or None."""
    default = Path.home() / ".cache" / "ms-playwright"
    fetched = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or default).glob("chromium*/chrome-*")
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *places, *map(str, sorted(fetched))])
    names = (*NAMES, "Chromium", "Google Chrome")
    return next((path for name in names if (path := shutil.which(name, path=folders))), None)


EXECUTABLE = find_browser()
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.browser
PATIENCE = 600_000  # milliseconds


@pytest.mark.parametrize("place", ["on the path", "elsewhere", "fetched by playwright"])
def test_a_browser_is_found_wherever_it_is(place, tmp_path, monkeypatch):
    folder = tmp_path / "chromium-1187" / "chrome-linux"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(folder) if place == "on the path" else str(tmp_path / "nowhere"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path if place == "fetched by playwright" else ""))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    places = [str(folder)] if place == "elsewhere" else []
    assert find_browser(places) is None
    (folder / "chrome").touch(mode=0o755)
    assert find_browser(places) == str(folder / "chrome")


@dataclass
class Opened:
    """A loaded page and everything it complained about or asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    if EXECUTABLE is None:
        pytest.skip("no Chromium on this machine (.ci/install-browser installs one)")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=FLAGS, timeout=PATIENCE)
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_report(browser):
    def open_report(path, *, width: int = 1280, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("html[data-ready=true]", state="attached")
        return opened

    return open_report


@pytest.fixture(scope="module")
def audit_file(small_audit, tmp_path_factory):
    return write_audit_html(small_audit, tmp_path_factory.mktemp("audit") / "report.html")


# Loading a page costs seconds, so tests that can share one do.
@pytest.fixture(scope="module")
def audit_page(open_report, audit_file):
    return open_report(audit_file)


@pytest.fixture(scope="module")
def wide_page(open_report, wide_audit, tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "report.html"
    return open_report(write_audit_html(wide_audit, path, feature_map=False))


def shown_classes(page, table: str = "class-table") -> list[str]:
    return page.locator(f"#{table} tbody tr:visible th").all_inner_texts()


def assert_quiet_and_fitting(opened: Opened, width: int, shot) -> None:
    opened.page.screenshot(path=shot, full_page=True)
    assert opened.complaints == []
    assert len(opened.requests) == 1
    assert opened.requests[0].startswith("file:")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert shot.stat().st_size > 20_000


def test_page_loads_without_complaint_or_network(audit_page, tmp_path):
    assert_quiet_and_fitting(audit_page, 1280, tmp_path / "audit-1280-light.png")


def test_no_button_sends_the_data_away(audit_page):
    page = audit_page.page
    titles = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert any("PNG" in title for title in titles)
    assert not [title for title in titles if any(word in title.lower() for word in ("share", "cloud", "studio"))]


def test_page_fits_a_phone(open_report, audit_file, tmp_path):
    assert_quiet_and_fitting(open_report(audit_file, width=375), 375, tmp_path / "audit-375-light.png")


@pytest.mark.parametrize(
    ("figure", "marks", "at_least"),
    [
        ("thirds", ".point", 5),
        ("accuracy", ".point", 6),
        ("accuracy", ".errorbar", 6),
        ("spread", ".point", 6),
        ("confusion", ".heatmaplayer image", 1),
        ("map", ".point", 100),
    ],
)
def test_figures_have_content(audit_page, figure, marks, at_least):
    assert audit_page.page.locator(f"#figure-{figure} {marks}").count() >= at_least


def test_clicking_a_head_sorts_by_it_and_clicking_again_turns_it_around(audit_page, small_audit):
    page = audit_page.page
    head = page.locator("#class-table th", has_text="Spread")
    assert head.get_attribute("aria-sort") is None
    by_spread = small_audit.by_class.sort_values("spread")["class_name"].tolist()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown_classes(page) == by_spread
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert shown_classes(page) == by_spread[::-1]
    assert page.locator("#class-table th[aria-sort]").count() == 1


def test_sorting_works_from_the_keyboard(audit_page):
    page = audit_page.page
    page.locator("#class-table-search").focus()
    for _ in range(2):  # the scrollable table itself, then the button of its first head
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Class"
    page.keyboard.press("Enter")
    names = shown_classes(page)
    assert names == sorted(names)
    page.keyboard.press("Space")
    assert shown_classes(page) == names[::-1]


def test_search_keeps_rows_with_the_words_and_says_how_many(audit_page):
    page = audit_page.page
    rows = page.locator("#class-table tbody tr")
    texts = [row.inner_text() for row in rows.all()]
    search = page.get_by_label("Search classes")
    search.fill("HARD  class")
    hard = [text for text in texts if "hard" in text]
    assert 0 < len(hard) < 6
    assert [row.inner_text() for row in rows.all() if row.is_visible()] == hard
    search.fill("no such class")
    assert shown_classes(page) == []
    assert page.locator("#class-table-status").inner_text() == "0 of 6 classes"
    search.fill("")
    assert len(shown_classes(page)) == 6


def test_dark_and_print(open_report, audit_file, tmp_path, wait_until):
    """Text follows the reader's scheme, also when it changes, and paper is always light."""
    opened = open_report(audit_file, scheme="dark")
    page = opened.page
    body, tick = "document.body", "document.querySelector('#figure-accuracy .xtick text')"
    colours = lambda: [
        page.evaluate(f"getComputedStyle({body}).color"),
        page.evaluate(f"getComputedStyle({tick}).fill"),
    ]
    dark, black = ["rgb(230, 234, 241)"] * 2, ["rgb(0, 0, 0)"] * 2
    assert colours() == dark
    page.screenshot(path=tmp_path / "audit-1280-dark.png", full_page=True)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert colours() == black
    assert len(page.pdf(path=tmp_path / "report.pdf", format="A4")) > 20_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert colours() == dark
    page.emulate_media(color_scheme="light")
    wait_until(lambda: colours() == ["rgb(28, 35, 48)"] * 2)
    assert opened.complaints == []


def test_choosing_a_block_shows_its_classes(wide_page, tmp_path):
    page = wide_page.page
    select = page.get_by_label("Block", exact=True)
    labels = "() => Array.from(document.getElementById('figure-block').data[0].y)"
    before = page.evaluate(labels)
    select.select_option("0" if select.input_value() != "0" else "1")
    after = page.evaluate(labels)
    assert len(before) == len(after) == 5
    assert not set(before) & set(after)
    page.screenshot(path=tmp_path / "wide.png", full_page=True)
    assert wide_page.complaints == []


def test_clicking_the_overview_opens_that_block(wide_page):
    overview = wide_page.page.locator("#figure-confusion .nsewdrag")
    overview.scroll_into_view_if_needed()
    box = overview.bounding_box()
    overview.click(position={"x": box["width"] / 2, "y": box["height"] * 7.5 / 40})  # the eighth of forty rows
    assert wide_page.page.get_by_label("Block", exact=True).input_value() == "7"


def test_names_with_html_run_nothing_and_are_shown_as_they_are(open_report, nasty_audit, nasty_names, tmp_path):
    opened = open_report(write_audit_html(nasty_audit, tmp_path / "nasty.html", feature_map=False))
    page = opened.page
    assert page.locator("main a[href^=http], .plot a").count() == 0
    assert set(nasty_names[:5]) <= set(shown_classes(page))
    ticks = page.locator("#figure-accuracy .ytick text").all_text_contents()
    assert any("<script>" in tick for tick in ticks)
    assert any("{{ 7" in tick for tick in ticks)
    point = page.locator("#figure-accuracy .point").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    page.locator("#figure-accuracy .hoverlayer text").first.wait_for()
    assert page.evaluate("window.pwned === undefined")
    assert opened.complaints == []


def test_comparison_page_sorts_and_searches(open_report, comparison, tmp_path):
    opened = open_report(write_comparison_html(comparison, tmp_path / "comparison.html"))
    page = opened.page
    assert_quiet_and_fitting(opened, 1280, tmp_path / "comparison.png")
    assert page.locator("#figure-gains-1 .bars .point").count() == 6
    assert page.locator("#figure-changes .point").count() == 6
    page.locator("#class-table-1 th", has_text="Change").locator("button").click()
    best = comparison.by_class.sort_values("difference", ascending=False)["class_name"].iloc[0]
    assert shown_classes(page, "class-table-1")[0] == best


@pytest.fixture(scope="module")
def sample_page(open_report, small_audit, tmp_path_factory):
    rng = np.random.default_rng(0)
    path = write_audit_html(
        small_audit,
        tmp_path_factory.mktemp("samples") / "report.html",
        feature_map=False,
        images=rng.integers(0, 255, (small_audit.num_samples, 12, 12), dtype=np.uint8),
        texts=[f"<b>words</b> of {n}" for n in range(small_audit.num_samples)],
    )
    return open_report(path)


def shown_samples(page) -> list[str]:
    return [words.split()[-1] for words in page.locator("#sample-list .sample p:last-child").all_inner_texts()]


def test_samples_of_the_worst_lagging_class_are_there_with_pictures_and_texts(sample_page, small_audit):
    page = sample_page.page
    worst = small_audit.by_class.sort_values("accuracy")["class_name"].iloc[0]
    expected = small_audit.samples_of(worst)["sample_id"].astype(str).tolist()
    assert shown_samples(page) == expected
    cards = page.locator("#sample-list .sample")
    assert cards.locator("img").count() == len(expected)
    assert (
        page.locator("#sample-list img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 12
    )
    assert cards.first.locator("blockquote").inner_text() == f"<b>words</b> of {expected[0]}"
    assert sample_page.complaints == []
    assert len([url for url in sample_page.requests if not url.startswith("data:")]) == 1


def test_a_class_in_a_table_leads_to_its_samples_by_keyboard(sample_page, small_audit):
    page = sample_page.page
    name = small_audit.class_names[2]
    button = page.locator("#class-table button.see", has_text=name)
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("#sample-class option:checked").inner_text() == name
    assert (
        shown_samples(page)[: len(small_audit.samples_of(name))]
        == small_audit.samples_of(name)["sample_id"].astype(str).tolist()
    )
    assert page.evaluate("document.activeElement.id") == "sample-list"


def test_a_frequent_error_and_a_cell_of_the_matrix_lead_to_the_same_samples(sample_page, small_audit):
    page = sample_page.page
    top = small_audit.top_confusions(1).iloc[0]
    expected = small_audit.samples_of(top["truth"], predicted=top["predicted"])["sample_id"].astype(str).tolist()
    page.locator("#error-table tbody tr").first.locator("button.see").first.click()
    assert shown_samples(page) == expected
    page.locator("#sample-predicted").select_option("")
    cell = """([truth, predicted]) => {
      const figure = document.getElementById("figure-confusion"), classes = figure.layout.meta.classes;
      figure.emit("plotly_click", { points: [{ pointIndex: [classes.indexOf(truth), classes.indexOf(predicted)] }] });
    }"""
    page.evaluate(cell, [small_audit.class_names.index(top["truth"]), small_audit.class_names.index(top["predicted"])])
    assert shown_samples(page) == expected


def test_the_kind_of_sample_can_be_chosen_and_a_next_step_leads_to_its_paragraph(sample_page):
    page = sample_page.page
    page.locator("#sample-kind").select_option("2")
    assert page.locator("#sample-kind option:checked").inner_text().startswith("typical right ones (")
    assert page.locator("#sample-list .wrong").count() == 0
    assert page.locator("#sample-list .right").count() > 0
    link = page.locator("#failing td a").first
    assert page.locator(link.get_attribute("href")).count() == 1


def test_a_phone_shows_samples_within_its_width(open_report, small_audit, tmp_path):
    path = write_audit_html(
        small_audit, tmp_path / "r.html", feature_map=False, texts=["long " * 60] * small_audit.num_samples
    )
    assert_quiet_and_fitting(open_report(path, width=375), 375, tmp_path / "samples-375.png")


def test_a_long_table_shows_its_first_rows_and_finds_all(open_report, make_audit, tmp_path):
    result = make_audit(700, 3, keep=("logits",), class_names=[f"class {k}" for k in range(700)])
    page = open_report(write_audit_html(result, tmp_path / "long.html", feature_map=False)).page
    assert page.locator("#class-table tbody tr").count() == 300
    page.get_by_label("Search classes").fill("class 699")
    assert "class 699" in shown_classes(page)
    assert len(shown_classes(page)) < 20
    page.get_by_label("Search classes").fill("")
    page.locator("#class-table th", has_text="Class").first.locator("button").click()
    assert shown_classes(page)[:2] == ["class 0", "class 1"]
    page.locator("#class-table-more button").click()
    assert page.locator("#class-table tbody tr").count() == 700
