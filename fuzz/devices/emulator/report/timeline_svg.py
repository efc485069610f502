"""Timelines as an SVG picture: a row per CTA, time from left to right, and what a CTA waits for forever."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fuzz.devices.emulator.report.timeline import BARRIER, COMPUTE, LOAD, WAIT, Slice, Timeline

FOREVER = "forever"
COLOURS = {COMPUTE: "#34a853", LOAD: "#4c8bf5", BARRIER: "#d3d6da", WAIT: "#f7b9b3", FOREVER: "#d93025"}
MEANING = {
    COMPUTE: "computes",
    LOAD: "loads and stores",
    BARRIER: "waits at a barrier",
    WAIT: "waits for memory to change",
    FOREVER: "waits forever",
}
WIDTH, LEFT, RIGHT = 1100, 84, 362
ROW, THIN = 22, 9  # heights of a CTA's row: in a launch that is to be looked at, and beside one that deadlocks
MOST = 60  # CTAs of a launch that are drawn, those that wait forever before all others
TICKS = 5
GREY = "#5f6368"


def svg(timelines: Sequence[Timeline]) -> str:
    """The picture of some launches, one below the other. A launch in which CTAs wait forever is drawn large."""
    stuck = [bool(_waits(line)) for line in timelines]
    parts: list[str] = []
    count = f"{len(timelines)} launch{'es' * (len(timelines) > 1)}"
    parts.append(_text(8, 24, f"Timeline of {count} on the emulated GPU", size=17, bold=True))
    parts.append(_text(8, 44, "One row per CTA (thread block). Time runs from left to right, in micro-operations."))
    x = 8.0
    for kind, colour in COLOURS.items():
        parts.append(f'<rect x="{x:.0f}" y="56" width="14" height="14" fill="{colour}"/>')
        parts.append(_text(x + 20, 68, MEANING[kind]))
        x += 44 + 7.4 * len(MEANING[kind])
    top = 96.0
    for i, line in enumerate(timelines):
        top = _launch(line, f"Launch {i + 1}: {line.kernel[:70]}", parts, top, any(stuck) and not stuck[i])
    height = round(top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#202124">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _launch(line: Timeline, title: str, parts: list[str], top: float, thin: bool) -> float:
    """Draws a launch from `top` on; returns where the next one begins."""
    waits = _waits(line)
    ran = sum(s.length for s in line.slices if s.kind in (LOAD, COMPUTE))
    size = f"{ran:,} micro-operations" + ("" if line.complete else " shown, more were run")
    state = (
        f"deadlock, {len(waits)} CTAs wait forever" if waits else "finished" if not line.never_started else "stopped"
    )
    parts.append(
        _text(8, top, f"{title}: {state}", size=14, bold=True, colour=COLOURS[FOREVER] if waits else "#202124")
    )
    parts.append(_text(WIDTH - 8, top, size, colour=GREY, anchor="end"))
    top += 10
    end = max((s.end for s in line.slices), default=1)
    scale = (WIDTH - LEFT - RIGHT) / end
    ctas, row = line.ctas(), THIN if thin else ROW
    shown = set(sorted(ctas, key=lambda cta: cta not in waits)[:MOST])
    begin = top
    for i, cta in enumerate(cta for cta in ctas if cta in shown):
        if not thin or i == 0:
            label = f"CTA {_name(cta)}" if not thin else f"{len(ctas)} CTAs"
            parts.append(_text(8, top + row - (1 if thin else 7), label))
        parts += [_bar(s, LEFT + s.start * scale, top, s.length * scale, row) for s in line.track(cta)]
        if cta in waits:
            parts.append(_text(WIDTH - RIGHT + 8, top + row - 7, waits[cta].label, colour=COLOURS[FOREVER]))
        top += row
    if waits:
        parts += _stop(LEFT + scale * max(s.end for s in line.slices if not s.open), begin, top)
    if not thin:
        parts += _axis(end, scale, top)
        top += 24
    for text in (
        f"{len(ctas) - len(shown)} more CTAs are not drawn" if len(ctas) > len(shown) else "",
        f"{line.never_started} CTAs never started: those that wait forever hold all the room for resident CTAs"
        if line.never_started and waits
        else f"{line.never_started} CTAs never started"
        if line.never_started
        else "",
    ):
        if text:
            parts.append(_text(LEFT, top + 14, text, colour=COLOURS[FOREVER] if waits else GREY))
            top += 20
    return top + 28


def _bar(s: Slice, x: float, top: float, width: float, row: int) -> str:
    tip = html.escape(s.label + (", forever" if s.open else ""))
    colour = COLOURS[FOREVER if s.open and s.kind == WAIT else s.kind]
    return (
        f'<rect x="{x:.2f}" y="{top:.0f}" width="{max(width, 0.3):.2f}" height="{row - (2 if row == THIN else 4)}" '
        f'fill="{colour}"><title>{tip}</title></rect>'
    )


def _stop(x: float, begin: float, end: float) -> list[str]:
    """The moment from which no warp can run."""
    line = (
        f'<line x1="{x:.1f}" y1="{begin:.0f}" x2="{x:.1f}" y2="{end + 6:.0f}" '
        f'stroke="{COLOURS[FOREVER]}" stroke-dasharray="4 3"/>'
    )
    return [line, _text(x - 4, end + 18, "from here on no warp can run", colour=COLOURS[FOREVER], anchor="end")]


def _axis(end: int, scale: float, top: float) -> list[str]:
    """Ticks at round numbers of micro-operations."""
    step = 10 ** max(len(str(end // TICKS)) - 1, 0)
    step *= next(k for k in (1, 2, 5, 10) if end / (step * k) <= TICKS)
    parts = []
    for at in range(0, end // 2, step):  # the right half is for the moment of a deadlock
        x = LEFT + at * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top:.0f}" x2="{x:.1f}" y2="{top + 5:.0f}" stroke="{GREY}"/>')
        parts.append(_text(x, top + 18, f"{at:,}", colour=GREY, anchor="middle" if at else "start"))
    return parts


def _text(
    x: float, y: float, text: str, size: int = 13, bold: bool = False, colour: str = "", anchor: str = "start"
) -> str:
    more = (f' font-size="{size}"' if size != 13 else "") + (' font-weight="bold"' if bold else "")
    more += (f' fill="{colour}"' if colour else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text)}</text>'


def _waits(line: Timeline) -> dict[tuple[int, int, int], Slice]:
    """The endless wait of each CTA: for memory rather than at a barrier, where its other warps wait for that."""
    found: dict[tuple[int, int, int], Slice] = {}
    for s in line.slices:
        if s.open and (s.cta not in found or (s.kind == WAIT and found[s.cta].kind != WAIT)):
            found[s.cta] = s
    return found


def _name(cta: tuple[int, int, int]) -> str:
    return str(cta[0]) if not (cta[1] or cta[2]) else ", ".join(map(str, cta))
