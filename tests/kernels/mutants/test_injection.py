"""Mutants inject through functions of their own: what users call has no argument for it."""

import inspect

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.spec import injection
from kernels.mutants.blocksparse.table import injections_for
from kernels.mutants.nsa import table as nsa
from kernels.nsa.injection import find_injection
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


@pytest.mark.parametrize("name", nsa.MUTANTS)
def test_what_is_injected_into_attention_is_built_by_its_name(name):
    """A compiling process knows a mutant of a block-sparse kernel by the name of its injection alone."""
    steps = find_injection(f"nsa!{name}")
    for kind in ("attention", "attention_backward"):
        injected = getattr(steps, kind)
        if injected.replacements:
            found = injections_for(injected.name)
            same = found.forward if kind == "attention" else found.backward
            assert same.replacements == injected.replacements
