"""Arguments about the portable kernels that rest on a kernel's control flow, each with near misses."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.results import PtxMutant, Result

LOOP = """\tbar.sync \t0;
$L__BB0_1:
\tbar.sync \t%r61, 64;
\t@%p1 bra \t$L__BB0_1;
\tbar.sync \t0;
\tbar.arrive \t15, 256;
\tbar.sync \t0, 256;
\tret;
"""
LSE = """\tmov.b32 \t%r9, 0fFF800000;
\t@%p159 bra \t$L__BB0_44;
\tlg2.approx.ftz.f32 \t%r16, %r77;
\tfma.rn.f32 \t%r17, %r88, %r72, %r16;
\tmul.f32 \t%r9, %r17, 0f3F317218;
$L__BB0_44:
\tst.global.b32 \t[%rd28], %r9;
"""


def judgement(text, operator, kind, before, after):
    """Status and rule of a mutant that was looked at closely; its instruction is in the text once."""
    line = next(i for i, one in enumerate(text.splitlines(), 1) if before in " ".join(one.split()))
    bug = PtxMutant("fp16_d64_band_atomic", kind, operator, line, before, after)
    found = judged(Result(bug.id, bug, "missed", looked=True, reaching=9, same_bits=True), lambda bug: text)
    return found.status, found.rule


def of_number(text, after="bar.sync 1, 256;"):
    return judgement(text, "named_barrier_wrong", "backward", "bar.sync 0, 256;", after)


def test_all_threads_may_meet_at_a_number_that_nobody_uses_any_more():
    assert of_number(LOOP) == ("equivalent", "a number that nobody uses")


@pytest.mark.parametrize(
    "text",
    [
        LOOP.replace("\tbar.sync \t0;\n\tbar.arrive", "\tbar.arrive"),  # some may still be at the loop's barrier
        LOOP.replace("15, 256", "1, 256"),
        LOOP.replace("15, 256", "%r61, 256"),
        LOOP.replace("\tret;", "\tbar.sync \t%r61, 64;\n\tret;"),  # used afterwards
        LOOP.replace("\tret;", "\t@%p2 bra \t$L__BB0_1;\n\tret;"),  # the loop comes again
        LOOP.replace("\tbar.sync \t0;\n\tbar.arrive", "\tbar.sync \t0, 64;\n\tbar.arrive"),  # not all threads met
    ],
)
def test_a_number_that_somebody_may_use_is_missed(text):
    assert of_number(text) == ("missed", "")


def test_another_number_is_missed():
    assert of_number(LOOP, "bar.sync 2, 256;")[0] == "missed"


def test_the_logarithm_of_no_sum_is_minus_infinity():
    def status(text):
        return judgement(text, "guarded_dropped", "forward", "@%p159 bra", ";")

    assert status(LSE) == ("equivalent", "the logarithm of nothing")
    assert status(LSE.replace("0fFF800000", "0f00000000"))[0] == "missed"
    assert status(LSE.replace("lg2.approx.ftz", "ex2.approx.ftz"))[0] == "missed"
    assert status(LSE.replace("0f3F317218", "0fBF317218"))[0] == "missed"
