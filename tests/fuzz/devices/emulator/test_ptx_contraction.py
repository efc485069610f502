"""Products and sums that the emulated GPU fuses as a compiler of PTX may, and those that it must leave as written."""

import pytest
import torch
from ptx_tools import kernel, run

from fuzz.devices.emulator import ptx
from fuzz.devices.emulator.config import AS_WRITTEN, CONTRACTIONS
from fuzz.devices.emulator.ptx_contraction import contracted

SQUARES = "mul.{0} {1}2, {1}0, {1}0; mul.{0} {1}3, {1}1, {1}1; "  # of equal numbers


def kernel_of(body, which):
    return contracted(ptx.parse(kernel(body)).kernels["k"], which)


def sums(body, which="first"):
    """Names of the sums of a kernel with this body, fused."""
    made = kernel_of(body, which).instructions
    return [i.name for i in made if i.name.split(".")[0] in ("add", "sub", "fma") and not i.name.endswith("64")]


def value(body, which, x):
    """Register 9 after the body, where registers 0 and 1 are `x`: a tensor of one register's elements."""
    letter, bits = {2: ("%h", 16), 4: ("%r", 32), 8: ("%d", 64)}[x.nbytes]
    load = f"ld.global.b{bits} {letter}0, [%p0]; mov.b{bits} {letter}1, {letter}0; "
    out = torch.zeros_like(x)
    run(f"{load}{body} st.global.b{bits} [%p1], {letter}9;", x, out, contraction=which, block=1)
    return out


KINDS = {
    "f32": (torch.float32, 1, "%r"),
    "ftz.f32": (torch.float32, 1, "%r"),
    "f32x2": (torch.float32, 2, "%d"),
    "f16": (torch.float16, 1, "%h"),
    "f16x2": (torch.float16, 2, "%r"),
    "bf16": (torch.bfloat16, 1, "%h"),
    "bf16x2": (torch.bfloat16, 2, "%r"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", CONTRACTIONS)
def test_the_difference_of_equal_products_is_the_rounding_error_of_the_one_that_is_not_fused(which, kind):
    dtype, elements, letter = KINDS[kind]
    x = torch.tensor([1 / 3, -1 / 5][:elements], dtype=dtype)
    exact, product = x.double() * x.double(), (x * x).double()
    expected = {AS_WRITTEN: 0 * exact, "first": exact - product, "second": product - exact}[which]
    found = value(f"{SQUARES}sub.{{0}} {{1}}9, {{1}}2, {{1}}3;".format(kind, letter), which, x)
    assert torch.equal(found, expected.to(dtype)) and (which == AS_WRITTEN or found.ne(0).all())


def test_doubles_are_fused():
    x = torch.tensor([1 / 3], dtype=torch.float64)
    body = f"{SQUARES}sub.{{0}} {{1}}9, {{1}}2, {{1}}3;".format("f64", "%d")
    written, first, second = (float(value(body, which, x)) for which in CONTRACTIONS)
    assert written == 0 and first == -second != 0


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("add.f32 %r9, %r2, 0fBF800000", lambda exact: exact - 1),
        ("add.f32 %r9, 0fBF800000, %r2", lambda exact: exact - 1),
        ("sub.f32 %r9, %r2, 0f3F800000", lambda exact: exact - 1),
        ("sub.f32 %r9, 0f3F800000, %r2", lambda exact: 1 - exact),
        ("add.sat.f32 %r9, %r2, 0fBF800000", lambda exact: 0 * exact),
    ],
)
@pytest.mark.parametrize("which", ["first", "second"])
def test_a_product_is_fused_as_either_term(which, terms, expected):
    x = torch.tensor([1 / 3])
    body = f"mul.f32 %r2, %r0, %r1; {terms};"
    assert sums(body)[-1].startswith("fma.rn")
    assert torch.equal(value(body, which, x), expected(x.double() * x.double()).float())


