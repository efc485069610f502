"""Verdicts on cases that did not answer: from what was seen to outcome, finding and evidence."""

from __future__ import annotations

from typing import Any

from fuzz.core.verdict import Finding, Location, Verdict
from fuzz.process.exits import exit_name, innermost, last_line
from fuzz.runner.deadline import Died, Grown, Hung, Slow, Trail
from fuzz.runner.limits import MIB


def hung(case_id: str, ended: Hung, output: str, more: dict[str, Any]) -> Verdict:
    """A confirmed hang."""
    trail = ended.trail
    where = innermost(ended.later.text) or innermost(ended.stacks.text)
    message = f"{trail.phase} had not ended after {trail.elapsed:.1f} s (limit {trail.limit:.3g} s)"
    evidence = _common(trail, output) | {
        "python_stack": ended.stacks.text,
        "python_stack_later": ended.later.text,
        "stack_source": ended.later.source,
        "cpu_share": ended.cpu_share,
        "resident_bytes": ended.resident,
    }
    trouble = ended.later.trouble or ended.stacks.trouble
    if trouble:
        evidence["stack_trouble"] = trouble
    message += f", in {where}" if where else ""
    explained = str(ended.seen.get("explained", "")).partition("\n")[0]
    message += f": {explained}" if explained else ""
    return _verdict(case_id, "hang", "hang", message, trail, evidence | ended.seen | more)


def died(case_id: str, ended: Died, code: int, output: str, *, starved: bool, alive: bool) -> Verdict:
    """The child ended in the case. `starved`: the kernel killed for want of memory meanwhile; `alive`: the process was
    still there and only its connection was gone."""
    evidence = _common(ended.trail, output) | {"exit": "connection lost" if alive else exit_name(code)}
    phase = ended.trail.phase
    if alive:
        kind, message = "crash", f"lost the connection in {phase}: {ended.trouble}"
    elif code == -9 and starved:
        kind, message = "out_of_memory", f"killed in {phase} by the kernel, which was out of memory"
    elif code == -9:
        kind, message = "killed", f"killed in {phase} from outside: {exit_name(code)}"
    else:
        where = innermost(output)
        kind, message = "crash", f"died in {phase}: {exit_name(code)}" + (f", in {where}" if where else "")
    return _verdict(case_id, "crash", kind, message, ended.trail, evidence)


def grown(case_id: str, ended: Grown, output: str) -> Verdict:
    """Killed by the client at the memory cap."""
    message = f"{ended.resident // MIB} MiB of memory in {ended.trail.phase}, {ended.cap // MIB} MiB are allowed"
    evidence = _common(ended.trail, output) | {"exit": "killed at the memory cap", "resident_bytes": ended.resident}
    return _verdict(case_id, "crash", "out_of_memory", message, ended.trail, evidence)


def slowness(slow: tuple[Slow, ...]) -> str:
    """What a Verdict's reason says about phases that were suspected and ended."""
    worst = {s.phase: s for s in sorted(slow, key=lambda s: s.seconds)}
    return "; ".join(f"{s.phase} took {s.seconds:.2f} s, over its limit of {s.limit:.2g} s" for s in worst.values())


def _common(trail: Trail, output: str) -> dict[str, Any]:
    evidence: dict[str, Any] = {
        "phase": trail.phase,
        "limit_seconds": round(trail.limit, 3),
        "elapsed_seconds": round(trail.elapsed, 3),
    }
    if output.strip():
        evidence |= {"stderr": output, "last_line": last_line(output)}
    return evidence


def _verdict(case_id: str, outcome: Any, kind: str, message: str, trail: Trail, evidence: dict[str, Any]) -> Verdict:
    numbers = {"elapsed": round(trail.elapsed, 3), "limit": round(trail.limit, 3)}
    place = Location(pattern=trail.phase)
    finding = Finding(oracle="runner", kind=kind, message=message, place=place, numbers=numbers)
    seconds = trail.seconds | {trail.phase: trail.seconds.get(trail.phase, 0.0) + trail.elapsed}
    reason = slowness(trail.slow)
    return Verdict(case_id, outcome, (finding,), reason=reason, seconds=seconds, evidence=evidence)
