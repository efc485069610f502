"""The script of a case, by its operation."""

from __future__ import annotations

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError
from fuzz.core.signature import root
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict
from fuzz.script.page import Page
from fuzz.script.sparse_page import SparsePage

PAGES: dict[str, type[Page]] = {"attention": Page, "native_sparse_attention": SparsePage}  # a new operation: a row


def write_script(case: Case, target: Target, verdict: Verdict | None) -> str:
    """Text of a Python script that runs `case` on the target alone; it prints FAILS or passes, and exits with 1 or 0.

    verdict  what was found: decides whether the script repeats the run, guards its buffers, or expects a hang
    Raises ScriptError where the target has no script, or the case fails a metamorphic relation only.
    """
    first = root(verdict) if verdict is not None else None
    if first is not None and first.oracle == "metamorphic":
        raise ScriptError(f"case {case.id} fails only in a follow-up case of a metamorphic relation: {first.message}")
    return PAGES[case.problem.op](case, target, target.script_call(case), verdict).text()
