"""The site in a browser, opened from files: charts, filters, sorting, theme, keyboard, a phone, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import browser
import dashboard_ledger as made
import pytest

PAGES = ("index", "signatures", "coverage", "nights", "performance", f"signature/{made.HANG.id}")

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """One browser for all tests."""
    with browser.browser() as found:
        yield found


@contextmanager
def opened(running: Any, built: Path, page: str, **options: Any) -> Iterator[Any]:
    """A page; at its end no error may have been logged, and nothing asked for but files of the site."""
    context = running.new_context(viewport={"width": 1280, "height": 900}, **options)
    shown = context.new_page()
    problems: list[str] = []
    shown.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.on("request", lambda asked: problems.append(asked.url) if outside(asked.url, built) else None)
    shown.goto((built / f"{page}.html").as_uri())
    yield shown
    context.close()
    assert not problems


def outside(url: str, built: Path) -> bool:
    return not url.startswith((built.as_uri(), "data:", "blob:"))


def rows(shown: Any) -> list[str]:
    """Titles of the rows that are shown, in their order."""
    return shown.locator("table.cards tbody tr:visible th a").all_inner_texts()


@pytest.mark.parametrize("page", PAGES)
def test_pages_open_without_an_error_draw_their_charts_and_fit_a_phone(running: Any, built: Path, page: str) -> None:
    with opened(running, built, page) as shown:
        for chart in shown.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            chart.locator(".bk-Figure").wait_for(state="attached", timeout=15_000)
        assert shown.title().endswith("· attnfuzz")
        shown.set_viewport_size({"width": 360, "height": 740})
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360  # no horizontal scroll
        targets = shown.locator("button:visible, select:visible, input:visible").all()
        assert all(target.bounding_box()["height"] >= 24 for target in targets)


def test_filters_narrow_the_table_and_say_how_many_are_left(running: Any, built: Path) -> None:
    with opened(running, built, "signatures") as shown:
        whole = rows(shown)
        shown.get_by_label("State").select_option("fixed")
        assert len(rows(shown)) == 1 and shown.locator("form output").inner_text() == f"1 of {len(whole)} shown"
        shown.get_by_role("button", name="Clear").click()
        shown.locator("form output", has_text=f"{len(whole)} of").wait_for()
        shown.get_by_label("Search").fill("BIAS wrong")
        assert rows(shown) == ["dQ is wrong"]
        shown.get_by_label("Search").fill("")
        shown.get_by_label("Target").select_option(made.HOSTILE)
        assert len(rows(shown)) == 1


def test_headings_sort_both_ways_by_keyboard_and_say_so(running: Any, built: Path) -> None:
    with opened(running, built, "signatures") as shown:
        heading = shown.locator("th", has=shown.get_by_role("button", name="Age"))
        heading.get_by_role("button").focus()
        ages = []
        for expected in ("ascending", "descending"):
            shown.keyboard.press("Enter")
            assert heading.get_attribute("aria-sort") == expected
            ages.append([float(cell.get_attribute("data-value")) for cell in shown.locator("td[data-label=Age]").all()])
        assert ages[0] == sorted(ages[0]) and ages[1] == sorted(ages[1], reverse=True) and ages[0] != ages[1]
        shown.get_by_role("button", name="State").press("Space")
        assert shown.locator("th[aria-sort]").count() == 1


def test_slash_goes_to_the_filter_and_the_first_tab_stop_skips_to_the_content(running: Any, built: Path) -> None:
    with opened(running, built, "index") as shown:
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.textContent") == "Skip to the content"
        shown.keyboard.press("Enter")
        assert shown.evaluate("document.activeElement.id") == "main"
        shown.keyboard.press("/")
        assert shown.evaluate("document.activeElement.name") == "text"
        shown.keyboard.type("a/b")
        assert shown.get_by_label("Search").input_value() == "a/b"


def test_the_theme_follows_the_system_until_one_is_chosen_and_charts_follow_it(running: Any, built: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(running, built, "coverage", color_scheme="dark") as shown:
        assert shown.evaluate(background) == "rgb(20, 23, 26)"
        switch = shown.locator("[data-theme-switch]")
        switch.click()
        assert switch.inner_text() == "Theme: light" and shown.evaluate(background) == "rgb(255, 255, 255)"
        shown.locator("#heat .bk-Figure").wait_for(state="attached")
        shown.reload()
        assert switch.inner_text() == "Theme: light" and shown.evaluate(background) == "rgb(255, 255, 255)"
        switch.click()
        switch.click()
        assert switch.inner_text() == "Theme: auto" and shown.evaluate(background) == "rgb(20, 23, 26)"


def test_the_command_is_copied(running: Any, built: Path) -> None:
    with opened(
        running, built, f"signature/{made.BACK.id}", permissions=["clipboard-read", "clipboard-write"]
    ) as shown:
        button = shown.locator("[data-copy]").first
        button.click()
        shown.locator("[data-copy]", has_text="Copied").first.wait_for()
        text = shown.evaluate("navigator.clipboard.readText()")
        assert text.startswith("cat > ") and "attnfuzz repro " in text


def test_texts_have_contrast_in_both_themes(running: Any, built: Path) -> None:
    """4.5 to 1 for every visible text of the first page and of a signature's, against the nearest painted ground."""
    for page in ("index", f"signature/{made.HANG.id}"):
        for scheme in ("light", "dark"):
            with opened(running, built, page, color_scheme=scheme) as shown:
                assert shown.evaluate(CONTRAST) == []


def test_without_scripts_everything_is_there(running: Any, built: Path) -> None:
    with opened(running, built, "index", java_script_enabled=False) as shown:
        assert len(rows(shown)) == 5
        assert shown.locator("button:visible, form:visible").count() == 0
        assert shown.locator("th .plain:visible").count() == 6
        shown.locator("details summary", has_text="Reproduce").first.click()
        assert shown.locator("pre:visible", has_text="attnfuzz repro").count() == 1


CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const f = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = channels(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .chart")) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([element.tagName, element.className, element.textContent.trim().slice(0, 30), ratio]);
  }
  return poor;
}"""
