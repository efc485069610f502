"""Trial of one mutant: its kernel runs changed on the emulated GPU, and the harness judges the cases that come to it.

In this process: the emulator bounds every access, and a launch has a budget of micro-operations taken from the clean
kernel's, so that an endless loop ends. A case that never comes to the changed instruction gives the clean verdict and
is not run again. What a missed mutant did to values and answers is looked at over a wider list of cases.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from msgspec.structs import replace

from fuzz.compiling import Build
from fuzz.core.case import Case
from fuzz.core.signature import root
from fuzz.core.target import DeviceError
from fuzz.core.verdict import Verdict
from fuzz.devices.emulator import PtxModule, Report
from fuzz.devices.emulator.api import Emulator
from fuzz.judging.judge import execute
from fuzz.score.ptx_mutants.configs import Config, builds_of, cases_of, config
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import NOTHING, changed
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.sampling import mutated, text_of
from fuzz.targets.blocksparse.devices import connect, emulated
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.tensors.arena import build as build_inputs
from oracles.outputs import Outputs

CASES = 20  # on the list that has to find a mutant
WIDE = 20  # on the one that shows what a missed mutant does; it begins with the list
MOST = 40  # and on the one that a missed mutant runs with at last, unless it is argued to be equivalent
SLOWER = 10  # times the clean kernel's micro-operations make an endless loop
MORE = 1 << 20


@dataclass(frozen=True)
class Clean:
    """A case with the unchanged kernels: the lines that it comes to, by build, and the micro-operations of its longest
    launch."""

    case: Case
    reached: dict[str, frozenset[int]]
    longest: int


class CleanFails(AssertionError):
    """The unchanged kernels fail one of the cases: there is nothing to score until that is fixed."""


@lru_cache
def clean_cases(chosen: Config, seed: int) -> tuple[Clean, ...]:
    """The CASES listed cases of a configuration with what the unchanged kernels do. Raises CleanFails."""
    return tuple(_clean(case) for case in cases_of(chosen, CASES, seed))


@lru_cache
def more_cases(chosen: Config, seed: int, first: int, last: int) -> tuple[Clean, ...]:
    """Those of the list of MOST after `first` and up to `last`. Raises CleanFails."""
    return tuple(_clean(case) for case in cases_of(chosen, MOST, seed)[first:last])


def try_mutant(bug: PtxMutant, seed: int) -> Result:
    """Runs the listed cases until one finds the bug."""
    began = time.perf_counter()
    chosen = config(bug.config)
    listed = clean_cases(chosen, seed)
    key = builds_of(chosen)[bug.kind].key
    reaching = [position for position, clean in enumerate(listed, 1) if bug.line in clean.reached.get(key, ())]
    result = Result(bug.id, bug, "missed" if reaching else "not_reached", reaching=len(reaching))
    with _changed(key, mutated(bug, chosen)):
        for runs, position in enumerate(reaching, 1):
            verdict = _judged(listed[position - 1])
            if verdict.bad:
                result = _found(result, verdict, position, runs)
                break
    return replace(result, seconds=round(time.perf_counter() - began, 3))


def look_closer(result: Result, seed: int) -> Result:
    """Behaviour of a mutant that the list missed over the wider list: whether its instruction ever gives another value,
    and whether any answer changes by a bit. Where no argument makes it equivalent, more cases look for it."""
    bug = result.bug
    result = replace(result, looked=True)
    chosen = config(bug.config)
    key = builds_of(chosen)[bug.kind].key
    beyond = more_cases(chosen, seed, CASES, WIDE)
    wide = clean_cases(chosen, seed) + beyond
    reaching = [clean for clean in wide if bug.line in clean.reached.get(key, ())]
    probe = probed(bug)
    if reaching and probe is not None:
        with _changed(key, changed(text_of(chosen, bug.kind), bug.line, bug.span, probe)):
            result = replace(result, same_values=not any(_traps(clean) for clean in reaching))
    with _changed(key, mutated(bug, chosen)):
        if reaching and result.same_values is not True:
            same = all(_answers(clean) == _clean_answers(clean.case) for clean in reaching)
            result = replace(result, same_bits=same)
        elif reaching:
            result = replace(result, same_bits=True)
    if judged(result).status == "equivalent":
        return result
    beyond += more_cases(chosen, seed, WIDE, MOST)  # with the unchanged kernels, so before the change
    with _changed(key, mutated(bug, chosen)):
        late = (
            n
            for n, clean in enumerate(beyond, CASES + 1)
            if bug.line in clean.reached.get(key, ()) and _judged(clean).bad
        )
        return replace(result, late=next(late, 0))


def probed(bug: PtxMutant) -> str | None:
    """PTX that traps where the changed instruction would give another value than the clean one, and then runs the clean
    one; None for changes whose effect is not a value."""
    before, after = bug.before, bug.after
    if before.startswith("@"):
        guard, _, _ = before.partition(" ")
        if after == NOTHING:
            return f"{{ {guard} trap; {before} }}"
        other = "@" + guard[2:] if guard.startswith("@!") else "@!" + guard[1:]
        return f"{{ {other} trap; {before} }}" if not after.startswith("@") else None
    if bug.operator == "copy_unguarded":
        size, given = re.findall(r"[^\s,;]+", before)[-2:]
        return f"{{ .reg .pred %differs; setp.ne.b32 %differs, {size}, {given}; @%differs trap; {before} }}"
    m = re.match(r"([\w.:]+) (%(?:p|rs|rd|r|f)\d+),", before)
    if not m or m.group(1).startswith(("ldmatrix", "atom", "st.", "red.", "cp.")):
        return None
    target = m.group(2)
    kind = {"p": "pred", "rs": "b16", "rd": "b64"}.get(re.sub(r"\d", "", target[1:]), "b32")
    other = f"mov.{kind} %other, {target};" if after == NOTHING else after.replace(target, "%other", 1)
    differs = f"setp.ne.{kind} %differs, %other, {target};"
    if kind == "pred":
        differs = f"xor.pred %differs, %other, {target};"
    return f"{{ .reg .{kind} %other; .reg .pred %differs; {other} {before} {differs} @%differs trap; }}"


def _clean(case: Case) -> Clean:
    reached: dict[str, set[int]] = {}
    longest = 0

    def watch(build: Build, report: Report) -> None:
        nonlocal longest
        reached.setdefault(build.key, set()).update(report.reached)
        longest = max(longest, report.executed)

    device = emulated()
    device.watch = watch
    try:
        verdict = execute(case, _target(), _enter)
    finally:
        device.watch = None
    if verdict.bad:
        raise CleanFails(f"case {case.id}: the unchanged kernels give {verdict.outcome}: {verdict.findings}")
    return Clean(case, {key: frozenset(found) for key, found in reached.items()}, longest)


@contextmanager
def _changed(key: str, text: str) -> Iterator[None]:
    """Inside, the kernel of that build runs as `text` says."""
    device = emulated()
    device.instead[key] = PtxModule(Emulator(), text)
    try:
        yield
    finally:
        del device.instead[key]


def _judged(clean: Clean) -> Verdict:
    device = emulated()
    device.budget = SLOWER * clean.longest + MORE
    try:
        return execute(clean.case, _target(), _enter)
    finally:
        device.budget = None


def _found(result: Result, verdict: Verdict, position: int, runs: int) -> Result:
    first = root(verdict)
    by = f"{first.oracle}:{first.kind}" if first else verdict.outcome
    if verdict.outcome == "hang":
        by = "emulator:hang"
    message = first.message[:300] if first else verdict.reason[:300]
    return replace(result, status="found", by=by, message=message, case_id=verdict.case_id, cases=position, runs=runs)


def _traps(clean: Clean) -> bool:
    """True if a trap is met."""
    met = False

    def watch(build: Build, report: Report) -> None:
        nonlocal met
        met = met or any(one.kind == "trap" for one in report.findings)

    emulated().watch = watch
    try:
        _answers(clean)
    finally:
        emulated().watch = None
    return met


@lru_cache(maxsize=1024)
def _clean_answers(case: Case) -> dict[str, bytes] | None:
    return _answers(Clean(case, {}, 1 << 40))


def _answers(clean: Clean) -> dict[str, bytes] | None:
    """The bits of every answer that must be bitwise reproducible, of one run; None where the device ends it."""
    device, target, case = emulated(), _target(), clean.case
    arena = build_inputs(case, "cpu")
    device.budget = SLOWER * clean.longest + MORE
    try:
        target.prepare(case, arena.tensors())
        outputs: Outputs = target.run(case, arena.tensors()).outputs
    except DeviceError:
        return None
    finally:
        device.budget = None
    may_differ = target.may_differ(case)
    return {
        name: bytes(tensor.contiguous().view(torch.uint8).numpy())
        for name, tensor in outputs.items()
        if name not in may_differ
    }


@lru_cache
def _target() -> EmulatedBlockSparse:
    connect("emulator")
    return EmulatedBlockSparse()


def _enter(phase: str, limit: float) -> None:
    """Phases are not limited here; the pool ends a worker that takes too long."""
