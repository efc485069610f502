"""Timelines as files: Chrome's trace format, and a picture beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fuzz.devices.emulator.report.timeline import Timeline, chrome
from fuzz.devices.emulator.report.timeline_svg import svg


def save(timelines: Sequence[Timeline], path: Path) -> None:
    """Writes the trace to `path`, and a picture beside it with the ending .svg."""
    path.write_text(json.dumps(chrome(timelines)))
    path.with_suffix(".svg").write_text(svg(timelines))
