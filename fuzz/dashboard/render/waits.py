"""Who waits for whom: the lines of a deadlock's report (fuzz/devices/emulator/report/deadlock.py) as rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"^\s*(?P<who>CTA \([^)]*\) warps? [\d, ]+?) waits? (?P<what>.+?)(?: \((?P<where>PTX line [^)]*)\))?$"
)
_VALUE = re.compile(r"^for (?P<what>.+) = (?P<now>\S+) to become (?P<wanted>.+)$")


@dataclass(frozen=True)
class Wait:
    """who waits for what; now, wanted: its value and the one that is waited for, '' where it has none; where: PTX."""

    who: str
    what: str
    now: str
    wanted: str
    where: str


def waits(text: str) -> list[Wait]:
    """The waits that a report names, in its order."""
    found = []
    for line in text.splitlines():
        if (one := _LINE.match(line)) is None:
            continue
        value = _VALUE.match(one["what"])
        what, now, wanted = (value["what"], value["now"], value["wanted"]) if value else (one["what"], "", "")
        found.append(Wait(one["who"], what.removeprefix("for "), now, wanted, one["where"] or ""))
    return found
