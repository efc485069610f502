"""Trial of one mutant: its kernel runs changed on the emulated GPU, and the harness judges the cases that come to it.

In this process: the emulator bounds every access, and a launch has a budget of micro-operations taken from the clean
kernel's, so that an endless loop ends. A case that never comes to the changed instruction gives the clean verdict and
is not run again, nor is one on whose recorded launches the changed kernel does nothing else than the clean one
(recording.py). What a missed mutant did to values and answers is looked at over a wider list of cases.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from pathlib import Path

import torch
from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.signature import root
from fuzz.core.target import DeviceError
from fuzz.core.verdict import Verdict
from fuzz.devices.emulator import Report
from fuzz.judging.judge import execute
from fuzz.score.ptx_mutants.bench import ARCH, Bench, Watch, bench, programs_of
from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import NOTHING, changed
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.sampling import mutated
from fuzz.score.ptx_mutants.survey import Clean, Kernel, KernelConfig, Survey, lists_of, no_limit
from fuzz.score.ptx_mutants.targets import config
from fuzz.tensors.arena import build as build_inputs
from oracles.outputs import Outputs

SLOWER = 10  # times the clean kernel's micro-operations make an endless loop
MORE = 1 << 20
_MET = ("trap", "register without a value")  # findings of a probe


@lru_cache
def survey_of(seed: int, folder: Path | None = None, arch: str = ARCH) -> Survey:
    """The survey of this process. folder: where it is kept, if so."""
    return Survey(seed, folder, arch)


def clean_cases(chosen: KernelConfig, survey: Survey) -> tuple[Clean, ...]:
    """The listed cases of a configuration with what the unchanged kernels do, without those that they fail."""
    return _cleans(chosen, survey, 0, lists_of(chosen.target).cases)


def more_cases(chosen: KernelConfig, survey: Survey, first: int, last: int) -> tuple[Clean, ...]:
    """Those of the longest list after `first` and up to `last`, without those that the unchanged kernels fail."""
    return _cleans(chosen, survey, first, last)


def _cleans(chosen: KernelConfig, survey: Survey, first: int, last: int) -> tuple[Clean, ...]:
    numbers = range(first, min(last, len(survey.cases(chosen))))
    return tuple(clean for number in numbers if not (clean := survey.clean(chosen, number)).fails)


def try_mutant(bug: PtxMutant, survey: Survey) -> Result:
    """Runs the listed cases until one finds the bug. Raises RuntimeError where a case does not launch the kernel that
    the survey says it launches."""
    began = time.perf_counter()
    chosen = config(bug.target, bug.config)
    listed = clean_cases(chosen, survey)
    kernel = chosen.kernels(survey)[bug.kind]
    reaching = [position for position, clean in enumerate(listed, 1) if bug.line in clean.reached.get(kernel.key, ())]
    place = bench(bug.target, survey.arch)
    alone = sum(not place.target.runs(listed[position - 1].case) for position in reaching)
    result = Result(bug.id, bug, "missed" if reaching else "not_reached", reaching=len(reaching), alone=alone)
    instead = {kernel.key: mutated(bug, kernel.text)}
    changes = 0
    for runs, position in enumerate(reaching, 1):
        if not _may_differ(listed[position - 1], bug, kernel, instead[kernel.key], survey):
            continue
        changes += 1
        verdict = _judged(place, listed[position - 1], instead)
        if verdict.bad:
            result = _found(result, verdict, position, runs)
            break
    if result.status == "missed":
        result = replace(result, changed=changes)
    return replace(result, seconds=round(time.perf_counter() - began, 3))


def look_closer(result: Result, survey: Survey) -> Result:
    """Behaviour of a mutant that the list missed over the wider list: whether its instruction ever gives another value,
    and whether any answer changes by a bit. Where no argument makes it equivalent, more cases look for it."""
    began = time.perf_counter()
    found = _looked(replace(result, looked=True), survey)
    return replace(found, seconds=round(result.seconds + time.perf_counter() - began, 3))


def _looked(result: Result, survey: Survey) -> Result:
    bug = result.bug
    chosen = config(bug.target, bug.config)
    kernel = chosen.kernels(survey)[bug.kind]
    place, lists = bench(bug.target, survey.arch), lists_of(bug.target)
    beyond = more_cases(chosen, survey, lists.cases, lists.wide)
    wide = clean_cases(chosen, survey) + beyond
    reaching = [clean for clean in wide if bug.line in clean.reached.get(kernel.key, ())]
    probe = probed(bug)
    if reaching and probe is not None:
        text = changed(kernel.text, bug.line, bug.span, probe)
        traps = any(
            _may_differ(clean, bug, kernel, text, survey) and _traps(place, clean, {kernel.key: text})
            for clean in reaching
        )
        result = replace(result, same_values=not traps)
    instead = {kernel.key: mutated(bug, kernel.text)}
    if reaching and result.same_values is not True:
        same = all(
            not _may_differ(x, bug, kernel, instead[kernel.key], survey)
            or _answers(place, x, instead) == _clean_answers(bug.target, survey.arch, x.case)
            for x in reaching
        )
        result = replace(result, same_bits=same)
    elif reaching:
        result = replace(result, same_bits=True)
    texts = {kind: one.text for kind, one in chosen.kernels(survey).items()}
    if judged(result, lambda one: texts[one.kind]).status == "equivalent":
        return result
    beyond += more_cases(chosen, survey, lists.wide, lists.most)
    late = (
        n
        for n, clean in enumerate(beyond, lists.cases + 1)
        if bug.line in clean.reached.get(kernel.key, ()) and _judged(place, clean, instead).bad
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
    if not m or m.group(1).startswith(("ldmatrix", "atom", "st.", "red.", "cp.", "mbarrier.")):
        return None
    target = m.group(2)
    kind = {"p": "pred", "rs": "b16", "rd": "b64"}.get(re.sub(r"\d", "", target[1:]), "b32")
    other = f"mov.{kind} %other, {target};" if after == NOTHING else after.replace(target, "%other", 1)
    differs = f"setp.ne.{kind} %differs, %other, {target};"
    if kind == "pred":
        differs = f"xor.pred %differs, %other, {target};"
    return f"{{ .reg .{kind} %other; .reg .pred %differs; {other} {before} {differs} @%differs trap; }}"


def _may_differ(clean: Clean, bug: PtxMutant, kernel: Kernel, text: str, survey: Survey) -> bool:
    """False if `text` in the kernel's place does, on every launch of a case that comes to the changed instruction, what
    the kernel did, to the byte: the verdict is the clean one then. True where that is not known."""
    launches = survey.launches(clean.case)
    if launches is None:
        return True
    budget = SLOWER * clean.longest + MORE
    programs = programs_of(text)
    reaching = [one for one in launches if one.key == kernel.key and bug.line in one.reached]
    return not reaching or any(one.differs(programs, budget) for one in reaching)


def _judged(place: Bench, clean: Clean, instead: dict[str, str]) -> Verdict:
    with place.running(instead, SLOWER * clean.longest + MORE) as running:
        verdict = execute(clean.case, place.target, no_limit)
    if not (running.used or verdict.bad):
        raise RuntimeError(f"case {clean.case.id} does not launch the changed kernel: the survey is of other kernels")
    return verdict


def _found(result: Result, verdict: Verdict, position: int, runs: int) -> Result:
    first = root(verdict)
    by = f"{first.oracle}:{first.kind}" if first else verdict.outcome
    if verdict.outcome == "hang":
        by = "emulator:hang"
    message = first.message[:300] if first else verdict.reason[:300]
    return replace(result, status="found", by=by, message=message, case_id=verdict.case_id, cases=position, runs=runs)


def _traps(place: Bench, clean: Clean, instead: dict[str, str]) -> bool:
    """True if a trap is met, or a register without a value is compared."""
    met = False

    def watch(key: str, name: str, report: Report) -> None:
        nonlocal met
        met = met or any(one.kind in _MET for one in report.findings)

    _answers(place, clean, instead, watch)
    return met


@lru_cache(maxsize=1024)
def _clean_answers(target: str, arch: str, case: Case) -> dict[str, bytes] | None:
    return _answers(bench(target, arch), Clean(case, {}, 1 << 40), {})


def _answers(
    place: Bench, clean: Clean, instead: dict[str, str], watch: Watch | None = None
) -> dict[str, bytes] | None:
    """The bits of every answer that must be bitwise reproducible, of one run; None where the device ends it."""
    case = clean.case
    if not place.target.runs(case):
        with place.running(instead, SLOWER * clean.longest + MORE, watch):
            try:
                return {"metadata": b"".join(f.message.encode() for f in place.target.inspect(case))}
            except DeviceError:
                return None
    arena = build_inputs(case, "cpu")
    with place.running(instead, SLOWER * clean.longest + MORE, watch):
        try:
            place.target.prepare(case, arena.tensors())
            outputs: Outputs = place.target.run(case, arena.tensors()).outputs
        except DeviceError:
            return None
    may_differ = place.target.may_differ(case)
    return {
        name: bytes(tensor.detach().contiguous().view(torch.uint8).numpy())
        for name, tensor in outputs.items()
        if name not in may_differ
    }
