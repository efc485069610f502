"""Guarded memory: poison in what is allocated, and a finding for every write beside it; poisoned malloc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fuzz.runner.gpu import environment
from fuzz.tensors import guard_bands
from fuzz.tensors.guard_bands import GUARD_BYTES, Guarded

MAKERS = {
    "empty": lambda: torch.empty(3, 5),
    "empty_half": lambda: torch.empty((3, 5), dtype=torch.bfloat16),
    "empty_like": lambda: torch.empty_like(torch.zeros(3, 5)),
    "empty_strided": lambda: torch.empty_strided((3, 5), (8, 1)),
    "new_empty": lambda: torch.zeros(1).new_empty((3, 5)),
    "new_empty_strided": lambda: torch.zeros(1).new_empty_strided((3, 5), (1, 3)),
    "transposed": lambda: torch.empty_like(torch.zeros(5, 3).t()),
}


def beside(x: torch.Tensor, distance: int) -> torch.Tensor:
    """One element that far from x's first one."""
    return x.as_strided((1,), (1,), x.storage_offset() + distance)


@pytest.mark.parametrize("name", MAKERS)
def test_uninitialised_memory_is_nan_and_keeps_its_shape_and_strides(name):
    plain = MAKERS[name]()
    with Guarded() as guard:
        made = MAKERS[name]()
    assert (
        made.isnan().all()
        and made.shape == plain.shape
        and made.stride() == plain.stride()
        and made.dtype == plain.dtype
    )
    made.fill_(1)
    assert guard.check() == []


@pytest.mark.parametrize("name", MAKERS)
def test_a_write_before_or_after_is_found(name):
    for distance, side in ((-1, "before"), (-7, "before"), (32, "after")):
        with Guarded() as guard:
            made = MAKERS[name]()
            made.zero_()
        beside(made, distance).fill_(3)
        (finding,) = guard.check()
        assert (finding.oracle, finding.kind, finding.place.pattern) == ("memory", "wrote_outside", side)
        assert str(list(made.shape)) in finding.message and finding.numbers["bytes"] > 0
        assert guard.check() == []


def test_the_first_byte_behind_the_last_element_counts():
    with Guarded() as guard:
        made = torch.empty(3, dtype=torch.float32).zero_()
    beside(made, 3).fill_(1.0)
    (finding,) = guard.check()
    assert "the first" in finding.message and finding.place.pattern == "after"


def test_the_gaps_of_a_strided_output_are_its_own():
    """An allocation with gaps belongs to whoever made it: only what lies outside of its span is watched."""
    with Guarded() as guard:
        made = torch.empty_strided((3, 5), (8, 1))
    beside(made, 6).fill_(1)
    assert guard.check() == []


def test_every_buffer_is_watched_until_the_check():
    with Guarded() as guard:
        made = [torch.empty(4) for _ in range(3)]
        addresses = {x.data_ptr() for x in made}
        del made
        again = torch.empty(4)
    assert again.data_ptr() not in addresses
    beside(again, -1).fill_(1)
    assert len(guard.check()) == 1


def test_a_tensor_without_elements_is_no_trouble():
    with Guarded() as guard:
        assert torch.empty((0, 5)).shape == (0, 5) and torch.empty((2, 0, 3)).numel() == 0
    assert guard.check() == []


def test_integers_are_guarded_too():
    with Guarded() as guard:
        made = torch.empty(4, dtype=torch.int32)
    assert (made == -1).all()
    beside(made, 4).fill_(0)
    assert len(guard.check()) == 1


def test_nothing_is_guarded_outside():
    guard = Guarded()
    torch.empty(4)
    with guard:
        torch.zeros(4), torch.ones(4), torch.full((4,), 2.0)
    assert guard.check() == []


def test_a_leaf_stays_a_leaf():
    with Guarded():
        made = torch.empty(3, requires_grad=True)
    assert made.requires_grad and made.is_leaf


def test_guards_are_wide_enough_for_a_row_of_a_tile():
    assert GUARD_BYTES >= 128 * 64


def test_autograd_works_inside():
    x = torch.randn(4, 4, requires_grad=True)
    with Guarded() as guard:
        torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and guard.check() == []


POISONED = """
import torch
from fuzz.tensors.guard_bands import poison_malloc
assert poison_malloc()
found = [torch.empty(n) for n in (10, 100, 250, 5000, 100_000) for _ in range(3)]
raise SystemExit(0 if all(x.isnan().all() for x in found) else 1)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_glibc_fills_what_it_gives_with_nan():
    """In a process that has what a child of the harness has: small blocks too."""
    env = os.environ | environment("host")
    assert subprocess.run([sys.executable, "-c", POISONED], env=env, timeout=120, check=False).returncode == 0


def test_poisoning_says_where_it_cannot(monkeypatch):
    def nothing(_):
        raise OSError("libc.so.6: cannot open shared object file")

    monkeypatch.setattr(guard_bands.ctypes, "CDLL", nothing)
    guard_bands._mallopt.cache_clear()
    try:
        assert guard_bands.poison_malloc() is False
    finally:
        guard_bands._mallopt.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_freed_blocks_of_a_gpu_are_poisoned():
    guard_bands.poison_cuda((1 << 20,), "cuda")
    assert torch.empty(1 << 18, device="cuda").isnan().all()
