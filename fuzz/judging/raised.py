"""The verdict of a case whose run raised: a declared refusal, an undeclared one, a crash, or what the device found."""

from __future__ import annotations

import re
import traceback
from contextlib import suppress
from typing import Any

import torch

from fuzz.core.case import Case
from fuzz.core.target import DeviceError
from fuzz.core.verdict import Finding, FollowUpFailure, Location, Verdict
from fuzz.judging.execution import Clock, Raised
from fuzz.judging.verdict_builder import conclude

_WRAPPED = re.compile(r"(\w*(?:Error|Exception)): ")  # at the beginning of a message: the error that is handed on


def raised_verdict(case: Case, raised: Raised, clock: Clock) -> Verdict:
    """The target raised on a case that it declares to support, or on a follow-up case of that one."""
    error = raised.error
    if isinstance(error, DeviceError):
        return _found_by_device(case, error, clock)
    name, text = type(error).__name__, str(error).strip().split("\n")[0][:300]
    prefix = f"{raised.subject}: " if raised.subject else ""
    evidence: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))[-4000:]}
    if raised.warned:
        evidence["warnings"] = list(dict.fromkeys(raised.warned))[-10:]
    if context_lost(error):
        evidence["context_lost"] = True
        message = f"{prefix}CUDA error, after which the process can no longer use the GPU: {text}"
        finding = Finding("runner", "crash", message, place=Location(pattern=name))
        return conclude(case, [finding], clock, [], outcome="crash", evidence=evidence)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
        with suppress(Exception):
            torch.cuda.empty_cache()
        finding = Finding("runner", "out_of_memory", f"{prefix}the run needs more memory than there is: {name}: {text}")
        return conclude(case, [finding], clock, [], outcome="crash", evidence=evidence)
    refused = isinstance(error, (ValueError, NotImplementedError))
    verb = "refused it, which it does not declare:" if refused else "raised"
    message = f"{prefix}the target {verb} {name}: {text}"
    place = Location(pattern=error_type(name, text))
    finding = Finding("protocol", "refused" if refused else "raised", message, place=place)
    alone = [] if raised.follow_up is None else [FollowUpFailure(raised.follow_up, (finding,))]
    return conclude(case, [finding], clock, [], evidence=evidence, follow_ups=alone)


def error_type(name: str, text: str) -> str:
    """The error's type, and those of the errors that its message hands on: an InductorError is the end of many causes,
    'InductorError: LoweringException: NoValidChoicesError' of one.

    name  of its class; text: the first line of its message
    """
    names, at = [name], 0
    while (found := _WRAPPED.match(text, at)) is not None:
        names.append(found[1])
        at = found.end()
    return ": ".join(names)


def context_lost(error: BaseException) -> bool:
    """True if CUDA no longer works in this process after the error."""
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA error" in text and "out of memory" not in text


def _found_by_device(case: Case, error: DeviceError, clock: Clock) -> Verdict:
    reason = "" if error.findings else "; ".join(map(str, error.evidence.values()))[:300]
    return conclude(
        case, list(error.findings), clock, [], outcome=error.outcome, evidence=error.evidence, reason=reason
    )
