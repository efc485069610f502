"""A translated kernel is the loop's: same memory, findings, counts of micro-operations and of lines, with and without
checks. So are unchecked accesses to memory, which go another way than checked ones."""

import itertools

import numpy as np
import pytest
import torch
from ptx_tools import run

from fuzz.devices.emulator import EmulationError, Emulator
from fuzz.devices.emulator.conformance import suite
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.decode.decoder import Unimplemented

CHECKED = frozenset({"races", "uninitialised"})
CHECKS = {"none": frozenset(), "wrapped": frozenset({"wrapped"}), "all": CHECKED | {"wrapped"}}
SCHEDULES = ("in_order", "random", "oldest_last", "greedy")


def outcome(report, tensors):
    """All that a user can see of a run."""
    reached = [counts.tolist() for _, counts in report.executions]
    found = [str(f) for f in report.findings], str(report.deadlock), report.notes
    return report.status, report.executed, reached, found, [t.view(torch.uint8).tolist() for t in tensors]


def same(body, *tensors, **options):
    """Runs the body by the loop and translated, on copies of the tensors; the outcome, which must be the same."""
    outcomes = []
    for translate in ("never", "always"):
        copies = [t.clone() for t in tensors]
        outcomes.append(outcome(run(body, *copies, translate=translate, **options), copies))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def words(count=256):
    return torch.arange(count, dtype=torch.int32) * 2654435 + 12345


WORD = "mul.wide.u32 %d0, %t, 4; add.s64 %d1, %p0, %d0; ld.global.b32 %r0, [%d1];"
DIVERGED = f"""{WORD}
and.b32 %r1, %r0, 3; setp.eq.s32 %q0, %r1, 0; setp.lt.s32 %q1, %r1, 2;
@%q0 bra $a; add.s32 %r0, %r0, 7; mul.lo.s32 %r0, %r0, 3; @%q1 bra $b; xor.b32 %r0, %r0, 0x55; bra $b;
$a: sub.s32 %r0, %r0, 11; shl.b32 %r0, %r0, 2;
$b: @%q1 add.s32 %r0, %r0, %t; @!%q1 mov.b32 %r2, %r0; @%q1 mov.b32 %r2, 5; add.s32 %r0, %r0, %r2;
st.global.b32 [%d1], %r0;"""
LOOP = f"""{WORD}
mov.b32 %r1, 0; and.b32 %r2, %r0, 15;
$loop: add.s32 %r0, %r0, %r1; add.s32 %r1, %r1, 1; setp.le.s32 %q0, %r1, %r2; @%q0 bra $loop;
st.global.b32 [%d1], %r0;"""
SHARED = f"""{WORD}
mov.b32 %r9, s; shl.b32 %r8, %t, 2; add.s32 %r8, %r9, %r8; xor.b32 %r7, %r8, 4;
st.shared.b32 [%r8], %r0; bar.sync 0; ld.shared.b32 %r1, [%r7]; ld.shared.u8 %r2, [%r7+1]; ld.shared.s16 %r3, [%r7+2];
add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r3; st.global.b32 [%d1], %r1;"""
MATRICES = f"""{WORD}
mov.b32 %r9, s; shl.b32 %r8, %t, 2; add.s32 %r8, %r9, %r8; st.shared.b32 [%r8], %r0; bar.sync 0;
and.b32 %r7, %t, 7; shl.b32 %r7, %r7, 4; add.s32 %r7, %r9, %r7;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r7}}, [%r7];
add.s32 %r6, %r9, 0; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r13, %r14}}, [%r6+16];
mov.b32 %r20, 0f3F800000; mov.b32 %r21, 0; mov.b32 %r22, 0f7FC00000; mov.b32 %r23, 0fFF800000;
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 {{%r20, %r21, %r22, %r23}}, {{%r10, %r11, %r12, %r7}}, {{%r13, %r14}}, {{%r20, %r21, %r22, %r23}};
xor.b32 %r20, %r20, %r21; xor.b32 %r20, %r20, %r22; xor.b32 %r20, %r20, %r23; st.global.b32 [%d1], %r20;"""
COPIES = f"""{WORD}
mov.b32 %r9, s; shl.b32 %r8, %t, 4; add.s32 %r8, %r9, %r8; mul.wide.u32 %d2, %t, 16; add.s64 %d2, %p0, %d2;
and.b32 %r1, %t, 3; setp.eq.s32 %q0, %r1, 0; selp.b32 %r2, 0, 16, %q0; setp.lt.u32 %q1, %t, 9;
cp.async.cg.shared.global [%r8], [%d2], 16, %r2; cp.async.commit_group;
@!%q1 cp.async.ca.shared.global [%r8+512], [%d2], 8; cp.async.commit_group;
@%q1 cp.async.wait_group 0; cp.async.wait_group 1; ld.shared.b32 %r3, [%r8]; cp.async.wait_all; bar.sync 0;
ld.shared.b32 %r4, [%r8+512]; @%q1 mov.b32 %r4, 0; add.s32 %r3, %r3, %r4; st.global.b32 [%d1], %r3;"""
TURNS = """
$spin: ld.acquire.gpu.global.b32 %r0, [%p0]; setp.ne.s32 %q0, %r0, %c; @%q0 bra $spin;
mul.wide.u32 %d0, %c, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0+4], %r0; red.release.gpu.global.add.s32 [%p0], 1;"""
NEVER = "$spin: ld.acquire.gpu.global.b32 %r0, [%p0]; setp.ne.s32 %q0, %r0, 77; @%q0 bra $spin;"
WRAPPED = """mov.b32 %r1, 65536; add.s32 %r1, %r1, %t; mul.lo.s32 %r2, %r1, 65536; mov.b32 %r5, %r2;
@%q5 mov.b32 %r5, %t; cvt.s64.s32 %d0, %r2; and.b64 %d0, %d0, 0xFFC; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %t;
cvt.s64.s32 %d1, %r2; shl.b64 %d1, %d1, 2; add.s64 %d1, %p0, %d1; st.global.b32 [%d1], %t;"""
OUTSIDE = (
    f"{WORD} mov.b32 %r9, s; ld.shared.b32 %r1, [%r9+4096]; ld.global.b32 %r2, [%p0+8192]; st.global.b32 [%d1+2], %r1;"
)

