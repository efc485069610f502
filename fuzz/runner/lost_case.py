"""Verdicts on cases that did not answer: from what was seen to outcome, finding and evidence."""

from __future__ import annotations

from typing import Any

from fuzz.core.verdict import Finding, Location, Verdict
from fuzz.process.exits import exit_name, innermost, last_line
from fuzz.runner.deadline import Died, Grown, Hung, Slow, Trail
from fuzz.runner.limits import MIB

PHASES = {  # as the judge announces them, in words
    "begin": "the start of the case",
    "load": "the import of the target",
    "inputs": "the making of the inputs",
    "reference": "the reference's computation",
    "prepare": "the compilation of the kernel",
    "run": "the kernel's run",
    "judge": "the comparison with the reference",
    "inspect": "the check of the metadata",
    "leaks": "the check for leaked resources",
}


def hung(case_id: str, ended: Hung, output: str, more: dict[str, Any]) -> Verdict:
    """A confirmed hang."""
    trail = ended.trail
    where = innermost(ended.later.text) or innermost(ended.stacks.text)
    message = f"{_phase(trail)} did not end within {trail.elapsed:.1f} s, its limit is {trail.limit:.3g} s"
    message += f"; the process {_activity(ended.cpu_share)}" + (f", in {where}" if where else "")
    message += _gpu_state(more)
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
    explained = str(ended.seen.get("explained", "")).partition("\n")[0]
    message += f": {explained}" if explained else ""
    return _verdict(case_id, "hang", "hang", message, trail, evidence | ended.seen | more)


def died(case_id: str, ended: Died, code: int, output: str, *, starved: bool, alive: bool) -> Verdict:
    """The child ended in the case. `starved`: the kernel killed for want of memory meanwhile; `alive`: the process was
    still there and only its connection was gone."""
    evidence = _common(ended.trail, output) | {"exit": "connection lost" if alive else exit_name(code)}
    when = f"in {_phase(ended.trail)}, {ended.trail.elapsed:.1f} s after it began"
    if alive:
        kind, message = "crash", f"the process closed its connection to the harness {when}: {ended.trouble}"
    elif code == -9 and starved:
        kind, message = (
            "out_of_memory",
            f"the operating system killed the process {when}: the machine had no memory left",
        )
    elif code == -9:
        kind, message = "killed", f"somebody killed the process {when}: {exit_name(code)}; the harness did not"
    else:
        where = innermost(output)
        kind, message = "crash", f"the process died {when}: {exit_name(code)}" + (f", in {where}" if where else "")
    return _verdict(case_id, "crash", kind, message, ended.trail, evidence)


def grown(case_id: str, ended: Grown, output: str) -> Verdict:
    """Killed by the client at the memory cap."""
    message = (
        f"the process held {ended.resident // MIB} MiB of host memory in {_phase(ended.trail)}, "
        f"{ended.trail.elapsed:.1f} s after it began; the limit is {ended.cap // MIB} MiB"
    )
    evidence = _common(ended.trail, output) | {"exit": "killed at the memory cap", "resident_bytes": ended.resident}
    return _verdict(case_id, "crash", "out_of_memory", message, ended.trail, evidence)


def of_another(case_id: str, answered: str, trail: Trail, output: str) -> Verdict:
    """The child answered about the case `answered`."""
    message = f"the process answered about another case, {answered}: what it was asked is not known to have been judged"
    return _verdict(case_id, "crash", "crash", message, trail, _common(trail, output))


def slowness(slow: tuple[Slow, ...]) -> str:
    """What a Verdict's reason says about phases that were suspected and ended."""
    worst = {s.phase: s for s in sorted(slow, key=lambda s: s.seconds)}
    return "; ".join(
        f"slow: {PHASES.get(s.phase, s.phase)} took {s.seconds:.2f} s, its limit is {s.limit:.2g} s"
        for s in worst.values()
    )


def _phase(trail: Trail) -> str:
    return PHASES.get(trail.phase, f"phase {trail.phase!r}")


def _activity(cpu_share: float) -> str:
    """What a process did between two looks, from its CPU seconds per second."""
    if cpu_share < 0.05:
        return "waits without using the CPU"
    return "computes on the CPU" if cpu_share > 0.8 else f"uses {100 * cpu_share:.0f} % of a CPU"


def _gpu_state(evidence: dict[str, Any]) -> str:
    """What nvidia-smi showed of the GPU at that moment, or ''."""
    busy = evidence.get("gpu", {}).get("utilization.gpu")
    return f"; nvidia-smi shows the GPU {busy:.0f} % busy" if isinstance(busy, float) else ""


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
