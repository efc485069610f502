"""Tensor memory used wrongly: one planted bug for each kind of finding, and the sentence that explains it."""

from __future__ import annotations

import pytest
import torch
from ptx_tools import kinds
from tcgen05_ptx import (
    ADDRESS,
    AFTER,
    ALLOC,
    BARRIER,
    COMMIT,
    FREE,
    INIT,
    INSTRUCTION,
    LOAD,
    LOADED,
    MMA,
    NEW,
    OUT,
    PROXY,
    RELINQUISH,
    SHARED,
    WAIT,
    A,
    descriptor,
    operands,
    registers,
    run,
    run_small,
)

from fuzz.devices.emulator.config import ALL_CHECKS, DEFAULT_CHECKS
from fuzz.devices.emulator.report.tensor_memory_kinds import TENSOR_MEMORY_NAMES
from fuzz.devices.emulator.state import tables as st

N = TENSOR_MEMORY_NAMES
FENCES = DEFAULT_CHECKS | {"tensor_fences"}
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r11], {%t};"
STORED = "tcgen05.wait::st.sync.aligned;"
READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r11];"


def found(*changes, **options):
    return kinds(run(*changes, **options)[0])


def detail(report, kind):
    return next(f.detail for f in report.findings if f.kind == N[kind])


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_a_product_that_keeps_the_rules_is_no_finding(schedule):
    report, out = run(warp_schedule=schedule, checks=ALL_CHECKS)
    a, b = operands()
    assert report.ok, str(report)
    assert torch.equal(out, a.float() @ b.float().T)


def test_every_report_of_a_launch_with_tcgen05_says_that_no_hardware_has_checked_it():
    report, _ = run()
    assert not report.checked_on_hardware and str(report).count("not checked on hardware") == 1


# ---- columns


def test_columns_used_before_they_are_allocated():
    report, _ = run((LOAD, LOAD.replace("[%r11]", "[%r11+32]")))
    assert kinds(report) == {N[st.F_TC_COLUMNS]}
    assert detail(report, st.F_TC_COLUMNS) == (
        "uses columns 32 to 47 of tensor memory, which its CTA has not allocated"
    )


def test_columns_beyond_the_last():
    report, _ = run((LOAD, LOAD.replace("[%r11]", "[%r11+504]")))
    assert "columns 504 to 519 of tensor memory, which has 512 columns" in detail(report, st.F_TC_COLUMNS)


def test_columns_used_after_they_are_freed():
    report, _ = run((FREE, f"{FREE} {BARRIER.replace('0', '2')} {LOAD} {LOADED}"))
    assert kinds(report) == {N[st.F_TC_COLUMNS]}
    assert "which its CTA has freed with tcgen05.dealloc" in detail(report, st.F_TC_COLUMNS)


def test_columns_that_are_never_freed():
    report, _ = run((FREE, ""))
    assert kinds(report) == {N[st.F_TC_LEAK]}
    (seen,) = report.findings
    assert seen.instruction.endswith(ALLOC.removeprefix("@%q1 ").rstrip(";")) and "columns 0 to 31" in seen.detail


def test_an_allocation_after_the_permit_was_relinquished():
    again = ALLOC.replace("4616", "4620")
    freed = FREE.replace("%r10", "%r14")
    report, _ = run((RELINQUISH, f"{RELINQUISH} {again}"), (FREE, f"{FREE} ld.shared.b32 %r14, [s+4620]; {freed}"))
    assert kinds(report) == {N[st.F_TC_RELINQUISHED]}


@pytest.mark.parametrize("count", [16, 48, 1024])
def test_a_number_of_columns_that_cannot_be_allocated(count):
    report, _ = run((ALLOC, f"{ALLOC} {ALLOC.replace('32;', f'{count};').replace('4616', '4620')}"))
    assert kinds(report) == {N[st.F_TC_ALLOC]}
    assert "must be a power of 2 from 32 to 512" in detail(report, st.F_TC_ALLOC)


def test_a_later_allocation_of_more_columns():
    again = ALLOC.replace("32;", "64;").replace("4616", "4620")
    freed = FREE.replace("%r10, 32", "%r14, 64")
    report, _ = run((ALLOC, f"{ALLOC} {again}"), (FREE, f"{FREE} ld.shared.b32 %r14, [s+4620]; {freed}"))
    assert kinds(report) == {N[st.F_TC_ALLOC]} and "after an allocation of 32" in detail(report, st.F_TC_ALLOC)


