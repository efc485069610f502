"""Arena: strides and offsets as the recipe says, poison everywhere else, findings that name tensor and place."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
import torch

from fuzz.core.case import Case, Inputs, Storage
from fuzz.tensors.arena import ALIGNMENT, GUARD_BYTES, build, on_device
from fuzz.tensors.values import make_values
from oracles.problem import Bias, Problem

NAMES = ("q", "k", "v", "do", "bias")
DTYPES = ("float16", "bfloat16", "float32")
ORDERS = ("bhsd", "bshd", "sbhd", "bhds")


def case(inputs=None, **changes) -> Case:
    plain = {
        "lengths_q": (5, 5),
        "lengths_k": (7, 7),
        "heads_q": 4,
        "heads_kv": 2,
        "dim": 6,
        "dim_v": 3,
        "bias": Bias(),
    }
    return Case("any", Problem(**{**plain, "dtype": "float16", **changes}), inputs or Inputs())


def bytes_of(arena) -> set[int]:
    """Indices of all bytes that belong to an element."""
    own: set[int] = set()
    for slot in arena.slots:
        x = arena.tensor(slot.name)
        index = torch.zeros(1, dtype=torch.int64)
        for size, stride in zip(x.shape, x.stride(), strict=True):
            index = (index[:, None] + torch.arange(size) * stride).flatten()
        start = slot.start
        own |= {start + int(i) * x.element_size() + byte for i in index for byte in range(x.element_size())}
    return own


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pad", [0, 1, 8])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_values_are_there_whatever_the_storage(dtype, order, pad, offset):
    storage = Storage(order, pad, offset)
    c = case(Inputs(3, q=storage, k=storage, v=storage, do=storage), dtype=dtype)
    arena, values = build(c, "cpu"), make_values(c, "cpu")
    for name in NAMES:
        x = arena.tensor(name)
        assert torch.equal(x, values[name].to(x.dtype)) and x.dtype == getattr(torch, dtype)
        assert x.data_ptr() == arena.buffer.data_ptr() + next(s.start for s in arena.slots if s.name == name)
    q = arena.tensor("q")
    start = next(slot.start for slot in arena.slots if slot.name == "q")
    assert start % ALIGNMENT == offset * q.element_size() % ALIGNMENT
    stride = dict(zip("bhsd", q.stride(), strict=True))
    assert [stride[axis] for axis in order] == sorted(q.stride(), reverse=True)
    assert stride[order[-1]] == 1
    assert stride[order[-2]] == q.shape["bhsd".index(order[-1])] + pad


@pytest.mark.parametrize("order", ORDERS)
def test_packed_tensors_leave_the_batch_axis_out(order):
    c = case(Inputs(3, q=Storage(order, 2, 1)), layout="packed", lengths_q=(5, 3), bias=None)
    q = build(c, "cpu").tensor("q")
    assert q.shape == (8, 4, 6) and torch.equal(q, make_values(c, "cpu")["q"].half())
    stride = dict(zip("shd", q.stride(), strict=True))
    assert [stride[a] for a in order if a != "b"] == sorted(q.stride(), reverse=True)


def test_everything_between_the_elements_is_poison():
    c = case(Inputs(q=Storage("bshd", 3, 1), k=Storage("bhds", 1), v=Storage("sbhd", 0, 5)))
    arena = build(c, "cpu")
    own = bytes_of(arena)
    rest = torch.ones(arena.buffer.numel(), dtype=torch.bool)
    rest[sorted(own)] = False
    assert (arena.buffer[rest] == 0xFF).all() and int(rest.sum()) > 6 * GUARD_BYTES
    assert arena.buffer[:2].view(torch.float16).isnan().all()


def test_tensors_do_not_overlap_and_keep_their_distance():
    arena = build(case(Inputs(q=Storage("bshd", 3, 1))), "cpu")
    ends = [(slot.start, slot.stop) for slot in arena.slots]
    assert ends[0][0] >= GUARD_BYTES and arena.buffer.numel() >= ends[-1][1] + GUARD_BYTES
    assert all(b[0] - a[1] >= GUARD_BYTES for a, b in pairwise(ends))
    assert len(bytes_of(arena)) == sum(arena.tensor(n).numel() * 2 for n in NAMES)


def test_an_expanded_output_gradient_is_a_single_one():
    do = build(case(Inputs(do=Storage("expanded"))), "cpu").tensor("do")
    assert do.shape == (2, 4, 5, 3) and do.stride() == (0, 0, 0, 0) and (do == 1).all()


def test_a_float32_bias_stays_float32():
    arena = build(case(bias=Bias(dtype="float32")), "cpu")
    assert arena.tensor("bias").dtype == torch.float32 and arena.tensor("q").dtype == torch.float16
    assert arena.tensor("bias").data_ptr() % 4 == 0


def test_tensors_that_are_not_asked_for_are_none():
    tensors = build(case(backward=False, bias=None), "cpu").tensors()
    assert tensors.do is None and tensors.bias is None


def test_tensors_without_elements():
    arena = build(case(lengths_q=(0, 0), bias=None), "cpu")
    assert arena.tensor("q").shape == (2, 4, 0, 6) and arena.changes(arena.copy()) == []


def test_a_copy_has_the_same_bytes_elsewhere():
    arena = build(case(), "cpu")
    copy = arena.copy()
    assert copy.buffer.data_ptr() != arena.buffer.data_ptr() and copy.changes(arena) == []
    copy.tensor("k").zero_()
    assert arena.changes(build(case(), "cpu")) == [] and copy.changes(arena)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_input_is_named(name):
    pristine = build(case(), "cpu")
    arena = pristine.copy()
    arena.tensor(name).view(-1)[4] = 7.25
    (finding,) = arena.changes(pristine)
    assert (finding.oracle, finding.kind, finding.tensor, finding.place.pattern) == (
        "memory",
        "changed_input",
        name,
        "input",
    )
    assert f"changed its input {name}" in finding.message and "the first at byte" in finding.message


def test_a_change_that_compares_equal_is_seen():
    pristine = build(case(Inputs(distribution="constant")), "cpu")
    pristine.tensor("q").zero_()
    arena = pristine.copy()
    arena.tensor("q").neg_()  # -0.0 == 0.0
    assert [f.kind for f in arena.changes(pristine)] == ["changed_input"]


@pytest.mark.parametrize("name, previous", [("q", None), ("k", "q"), ("v", "k"), ("do", "v"), ("bias", "do")])
@pytest.mark.parametrize("distance", [1, 2, 16, 1000])
def test_a_write_outside_names_the_nearest_tensor(name, previous, distance):
    pristine = build(case(), "cpu")
    slot = next(slot for slot in pristine.slots if slot.name == name)
    before, after = pristine.copy(), pristine.copy()
    before.buffer[slot.start - distance] = 1
    after.buffer[slot.stop + distance - 1] = 1
    (left,), (right,) = before.changes(pristine), after.changes(pristine)
    assert (left.kind, left.tensor, left.place.pattern) == ("wrote_outside", name, "before")
    assert (right.kind, right.tensor, right.place.pattern) == ("wrote_outside", name, "after")
    assert left.numbers["bytes"] == 1 and f" {distance} bytes before {name}" in left.message


def test_a_write_into_the_gaps_between_rows_is_one():
    pristine = build(case(Inputs(v=Storage("bhsd", 2))), "cpu")
    arena = pristine.copy()
    slot = next(slot for slot in arena.slots if slot.name == "v")
    arena.buffer[slot.start + 3 * 2] = 0  # dim_v is 3: the first element of the pad
    (finding,) = arena.changes(pristine)
    assert (finding.kind, finding.tensor, finding.place.pattern) == ("wrote_outside", "v", "gap")


def test_every_order_of_axes_spans_exactly_its_elements():
    """The slot's stop is one past its last element, so that a write just behind it counts as outside."""
    for order in permutations("bhsd"):
        if "".join(order) not in ORDERS:
            continue
        arena = build(case(Inputs(q=Storage("".join(order), 5))), "cpu")  # type: ignore[arg-type]
        slot = next(slot for slot in arena.slots if slot.name == "q")
        last = sum((size - 1) * stride for size, stride in zip(slot.shape, slot.strides, strict=True))
        assert slot.stop == slot.start + (last + 1) * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_the_same_bytes():
    c = case(Inputs(5, "needle", q=Storage("bshd", 3, 1)))
    assert torch.equal(build(c, "cpu").buffer, build(c, "cuda").buffer.cpu())


def test_arenas_go_to_a_device_together_with_their_bytes_and_their_alignment():
    """cpu:0 stands for another device than cpu, where the arenas are."""
    inputs = Inputs(3, q=Storage("bshd", 3, 1))
    arenas = [build(case(inputs, dtype=dtype), "cpu") for dtype in DTYPES]
    moved = on_device(arenas, torch.device("cpu", 0))
    for was, now in zip(arenas, moved, strict=True):
        assert now.same(was) and now.buffer.data_ptr() != was.buffer.data_ptr() and now.slots == was.slots
        for slot in now.slots:
            x = now.tensor(slot.name)
            assert x.data_ptr() - now.buffer.data_ptr() == slot.start and x.stride() == slot.strides
            assert torch.equal(x, was.tensor(slot.name))
        now.tensor("q").zero_()
    assert not moved[0].same(arenas[0]) and moved[0].changes(arenas[0])[0].tensor == "q"
    assert all(x is y for x, y in zip(arenas, on_device(arenas, torch.device("cpu")), strict=True))
