"""Tensor maps that Triton's launcher makes of descriptors."""

from types import SimpleNamespace

import pytest
import torch

from fuzz.devices.emulator import Unimplemented
from fuzz.devices.emulator.frontends.tensor_descriptors import arguments, tensor_map
from fuzz.devices.emulator.tensor_map import F32, FILL_NAN, SWIZZLE_128, TF32, U4_PADDED, TensorMap

META = {"elem_type": F32, "block_size": [8, 32], "swizzle": SWIZZLE_128}


def described(**fields):
    x = torch.zeros(16, 64)
    given = {"shape": x.shape, "strides": x.stride(), "padding": "zero", "round_f32_to_tf32": False}
    return SimpleNamespace(base=x, **(given | fields))


def test_a_descriptor_becomes_a_map_with_the_innermost_dimension_first():
    found = tensor_map("x", described(padding="nan"), META, 256)
    assert found == TensorMap(256, F32, (64, 16), (256,), (32, 8), swizzle=SWIZZLE_128, fill=FILL_NAN)


def test_a_descriptor_that_rounds_has_elements_of_tf32():
    assert tensor_map("x", described(round_f32_to_tf32=True), META, 0).element == TF32


def test_descriptors_of_a_triton_that_knows_no_such_rounding_have_no_argument_for_it():
    older, newer = described(), described()
    del older.round_f32_to_tf32
    assert tensor_map("x", older, META, 0).element == F32
    kinds = [[kind for kind, *_ in arguments("tensordesc<fp32[8,32]>", "x", one, None)] for one in (older, newer)]
    assert [one.count("i1") for one in kinds] == [1, 2]


def test_padded_numbers_of_4_bits_are_two_in_a_byte_of_the_tensor():
    """As Triton asks for them: its tensor and strides are bytes, its block numbers."""
    x = torch.zeros(16, 64, dtype=torch.uint8)
    meta = {"elem_type": U4_PADDED, "elem_size": 1, "block_size": [8, 128], "swizzle": SWIZZLE_128, "fp4_padded": True}
    found = tensor_map("x", described(shape=x.shape, strides=x.stride()), meta, 0)
    assert found == TensorMap(0, U4_PADDED, (128, 16), (64,), (128, 8), swizzle=SWIZZLE_128)


def test_im2col_is_not_emulated():
    with pytest.raises(Unimplemented, match="x: a tensor descriptor with im2col"):
        tensor_map("x", described(), META | {"is_im2col": True}, 0)