@pytest.mark.parametrize("wrong", ["%r10, 64", "%r12, 32"])
def test_columns_freed_that_are_no_allocation(wrong):
    report, _ = run((FREE, f"mov.u32 %r12, 64; {FREE.replace('%r10, 32', wrong)} {FREE}"))
    assert kinds(report) == {N[st.F_TC_ALLOC]}


def test_columns_freed_while_a_load_may_still_read_them():
    assert found((LOADED, ""), (OUT, "")) == {N[st.F_TC_LOAD]}


def test_lanes_that_the_warp_does_not_reach():
    report, _ = run((LOAD, LOAD.replace("%r11", "%r10")))
    assert kinds(report) == {N[st.F_TC_LANES]}
    assert detail(report, st.F_TC_LANES) == (
        "gives the address of lane 0 of tensor memory; warp 1 of a warpgroup reaches lanes 32 to 63"
    )


# ---- waits


def test_a_result_read_without_waiting_for_its_commit():
    report, _ = run((WAIT, "bar.sync 3;"))
    assert kinds(report) == {N[st.F_TC_COMMIT]}
    seen = report.findings[0]
    first = 32 * seen.warp
    assert seen.detail.startswith(
        f"reads column 0, lanes {first} to {first + 15} of tensor memory, which a tcgen05.mma"
    )
    assert run((WAIT, "bar.sync 3;"), checks=DEFAULT_CHECKS - {"races"})[0].ok


def test_a_commit_covers_only_what_was_issued_before_it():
    assert found((COMMIT, f"{COMMIT} {MMA}"), (WAIT, f"{WAIT} bar.sync 3;")) == {N[st.F_TC_COMMIT]}


def test_a_wait_by_one_thread_reaches_the_others_through_a_barrier():
    one = f"@!%q0 bra OVER; {WAIT} OVER: bar.sync 3;"
    assert run((WAIT, one))[0].ok
    assert N[st.F_TC_COMMIT] in found((WAIT, one.replace("bar.sync 3;", "")))


def test_a_result_read_without_the_fence_after_the_wait():
    report, _ = run((AFTER, ""), checks=FENCES)
    assert kinds(report) == {N[st.F_TC_FENCE]}
    assert run((AFTER, ""))[0].ok  # asked for only


def test_a_fence_before_the_wait_is_too_early():
    assert found((AFTER, ""), (WAIT, f"{AFTER} {WAIT}"), checks=FENCES) == {N[st.F_TC_FENCE]}


def test_a_store_read_before_its_wait():
    assert run_small(f"{STORE} {STORED} {READ} {LOADED}").ok
    report = run_small(f"{STORE} {READ} {LOADED}")
    assert kinds(report) == {N[st.F_TC_STORE]} and "tcgen05.wait::st is missing" in report.findings[0].detail


def test_a_store_added_to_by_a_product_before_its_wait():
    zeros = f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%r11], {registers(16)};"
    add = (NEW, NEW.replace("ne", "eq"))
    stored = (ADDRESS, f"{ADDRESS} {zeros} {STORED} bar.sync 3;")
    assert run(add, stored)[0].ok
    assert found(add, (ADDRESS, f"{ADDRESS} {zeros} bar.sync 3;")) == {N[st.F_TC_STORE]}
    assert N[st.F_TC_RACE] in found(add, (ADDRESS, f"{ADDRESS} {zeros} {STORED}"))


def test_a_load_overwritten_by_a_product_before_its_wait():
    again = f"bar.sync 3; {MMA} {COMMIT} {WAIT.replace('WAIT', 'LAST').replace('], 0', '], 1')}"
    assert run((LOADED, f"{LOADED} {again}"))[0].ok
    report, _ = run((LOADED, f"{again} {LOADED}"))
    assert kinds(report) == {N[st.F_TC_LOAD]} and "tcgen05.wait::ld is missing" in detail(report, st.F_TC_LOAD)


