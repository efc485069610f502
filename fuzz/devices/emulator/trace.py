"""Timelines of a run: who ran when, and who waited for what. As Chrome's trace format (chrome://tracing, Perfetto) and
SVG.

The unit of time is one micro-operation, shown as a microsecond: the emulated GPU runs one warp at a time, so a timeline
shows the order of events and not how long they would take on hardware.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator import state as st

if TYPE_CHECKING:
    from fuzz.devices.emulator.decode import Program
    from fuzz.devices.emulator.launching import Launch
    from fuzz.devices.emulator.memory import Memory

LOAD, COMPUTE, BARRIER, WAIT = "load", "compute", "barrier", "wait"
COLOURS = {LOAD: "#4c8bf5", COMPUTE: "#34a853", BARRIER: "#c0c4c9", WAIT: "#ea4335"}
MEMORY_SHARE = 8  # a slice is a load when one in eight of its micro-operations touches memory


@dataclass(frozen=True)
class Slice:
    """A warp from `start` for `length` micro-operations: running (load or compute), or waiting. `open`: for ever."""

    cta: tuple[int, int, int]
    warp: int
    start: int
    length: int
    kind: str
    label: str
    open: bool = False


@dataclass(frozen=True)
class Timeline:
    """The slices of one launch, by start."""

    kernel: str
    slices: tuple[Slice, ...]
    complete: bool

    def ctas(self) -> list[tuple[int, int, int]]:
        """In the order in which they started."""
        return list(dict.fromkeys(s.cta for s in self.slices))


def timeline(m: st.Machine, program: Program, launch: Launch, memory: Memory) -> Timeline:
    """Reads the recorded slices of a machine that has stopped."""
    n, end = int(m.k[st.K_TRACE]), int(m.k[st.K_EXECUTED])
    waiting: dict[tuple[int, int], tuple[int, str, str]] = {}
    slices = []
    x, y, _ = launch.grid
    place: dict[int, tuple[int, int, int]] = {}
    for start, length, position, warp, status, what, value, touched in m.trace[:n].tolist():
        linear = int(m.order[position])
        cta = place.setdefault(position, (linear % x, linear // x % y, linear // (x * y)))
        before = waiting.pop((position, warp), None)
        if before is not None:
            slices.append(Slice(cta, warp, before[0], start - before[0], before[1], before[2]))
        kind = LOAD if touched * MEMORY_SHARE > length else COMPUTE
        slices.append(Slice(cta, warp, start, length, kind, kind))
        if status == st.AT_BARRIER:
            waiting[position, warp] = (start + length, BARRIER, f"barrier {what}")
        elif status == st.ASLEEP:
            name = memory.describe(what) if what >> op.SHIFT >= op.FIRST_SEGMENT else f"shared memory byte {what}"
            waiting[position, warp] = (start + length, WAIT, f"wait on {name} at {value}")
    for (position, warp), (since, kind, label) in waiting.items():
        slices.append(Slice(place[position], warp, since, max(end - since, 1), kind, label, True))
    return Timeline(program.kernel.name, tuple(sorted(slices, key=lambda s: s.start)), n < int(m.k[st.K_TRACE_SIZE]))


def chrome(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """The trace events: a process per launch, a track per CTA, its warps one below the other."""
    events: list[dict[str, Any]] = []
    for launch, line in enumerate(timelines):
        events.append({"ph": "M", "pid": launch, "name": "process_name", "args": {"name": line.kernel}})
        number = {cta: i for i, cta in enumerate(line.ctas())}
        warps = 1 + max((s.warp for s in line.slices), default=0)
        for cta, i in number.items():
            for warp in range(warps):
                name = f"CTA {cta} warp {warp}"
                events.append(
                    {"ph": "M", "pid": launch, "tid": i * warps + warp, "name": "thread_name", "args": {"name": name}}
                )
        for s in line.slices:
            events.append({
                "ph": "X", "pid": launch, "tid": number[s.cta] * warps + s.warp, "ts": s.start, "dur": s.length,
                "name": s.label + (", for ever" if s.open else ""), "cat": s.kind,
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def save(timelines: Sequence[Timeline], path: Path) -> None:
    """Writes the trace to `path`, and a picture beside it with the ending .svg."""
    path.write_text(json.dumps(chrome(timelines)))
    path.with_suffix(".svg").write_text(svg(timelines))


def svg(timelines: Sequence[Timeline], width: int = 1000, row: int = 14, most: int = 120) -> str:
    """A picture: a row per CTA (warps of a CTA drawn over each other, waits lowest), time from left to right."""
    parts: list[str] = []
    top = 24
    for line in timelines:
        end = max((s.start + s.length for s in line.slices), default=1)
        scale = (width - 150) / end
        parts.append(f'<text x="4" y="{top - 8}" font-weight="bold">{html.escape(line.kernel[:100])}</text>')
        ctas = line.ctas()
        for cta in ctas[:most]:
            parts.append(f'<text x="4" y="{top + row - 4}">CTA {cta[0]}, {cta[1]}, {cta[2]}</text>')
            mine = [s for s in line.slices if s.cta == cta]
            for s in sorted(mine, key=lambda s: (s.kind in (LOAD, COMPUTE), s.start)):
                x, w = 120 + s.start * scale, max(s.length * scale, 0.3)
                tip = html.escape(f"warp {s.warp}: {s.label}" + (", for ever" if s.open else ""))
                parts.append(
                    f'<rect x="{x:.2f}" y="{top}" width="{w:.2f}" height="{row - 3}" fill="{COLOURS[s.kind]}">'
                    f"<title>{tip}</title></rect>"
                )
            stuck = next((s for s in mine if s.open and s.kind == WAIT), None)
            if stuck is not None:
                parts.append(
                    f'<text x="{width - 4}" y="{top + row - 4}" text-anchor="end">{html.escape(stuck.label)}</text>'
                )
            top += row
        if len(ctas) > most:
            parts.append(f'<text x="4" y="{top + row - 4}">and {len(ctas) - most} more CTAs</text>')
            top += row
        top += 30
    legend = "".join(
        f'<rect x="{120 + 110 * i}" y="{top - 10}" width="10" height="10" fill="{c}"/>'
        f'<text x="{134 + 110 * i}" y="{top - 1}">{k}</text>'
        for i, (k, c) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + 10}" '
        f'font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}{legend}</svg>\n'
    )
