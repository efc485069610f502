"""Stages of a night, out of the file in which the night keeps its state."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz.dashboard.errors import SiteError
from fuzz.dashboard.model import StageEnd


class _Done(msgspec.Struct, frozen=True):
    status: str
    note: str = ""


class _State(msgspec.Struct, frozen=True):
    done: dict[str, _Done] = {}


def stages(path: Path) -> tuple[StageEnd, ...]:
    """The stages that have ended, in their order. Raises SiteError for a file that cannot be read."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except (OSError, msgspec.DecodeError) as error:
        raise SiteError(f"--stages: {path}: {error}") from None
    return tuple(StageEnd(name, one.status, one.note) for name, one in state.done.items())
