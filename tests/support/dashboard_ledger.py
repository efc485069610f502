"""A ledger of four nights put together by hand, for tests of the dashboard: what is new, regressed, fixed, flaky,
expected; a deadlock with its report; names and messages that are HTML, Markdown and workflow commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Location, Signature, Verdict, Worst
from fuzz.ledger.ingest.write import write, write_single
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import (
    Batch,
    BisectionRow,
    CompileRow,
    CoverageRow,
    EventRow,
    FindingRow,
    Hardware,
    MeasurementRow,
    ReplayRow,
    Revision,
    SessionRow,
    TallyRow,
    TimingRow,
)
from oracles.masks import Causal
from oracles.problem import Problem

DAY = 86400.0
FIRST = 1_795_000_000.0  # the first night begins
NOW = FIRST + 3.5 * DAY
NIGHTS = ("2026-11-18", "2026-11-19", "2026-11-20", "2026-11-21")
MATH, HOSTILE, LOCK = "torch.sdpa.math", "<script>alert(1)</script>|`x`", "blocksparse!lock_is_n_block"
MESSAGE = "fail: dQ is wrong </script><img src=x onerror=alert(2)> ::error::x %0A, at row 3"

OLD = Signature(MATH, "wrong", "accuracy", ("dq",), features=("softcap",))
BACK = Signature(MATH, "nan", "accuracy", ("o",), features=("gqa",))
GONE = Signature(MATH, "raised", "refusal", place="ValueError")
NEW = Signature(HOSTILE, "wrong", "accuracy", ("dq",), features=("bias",))
FLAKY = Signature(MATH, "nondeterministic", "determinism", ("dk",))
SAID = Signature(MATH, "crash", "process", place="SIGSEGV")
HANG = Signature(LOCK, "hang", "emulator", kernel="backward")

REPORT = """deadlock: 1 launches, 226372 micro-operations, 0.804 s
deadlock: semaphores[b 0, h 0, m 3] is 0; CTA (2, 0, 0) waits for 2, CTA (3, 0, 0) for 3
  4 CTAs are resident (at most 4 at once) and none can go on; 2 have finished, 2 have not started
  CTA (2, 0, 0) warp 1 waits for semaphores[b 0, h 0, m 3] = 0 to become 2 (PTX line 3519: ld.acquire.gpu.b32 %r2)
  CTA (2, 0, 0) warps 0, 2, 3 wait at barrier 0, where 224 of 256 threads have arrived (PTX line 3938: bar.sync 0)"""


def case_of(target: str, mask: Any = None, dim: int = 16) -> Case:
    """A small case."""
    return Case(target, Problem((40,), (72,), 2, 1, dim, dim, "float32", mask=mask or Causal()))


def fill(place: Path | str) -> None:
    """Writes the ledger to a file, or a database by its URL."""
    with Ledger(str(place)) as ledger:
        _night(ledger, 0, [_found(OLD, 0), _found(BACK, 0), _found(GONE, 0), _found(SAID, 0)], torch="2.12.0")
        _pass(ledger, BACK, 0.5)
        _say(ledger, SAID)
        _night(ledger, 1, [_found(OLD, 1), _found(FLAKY, 1, failed=2, probed=20), _found(SAID, 1)], torch="2.12.0")
        _night(ledger, 2, [_found(OLD, 2), _found(GONE, 2)], torch="2.12.0")
        _pass(ledger, GONE, 2.5)
        hang = _found(HANG, 3, outcome="hang", evidence={"emulator": REPORT})
        back = [_found(BACK, 3), _found(OLD, 3), _found(NEW, 3, message=MESSAGE), hang]
        _night(ledger, 3, back, torch="2.13.0")
        _bisect(ledger, OLD)
        _measure(ledger)


def _night(ledger: Ledger, day: int, findings: list[FindingRow], torch: str) -> None:
    began = FIRST + day * DAY
    archs = {MATH: "host", "sdpa": "host", LOCK: "emulated-sm_90a", HOSTILE: "host"}
    session = SessionRow(
        uid=f"session{day}", began=began, night=NIGHTS[day], ended=began + 3600, device="host", seed=day,
        planned=100 + 20 * (day == 1), command="attnfuzz run", archs=archs,
        hardware=Hardware("runner", "cpu", 2, "x86_64"),
        toolchain={"python": "3.11", "torch": torch, "<b>triton": f"3.{day}"},
        revision=Revision(f"{day}" * 40, False, began - 600),
    )  # fmt: skip
    tallies = [
        TallyRow(MATH, "pass", 80, 20.0), TallyRow(MATH, "fail", 10, 5.0), TallyRow(MATH, "flake", int(day == 1), 1.0),
        TallyRow(LOCK, "hang", 2, 30.0), TallyRow(HOSTILE, "pass", 8, 1.0),
    ]  # fmt: skip
    pairs = [("gqa", "gqa"), ("softcap", "softcap"), ("gqa", "softcap"), ("variant:tile_m=64", "gqa")]
    pairs += [("causal", "causal"), ("gqa", "causal")] if day else []
    batch = Batch(
        session,
        findings=tuple(findings),
        tallies=tuple(row for row in tallies if row.cases),
        timings=(TimingRow("sdpa", "run", 50, 5.0, 0.1 + day / 100, 0.2, 0.3),),
        coverage=tuple(CoverageRow(a, b, 10, int(a == "softcap" or b == "softcap")) for a, b in pairs),
        compiles=(CompileRow("sm_90a", "cached", 6, 0.0), CompileRow("sm_90a", "built", 2, 8.0)),
    )
    write(ledger, batch)


def _found(signature: Signature, day: int, outcome: str = "fail", **changed: Any) -> FindingRow:
    case = case_of(signature.target if signature.target != HOSTILE else MATH)
    if signature.target == HOSTILE:
        case = msgspec.structs.replace(case, target=HOSTILE)
    message = changed.get("message", "fail: it is wrong")
    finding = Finding(signature.oracle, signature.kind, message, place=Location(batch=0, head=1, rows=(3, 4)))
    verdict = Verdict(
        case.id, outcome, (finding,), worst=(Worst("dq", 7.5, "row", 0, 1, 3),),  # type: ignore[arg-type]
        evidence=changed.pop("evidence", {}),
    )  # fmt: skip
    found = FindingRow(
        signature=signature, status="new", outcome=outcome, at=FIRST + day * DAY + 60, met=5, failed=5, probed=5,
        minimal=True, message=message, case=case, evidence=msgspec.json.encode(verdict).decode(),
    )  # fmt: skip
    return msgspec.structs.replace(found, **changed)


def _pass(ledger: Ledger, signature: Signature, day: float) -> None:
    """Its saved case passes often enough to be fixed."""
    row = ReplayRow(f"replay{signature.id}", signature.id, FIRST + day * DAY, "host", 0, 10)
    write_single(ledger, [row])


def _say(ledger: Ledger, signature: Signature) -> None:
    link = "https://example.org/issues/12"
    write_single(ledger, [EventRow("event0", signature.id, FIRST + 3600, "expect", link=link, author="somebody")])


def _bisect(ledger: Ledger, signature: Signature) -> None:
    first = (("c7" * 20, "Softcap: <tile> of 64"),)
    write_single(
        ledger,
        [BisectionRow("bisection0", signature.id, NOW, "commits", "c1" * 20, "c9" * 20, 8, first, 0.9987, True, 5, 5)],
    )


def _measure(ledger: Ledger) -> None:
    """Eight values before a step of a tenth, eight after it."""
    for i in range(16):
        value = (500.0 if i < 8 else 450.0) + i % 3
        row = MeasurementRow(
            f"m{i}", "blocksparse forward", FIRST + i * 3600, value, "TFLOP/s", revision=Revision(f"c{i}")
        )
        write_single(ledger, [row])
