"""Mutation operators of bulk copies, mbarriers, named barriers and wgmma: what they make of an instruction."""

import pytest

from fuzz.score.ptx_mutants.async_operators import ALL_OPERATORS, ASYNC_OPERATORS
from fuzz.score.ptx_mutants.operators import NOTHING, OPERATORS, lines

COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], {}, [%r2];"
SUM = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], 256;"
WAIT = "mbarrier.try_wait.parity.shared.b64 P1, [%r1], {}, 10000000;"
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%r1, %r2, %r3, %r4}}, {}, %rd2, p, 1, 1, {};"
IN_REGISTERS = "{%r5, %r6, %r7, %r8}"


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("bulk_copy_dropped", SUM, [NOTHING]),
        ("bulk_copy_dropped", COPY.format(512), [NOTHING]),
        ("bulk_copy_dropped", "cp.async.bulk.commit_group;", []),
        ("bulk_copy_dropped", "cp.async.bulk.wait_group 0;", []),
        ("bulk_size_wrong", COPY.format(512), [COPY.format(496)]),
        ("bulk_size_wrong", COPY.format("%r3"), []),
        ("bulk_group_dropped", "cp.async.bulk.wait_group.read 0;", [NOTHING]),
        ("bulk_group_dropped", "cp.async.bulk.commit_group;", [NOTHING]),
        ("bulk_group_dropped", "cp.async.commit_group;", []),
        ("bulk_wait_weakened", "cp.async.bulk.wait_group.read 0;", ["cp.async.bulk.wait_group.read 1;"]),
        (
            "bulk_wait_weakened",
            "cp.async.bulk.wait_group 0;",
            ["cp.async.bulk.wait_group 1;", "cp.async.bulk.wait_group.read 0;"],
        ),
        ("arrival_dropped", "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], %r2;", [NOTHING]),
        ("arrival_dropped", "bar.arrive 1, 160;", [NOTHING]),
        ("arrival_dropped", "mbarrier.init.shared.b64 [%r1], %r2;", []),
        ("phase_not_awaited", WAIT.format("%r2"), ["setp.eq.s32 P1, 0, 0;"]),
        (
            "phase_flipped",
            WAIT.format("%r2"),
            [f"{{ .reg .b32 %flipped; xor.b32 %flipped, %r2, 1; {WAIT.format('%flipped')} }}"],
        ),
        ("named_barrier_wrong", "bar.arrive 1, 160;", ["bar.arrive 2, 160;"]),
        ("named_barrier_wrong", "bar.sync 0;", []),
        ("product_dropped", PRODUCT.format("%rd1", "0, 0"), [NOTHING]),
        (
            "product_transposed",
            PRODUCT.format("%rd1", "0, 1"),
            [PRODUCT.format("%rd1", "1, 1"), PRODUCT.format("%rd1", "0, 0")],
        ),
        ("product_transposed", PRODUCT.format(IN_REGISTERS, "0"), [PRODUCT.format(IN_REGISTERS, "1")]),
        ("product_order_dropped", "wgmma.fence.sync.aligned;", [NOTHING]),
        ("product_order_dropped", "wgmma.commit_group.sync.aligned;", [NOTHING]),
        (
            "product_wait_weakened",
            "wgmma.wait_group.sync.aligned 0;",
            ["wgmma.wait_group.sync.aligned 1;", NOTHING],
        ),
    ],
)
def test_what_an_operator_makes(operator, before, after):
    (line,) = lines(f"\t{before}\n")
    assert list(ASYNC_OPERATORS[operator](line)) == after


def test_every_operator_has_a_name_of_its_own_and_says_what_it_does():
    assert len(ALL_OPERATORS) == len(OPERATORS) + len(ASYNC_OPERATORS)
    assert all(operator.__doc__ for operator in ASYNC_OPERATORS.values())
