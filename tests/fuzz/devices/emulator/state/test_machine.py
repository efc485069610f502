"""The memory of a launch: pieces of one mapping, and the tables that compiled code and Python share."""

import ctypes
import gc

import numpy as np
import pytest

from fuzz.devices.emulator.state import tables as state
from fuzz.devices.emulator.state.global_memory import LARGE_PAGE, MappedArrays
from fuzz.devices.emulator.state.machine import Machine
from fuzz.tensors.guard_bands import poison_malloc


def test_pieces_are_zeroed_aligned_and_apart():
    poison_malloc()  # memory of malloc's would not be zero
    pieces = MappedArrays(a=1, b=1000, c=0, d=8)
    assert all(address % 128 == 0 for address in pieces.at.values())
    for name in ("a", "b", "d"):
        assert not pieces.array(name).any()
    for i, name in enumerate(("a", "b", "d")):
        pieces.array(name)[:] = i + 1
    assert [set(pieces.array(name).tolist()) for name in ("a", "b", "d")] == [{1}, {2}, {3}]
    assert ctypes.c_uint8.from_address(pieces.at["b"] + 999).value == 2


@pytest.mark.parametrize("size", [1, LARGE_PAGE // 16, LARGE_PAGE // 2, 5 * LARGE_PAGE + 1])
def test_dense_pieces_lie_together_and_apart_from_others(size):
    pieces = MappedArrays(["b", "d"], a=100, b=size, c=1000, d=size)
    ends = {name: pieces.at[name] + pieces.sizes[name] for name in pieces.sizes}
    assert sorted(pieces.at, key=pieces.at.__getitem__) == ["b", "d", "a", "c"]
    assert ends["b"] <= pieces.at["d"] and ends["d"] <= pieces.at["a"] and ends["a"] <= pieces.at["c"]
    for name in pieces.sizes:
        array = pieces.array(name)
        assert array.ctypes.data == pieces.at[name] and not array.any()
        array[:] = 1


def test_an_array_keeps_its_memory_when_the_pieces_are_gone():
    array = MappedArrays(a=1 << 20).array("a", np.int64)
    gc.collect()
    array[:] = 7
    assert (array == 7).all()


def test_compiled_code_finds_every_table_by_the_list():
    machine = Machine(**dict.fromkeys(state.TABLES, 3))
    addresses = (ctypes.c_int64 * len(state.TABLES)).from_address(machine.address)
    for i, (name, inner) in enumerate(state.TABLES.items()):
        assert getattr(machine, name).shape == (3, *inner)
        assert getattr(machine, name).ctypes.data == addresses[i]
