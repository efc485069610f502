"""Surface coverage of a session: which parameters of the targets' functions its cases gave, alone and in pairs, and
which never.

From the records' `calls` and from the surfaces that the targets declare (fuzz/core/surface.py). A parameter or a pair
that was never given, and has no reason in its adapter, is a question that nothing asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuzz.core.surface import Given
from fuzz.core.target import Device, Target
from fuzz.session.records import Record
from fuzz.targets.registry import targets

SHOWN_PAIRS = 4


def given_by(records: Iterable[Record], known: dict[str, Target]) -> dict[str, list[Given]]:
    """Parameters that the cases of each target gave: one Given for each of its surfaces."""
    found: dict[str, list[Given]] = {}
    for record in records:
        target = known.get(record.target)
        if target is None:
            continue
        if record.target not in found:
            found[record.target] = [Given(surface) for surface in target.surfaces()]
        for given in found[record.target]:
            given.add(record.calls)
    return {name: given for name, given in found.items() if given}


def surface_lines(records: Sequence[Record], files: tuple[str, ...], device: Device) -> list[str]:
    """A few lines for the end of a session: figures by target, what was never given without a reason, then the
    reasons."""
    covered = given_by(records, targets(files, device, mutants=any("!" in record.target for record in records)))
    if not covered:
        return []
    figures = [f"{name} {_figures(each)}" for name, each in sorted(covered.items())]
    lines = [f"Parameters given (pairs of them): {'; '.join(figures)}"]
    for name, each in sorted(covered.items()):
        for given in each:
            if missing := _unexplained(given):
                lines.append(f"Never given: {name}: {_function(given, each)}{missing}")
    return lines + [f"Never given: {line}" for line in _reasons(covered)]


def declared_lines(target: Target) -> list[str]:
    """The functions that a target calls, with their parameters, and the reasons for what it never gives, a line
    each."""
    lines = []
    for surface in target.surfaces():
        lines.append(f"calls: {surface.name}({', '.join(surface.names)})")
        lines += [f"never gives {name}: {why}" for name, why in surface.never.items()]
        lines += [
            f"never gives {_either(apart.one)} with {_either(apart.other)}: {apart.why}" for apart in surface.apart
        ]
    return lines


def totals(given: Given) -> tuple[int, int, int, int]:
    """Parameters given, of how many; pairs given together, of how many."""
    surface = given.surface
    here = len(surface.names) - len(given.never())
    return here, len(surface.names), len(surface.pairs) - len(given.never_together()), len(surface.pairs)


def _figures(each: Sequence[Given]) -> str:
    here, every, pairs, every_pair = (sum(column) for column in zip(*map(totals, each), strict=True))
    return f"{here} of {every} ({pairs} of {every_pair})"


def _function(given: Given, each: Sequence[Given]) -> str:
    return f"{given.surface.name}: " if len(each) > 1 else ""


def _unexplained(given: Given) -> str:
    if not given.cases:
        return "was not called"
    pairs = [f"{a} + {b}" for a, b in given.unexplained_pairs()]
    shown = given.unexplained() + pairs[:SHOWN_PAIRS]
    more = len(pairs) - SHOWN_PAIRS
    return ", ".join(shown) + (f" and {more} more pairs" if more > 0 else "")


def _reasons(covered: dict[str, list[Given]]) -> list[str]:
    """The parameters that were never given for a reason, each reason once, with the targets that have it."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name, each in sorted(covered.items()):
        for given in each:
            for parameter in given.never():
                if given.cases and parameter in given.surface.never:
                    owners.setdefault((parameter, given.surface.never[parameter]), []).append(name)
    return [f"{', '.join(dict.fromkeys(names))}: {name} ({why})" for (name, why), names in owners.items()]


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names)
