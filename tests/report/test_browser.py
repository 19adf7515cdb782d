"""The reports in a real headless Chromium: what readers see, click and type."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from classmargin.report.render import write_audit_html, write_comparison_html

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((path for name in BROWSERS if (path := shutil.which(name))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        EXECUTABLE is None, reason="no Chromium on this machine (.ci/install-browser installs one)"
    ),
]


@dataclass
class Opened:
    """A loaded page and everything it complained about or asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_report(browser):
    def open_report(path, *, width: int = 1280, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
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
    assert not [
        title for title in titles if any(word in title.lower() for word in ("share", "cloud", "studio"))
    ]


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


def test_dark_and_print(open_report, audit_file, tmp_path):
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
    page.wait_for_timeout(300)
    assert colours() == ["rgb(28, 35, 48)"] * 2
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
    overview.click(
        position={"x": box["width"] / 2, "y": box["height"] * 7.5 / 40}
    )  # the eighth of forty rows
    assert wide_page.page.get_by_label("Block", exact=True).input_value() == "7"


def test_names_with_html_run_nothing_and_are_shown_as_they_are(
    open_report, nasty_audit, nasty_names, tmp_path
):
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
    page.locator("#figure-accuracy .hoverlayer text").first.wait_for(timeout=5_000)
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
