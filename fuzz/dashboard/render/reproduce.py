"""How to show a failure again: a command that holds the case itself, and the script for a bug report."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError
from fuzz.core.target import Device
from fuzz.core.verdict import Outcome, Signature, Verdict
from fuzz.corpus.entry import VERSION, Entry
from fuzz.dashboard.model import SignatureItem
from fuzz.script import write_script
from fuzz.targets.registry import TargetError, load, targets

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def file_name(bug: SignatureItem) -> str:
    """'sdpa-bias_scaled_5b1a0c22.json'."""
    return f"{_NOT_A_NAME.sub('-', bug.target)[:60]}_{bug.uid}.json"


def command(bug: SignatureItem, files: Sequence[str] = ()) -> str:
    """Shell lines that write the case to a file and run it; '' without a saved case. files: of users' own targets."""
    if bug.case is None:
        return ""
    name = file_name(bug)
    own = () if bug.target in _known(bug.device) else files
    words = ["attnfuzz", "repro", name, *(word for file in own for word in ("--target-file", file))]
    if bug.device in ("cuda", "emulator"):
        words += ["--device", bug.device]
    runs = min(max(bug.runs, 10), 100) if bug.flaky else 1
    if runs > 1:
        words += ["--runs", str(runs)]
    return f"cat > {name} <<'EOF'\n{json.dumps(saved(bug), ensure_ascii=False)}\nEOF\n{shlex.join(words)}"


@cache
def _known(device: str) -> frozenset[str]:
    """Names of the targets that need no file."""
    return frozenset(targets(device=_device(device), mutants=True))


def _device(name: str) -> Device:
    known: dict[str, Device] = {"cuda": "cuda", "emulator": "emulator"}
    return known.get(name, "host")


def saved(bug: SignatureItem) -> dict[str, Any]:
    """The case as a file that `attnfuzz repro` reads: a bare case, or an entry with those to be run before it."""
    assert bug.case is not None
    if not bug.after:
        return bug.case
    entry = Entry(
        version=VERSION,
        expect=msgspec.convert(bug.outcome, Outcome),
        case=msgspec.convert(bug.case, Case),
        after=msgspec.convert(bug.after, tuple[Case, ...]),
        signature=msgspec.convert(bug.signature, Signature),
    )
    return msgspec.to_builtins(entry)


def script(bug: SignatureItem, files: Sequence[str] = ()) -> tuple[str, str]:
    """The bug report's script, or why there is none: (script, reason), one of them ''."""
    if bug.case is None:
        return "", "the session did not keep the case"
    case = msgspec.convert(bug.case, Case)
    verdict = None if bug.evidence is None else msgspec.convert(bug.evidence, Verdict)
    try:
        return write_script(case, load(bug.target, tuple(files), _device(bug.device)), verdict), ""
    except TargetError:
        return "", f"{bug.target} is not known here; attnfuzz report --target-file FILE knows targets of your own"
    except (ScriptError, OSError, ImportError) as error:
        return "", str(error).split("\n")[0]
