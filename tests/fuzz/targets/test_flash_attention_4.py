"""flash_attn.cute: what the adapter asks for is what the case says; what it declares refused, FlashAttention-4 refuses;
its kernels compile for both archs. The tests that need flash-attn-4 are skipped where it is not importable."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import flash_attention_stand_in as stand_in
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace as replace_struct

from fuzz.core.case import Case, from_json
from fuzz.core.case_limits import Size
from fuzz.core.features import features
from fuzz.core.refusal import refusal
from fuzz.corpus.store import load_all
from fuzz.generate import cases
from fuzz.judging.judge import execute
from fuzz.targets.flash_attention_4 import calls as kernels
from fuzz.targets.flash_attention_4 import compile_cache as tables
from fuzz.targets.flash_attention_4 import target as adapter
from fuzz.targets.flash_attention_4 import unsupported as refusals
from fuzz.targets.flash_attention_4.arguments import block_tensors, classified, keep_tensor, mask_options
from fuzz.targets.flash_attention_4.target import FlashAttention4
from fuzz.targets.flash_attention_4.unsupported import ARCHS, TABLE
from oracles.masks import And, Blocks, Causal, Full, PerHead, Prefix, Window
from oracles.problem import Problem, dense_mask

importable = tables.unusable() is None
needs_it = pytest.mark.skipif(not importable, reason="flash-attn-4 is not importable")
MASK_MODS = {"keep_mod": "keep_mod", "band_mod": "band_mod", "scalars": tuple}
PLAIN = Problem((256,), (256,), 2, 2, 64, 64, "bfloat16")


class OnTheHost(FlashAttention4):
    """The adapter with the stand-in behind it, on the CPU."""

    device = "host"
    session_size = Size(1 << 13, 4, 300, 1 << 15)

    def __init__(self) -> None:
        super().__init__(replace(adapter.SUPPORT, dim=(4, 40, 4)))

    def prepare(self, case, tensors):
        pass


@pytest.fixture
def on_the_host(monkeypatch):
    def launched(function):
        def run(*tensors, **options):
            tables.LAUNCHES.kept.append(SimpleNamespace(name="fwd sm_90a"))
            return function(*tensors, **options)

        return run

    interface = SimpleNamespace(
        flash_attn_func=launched(stand_in.flash_attn_func),
        flash_attn_varlen_func=launched(stand_in.flash_attn_varlen_func),
    )
    monkeypatch.setattr(kernels, "interface", lambda: interface)
    monkeypatch.setattr(kernels, "_given", lambda lists: lists)
    monkeypatch.setattr(kernels, "_ordered", lambda by_query, by_key, descending: by_key)
    monkeypatch.setitem(sys.modules, "fuzz.targets.flash_attention_4.mask_mod", SimpleNamespace(**MASK_MODS))
    monkeypatch.setattr(kernels, "_capping", lambda cap: (lambda scores: cap * torch.tanh(scores / cap), None))
    monkeypatch.setenv("ATTNFUZZ_ARCH", "sm_90a")
    adapter._arch.cache_clear()
    yield OnTheHost()
    adapter._arch.cache_clear()


def ran(case: Case, target) -> object:
    return execute(case, target, lambda phase, seconds: None)


def test_a_kernel_that_does_what_it_promises_passes(on_the_host):
    outcomes = []

    @seed(5)
    @settings(
        max_examples=120, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases.cases(on_the_host, cases.SMALL, 2))
    def loop(case):
        verdict = ran(case, on_the_host)
        outcomes.append(verdict.outcome)
        refused = refusal(on_the_host, case)
        if refused is None:
            assert verdict.outcome == "pass", (case, verdict)
        elif refused.kind == "cannot":
            assert verdict.outcome == "reject"

    loop()
    assert outcomes.count("pass") > 80


@pytest.mark.parametrize("lengths", [(2, 129), (129, 2), (64, 384)], ids=str)
def test_block_lists_of_one_column_have_stride_one(lengths):
    """`contiguous` keeps any stride of an axis of length 1, which FlashAttention-4 then refuses."""
    problem = replace_struct(PLAIN, lengths_q=lengths[:1], lengths_k=lengths[1:])
    for lists in block_tensors(problem, (128, 128), "cpu"):
        for name in ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx"):
            assert getattr(lists, name).stride(-1) == 1


def test_accepting_what_is_declared_refused_is_a_finding(on_the_host):
    case = replace_struct(PLAIN, dim=12, dim_v=12, lengths_q=(8,), lengths_k=(8,))
    verdict = ran(Case("flash_attn.cute", case, repeats=1), on_the_host)
    assert verdict.findings[0].kind == "accepted"


def test_an_assertion_is_a_refusal(on_the_host, monkeypatch):
    def no(*tensors, **options):
        raise AssertionError("head_dim must be divisible by 8")

    monkeypatch.setattr(kernels, "interface", lambda: SimpleNamespace(flash_attn_func=no))
    case = replace_struct(PLAIN, dim=12, dim_v=12, lengths_q=(8,), lengths_k=(8,))
    assert ran(Case("flash_attn.cute", case, repeats=1), on_the_host).outcome == "reject"
    supported = replace_struct(case, dim=16, dim_v=16)
    verdict = ran(Case("flash_attn.cute", supported, repeats=1), on_the_host)
    assert verdict.outcome == "fail" and "divisible by 8" in verdict.findings[0].message


@pytest.mark.parametrize(
    "wrong",
    [
        {"causal": False},
        {"softcap": 0.0},
        {"softmax_scale": 0.7},
        {"seqused_k": torch.tensor([30, 40], dtype=torch.int32)},
    ],
    ids=["causal", "softcap", "scale", "seqused"],
)
def test_an_option_that_is_ignored_is_found(on_the_host, monkeypatch, wrong):
    problem = replace_struct(
        PLAIN, lengths_q=(40, 33), lengths_k=(40, 33), dim=16, dim_v=16, softcap=2.0, mask=Causal("bottom_right")
    )
    case = Case("flash_attn.cute", problem, repeats=1)
    assert ran(case, on_the_host).outcome == "pass"
    real = kernels.interface().flash_attn_varlen_func
    monkeypatch.setattr(
        kernels,
        "interface",
        lambda: SimpleNamespace(flash_attn_varlen_func=lambda *x, **options: real(*x, **(options | wrong))),
    )
    assert ran(case, on_the_host).outcome == "fail"


@pytest.mark.parametrize(
    "mask, lengths, expected",
    [
        (Full(), ((5,), (9,)), {}),
        (Causal(), ((9,), (9,)), {"causal": True}),
        (Causal(), ((5,), (9,)), None),
        (Causal("bottom_right"), ((5,), (9,)), {"causal": True}),
        (Window(3, 0), ((4, 9), (4, 9)), {"window_size": (3, 0)}),
        (Window(3, None, "bottom_right"), ((5,), (9,)), {"window_size": (3, None)}),
        (And((Causal(), Full())), ((9,), (9,)), None),
    ],
)
def test_options_stand_for_a_mask_only_where_they_say_the_same(mask, lengths, expected):
    problem = replace_struct(PLAIN, lengths_q=lengths[0], lengths_k=lengths[1], mask=mask)
    assert mask_options(problem) == expected


def test_blocks_of_the_tail_are_full_where_every_pair_that_there_is_is_kept():
    some, whole = classified(torch.ones(1, 1, 130, 70, dtype=torch.bool), (128, 64))
    assert some.all() and whole.all() and some.shape == (1, 1, 2, 2)


def test_lists_of_both_directions_name_the_blocks_of_the_token_mask():
    mask = PerHead((Blocks(16, 16, ("F.M", "..F", "MF.")), Prefix(20)))
    problem = replace_struct(PLAIN, lengths_q=(45,), lengths_k=(41,), mask=mask)
    by_query, by_key = block_tensors(problem, (16, 16), "cpu")
    some, whole = classified(dense_mask(problem), (16, 16))
    for lists, turned in ((by_query, False), (by_key, True)):
        for counts, indices, flags in (
            (lists.mask_block_cnt, lists.mask_block_idx, some & ~whole),
            (lists.full_block_cnt, lists.full_block_idx, some & whole),
        ):
            wanted = flags.transpose(2, 3) if turned else flags
            assert indices.is_contiguous() and indices.dtype == torch.int32
            for at in [(h, row) for h in range(2) for row in range(wanted.shape[2])]:
                columns = indices[0, at[0], at[1], : int(counts[0, at[0], at[1]])].tolist()
                assert columns == wanted[0, at[0], at[1]].nonzero().flatten().tolist()


def test_the_mask_tensor_has_one_axis_of_stride_1_however_short_the_keys():
    kept = keep_tensor(replace_struct(PLAIN, lengths_q=(3,), lengths_k=(1,)), "cpu")
    assert kept.shape[-1] > 1 and [s for s in kept.stride() if s == 1] == [1]


def test_the_mask_tensor_s_memory_goes_on_for_a_tile_of_rows():
    problem = replace_struct(PLAIN, lengths_q=(129,), lengths_k=(130,), mask=Prefix(100))
    kept = keep_tensor(problem, "cpu")
    past = kept.flatten().as_strided((192, kept.shape[-1]), (kept.shape[-1], 1), kept.numel())
    assert kept.is_contiguous() and not past.any()
    assert torch.equal(kept[..., :130].bool(), dense_mask(problem).expand(1, 2, 129, 130))


def test_no_session_draws_a_mask_tensor_at_the_edge_of_memory():
    target = FlashAttention4()
    variants = target.variants_for(replace_struct(PLAIN, mask=Prefix(3)))
    assert variants and not any((refusals.OPTIONS | one)["edge"] for one in variants)
    assert refusal(target, Case(target.name, PLAIN, variant={"mask": "mask_mod", "edge": True})) is None
    assert refusal(target, Case(target.name, PLAIN, variant={"edge": True})).kind == "cannot"


def test_every_corpus_file_has_a_program_of_ten_lines_or_so_in_the_readme():
    folder = Path(__file__).parents[3] / "corpus" / "regressions"
    page = (folder / "README.md").read_text().partition("## FlashAttention-4")[2].partition("\n## ")[0]
    found = re.findall(r"^### (\S+)\n.*?```python\n(.*?)```", page, re.S | re.M)
    programs = dict(found)
    entries = [entry for entry in load_all(folder) if entry.case.target == "flash_attn.cute"]
    assert {entry.source.split("'")[1] for entry in entries} == set(programs)
    for name, text in programs.items():
        assert len([line for line in text.splitlines() if line.strip()]) <= 11 and "fuzz" not in text, name
        compile(text, name, "exec")
    for entry in entries:
        assert entry.known and refusal(FlashAttention4(), entry.case) is None, entry.name


@pytest.mark.parametrize("arch", ARCHS)
def test_every_row_that_refuses_has_an_example_that_no_other_row_explains(arch):
    for row in TABLE:
        if row.kind == "refuses" and arch in row.archs:
            assert [other.why for other in TABLE if arch in other.archs and other.applies(row.case("x"))] == [row.why]


def test_variants_are_within_the_rules(monkeypatch):
    for arch in ARCHS:
        monkeypatch.setattr(adapter, "_arch", lambda arch=arch: arch)
        target = FlashAttention4()
        for dim in (64, 192, 256):
            for mask in (Full(), Prefix(3), Causal("bottom_right")):
                problem = replace_struct(PLAIN, dim=dim, dim_v=128 if dim == 192 else dim, mask=mask)
                problem = replace_struct(problem, backward=dim != 256)
                for variant in target.variants_for(problem):
                    case = Case(target.name, problem, variant=variant)
                    refused = refusal(target, case)
                    splits = arch == "sm_90a" and variant.get("splits", 1) > 1  # asked to be refused
                    assert refused is None if not splits else refused.kind == "refuses", (arch, dim, mask, variant)


# With FlashAttention-4 itself.


@needs_it
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("row", [row for row in TABLE if row.kind == "refuses"], ids=lambda row: row.why[:40])
def test_what_is_declared_refused_is_refused(row, arch):
    if arch not in row.archs:
        pytest.skip("another arch")
    call = adapter.dry_call(row.case("flash_attn.cute"))
    with pytest.raises((ValueError, NotImplementedError)):
        for wanted in tables.planned(call, arch):
            tables.compiled(call, arch, wanted)


@needs_it
@pytest.mark.parametrize("arch", ARCHS)
def test_a_forward_and_a_backward_kernel_compile(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    tables._stored.cache_clear()
    case = Case("flash_attn.cute", replace_struct(PLAIN, heads_kv=1, mask=Causal("bottom_right")))
    call = adapter.dry_call(case)
    plan = tables.planned(call, arch)
    assert [table for table, _ in plan][:3] == ["fwd", "bwd_pre", "bwd"]
    for wanted in plan:
        if wanted[0] in ("fwd", "bwd"):
            assert tables.compiled(call, arch, wanted).__class__.__name__ != "NoneType"
    assert sorted(file.parent.name for file in tmp_path.rglob("*.o")) == ["bwd", "fwd"]
    tables._stored.cache_clear()


@needs_it
@pytest.mark.parametrize("arch", ARCHS)
def test_a_plan_s_small_case_needs_the_kernels_of_its_case(arch, monkeypatch):
    monkeypatch.setattr(adapter, "_arch", lambda: arch)
    target = FlashAttention4()
    seen = []

    @seed(11)
    @settings(
        max_examples=60, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases.cases(target, cases.SMALL))
    def loop(case):
        p = case.problem
        # Kernels for pages depend on their number, those for strides of 0 on alignment too: compiled when they come.
        late = case.variant.get("keys") == "paged" or "shared" in features(case)
        if refusal(target, case) is None and sum(p.lengths_q) and sum(p.lengths_k) and not late:
            own = tables.planned(adapter.dry_call(case), arch)
            small = tables.planned(adapter.dry_call(adapter._representative(case)), arch)
            assert own == small, case
            seen.append(case)

    loop()
    assert len(seen) > 20


@needs_it
def test_a_build_holds_the_case_that_it_is_compiled_from():
    case = Case("flash_attn.cute", PLAIN)
    builds = FlashAttention4().builds(case, "sm_90a")
    assert len(builds) == 4 and len({build.key for build in builds}) == 4
    options = json.loads(builds[0].options)
    call = adapter.dry_call(from_json(options["case"]))
    assert (options["kernel"], options["key"]) in tables.planned(call, "sm_90a")
    assert refusals.ARCHS == ("sm_90a", "sm_100a")


SUNK = {
    "padded": Problem((40,), (56,), 4, 2, 16, 16, "bfloat16", mask=Causal("bottom_right")),
    "packed": Problem((40, 9), (56, 30), 4, 2, 16, 16, "float16", layout="packed", mask=Causal("bottom_right")),
}


@pytest.mark.parametrize("layout", SUNK)
def test_a_sink_that_counts_is_taken_out_again(on_the_host, layout):
    verdict = ran(Case("flash_attn.cute", SUNK[layout], variant={"sink": "undone"}, repeats=1), on_the_host)
    assert verdict.outcome == "pass" and verdict.ratio < 0.6, verdict.findings


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda function, given: function(**given | {"learnable_sink": None}), {"o", "lse", "dq", "dk", "dv"}),
        (lambda function, given: (lambda o, lse: (o, lse.detach()))(*function(**given)), {"dq", "dk"}),
    ],
    ids=["no sink", "no gradient of LSE"],
)
def test_a_kernel_that_forgets_the_sink_is_wrong(on_the_host, monkeypatch, change, wrong):
    known = kernels.interface().flash_attn_func
    names = ("q", "k", "v")

    def changed(*tensors, **options):
        return change(known, dict(zip(names, tensors, strict=True)) | options)

    monkeypatch.setattr(kernels.interface(), "flash_attn_func", changed)
    verdict = ran(Case("flash_attn.cute", SUNK["padded"], variant={"sink": "undone"}, repeats=1), on_the_host)
    assert {f.tensor for f in verdict.findings} == wrong
