"""mbarriers: phases and arrivals, what they order, and what is found where they are used wrongly."""

import pytest
import torch
from ptx_tools import kinds, run

MISUSED = "mbarrier misused"
INIT = "setp.eq.b32 %q0, %t, 0; @%q0 mbarrier.init.shared.b64 [s], {count}; bar.sync 0;"
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %q1, [s], {parity}, 10000000; @!%q1 bra W{n};"
ARRIVE = "mbarrier.arrive.shared.b64 _, [s];"
# warp 0 writes a word and arrives, the others wait and read it
HAND_OVER = f"""{INIT.format(count=1)}
setp.gt.u32 %q2, %t, 31; @%q2 bra READ;
setp.eq.b32 %q0, %t, 0; @!%q0 bra END;
st.shared.b32 [s+16], 7; {ARRIVE} bra END;
READ: {WAIT.format(n=0, parity=0)} ld.shared.b32 %r0, [s+16];
mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r0; END:"""


def words(n):
    return torch.zeros(n, dtype=torch.int32)


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_what_was_written_before_an_arrival_is_there_after_the_wait(schedule):
    out = words(128)
    report = run(HAND_OVER, out, block=128, shared=64, warp_schedule=schedule)
    assert report.ok, str(report)
    assert out[32:].eq(7).all()


def test_without_the_wait_it_is_a_race():
    hasty = HAND_OVER.replace(WAIT.format(n=0, parity=0), "")
    found = [kinds(run(hasty, words(128), block=128, shared=64, warp_schedule=s)) for s in ("in_order", "oldest_last")]
    assert {"race: read of an unordered write", "race: write over an unordered read",
            "read of uninitialised memory"} & set().union(*found)  # fmt: skip


def test_an_arrival_before_the_write_orders_nothing():
    early = HAND_OVER.replace(f"st.shared.b32 [s+16], 7; {ARRIVE}", f"{ARRIVE} st.shared.b32 [s+16], 7;")
    found = [kinds(run(early, words(128), block=128, shared=64, warp_schedule=s)) for s in ("in_order", "greedy")]
    assert {"race: read of an unordered write", "race: write over an unordered read",
            "read of uninitialised memory"} & set().union(*found)  # fmt: skip


def test_a_missing_arrival_is_a_deadlock_that_says_how_many_came():
    report = run(
        HAND_OVER.replace("init.shared.b64 [s], 1", "init.shared.b64 [s], 3"), words(128), block=128, shared=64
    )
    assert report.status == "deadlock"
    assert "mbarrier with 1 of 3 arrivals, phase 0" in str(report.deadlock)


def test_the_other_parity_is_that_of_the_phase_before():
    """A wait for it goes through at once: so a consumer that asks for it reads too early."""
    out = words(1)
    body = INIT.format(count=1) + WAIT.format(n=0, parity=1) + "@%q0 st.global.b32 [%p0], 5;"
    assert run(body, out, shared=16).ok and out[0] == 5


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_phases_alternate(rounds):
    out = words(64)
    each = "".join(
        f"{ARRIVE} {WAIT.format(n=i, parity=i % 2)} add.s32 %r5, %r5, 1;" for i in range(rounds)
    )  # every thread arrives
    store = "mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r5;"
    report = run(INIT.format(count=64) + "mov.b32 %r5, 0;" + each + store, out, block=64, shared=16)
    assert report.ok and out.eq(rounds).all()


def test_a_token_stands_for_the_phase_in_which_it_was_given():
    out = words(64)
    body = f"""{INIT.format(count=64)} mbarrier.arrive.shared::cta.b64 %d5, [s];
W: mbarrier.test_wait.shared::cta.b64 %q1, [s], %d5; @!%q1 bra W;
mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], 1;"""
    assert run(body, out, block=64, shared=16).ok and out.eq(1).all()


def test_bytes_that_are_expected_keep_the_phase_open():
    body = INIT.format(count=1) + "@%q0 mbarrier.arrive.expect_tx.shared.b64 _, [s], 128;" + WAIT.format(n=0, parity=0)
    report = run(body, words(1), shared=16)
    assert report.status == "deadlock" and "1 of 1 arrivals and 128 bytes to come" in str(report.deadlock)


def test_an_arrival_that_counts_for_several():
    body = INIT.format(count=3) + "@%q0 mbarrier.arrive.shared.b64 _, [s], 3;" + WAIT.format(n=0, parity=0)
    assert run(body, words(1), shared=16).ok


def test_who_drops_out_is_not_waited_for_again():
    body = INIT.format(count=2) + f"@%q0 mbarrier.arrive_drop.shared.b64 _, [s]; @%q0 {ARRIVE}"
    body += WAIT.format(n=0, parity=0) + f"@%q0 {ARRIVE}" + WAIT.format(n=1, parity=1)
    assert run(body, words(1), shared=16).ok


@pytest.mark.parametrize(
    "body,detail",
    [
        ("mbarrier.arrive.shared.b64 _, [s];", "is none"),
        (INIT.format(count=1) + "@%q0 mbarrier.arrive.shared.b64 _, [s], 2;", "1 arrivals are left"),
        (INIT.format(count=1) + "@%q0 mbarrier.inval.shared.b64 [s]; mbarrier.arrive.shared.b64 _, [s];", "is none"),
        (INIT.format(count=0), "for 0 arrivals; it needs 1 to 1048575"),
    ],
)
def test_wrong_uses_are_findings(body, detail):
    (seen, *_) = [f for f in run(body, words(1), shared=16).findings if f.kind == MISUSED]
    assert detail in seen.detail


