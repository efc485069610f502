"""A finding is one sentence: what is wrong, where, by how much, and what was expected."""

import re
from dataclasses import replace

import pytest
import torch
from ptx_tools import own_word, run

from fuzz.devices.emulator.report.kinds import KIND_NAMES, lanes, sentence
from fuzz.devices.emulator.report.report import Finding, Report
from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.state.global_memory import Memory

WORD = "shl.b32 %r0, %t, 2; mov.b32 %r1, s; add.s32 %r0, %r0, %r1;"


def words(n):
    return torch.zeros(n, dtype=torch.int32)


def of_kind(expected, body, **options):
    """The text of the finding of the kind that `expected` begins with."""
    return next(str(f) for f in run(body, words(8), **options).findings if expected.startswith(f.kind))


@pytest.mark.parametrize(
    "body,options,expected",
    [
        (
            own_word() + "st.global.b32 [%d0], %t;",
            {"block": 32},
            "out of bounds: CTA (0, 0, 0) warp 0 lane 8 writes 4 bytes at argument 0, 0 bytes past its end (32 "
            "bytes long); its shape is (8,) (kernel k, PTX line N: st.global.b32 [%d0], %t)",
        ),
        (
            "ld.global.b32 %r0, [%p0+6];",
            {"block": 1},
            "misaligned access: CTA (0, 0, 0) warp 0 lane 0 reads 4 bytes at argument 0[1], whose address is 2 "
            "bytes past a multiple of 4 (kernel k, PTX line N: ld.global.b32 %r0, [%p0+6])",
        ),
        (
            "st.global.b32 [%p0], %c;",
            {"grid": 2, "block": 1},
            "race: two writes: CTA (1, 0, 0) warp 0 lane 0 writes argument 0[0], which CTA (0, 0, 0) warp 0 also "
            "writes; no barrier, fence or release with acquire orders the two accesses (kernel k, PTX line N: "
            "st.global.b32 [%p0], %c)",
        ),
        (
            WORD + "ld.shared.b32 %r2, [%r0];",
            {"block": 1, "shared": 64},
            "read of uninitialised memory: CTA (0, 0, 0) warp 0 lane 0 reads shared memory byte 0, which nothing "
            "has written (kernel k, PTX line N: ld.shared.b32 %r2, [%r0])",
        ),
        (
            "mov.b32 %r1, 65536; mul.lo.s32 %r0, %r1, 65536; mul.wide.s32 %d0, %r0, 4; add.s64 %d0, "
            "%p0, %d0;ld.global.b32 %r2, [%d0];",
            {"block": 1},
            "32-bit arithmetic wrapped in an address: CTA (0, 0, 0) warp 0 lane 0 accesses argument 0[0] by an "
            "index that overflowed 32 bits and wrapped around; it needs 64-bit arithmetic (kernel k, PTX "
            "line N: ld.global.b32 %r2, [%d0])",
        ),
        (
            "setp.lt.s32 %q0, %t, 7; @%q0 bra $in; bra.uni $end; $in: bar.sync 0; $end: mov.b32 %r0, 0; bar.sync 1;",
            {},
            "barrier in a divergent branch: CTA (0, 0, 0) warp 0 lane 0 is elsewhere while its warp is at the barrier; "
            "there: lanes 7-31, expected: lanes 0-31 (kernel k, PTX line N: bar.sync 1)",
        ),
        (
            "st.shared.b32 [s+64], %t;",
            {"block": 1, "shared": 64},
            "out of bounds of shared memory: CTA (0, 0, 0) warp 0 lane 0 writes 4 bytes at byte 64 of shared "
            "memory, of which the CTA has 64 bytes (kernel k, PTX line N: st.shared.b32 [s+64], %t)",
        ),
    ],
)
def test_a_finding_says_what_is_wrong_where_and_by_how_much(body, options, expected):
    assert re.sub(r"PTX line \d+", "PTX line N", of_kind(expected, body, **options)) == expected


def test_every_kind_has_a_sentence():
    for kind in KIND_NAMES:
        assert sentence(Seen(kind, "ld.global.b32 %r0, [%d0]", "k[0]", 0, 4, 1, other="CTA (0, 0, 0) warp 1"))


@pytest.mark.parametrize(
    "mask,text", [(0, "no lane"), (1, "lane 0"), (0x207F, "lanes 0-6, 13"), (2**32 - 1, "lanes 0-31")]
)
def test_masks_are_told_as_lanes(mask, text):
    assert lanes(mask) == text


def test_tensors_with_named_dimensions_are_told_with_them():
    memory = Memory({"semaphores": ("b", "h", "m")})
    address = memory.add("semaphores", torch.zeros((2, 3, 5), dtype=torch.int32))
    assert memory.describe(address + 4 * 18, axes=True) == "semaphores[b 1, h 0, m 3]"
    assert memory.describe(address + 4 * 18) == "semaphores[1, 0, 3]"


def test_long_kernel_names_are_cut():
    (found,) = run("st.global.b32 [%p0], %c;", words(1), grid=2, block=1).findings
    assert f"(kernel {'x' * 60}…, PTX line" in str(replace(found, kernel="x" * 61))


def finding(**changed):
    one = Finding("race: two writes", "k", "st.shared.b32 [%r1], %r2", 7, (0, 0, 0), 1, 0, 64, 4, "", "w", "a.py:3")
    return replace(one, **changed)


def test_a_report_says_each_cause_once():
    ones = [finding(), finding(address=68, line=9), finding(source="a.py:4"), finding(source="", line=7)]
    said = str(Report(findings=[*ones, finding(source="", line=8)])).splitlines()[1:]
    assert [line.count("(and 1 more like it)") for line in said] == [1, 0, 0, 0]
    assert ["a.py:3" in line for line in said] == [True, False, False, False]


def test_long_lists_of_registers_are_cut():
    long = "mma {%f0, %f1, %f2, %f3, %f4}, {%r0, %r1, %r2, %r3}, %rd5"
    assert "mma {%f0, … 5 registers}, {%r0, %r1, %r2, %r3}, %rd5)" in str(finding(instruction=long))
