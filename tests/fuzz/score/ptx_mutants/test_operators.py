"""Mutation operators: what they make of an instruction, and that a change keeps the lines of the file."""

import pytest

from fuzz.devices.emulator import ptx
from fuzz.score.ptx_mutants.operators import NOTHING, OPERATORS, Line, changed, lines

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(
	.param .u64 kernel_param_0,
	.param .u64 kernel_param_1
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<3>;

	ld.param.b64 	%rd1, [kernel_param_0];
	setp.lt.s32 	%p1, %r1, 7; // a comment;
	@%p1 bra 	$L_1;
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
	{%r1, %r2, %r3, %r4},
	{%r1, %r2, %r3, %r4},
	{%r5, %r6},
	{%r1, %r2, %r3, %r4};
	bar.sync 	0;
$L_1:
	ret;
}
"""


def made(operator: str, text: str) -> list[str]:
    (line,) = lines(f"\t{text}\n")
    return list(OPERATORS[operator](line))


def test_instructions_are_found_with_their_lines():
    assert [(x.number, x.span, x.name.partition(".")[0]) for x in lines(TEXT)] == [
        (13, 1, "ld"), (14, 1, "setp"), (15, 1, "bra"), (16, 5, "mma"), (21, 1, "bar"), (23, 1, "ret"),
    ]  # fmt: skip


def test_the_reader_of_the_emulator_sees_the_same_instructions():
    kernel = ptx.parse(TEXT).kernels["kernel"]
    assert [(i.line, i.name) for i in kernel.instructions] == [(x.number, x.name) for x in lines(TEXT)]


def test_a_change_keeps_every_other_line():
    text = changed(TEXT, 16, 5, NOTHING)
    assert len(text.splitlines()) == len(TEXT.splitlines())
    assert [x.number for x in lines(text)] == [13, 14, 15, 21, 23]


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("barrier_dropped", "bar.sync 0;", [NOTHING]),
        ("wait_weakened", "cp.async.wait_group 1;", ["cp.async.wait_group 2;"]),
        ("wait_dropped", "cp.async.wait_group 0;", [NOTHING]),
        ("commit_dropped", "cp.async.commit_group;", [NOTHING]),
        ("order_relaxed", "red.release.gpu.global.add.s32 [%rd1], 1;", ["red.relaxed.gpu.global.add.s32 [%rd1], 1;"]),
        ("acquire_plain", "ld.acquire.gpu.global.b32 %r1, [%rd1];", ["ld.global.b32 %r1, [%rd1];"]),
        ("copy_unguarded", "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
         ["cp.async.cg.shared.global [%r1], [%rd1], 16, 16;"]),
        ("offset_shifted", "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+32];",
         ["ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+48];", "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+16];"]),
        ("parameter_wrong", "ld.param.b64 %rd1, [k_param_3];",
         ["ld.param.b64 %rd1, [k_param_4];", "ld.param.b64 %rd1, [k_param_2];"]),
        ("guard_dropped", "@%p1 bra $L_1;", ["bra $L_1;"]),
        ("guarded_dropped", "@!%p1 bra $L_1;", [NOTHING]),
        ("guard_negated", "@!%p1 bra $L_1;", ["@%p1 bra $L_1;"]),
        ("compare_flipped", "setp.eq.b32 %p1, %r1, 0;", ["setp.ne.b32 %p1, %r1, 0;"]),
        ("compare_shifted", "setp.lt.s32 %p1, %r1, %r2;", ["setp.le.s32 %p1, %r1, %r2;"]),
        ("bound_shifted", "setp.lt.s32 %p1, %r1, 7;", ["setp.lt.s32 %p1, %r1, 8;", "setp.lt.s32 %p1, %r1, 6;"]),
        ("sign_changed", "shr.s32 %r1, %r2, 31;", ["shr.u32 %r1, %r2, 31;"]),
        ("immediate_off_by_one", "and.b32 %r1, %r2, 3;", ["and.b32 %r1, %r2, 4;", "and.b32 %r1, %r2, 2;"]),
        ("constant_wrong", "mul.f32 %r1, %r2, 0f3F000000;", ["mul.f32 %r1, %r2, 0fBF000000;",
                                                            "mul.f32 %r1, %r2, 0f3F800000;"]),
        ("constant_wrong", "mov.b32 %r1, 0f00000000;", []),
        ("operands_swapped", "sub.s32 %r1, %r2, %r3;", ["sub.s32 %r1, %r3, %r2;"]),
        ("operands_swapped", "add.s32 %r1, %r2, %r3;", []),
        ("operation_replaced", "shl.b32 %r1, %r2, 2;", ["shr.u32 %r1, %r2, 2;"]),
        ("operation_replaced", "vote.sync.any.pred %p1, %p2, -1;", ["vote.sync.all.pred %p1, %p2, -1;"]),
        ("operation_replaced", "vote.sync.ballot.b32 %r1, %p2, -1;", []),
        ("function_dropped", "ex2.approx.ftz.f32 %r1, %r2;", ["mov.b32 %r1, %r2;"]),
        ("nan_dropped", "max.NaN.f32 %r1, %r2, %r3;", ["max.f32 %r1, %r2, %r3;"]),
    ],
)  # fmt: skip
def test_what_an_operator_makes(operator, before, after):
    assert made(operator, before) == after


def test_a_plain_add_loads_adds_and_stores_each_element():
    (after,) = made("atomic_plain", "red.relaxed.gpu.global.add.v4.f32 [%rd1], {%r1, %r2, %r3, %r4};")
    assert [after.count(name) for name in ("ld.global.f32", "add.f32", "st.global.f32", "red.")] == [4, 4, 4, 0]
    assert "[%rd1+12]" in after


def test_a_plain_ticket_gives_what_was_there():
    (after,) = made("atomic_plain", "atom.global.add.u32 %r1, [%rd1], 1;")
    load, result = after.index("ld.global.u32 %plain"), after.index("mov.b32 %r1, %plain")
    assert load < result < after.index("add.s32 %plain, %plain, 1")


def test_every_operator_says_what_it_does():
    assert all(operator.__doc__ for operator in OPERATORS.values())


def test_a_guard_stays_on_the_changed_instruction():
    line = Line(1, "@%p1", "add.s32", ("%r1", "%r2", "1"))
    assert list(OPERATORS["immediate_off_by_one"](line)) == ["@%p1 add.s32 %r1, %r2, 2;", "@%p1 add.s32 %r1, %r2, 0;"]
