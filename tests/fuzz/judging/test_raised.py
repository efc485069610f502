"""Errors of targets: what of them tells causes apart."""

import pytest
from judge_tools import PLAIN

from fuzz.core.case import Case
from fuzz.judging.execution import Clock, Raised
from fuzz.judging.raised import raised_verdict


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("LoweringError: ChoicesError: No choices: 0", "RuntimeError: LoweringError: ChoicesError"),
        ("No valid configs. OutOfMemoryError: out of resource", "RuntimeError"),
        ("CompilationError: at 185:13:\n ValueError: rank mismatch", "RuntimeError: CompilationError"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_that_hands_on_another_is_named_with_it(message, place):
    verdict = raised_verdict(Case("any", PLAIN), Raised(RuntimeError(message), []), Clock(lambda phase, limit: None))
    (finding,) = verdict.findings
    assert (finding.kind, finding.place.pattern) == ("raised", place)
