"""Mutants inject through functions of their own: what users call has no argument for it."""

import inspect

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.spec import injection
from kernels.sdpa import injection as dense_injection
from kernels.sdpa import plan, prepare, scaled_dot_product_attention


@pytest.mark.parametrize("function", [block_sparse_attention, scaled_dot_product_attention, plan, prepare])
def test_users_functions_take_no_injection(function):
    assert not {"injection", "seams"} & set(inspect.signature(function).parameters)
    assert "inject" not in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("find", [injection.find_injections, dense_injection.find_injection])
def test_an_unknown_injection_is_refused(find):
    with pytest.raises(ValueError, match=r"injection: .*import kernels\.mutants"):
        find("nothing")