@pytest.mark.parametrize("use", ["mov.b32 %r22, %r20; add.u32 %r21, %r22, 1;", "st.global.b32 [%p0], %r20;"])
def test_a_register_that_was_used_completes_its_load(use):
    body = f"{STORE} {STORED} {READ} {use} {STORE} {STORED}"
    assert run_small(body, block=32).ok
    strict = run_small(body, block=32, checks=DEFAULT_CHECKS | {"tensor_waits"})
    assert kinds(strict) == {N[st.F_TC_LOAD]}
    moved = run_small(f"{STORE} {STORED} {READ} mov.b32 %r22, %r20; {STORE} {STORED}", block=32)
    assert kinds(moved) == {N[st.F_TC_LOAD]}


def test_a_load_overwritten_by_a_product_that_no_barrier_orders():
    again = "setp.eq.u32 %q7, %t, 32; " + f"{MMA} {COMMIT}".replace("%q0", "%q7")
    last = WAIT.replace("WAIT", "LAST").replace("], 0", "], 1")
    assert run((LOADED, f"{LOADED} bar.sync 3; {again} {last}"))[0].ok
    assert found((LOADED, f"{LOADED} {again} {last}")) == {N[st.F_TC_RACE]}


def test_a_store_over_a_product_that_may_still_run():
    assert found((WAIT, f"bar.sync 3; {STORE} {STORED} {WAIT}")) == {N[st.F_TC_COMMIT]}


def test_a_result_used_as_a_before_its_commit_is_waited_for():
    use = "@%q0 tcgen05.mma.cta_group::1.kind::f16 [%r10+16], [%r10], %d7, %r13, %q4;"
    assert found((COMMIT, f"{use} {COMMIT}")) == {N[st.F_TC_COMMIT]}
    once_more = f"{WAIT} bar.sync 3; {use} {COMMIT} {WAIT.replace('WAIT', 'LAST').replace('], 0', '], 1')}"
    assert run((WAIT, once_more))[0].ok


def test_tensor_memory_that_nothing_has_written():
    assert kinds(run_small(f"{READ} {LOADED}")) == {N[st.F_TC_UNWRITTEN]}
    report, _ = run((NEW, NEW.replace("ne", "eq")))
    assert kinds(report) == {N[st.F_TC_UNWRITTEN]} and detail(report, st.F_TC_UNWRITTEN).startswith("adds to, as D,")


# ---- shared memory


@pytest.mark.parametrize("schedule", ["in_order", "random", "greedy"])
def test_shared_memory_written_without_a_proxy_fence(schedule):
    report, _ = run((PROXY, ""), warp_schedule=schedule)
    assert kinds(report) == {N[st.F_TC_PROXY]}
    assert "issues a tcgen05.mma.cta_group::1.kind::f16 that reads shared memory byte" in detail(report, st.F_TC_PROXY)


def test_shared_memory_written_without_a_barrier():
    late = [found((f"{PROXY}\n{BARRIER}", f"{PROXY} {BARRIER} st.shared.b32 [%r1], %r2; {PROXY}"), warp_schedule=s)
            for s in ("in_order", "oldest_last")]  # fmt: skip
    assert {"race: read of an unordered write", N[st.F_TC_OVERWRITTEN]} & set().union(*late)


def test_shared_memory_overwritten_before_the_commit_is_waited_for():
    write = "st.shared.b32 [%r1], 0;"
    report, _ = run((WAIT, f"bar.sync 3; {write} {WAIT}"))
    assert kinds(report) == {N[st.F_TC_OVERWRITTEN]}
    assert "may still be reading" in detail(report, st.F_TC_OVERWRITTEN)
    assert run((WAIT, f"{WAIT} {write}"))[0].ok  # the commit alone orders it: no barrier


AGAIN = "st.shared.b32 [%r1], %r2;"  # a thread's row of A, once more for a second product
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [s+4624];"
OF_OTHER = "xor.b32 %r6, %r1, 512;"  # the address of a row of another warp