def test_the_most_arrivals_that_ptx_allows():
    """2**20 - 1; the last but one are missing in the deadlock, and a phase that is complete begins again."""
    most, rest = (1 << 20) - 1, (1 << 20) - 2
    body = INIT.format(count=most) + "@%q0 mbarrier.arrive.shared.b64 _, [s], {};" + WAIT.format(n=0, parity=0)
    assert run(body.format(most), words(1), shared=16).ok
    report = run(body.format(rest), words(1), shared=16)
    assert f"mbarrier with {rest} of {most} arrivals, phase 0" in str(report.deadlock)
    again = "@%q0 mbarrier.arrive.shared.b64 _, [s], {};" + WAIT.format(n=1, parity=1)
    twice = body.format(most) + again.format(most)
    assert run(twice, words(1), shared=16).ok
    assert kinds(run(INIT.format(count=most + 1), words(1), shared=16)) == {MISUSED}


def test_an_object_that_is_used_while_another_warp_makes_it():
    hasty = HAND_OVER.replace("bar.sync 0;", "", 1)
    found = [kinds(run(hasty, words(128), block=128, shared=64, warp_schedule=s)) for s in ("in_order", "oldest_last")]
    assert set().union(*found) & {"race: read of an unordered write", "read of uninitialised memory", MISUSED}


def test_a_phase_orders_its_own_arrivals_and_no_later_ones():
    """Warp 0 ends a phase, writes, arrives: who waited for the first phase must not read what came after it."""
    body = f"""{INIT.format(count=2)}
setp.gt.u32 %q2, %t, 31; @%q2 bra READ;
setp.eq.b32 %q0, %t, 0; @!%q0 bra END;
{ARRIVE} {ARRIVE} st.shared.b32 [s+16], 7; {ARRIVE} bra END;
READ: nanosleep.u32 1000; {WAIT.format(n=0, parity=0)} ld.shared.b32 %r0, [s+16]; END:"""
    assert "race: read of an unordered write" in kinds(run(body, words(1), block=64, shared=64, warp_schedule="greedy"))


# each thread of warp 0 copies 16 bytes and arrives when they are there; warp 1 waits and reads them
COPIED = f"""{INIT.format(count=32)}
setp.gt.u32 %q2, %t, 31; @%q2 bra READ;
mul.wide.u32 %d0, %t, 16; add.s64 %d0, %p0, %d0; mul.lo.u32 %r0, %t, 16; mov.u32 %r1, s; add.u32 %r0, %r0, %r1;
cp.async.cg.shared.global [%r0+64], [%d0], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [s]; bra END;
READ: {WAIT.format(n=0, parity=0)} sub.u32 %r0, %t, 32; mul.wide.u32 %d0, %r0, 4; add.s64 %d0, %p1, %d0;
mul.lo.u32 %r0, %r0, 16; mov.u32 %r1, s; add.u32 %r0, %r0, %r1; ld.shared.b32 %r2, [%r0+64];
st.global.b32 [%d0], %r2; END:"""


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_an_arrival_behind_copies_brings_them_to_who_waits(schedule):
    given, out = torch.arange(128, dtype=torch.int32), words(32)
    report = run(COPIED, given, out, block=64, shared=1024, warp_schedule=schedule)
    assert report.ok, str(report)
    assert torch.equal(out, given[::4])


def test_copies_whose_arrival_is_not_waited_for_are_a_race():
    hasty = COPIED.replace(WAIT.format(n=0, parity=0), "")
    given = torch.arange(128, dtype=torch.int32)
    for schedule in ("in_order", "oldest_last"):
        found = kinds(run(hasty, given, words(32), block=64, shared=1024, warp_schedule=schedule))
        assert {"race: read of an unordered write", "race: write over an unordered read"} & set(found)


def test_an_arrival_behind_copies_counts_with_noinc_only():
    """Without it the mbarrier counts one arrival more and gets it: those that it was made for are still missing."""
    given = torch.arange(128, dtype=torch.int32)
    counted = COPIED.replace(".noinc", "")
    report = run(counted, given, words(32), block=64, shared=1024)
    assert report.status == "deadlock"
    assert "mbarrier with 0 of 32 arrivals" in str(report.deadlock)
    out = words(32)
    both = counted.replace("[s]; bra END;", "[s]; mbarrier.arrive.shared.b64 _, [s]; bra END;")
    assert run(both, given, out, block=64, shared=1024).ok and torch.equal(out, given[::4])


@pytest.mark.parametrize(("form", "expected"), [("max", [7, 0, 3, 0]), ("min", [0, 0, 2, 0])])
def test_relu_of_integers(form, expected):
    """Of two words, and of four halves."""
    x, y = torch.tensor([7, -5, 2, -(1 << 31)]), torch.tensor([-3, -9, 3, -1])
    out = words(4)
    body = "mul.wide.u32 %d0, %t, 4; add.s64 %d1, %p0, %d0; add.s64 %d2, %p1, %d0; add.s64 %d3, %p2, %d0;\n"
    body += (
        f"ld.global.b32 %r0, [%d1]; ld.global.b32 %r1, [%d2]; {form}.relu.s32 %r2, %r0, %r1; st.global.b32 [%d3], %r2;"
    )
    assert run(body, x.int(), y.int(), out, block=4).ok
    assert out.tolist() == expected
    halves = torch.tensor([7, -5, 2, -32768], dtype=torch.int16), torch.tensor([-3, -9, 3, -1], dtype=torch.int16)
    packed = words(2)
    assert run(body.replace(".s32", ".s16x2"), *(x.view(torch.int32) for x in halves), packed, block=2).ok
    assert packed.view(torch.int16).tolist() == expected
