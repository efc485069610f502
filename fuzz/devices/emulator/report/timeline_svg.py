"""Timelines as an SVG picture for reports: a row per CTA, time from left to right, and beside a CTA that waits for ever
what it waits for."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fuzz.devices.emulator.report.timeline import BARRIER, COMPUTE, LOAD, WAIT, Slice, Timeline

COLOURS = {LOAD: "#4c8bf5", COMPUTE: "#34a853", BARRIER: "#c0c4c9", WAIT: "#ea4335"}
MEANING = {
    LOAD: "loads and stores",
    COMPUTE: "computes",
    BARRIER: "waits at a barrier",
    WAIT: "waits for memory to change",
}
WIDTH, LEFT, RIGHT, ROW = 1100, 70, 330, 16
MOST = 60  # CTAs of a launch that are drawn, those that wait for ever before all others


def svg(timelines: Sequence[Timeline]) -> str:
    """The picture of some launches, one below the other."""
    parts: list[str] = []
    top = 14
    for line in timelines:
        top = _launch(line, parts, top)
    for i, kind in enumerate(COLOURS):
        x = LEFT + 190 * i
        parts.append(f'<rect x="{x}" y="{top}" width="10" height="10" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 15}" y="{top + 9}">{MEANING[kind]}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 20}" viewBox="0 0 {WIDTH} {top + 20}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _launch(line: Timeline, parts: list[str], top: int) -> int:
    """Draws a launch from `top` on; where the next one begins."""
    scale = (WIDTH - LEFT - RIGHT) / max((s.end for s in line.slices), default=1)
    done = sum(s.length for s in line.slices if s.kind in (LOAD, COMPUTE))
    title = f"{line.kernel[:90]}: {done:,} micro-operations" + ("" if line.complete else " shown, more were run")
    parts.append(f'<text x="4" y="{top}" font-weight="bold">{html.escape(title)}</text>')
    top += 6
    ctas = line.ctas()
    stuck = {cta: _stuck(line, cta) for cta in ctas}
    shown = sorted(ctas, key=lambda cta: stuck[cta] is None)[:MOST]
    for cta in (cta for cta in ctas if cta in set(shown)):
        parts.append(f'<text x="4" y="{top + ROW - 5}">CTA {html.escape(_name(cta))}</text>')
        for s in line.track(cta):
            x, w = LEFT + s.start * scale, max(s.length * scale, 0.3)
            tip = html.escape(s.label + (", for ever" if s.open else ""))
            parts.append(
                f'<rect x="{x:.2f}" y="{top}" width="{w:.2f}" height="{ROW - 4}" fill="{COLOURS[s.kind]}">'
                f"<title>{tip}</title></rect>"
            )
        last = stuck[cta]
        if last is not None:
            text = html.escape(last.label + ", for ever")
            parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{top + ROW - 5}" fill="{COLOURS[WAIT]}">{text}</text>')
        top += ROW
    for text in (
        f"and {len(ctas) - len(shown)} CTAs more" if len(ctas) > len(shown) else "",
        f"{line.never_started} CTAs never started: no slot became free" if line.never_started else "",
    ):
        if text:
            parts.append(f'<text x="4" y="{top + ROW - 5}">{text}</text>')
            top += ROW
    return top + 24


def _stuck(line: Timeline, cta: tuple[int, int, int]) -> Slice | None:
    """What a CTA waits for and never gets: memory before barriers, at which its other warps wait for the same."""
    waits = [s for s in line.slices if s.cta == cta and s.open]
    return min(waits, key=lambda s: s.kind != WAIT, default=None)


def _name(cta: tuple[int, int, int]) -> str:
    return str(cta[0]) if not (cta[1] or cta[2]) else ", ".join(map(str, cta))
