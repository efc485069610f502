"""The adapter's call as text: run here with the emulated GPU in the place of a real one."""

from __future__ import annotations

import ast

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.judging.judge import execute
from fuzz.script import write_script
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.by_head import causal_by_head
from fuzz.targets.blocksparse.devices import connect, emulator_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.gpu import GpuBlockSparse
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.targets.blocksparse.static_checks import visits_of
from fuzz.tensors.arena import build
from oracles.masks import Causal, Documents, Window
from oracles.problem import Problem, dense_mask
from oracles.semaphore_order import predict

TILES = {"tile_m": 64, "tile_n": 64}
CASES = {
    "bits": (Problem((70,), (90,), 2, 1, 64, 64, "float16", mask=Causal(), backward=False), {"schedule": "shuffled"}),
    "band": (Problem((70, 9), (90, 80), 2, 1, 64, 64, "float16", mask=Window(20, 3), backward=False), {"mask": "band"}),
    "halved": (Problem((70,), (200,), 1, 1, 64, 64, "float16", mask=Causal("bottom_right")), {"lists": "halved"}),
    "wide": (
        Problem((200, 9), (90, 80), 2, 1, 40, 40, "float16", mask=Window(20, 3)),
        {"mask": "band", "wide": 192, "products": "wgmma"},
    ),
    "wide, in two calls": (
        Problem((70, 200), (90, 180), 1, 1, 64, 64, "bfloat16", "packed", mask=Causal("bottom_right")),
        {"wide": 192, "products": "wgmma", "keys": "split"},
    ),
    "intervals": (
        Problem((70, 9), (90, 80), 2, 1, 64, 64, "float16", "packed", Documents((30,)), softcap=5.0, backward=False),
        {"mask": "intervals"},
    ),
    "products fused": (
        Problem((70, 9), (90, 80), 2, 1, 64, 64, "float16", "packed", Documents((30,)), softcap=5.0, backward=False),
        {"mask": "intervals", "contraction": "second"},
    ),
    "pairs of CTAs": (
        Problem((70,), (300,), 1, 1, 64, 64, "float16", mask=Causal("bottom_right")),
        {"tile_m": 128, "tile_n": 128, "products": "tcgen05", "paired": 256, "schedule": "planned"},
    ),
}
CASES["turned"] = (
    Problem((763,), (256,), 2, 1, 128, 128, "float16"),
    {"tile_m": 128, "tile_n": 128, "mask": "none", "products": "wgmma", "schedule": "turned"},
)
CASES["nested"] = (
    Problem((300,), (300,), 2, 1, 128, 128, "float16", mask=Causal("bottom_right"), backward=False),
    {"mask": "band", "products": "wgmma", "nested": True},
)
CASES["lists of heads"] = (
    Problem((300,), (300,), 2, 1, 64, 64, "float16", mask=causal_by_head(0, 128)),
    {"tile_n": 128, "mask": "band"},
)
LATER = ("bits", "wide", "wide, in two calls", "pairs of CTAs", "halved", "turned", "nested", "lists of heads")
NIGHTLY = [pytest.param(name, marks=[pytest.mark.nightly] * (name in LATER)) for name in CASES]


@pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")
@pytest.mark.parametrize("name", NIGHTLY)
def test_the_text_does_what_the_adapter_does(name: str) -> None:
    problem, variant = CASES[name]
    case = Case("blocksparse", problem, variant=TILES | variant, repeats=1)
    assert execute(case, EmulatedBlockSparse(), lambda phase, limit: None).outcome == "pass"
    tensors = build(case, "cpu").tensors()
    right, _ = EmulatedBlockSparse().forward(case, tensors)
    connect("emulator")
    text = blocksparse_text(case, "")
    scope = {"torch": torch, "q": tensors.q, "k": tensors.k, "v": tensors.v, "keep": dense_mask(problem)}
    exec("\n".join([*text.imports, text.setup, *text.call]), scope)
    assert torch.equal(scope["o"], right)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_planned_order_is_the_case_s_and_ends_with_any_number_of_resident_ctas(seed: int) -> None:
    """Cases with an odd seed have a reversed last group and one concurrent pair."""
    problem = Problem((300, 200), (330, 140), 4, 2, 64, 64, "float16", mask=Causal())
    case = Case("blocksparse", problem, inputs=Inputs(seed=seed), variant=TILES | {"schedule": "planned"})
    blocks, text = blocks_of(case), blocksparse_text(case, "")
    assert (blocks.schedule.reverses, blocks.schedule.pairs == 1) == (bool(seed), bool(seed))
    visits = visits_of(case, blocks, "")
    assert visits is not None and all(predict(visits, slots).ends == "always" for slots in (1, 3, 100))
    scope = {"torch": torch, **dict.fromkeys("qkv"), "keep": dense_mask(problem)}
    lists = [line for line in text.call if line.startswith(("schedule", "blocks"))]
    exec("\n".join([*text.imports, text.setup, *lists]), scope)
    made, given = (one.schedule for one in (scope["blocks"], blocks))
    assert (made.kind, made.reverses, made.pairs) == (given.kind, given.reverses, given.pairs)
    assert torch.equal(*(one.launch_order(6, "cpu") for one in (made, given)))


def test_a_script_is_for_a_gpu_and_parses() -> None:
    planned = Problem((70,), (90,), 2, 1, 64, 64, "float16", mask=Causal()), {"schedule": "planned", "mask": "band"}
    for problem, variant in (*CASES.values(), planned):
        case = Case("blocksparse!lock_is_n_block", problem, variant=TILES | variant)
        script = write_script(case, GpuBlockSparse("lock_is_n_block"), None)
        ast.parse(script)
        assert ("least_blocking(blocks, heads_q=" in script) == ("planned" in variant.values())
        assert 'MUTANTS["lock_is_n_block"]' in script and "import fuzz" not in script and "from fuzz" not in script
