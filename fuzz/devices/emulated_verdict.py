"""Verdicts from the emulated GPU's reports: a deadlock is outcome 'hang', anything else that was seen 'fail'."""

from __future__ import annotations

from typing import Any

from fuzz.core.verdict import Finding, Location, Outcome
from fuzz.devices.emulator import Report

UNFINISHED = ("deadlock", "endless", "budget")  # statuses of a report that are a hang


def verdict_of(name: str, report: Report) -> tuple[Outcome, tuple[Finding, ...], dict[str, Any]]:
    """Outcome, findings and evidence of a report that is not clean. name: of the kernel, as findings say it."""
    evidence = {"emulator": str(report)[:20_000]}
    if report.status in UNFINISHED:
        if report.endless is not None:
            found, line = "endless", str(report.endless)
        elif report.deadlock is not None:
            found, line = "hang", str(report.deadlock).partition("\n")[0]
        else:
            found, line = "hang", "the kernel does not end within its budget"
        finding = Finding("emulator", found, f"{name}: {line}", place=_where(report, name), numbers=_numbers(report))
        return "hang", (finding, *_findings(name, report)), evidence
    return "fail", _findings(name, report), evidence


def _findings(name: str, report: Report) -> tuple[Finding, ...]:
    """Findings of a report, one of each kind."""
    found: dict[str, list[Any]] = {}
    for one in report.findings:
        found.setdefault(one.kind, []).append(one)
    findings = []
    for kind, ones in found.items():
        more = f" (and {len(ones) - 1} more like it)" if len(ones) > 1 else ""
        slug = kind.replace(": ", "_").replace(" ", "_")
        findings.append(
            Finding(
                "emulator",
                slug,
                f"{name}: {ones[0]}{more}",
                ones[0].tensor,
                Location(pattern=name, source=ones[0].source),
                {"count": len(ones)},
            )
        )
    return tuple(findings)


def _where(report: Report, name: str) -> Location:
    """The kernel of a hang, and the source line of its endless loop, or at which its first warp waits, where that is
    known."""
    if report.endless is not None:
        return Location(pattern=name, source=report.endless.source)
    waiting = report.deadlock.waiting if report.deadlock is not None else ()
    return Location(pattern=name, source=next((warp.source for warp in waiting if warp.source), ""))


def _numbers(report: Report) -> dict[str, float]:
    if report.endless is not None:
        return {"trips": report.endless.trips}
    if report.deadlock is None:
        return {}
    stuck = report.deadlock
    return {"resident": stuck.resident, "finished": stuck.finished, "not_started": stuck.not_started}