BODIES = {"diverged": DIVERGED, "loop": LOOP, "shared": SHARED, "matrices": MATRICES, "copies": COPIES,
          "wrapped": WRAPPED, "outside": OUTSIDE}  # fmt: skip


@pytest.mark.parametrize("checks", CHECKS)
@pytest.mark.parametrize("name", BODIES)
def test_a_small_kernel_has_one_outcome(name, checks):
    full = 32 if name in ("matrices", "copies") else 64
    for block in (full, 20) if name not in ("matrices",) else (full,):
        same(BODIES[name], words(), grid=2, block=block, shared=1024, checks=CHECKS[checks])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_take_warps_away_at_the_same_places(schedule):
    for body, seed in itertools.product((LOOP, SHARED, MATRICES, COPIES), (1, 2)):
        block = 32 if body in (MATRICES, COPIES) else 128
        same(body, words(), grid=6, block=block, shared=1024, checks=frozenset(), warp_schedule=schedule, seed=seed)


@pytest.mark.parametrize("checks", CHECKS)
def test_a_spin_sleeps_and_a_deadlock_is_explained_alike(checks):
    memory = torch.zeros(16, dtype=torch.int32)
    options = {"grid": 5, "block": 1, "resident_ctas": 5, "checks": CHECKS[checks]}
    assert same(TURNS, memory, **options)[0] == "finished"
    for resident in (5, 2):  # two: who has not started is looked at too
        assert same(NEVER, memory, **{**options, "block": 32, "resident_ctas": resident})[0] == "deadlock"


def answer(kernel: MicroKernel, translate: str, checks: frozenset[str]):
    """What the emulator answers to a micro-kernel; where it refuses it, why (but not where: tensors lie anywhere)."""
    try:
        return suite.emulate(kernel, Emulator(checks=checks, translate=translate))
    except EmulationError as error:
        return [(f.kind, f.line) for f in error.report.findings]
    except Unimplemented as error:
        return str(error)


def differing(kernels):
    """The forms whose answers differ."""
    ways = [("never", CHECKED), ("always", CHECKED), ("always", frozenset()), ("always", frozenset({"wrapped"}))]
    found = []
    for kernel in kernels:
        first, *others = (answer(kernel, *way) for way in ways)
        found += [kernel.form for other in others if not np.array_equal(first, other)]
    return found


def test_micro_kernels_answer_alike():
    assert differing(list(suite.all_kernels())[::80]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(16))
def test_all_micro_kernels_answer_alike(part):
    assert differing(list(suite.all_kernels())[part::16]) == []
