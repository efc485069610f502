"""Every parameter of what a target calls is given by a session's cases, or its adapter says why not; so is every pair.

The cases are drawn, and the adapters make their calls on the CPU up to the kernel: targets of a GPU are looked at too.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuzz.core.case import Case
from fuzz.core.surface import Given, Surface
from fuzz.session.settings import Settings
from fuzz.session.summary.dry_calls import dry_calls, dry_coverage
from fuzz.targets import flashinfer_prefill, xformers_attention
from fuzz.targets.blocksparse import target as blocksparse
from fuzz.targets.dynamic_mask import target as dynamic_mask
from fuzz.targets.flash_attention_4 import calls
from fuzz.targets.registry import load, targets
from fuzz.targets.sdpa import target as sdpa
from oracles.masks import Causal, Prefix
from oracles.problem import Problem

ROOT = Path(__file__).resolve().parents[3]
QUICK = [
    ("torch.sdpa.math", "host", 150),
    ("torch.sdpa.flash", "cuda", 150),
    ("torch.nn.attention.varlen", "cuda", 400),
]
LONG = [
    ("torch.sdpa.math", "host", 600),
    ("torch.sdpa.flash", "host", 600),
    ("torch.sdpa.flash", "cuda", 800),
    ("torch.sdpa.efficient", "cuda", 800),
    ("torch.sdpa.cudnn", "cuda", 800),
    ("torch.flex", "host", 800),
    ("torch.flex", "cuda", 800),
    ("torch.nn.attention.varlen", "cuda", 3000),
    ("sdpa", "host", 800),
    ("blocksparse", "host", 800),
    ("flashinfer.single_prefill", "cuda", 2000),
    ("flashinfer.ragged_prefill", "cuda", 2000),
]


@pytest.fixture
def flash_attention_4(monkeypatch):
    """The adapter without the package, whose calls are noted and not made."""
    interface = SimpleNamespace(flash_attn_func=None, flash_attn_varlen_func=None)
    monkeypatch.setattr(calls, "interface", lambda: interface)
    monkeypatch.setattr(calls, "_given", lambda lists: lists)
    monkeypatch.setattr(calls, "_ordered", lambda by_query, by_key, descending: by_key)
    monkeypatch.setattr(calls, "_capping", lambda softcap: (len, len))
    monkeypatch.setenv("ATTNFUZZ_ARCH", "sm_90a")


def coverage(name: str, device: str, cases: int) -> list[Given]:
    return dry_coverage(Settings(targets=(name,), device=device, cases=cases, seed=1))[name]


@pytest.mark.parametrize(("name", "device", "cases"), QUICK, ids=str)
def test_every_parameter_is_given_or_has_a_reason(name, device, cases):
    first, *others = coverage(name, device, cases)
    assert first.cases > cases / 3
    assert first.unexplained() == []
    assert [given.stale() for given in (first, *others)] == [[] for _ in (first, *others)]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "device", "cases"), LONG, ids=str)
def test_every_parameter_and_pair_is_given_or_has_a_reason(name, device, cases):
    for given in coverage(name, device, cases):
        assert given.unexplained() == [], given.surface.name
        assert given.unexplained_pairs() == [], given.surface.name
        assert given.stale() == []


@pytest.mark.nightly
def test_every_parameter_of_flash_attention_4_is_given_or_has_a_reason(flash_attention_4):
    for given in coverage("flash_attn.cute", "cuda", 2000):
        assert given.unexplained() == [] and given.stale() == [], given.surface.name
        # What needs a softcap, a mask that flags say and block lists at once is rare: such pairs are left to chance.
        assert len(given.unexplained_pairs()) <= len(given.surface.pairs) / 12, given.unexplained_pairs()


def test_extras_of_flash_attention_4_are_given(flash_attention_4):
    target = load("flash_attn.cute", (), "cuda")
    problem = Problem((64,), (64,), 2, 1, 64, 64, "bfloat16", mask=Causal("bottom_right"), softcap=2.0)

    def call(problem: Problem, **variant) -> str:
        (text,) = dry_calls(target, Case(target.name, problem, variant=variant, repeats=1))
        return text

    said = call(problem, mask="mask_mod", flags=True, sink=True)
    assert all(word in said for word in ("causal=True", "mask_mod=function", "learnable_sink=bf16+1d", "aux_tensors="))
    assert "aux_scalars=Int32" in call(problem, mask="scalars")
    assert "score_mod=function" in call(problem, scores="score_mod")
    forward = Problem((64, 9), (64, 40), 2, 1, 64, 64, "bfloat16", mask=Prefix(9), layout="packed", backward=False)
    said = call(forward, mask="mask_mod", keys="paged", hints="none")
    assert "page_table=i32+2d" in said and "cu_seqlens_k" not in said and "max_seqlen" not in said


def test_targets_without_a_reason_for_their_packages_show_their_surfaces_all_the_same():
    for device in ("host", "cuda"):
        for name, target in targets((), device).items():
            for surface in target.surfaces():
                assert surface.names, name


def names_in(path: Path, function: str) -> tuple[str, ...]:
    """Parameters of a function, by its source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function and not node.decorator_list:
            return tuple(one.arg for one in (*node.args.args, *node.args.kwonlyargs))
    raise AssertionError(f"{path} has no function {function}")


def package(name: str, *path: str) -> Path:
    found = find_spec(name) if find_spec(name.partition(".")[0]) is not None else None
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{name} is not importable")
    return Path(next(iter(found.submodule_search_locations))).joinpath(*path)


@pytest.mark.parametrize(
    ("surface", "file"),
    [
        (sdpa._SURFACE, "kernels/sdpa/api.py"),
        (dynamic_mask._SURFACE, "kernels/dynamic_mask/api.py"),
        (blocksparse._SURFACE, "kernels/blocksparse/api.py"),
    ],
)
def test_a_declared_signature_of_ours_is_that_of_the_source(surface: Surface, file: str):
    assert surface.names == names_in(ROOT / file, surface.name)


@pytest.mark.parametrize("surface", load("flash_attn.cute", (), "cuda").surfaces(), ids=lambda s: s.name)
def test_a_declared_signature_of_flash_attention_4_is_that_of_the_package(surface: Surface):
    assert surface.names == names_in(package("flash_attn", "cute", "interface.py"), surface.name)


def test_a_declared_signature_of_xformers_is_that_of_the_package():
    surface = xformers_attention.SURFACE
    assert surface.names == names_in(package("xformers", "ops", "fmha", "__init__.py"), surface.name)


def test_a_packed_mask_has_the_first_bit_lowest():
    import torch

    mask = torch.tensor([True, False, False, True, False, False, False, False, False, True])
    assert flashinfer_prefill.packed_bits(mask).tolist() == [9, 2]


def test_every_reason_is_about_a_parameter_of_the_pinned_versions() -> None:
    surfaces = [surface for target in targets().values() for surface in target.surfaces()]
    assert surfaces and not [(surface.name, surface.elsewhere) for surface in surfaces if surface.elsewhere]
