"""The site's files: complete, linked, escaped, accessible, without a network."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import dashboard_ledger as made
import msgspec
import pytest

from fuzz.dashboard.build import build
from fuzz.dashboard.collect.stages import stages
from fuzz.dashboard.errors import SiteError
from fuzz.dashboard.model import Site
from fuzz.dashboard.render.pages import DATA
from fuzz.dashboard.render.pages import pages as rendered

_VOID = {"meta", "link", "br", "img", "input", "hr", "rect", "path"}


class Page(HTMLParser):
    """A page's elements: tag and attributes; `problems` are tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.elements, self.open, self.problems = path, [], [], []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        if tag not in _VOID and (not self.open or self.open.pop() != tag):
            self.problems.append(tag)

    def handle_data(self, data) -> None:
        self.texts.append(data)

    def all(self, *tags: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def pages(built: Path) -> list[Page]:
    return [Page(path) for path in sorted(built.rglob("*.html"))]


def test_every_signature_has_a_page(site: Site, built: Path) -> None:
    assert {path.stem for path in (built / "signature").iterdir()} == {bug.uid for bug in site.signatures}


def test_elements_are_closed(pages: list[Page]) -> None:
    assert not [(page.path.name, page.problems, page.open) for page in pages if page.problems or page.open]


def test_links_resolve_inside_the_site(pages: list[Page]) -> None:
    for page in pages:
        ids = {attributes.get("id") for _, attributes in page.elements}
        for attributes in page.all("a", "link", "script", "img"):
            there = attributes.get("href") or attributes.get("src") or ""
            if there.startswith("#"):
                assert there[1:] in ids, (page.path, there)
            elif not there.startswith(("data:", "https://example.org/")) and there:
                assert (page.path.parent / unquote(there)).is_file(), (page.path, there)


def test_nothing_is_fetched(pages: list[Page], built: Path) -> None:
    for page in pages:
        for attributes in page.all("script", "link", "img"):
            assert "//" not in (attributes.get("src") or attributes.get("href") or "").removeprefix("data:,")
    for name in ("site.js", "theme.js", "style.css"):
        text = (built / "assets" / name).read_text()
        assert not any(word in text for word in ("fetch(", "XMLHttpRequest", "import(", "@import", "url("))


def test_one_copy_of_the_charting_library(pages: list[Page], built: Path) -> None:
    assert len(list(built.rglob("bokeh*.js"))) == 1
    for page in pages:
        with_charts = any("chart" in (a.get("class") or "").split() for a in page.all("div"))
        assert with_charts == any("bokeh" in (a.get("src") or "") for a in page.all("script")), page.path


def test_hostile_names_and_messages_stay_text(pages: list[Page], built: Path) -> None:
    for page in pages:
        assert not [a for a in page.all("script") if "src" not in a], page.path
        assert not [a for a in page.all("img") if a.get("src") == "x"], page.path
        assert not any(name.startswith("on") for _, a in page.elements for name in a), page.path
        assert not page.all("b"), page.path
    shown = next(page for page in pages if page.path.stem == made.NEW.id)
    assert made.HOSTILE in "".join(shown.texts) and made.MESSAGE in "".join(shown.texts)
    for script in (built / "assets").glob("charts-*.js"):
        assert "</script" not in script.read_text()


def test_pages_have_landmarks_one_heading_and_no_gap_in_the_levels(pages: list[Page]) -> None:
    for page in pages:
        tags = [tag for tag, _ in page.elements]
        assert [tags.count(tag) for tag in ("main", "nav", "header", "footer", "h1")] == [1, 1, 1, 1, 1], page.path
        levels = [int(tag[1]) for tag in tags if len(tag) == 2 and tag[0] == "h" and tag[1].isdecimal()]
        assert all(b <= a + 1 for a, b in pairwise(levels)), (page.path, levels)
        assert page.all("html") == [{"lang": "en"}]


def test_tables_have_captions_and_headings_with_a_scope(pages: list[Page]) -> None:
    for page in pages:
        tags = [tag for tag, _ in page.elements]
        assert tags.count("table") == tags.count("caption"), page.path
        assert all(a.get("scope") in ("col", "row") for a in page.all("th")), page.path


def test_pictures_and_charts_have_words_and_a_table(pages: list[Page]) -> None:
    for page in pages:
        text = page.path.read_text(encoding="utf-8")
        charts = [a for a in page.all("div") if a.get("role") == "img"]
        assert all(a.get("aria-label") for a in charts)
        assert text.count("The same as a table") == len(charts)
        assert all(a.get("role") == "img" for a in page.all("svg")) and text.count("<svg") <= text.count("<title>")
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert len(ids) == len(set(ids)), page.path


def test_every_chart_of_a_page_is_in_its_script(pages: list[Page], built: Path) -> None:
    drawn = 0
    for page in pages:
        ids = [a["id"] for a in page.all("div") if "chart" in (a.get("class") or "").split()]
        if ids:
            text = (built / "assets" / f"charts-{page.path.stem}.js").read_text()
            known = json.loads(text.removeprefix("window.ATTNFUZZ_CHARTS = ").rstrip(";\n"))
            assert set(known) == set(ids)
            drawn += len(ids)
    assert drawn >= 9


def test_the_first_page_says_what_is_new_before_all_else(built: Path) -> None:
    text = (built / "index.html").read_text()
    parts = ("New since night", "news-new", "news-regressed", "news-fixed", "news-environment", "Open signatures")
    order = [text.index(part) for part in parts]
    assert order == sorted(order)
    assert "<strong>torch</strong> 2.12.0 → 2.13.0" in text


def test_a_stage_of_the_night_that_failed_stands_above_the_news(site: Site, tmp_path: Path) -> None:
    state = {
        "night": "n",
        "began": 1.0,
        "done": {"compile": {"status": "ok", "note": "fine"}, "tests": {"status": "failed"}},
    }
    state["done"]["replay"] = {"status": "failed", "note": "exit code 2 <b>", "seconds": 3.5}
    (tmp_path / "state.json").write_text(json.dumps(state))
    ended = stages(tmp_path / "state.json")
    assert [one.name for one in ended] == ["compile", "tests", "replay"]
    built = tmp_path / "site"
    build(msgspec.structs.replace(site, news=msgspec.structs.replace(site.news, stages=ended)), built)
    text = (built / "index.html").read_text()
    told = [text.index("Stage tests failed"), text.index("exit code 2 &lt;b&gt;"), text.index("New since night")]
    assert told == sorted(told) and "Stage compile" not in text
    assert json.loads((built / "data/news.json").read_text())["stages"][1]["status"] == "failed"


@pytest.mark.parametrize("text", [None, "{", '{"done": {"tests": 3}}'])
def test_a_file_that_says_no_stages_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(SiteError, match="--stages"):
        stages(tmp_path / "state.json")


def test_a_signature_shows_waits_worst_places_script_and_history(built: Path) -> None:
    text = (built / "signature" / f"{made.HANG.id}.html").read_text()
    assert "Who waits for whom" in text and "semaphores[b 0, h 0, m 3]" in text
    assert "attnfuzz report --timelines" in text
    other = (built / "signature" / f"{made.BACK.id}.html").read_text()
    assert "Worst place of each tensor" in other and "7.5" in other
    assert "lines of Python" in other and "import torch" in other
    assert "fixed: passed 10 times in a row" in other
    traced = (built / "signature" / f"{made.OLD.id}.html").read_text()
    assert "the first bad revision is, with probability 0.9987, of 8 after" in traced
    assert "<code>c7c7c7c7c7c7</code> Softcap: &lt;tile&gt; of 64" in traced


def test_data_are_the_values_of_the_pages(site: Site, built: Path) -> None:
    site, _ = rendered(site)
    for name in DATA:
        value = getattr(site, name)
        text = (built / "data" / f"{name}.json").read_bytes()
        kind = Site.__annotations__[name] if isinstance(value, tuple) else type(value)
        again = msgspec.json.decode(text) if isinstance(kind, str) else msgspec.json.decode(text, type=kind)
        assert again == (msgspec.json.decode(msgspec.json.encode(value)) if isinstance(kind, str) else value)


def test_a_build_again_leaves_nothing_of_the_one_before(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(site, out)
    news = msgspec.structs.replace(site.news, new=(), regressed=(), fixed=())
    build(msgspec.structs.replace(site, news=news, signatures=()), out)
    assert not list((out / "signature").iterdir())


def test_a_folder_of_something_else_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SiteError, match="holds something else"):
        build(site, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