@pytest.mark.parametrize("schedule", ["in_order", "random", "greedy"])
@pytest.mark.parametrize("access", ["st.shared.b32 [%r6], 0;", "ld.shared.b32 %r7, [%r6];"])
def test_a_commit_orders_what_its_products_were_ordered_after(access, schedule):
    def second(written):
        """Threads write A and arrive; one waits for them and issues; then all access what another warp has written."""
        ready = "@!%q0 bra OVER; READY: mbarrier.try_wait.parity.shared::cta.b64 %q6, [s+4624], 0; @!%q6 bra READY;"
        issue = f"{ready} OVER: bar.warp.sync -1; {AFTER} {MMA} {COMMIT}"
        last = WAIT.replace("WAIT", "LAST").replace("], 0", "], 1")
        begin = (INIT, f"{INIT} @%q0 mbarrier.init.shared::cta.b64 [s+4624], 128;")
        both = (begin, (WAIT, f"{WAIT} {written} {ARRIVE} {issue} {last} {OF_OTHER} {access}"))
        return run(*both, shared=SHARED + 16, warp_schedule=schedule)[0]

    race = "race: two writes" if access.startswith("st") else "race: read of an unordered write"
    assert second(f"{AGAIN} {PROXY}").ok
    assert race in kinds(second(f"{PROXY} {AGAIN}"))  # what no proxy fence orders before the product


def test_a_commit_says_that_products_are_complete_for_which_its_warp_has_waited():
    def through_another(wait):
        """Thread 0 issues the product; thread 32, after `wait`, commits for all others."""
        other = "setp.eq.u32 %q7, %t, 32; @!%q7 bra OVER;" + wait
        commit = COMMIT.replace("@%q0", "").replace("4608", "4624")
        begin = (INIT, f"{INIT} @%q0 mbarrier.init.shared::cta.b64 [s+4624], 1;")
        all_wait = WAIT.replace("4608", "4624")
        return run(begin, (WAIT, f"{other} {commit} OVER: {all_wait}"), shared=SHARED + 16, checks=FENCES)[0]

    assert through_another(f"{WAIT.replace('WAIT', 'FIRST')} {AFTER}").ok
    assert kinds(through_another("")) == {N[st.F_TC_COMMIT]}


def test_shared_memory_that_nothing_has_written():
    assert "read of uninitialised memory" in found(("[%r1+2048]", "[%r1]"))


# ---- operands


@pytest.mark.parametrize(
    "instruction,text",
    [
        (INSTRUCTION | 1 << 2, "the instruction descriptor"),  # sparse
        (INSTRUCTION | 2 << 7, "the instruction descriptor"),  # a type that kind::f16 does not have
        (INSTRUCTION & ~(63 << 17) | 33 << 17, "M = 128 and N = 264"),
        (INSTRUCTION & ~(31 << 24) | 2 << 24, "M = 32 and N = 16"),
    ],
)
def test_an_instruction_descriptor_that_ptx_does_not_define(instruction, text):
    report, _ = run((f"mov.b32 %r13, {INSTRUCTION};", f"mov.b32 %r13, {instruction};"), (LOAD, ""), (OUT, ""))
    assert kinds(report) == {N[st.F_TC_DESCRIPTOR]} and text in detail(report, st.F_TC_DESCRIPTOR)


@pytest.mark.parametrize("wrong", [descriptor(A, 2048, 128) & ~(1 << 46), descriptor(A, 2048, 128, swizzle=3)])
def test_a_shared_memory_descriptor_that_ptx_does_not_define(wrong):
    report, _ = run(
        (f"add.s64 %d6, %d5, {descriptor(A, 2048, 128)};", f"add.s64 %d6, %d5, {wrong};"), (LOAD, ""), (OUT, "")
    )
    assert kinds(report) == {N[st.F_TC_DESCRIPTOR]} and " of A: its fixed bits" in detail(report, st.F_TC_DESCRIPTOR)


def test_lanes_of_a_warp_that_give_different_addresses():
    report, _ = run(
        (
            LOAD,
            f"add.u32 %r15, %r11, %t; {LOAD.replace('%r11', '%r15')}",
        )
    )
    assert N[st.F_TC_DESCRIPTOR] in kinds(report)


def test_a_descriptor_that_leads_out_of_shared_memory():
    assert "out of bounds of shared memory" in found(
        (f"{descriptor(A, 2048, 128)};", f"{descriptor(A, 2048, 1024)};"), (LOAD, ""), (OUT, "")
    )


def test_a_commit_to_memory_that_is_no_mbarrier():
    assert "mbarrier misused" in found((COMMIT, f"{COMMIT} {COMMIT.replace('4608', '4600')}"))


def test_a_load_by_some_lanes_is_a_finding():
    some = f"setp.eq.u32 %q6, %t, 7; @%q6 ret; {READ} {LOADED}"
    assert "lanes missing at a .sync instruction" in kinds(run_small(some))