P = "mul.f32 %r2, %r0, %r1; "
LEFT = {
    "product with a rounding modifier": "mul.rn.f32 %r2, %r0, %r1; add.f32 %r9, %r2, %r1;",
    "sum with a rounding modifier": f"{P}add.rn.f32 %r9, %r2, %r1;",
    "saturated product": "mul.sat.f32 %r2, %r0, %r1; add.f32 %r9, %r2, %r1;",
    "product that flushes subnormal numbers": "mul.ftz.f32 %r2, %r0, %r1; add.f32 %r9, %r2, %r1;",
    "sum that flushes subnormal numbers": f"{P}add.ftz.f32 %r9, %r2, %r1;",
    "product under a guard": "@%q0 mul.f32 %r2, %r0, %r1; add.f32 %r9, %r2, %r1;",
    "product of another type": "mul.f16x2 %r2, %r0, %r1; add.f32 %r9, %r2, %r1;",
    "product that is not there any more": f"{P}mov.b32 %r2, %r0; add.f32 %r9, %r2, %r1;",
    "factor that is not there any more": f"mov.b32 %r0, %r1; {P}mov.b32 %r0, %r3; add.f32 %r9, %r2, %r1;",
    "factor that the product replaces": "mul.f32 %r0, %r0, %r1; add.f32 %r9, %r0, %r1;",
    "factor that another block writes": f"mov.b32 %r0, %r1; {P}$next: add.f32 %r9, %r2, %r1; mov.b32 %r0, %r3;",
    "integers": "mul.lo.s32 %r2, %r0, %r1; add.s32 %r9, %r2, %r1;",
}


@pytest.mark.parametrize("why", LEFT)
def test_what_no_compiler_may_fuse_stays_as_written(why):
    assert "fma" not in {name.split(".")[0] for name in sums(LEFT[why])}


def test_a_product_of_registers_written_once_is_fused_in_a_later_block():
    assert sums(f"mov.b32 %r0, %r3; {P}$next: add.f32 %r9, %r2, %r1;") == ["fma.rn.f32"]


def test_a_factor_that_is_written_again_after_the_sum_does_not_matter():
    assert sums(f"mov.b32 %r0, %r1; {P}add.f32 %r9, %r2, %r1; mov.b32 %r0, %r3;") == ["fma.rn.f32"]


def test_branches_lead_to_the_same_instructions_in_a_loop():
    """A step that an fma subtracts in; its sign is an instruction more."""
    body = """mov.b32 %r5, 0; mov.b32 %r9, 0f00000000;
    $again: mul.f32 %r2, %r0, %r1; sub.f32 %r9, %r9, %r2;
    add.s32 %r5, %r5, 1; setp.lt.s32 %q0, %r5, 10; @%q0 bra $again;"""
    x = torch.tensor([0.3])
    expected = torch.zeros(1)
    for _ in range(10):
        expected = (expected.double() - x.double() * x.double()).float()
    assert torch.equal(value(body, "first", x), expected)
    assert not torch.equal(value(body, AS_WRITTEN, x), expected)


def test_a_sum_keeps_its_guard():
    body = f"mov.b32 %r9, 0f40000000; {P}setp.eq.s32 %q0, %t, 1; @%q0 sub.f32 %r9, %r2, %r1; "
    assert sums(body) == ["fma.rn.f32"]
    assert float(value(body, "first", torch.tensor([1 / 3]))) == 2.0  # thread 0 does not add


def test_a_kernel_with_nothing_to_fuse_is_itself():
    whole = ptx.parse(kernel("add.f32 %r9, %r2, %r1;")).kernels["k"]
    assert contracted(whole, "first") is whole
    fused = ptx.parse(kernel(f"{P}add.f32 %r9, %r2, %r1;")).kernels["k"]
    assert contracted(fused, AS_WRITTEN) is fused and contracted(fused, "first") is not fused
