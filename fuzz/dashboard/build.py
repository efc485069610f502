"""The site in a folder: pages, assets, data. Everything of a build before is replaced, timelines stay."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from fuzz.dashboard.errors import SiteError
from fuzz.dashboard.model import Site
from fuzz.dashboard.render.charts import Chart
from fuzz.dashboard.render.pages import DATA, pages

ASSETS = ("style.css", "theme.js", "site.js")
MARK = ".attnfuzz-site"  # a file that says that the folder is ours


def build(site: Site, out: Path, targets: Sequence[str] = (), timelines: Mapping[str, str] | None = None) -> int:
    """Writes the site; returns its bytes.

    targets    files of users' own targets, for scripts and commands
    timelines  by signature: path of its picture in the site
    Raises SiteError where the folder holds something else.
    """
    prepare(out)
    for folder in ("assets", "data", "signature"):
        shutil.rmtree(out / folder, ignore_errors=True)
        (out / folder).mkdir(parents=True)
    shown, texts = pages(site, targets, timelines)
    for name in DATA:
        (out / "data" / f"{name}.json").write_bytes(msgspec.json.encode(getattr(shown, name)))
    for name in ASSETS:
        (out / "assets" / name).write_bytes((files("fuzz.dashboard.render") / "static" / name).read_bytes())
    with as_file(files("bokeh") / "server" / "static" / "js" / "bokeh.min.js") as script:
        shutil.copyfile(script, out / "assets" / "bokeh.min.js")
    for page in texts:
        (out / page.path).write_text(page.text, encoding="utf-8")
        if page.charts:
            (out / "assets" / f"charts-{Path(page.path).stem}.js").write_text(_script(page.charts), encoding="utf-8")
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def prepare(out: Path) -> None:
    """Makes the folder. Raises SiteError where it is another's: a build removes what is in it."""
    if out.exists() and not out.is_dir():
        raise SiteError(f"--out: {out} is no folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(f"--out: {out} holds something else than a site of this command; name another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
    except OSError as error:
        raise SiteError(f"--out: {out}: {error.strerror or error}") from None


def _script(charts: Sequence[Chart]) -> str:
    """The charts as a script, since a page that was opened from a file may fetch nothing."""
    text = json.dumps({chart.id: chart.item for chart in charts}, separators=(",", ":"), ensure_ascii=True)
    return f"window.ATTNFUZZ_CHARTS = {text};\n"
