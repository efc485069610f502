"""Rows of kernels.nsa that are read 16 bytes at a time, and those that are not."""

from nsa_cases import Call, tensors_of
from nsa_rows import beside_alignment, check_results, off_alignment, on_alignment

from kernels.nsa.operands import aligned


def test_rows_off_alignment_give_the_same_answers():
    check_results(on_alignment(), beside_alignment())


def test_one_tensor_off_alignment_is_enough():
    wide = tensors_of(Call((8,)))["q"].detach()
    assert aligned(wide, wide[:, :, :1]) and aligned(wide.transpose(1, 2))
    assert not aligned(wide, off_alignment(wide, False))
    assert not aligned(wide, off_alignment(wide, True))
    assert not aligned(wide, wide[..., :-4])  # rows end inside 16 bytes
    assert not aligned(wide, wide.mT)
