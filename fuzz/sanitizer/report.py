"""Reads the text that compute-sanitizer writes, by the user manual's examples and by those of its releases 11 to 13.

    ========= Invalid __global__ write of size 4 bytes
    =========     at scale(float *, int)+0x50 in scale.cu:14
    =========     by thread (287,0,0) in block (3906,0,0)
    =========     Address 0x7f2a1c003c9c is out of bounds

An entry starts with a line that one row of HEADS matches; the lines up to the next one are its details. Releases differ
in the indentation and in how they write a place ('at 0x50 in f(int) …', 'at f(int):0x50 in x.cu:6', 'at f(int)+0x50').
Entries that differ only in thread and address are one finding with a count: a wrong kernel makes thousands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzz.core.verdict import Finding, Location

MARK = "========"


@dataclass(frozen=True)
class _Head:
    kind: str
    pattern: re.Pattern[str]


def _head(kind: str, pattern: str) -> _Head:
    return _Head(kind, re.compile(pattern, re.IGNORECASE))


HEADS = (
    _head("invalid_access", r"Invalid (__\w+__) (read|write|atomic)\w*( of size [\d,]+)?"),
    _head("race", r"(Error|Warning|Info): (Race reported between|Potential \w+ hazard detected)"),
    _head("uninitialized_read", r"Uninitialized (__\w+__ )?(memory )?(read|access)"),
    _head("barrier", r"Barrier error detected"),
    _head("unused_memory", r"Unused memory in allocation"),
    _head("leak", r"Leaked [\d,]+ bytes"),
    _head("device_exception", r"(Program hit |CUDA Exception|Fatal UVM|Memory was )"),
)
_TROUBLE = re.compile(
    r"(Internal Sanitizer Error|Error: (?!Race|Potential)|Target application terminated before)", re.I
)
_SUMMARY = re.compile(
    r"SUMMARY: (?P<count>[\d,]+) (?:errors?|hazards?)\b(?! were not printed| was not printed)", re.IGNORECASE
)
_OTHER_SUMMARY = re.compile(r"SUMMARY: ", re.IGNORECASE)  # of leaks, and of what was not printed
_AT = re.compile(
    r"at (?:0x[0-9a-f]+ in )?(?P<what>.+?)(?:[+:]0x[0-9a-f]+)?(?: in (?P<where>\S+:\d+))?(?: \[[\d,]+ hazards?\])?$",
    re.IGNORECASE,
)
_FILE_FIRST = re.compile(r"^(?P<where>\S+:\d+):(?P<what>.+)$")
_BY = re.compile(r"by thread \(\s*(\d+),\s*(\d+),\s*(\d+)\) in block \(\s*(\d+),\s*(\d+),\s*(\d+)\)")
_PLACES = re.compile(r"(Error|Warning|Info): Race reported", re.IGNORECASE)  # whose numbers are instructions
_COUNTED = re.compile(r"\[[\d,]+ hazards?\]", re.IGNORECASE)
_COUNTED_AND_ADDRESSES = re.compile(rf"0x[0-9a-f]+|{_COUNTED.pattern}", re.IGNORECASE)
_HAZARDS = re.compile(r"\[([\d,]+) hazards?\]")
_CONTINUED = re.compile(
    r"^(at|and|by thread|Address|Access|Barrier is|Saved host|Host Frame|Device Frame|in |\[)", re.I
)


@dataclass(frozen=True)
class Report:
    """Result of a run under the sanitizer.

    findings   one for each place and kind
    errors     what the summary counts; None where there is no summary, so that nothing can be said
    trouble    the tool's own complaints
    """

    findings: tuple[Finding, ...]
    errors: int | None
    trouble: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """True if the tool came to its end and complained of nothing, not of itself either."""
        return self.errors == 0 and not self.findings and not self.trouble


@dataclass
class _Entry:
    kind: str
    text: str
    details: list[str]


def read(text: str, tool: str) -> Report:
    """The findings in the log of `compute-sanitizer --tool TOOL`; lines without the mark are the program's own."""
    entries: list[_Entry] = []
    trouble: list[str] = []
    errors: int | None = None
    open_entry: _Entry | None = None
    for line in (part for part in text.splitlines() if part.startswith(MARK)):
        content = line.lstrip("=").strip()
        if (found := _SUMMARY.search(content)) is not None:
            errors = (errors or 0) + _number(found["count"])
        elif _OTHER_SUMMARY.search(content) is not None:
            pass
        elif not content:
            open_entry = None
        elif open_entry is not None and _CONTINUED.match(content):
            open_entry.details.append(content)
        elif (kind := _kind(content)) is not None:
            open_entry = _Entry(kind, content, [])
            entries.append(open_entry)
        elif _TROUBLE.search(content) is not None:
            open_entry = None
            trouble.append(content)
    return Report(tuple(_grouped(entries, tool)), errors, tuple(trouble))


def _kind(text: str) -> str | None:
    return next((head.kind for head in HEADS if head.pattern.match(text)), None)


def _grouped(entries: list[_Entry], tool: str) -> list[Finding]:
    """One finding for all entries that complain of the same at the same place."""
    groups: dict[tuple[str, ...], list[_Entry]] = {}
    for entry in entries:
        what, where = _place(entry)
        headline = re.sub(_COUNTED if _PLACES.match(entry.text) else _COUNTED_AND_ADDRESSES, "", entry.text)
        groups.setdefault((entry.kind, " ".join(headline.split()), what, where), []).append(entry)
    return [_finding(tool, key, members) for key, members in groups.items()]


def _finding(tool: str, key: tuple[str, ...], members: list[_Entry]) -> Finding:
    kind, headline, what, where = key
    first = members[0]
    numbers = {"count": float(len(members))}
    hazards = sum(_number(count) for line in [first.text, *first.details] for count in _HAZARDS.findall(line))
    if hazards:
        numbers["hazards"] = float(hazards)
    thread = next((found for line in first.details if (found := _BY.search(line))), None)
    if thread is not None:
        names = ("thread_x", "thread_y", "thread_z", "block_x", "block_y", "block_z")
        numbers |= {name: float(number) for name, number in zip(names, thread.groups(), strict=True)}
    phrases = [headline if what in headline else f"{headline} in {what}" if what else headline]
    phrases += [f"at {where}"] if where and where not in phrases[0] else []
    phrases += [f"by {thread[0][3:]}"] if thread is not None else []
    phrases += [line for line in first.details if line.startswith(("and ", "Address", "Access", "Barrier is"))]
    message = ", ".join(phrases) + (f" (and {len(members) - 1} more like it)" if len(members) > 1 else "")
    return Finding(f"sanitizer.{tool}", kind, message, place=Location(pattern=_short(what)), numbers=numbers)


def _place(entry: _Entry) -> tuple[str, str]:
    """Function and 'file:line' of an entry, either of them '' where it does not say."""
    for line in [*entry.details, entry.text]:
        found = _AT.search(line)
        if found is None or line.startswith("and "):
            continue
        what, where = found["what"], found["where"] or ""
        first = _FILE_FIRST.match(what)
        if first is not None:
            what, where = first["what"], first["where"]
        return what.strip(), where
    return "", ""


def _short(what: str) -> str:
    """A function's name without its arguments."""
    return what.partition("(")[0].strip()


def _number(text: str) -> int:
    return int(text.replace(",", ""))
