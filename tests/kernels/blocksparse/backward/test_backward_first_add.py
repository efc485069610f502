"""The first ordered add of a dQ tile is a store: nothing else initialises the accumulator, and it is not read where no
block is added. Workspaces are filled with NaN before, which would reach dQ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import backward_problems
import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from backward_problems import Spec, errors, make
from blocksparse_runs import loaded, ptx_of
from covering import covering, daily, nightly_unless

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant
from kernels.mutants.blocksparse.table import MUTANTS

# name → (arch, what its specs have); each adds to dQ by other code
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "one float at a time": ("sm_80", {"dim": 40}),
    "dQ of a whole block at once": ("sm_90a", {"dim": 96, "tile_m": 128, "tile_n": 128}),
    "straight warpgroups": ("sm_90a", {"dim": 128, "tile_m": 128, "tile_n": 64, "products": "wgmma"}),
    "transposed, 64": ("sm_90a", {"dim": 64, "tile_m": 128, "tile_n": 128, "products": "wgmma"}),
    "transposed, 128": ("sm_90a", {"dim": 128, "tile_m": 64, "tile_n": 128, "products": "wgmma"}),
    "by gradient": ("sm_90a", {"dim": 256, "tile_m": 128, "tile_n": 64, "products": "wgmma"}),
    "tcgen05, in bulk": ("sm_100a", {"dim": 64, "tile_m": 128, "tile_n": 128, "products": "tcgen05"}),
    "tcgen05, by threads": (
        "sm_100a",
        {"dim": 64, "tile_m": 128, "tile_n": 128, "products": "tcgen05", "tuning": (("bulk_dq", 0),)},
    ),
}


def spec_of(kernel: str, lens_q: Any, lens_k: Any, *heads: int, **options: Any) -> Spec:
    return Spec(lens_q, lens_k, *heads, **{"deterministic": True, **KERNELS[kernel][1], **options})


def run(kernel: str, spec: Spec, injection: Injection = NO_INJECTION, **emulated: Any) -> Any:
    """(problem, gradients, workspace, reports of the launches)."""
    checks = ALL_CHECKS if spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    emulator = Emulator(strict=False, checks=checks, **{"resident_ctas": 3, **emulated})
    problem, reports = make(spec), []

    def launch(of: Variant, values: Any) -> None:
        if of.kind == "backward":
            values = {**values, "resident": emulator.resident_ctas}
        launched = loaded(of, KERNELS[kernel][0], injection.part(of.kind))
        reports.append(launched(*ordered(of.kind, values), emulator=emulator))

    return problem, *backward_problems.run(problem, launch), reports


def check(kernel: str, spec: Spec, **emulated: Any) -> Any:
    """(gradients, workspace) of a run in which nothing was found."""
    problem, out, workspace, reports = run(kernel, spec, **emulated)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out, workspace


# Queries without keys: at the end, and aligned at the bottom right at the start
UNSEEN = {"window": ((430, 70), (130, 90)), "causal": ((400, 100), (130, 100))}


def unseen(kernel: str, mask: str, **options: Any) -> Spec:
    return spec_of(kernel, *UNSEEN[mask], mask=mask, **options)


def sums_of(workspace: Any, spec: Spec) -> torch.Tensor:
    """The accumulator of a padded problem: (batch, heads_q, m_blocks, tile_m * padded dim)."""
    batch, m_blocks = len(spec.lens_q), workspace.tiles[0]
    return workspace.dq_sum.view(spec.heads_q, batch, m_blocks, -1).transpose(0, 1)


OF_DAILY = ("one float at a time", "by gradient", "tcgen05, in bulk")


def of_daily(cases: list[Any]) -> list[Any]:
    """The cases, whose first value is a kernel; those of other kernels than OF_DAILY are nightly."""
    return [nightly_unless(not case.marks and case.values[0] in OF_DAILY, *case.values) for case in cases]


@pytest.mark.parametrize(("kernel", "mask"), of_daily(covering(list(KERNELS), list(UNSEEN), strength=1)))
def test_tiles_that_no_block_is_added_to_are_neither_written_nor_read(kernel, mask):
    spec = unseen(kernel, mask)
    out, workspace = check(kernel, spec, warp_schedule="random", seed=len(kernel))
    unwritten = sums_of(workspace, spec).isnan()
    added = workspace.semaphores.view(-1, *unwritten.shape[:3]) != 0
    with_one = spec.products != "wgmma" or kernel == "straight warpgroups"  # semaphore for a tile: the first one
    assert with_one or torch.equal(added.all(0), added.any(0))
    exist = torch.arange(unwritten.shape[2]) * spec.tile_m < torch.tensor(spec.lens_q)[:, None]
    assert (added[0] & exist[:, None]).any() and (~added[0] & exist[:, None]).any()
    assert torch.equal(unwritten.any(-1), ~added[0]) and torch.equal(unwritten.all(-1), ~added[0])
    for b, h, m in (~added[0] & exist[:, None]).nonzero().tolist():
        assert not out["dq"][b, m * spec.tile_m : min((m + 1) * spec.tile_m, spec.lens_q[b]), h].any()


@pytest.mark.parametrize("kernel", daily(["one float at a time", "transposed, 64"], ["one float at a time"]))
def test_atomic_adds_start_from_zeros(kernel):
    spec = unseen(kernel, "window", deterministic=False)
    _, workspace = check(kernel, spec)
    exist = torch.arange(workspace.tiles[0]) * spec.tile_m < torch.tensor(spec.lens_q)[:, None]
    sums = sums_of(workspace, spec)[exist[:, None]]
    assert not sums.isnan().any() and (sums == 0).all(-1).any()


@pytest.mark.parametrize(
    "kernel", daily(["one float at a time", "transposed, 128", "by gradient", "tcgen05, in bulk"], ["by gradient"])
)
def test_without_keys_all_tiles_are_zeros(kernel):
    out, _ = check(kernel, spec_of(kernel, (150,), (0,), 2, 1))
    assert not out["dq"].any()


@pytest.mark.parametrize(
    ("kernel", "mask", "slots"),
    of_daily(covering(list(KERNELS), ["window", "random"], [1, 5], strength=1)),
)
def test_packed_sequences_with_groups_that_are_split(kernel, mask, slots):
    """Lengths of no whole tile, some of them 0."""
    spec = spec_of(kernel, (0, 129, 31), (100, 150, 0), 4, 2, mask=mask, packed=True, group_split=2)
    first, _ = check(kernel, spec, resident_ctas=slots)
    again, _ = check(kernel, spec, resident_ctas=3, warp_schedule="random", seed=slots, dispatch="permuted")
    assert all(torch.equal(x, again[name]) for name, x in first.items())


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        nightly_unless(not case.marks and case.values[1] == "one float at a time", *case.values)
        for case in covering(["second_add_stores", "first_add_adds", "unvisited_dq_read"], list(KERNELS), strength=1)
    ],
)
def test_planted_bugs_of_the_first_add_are_seen(name, kernel):
    spec = unseen(kernel, "causal")
    good, *_ = check(kernel, spec)
    problem, out, _, reports = run(kernel, spec, MUTANTS[name].injection.backward)
    assert [r.status for r in reports] == ["finished"] * 3
    found = errors(problem, out)
    assert found["dq"] > 1 and all(torch.equal(good[x].nan_to_num(7), out[x].nan_to_num(7)) for x in ("dk", "dv"))


@pytest.mark.parametrize("kernel", daily(list(KERNELS), ["tcgen05, in bulk"]))
def test_only_ordered_adds_store(kernel):
    arch, shape = KERNELS[kernel]
    dim = {40: 64}.get(shape["dim"], shape["dim"])
    of = Variant("backward", "bfloat16", dim, tile_n=shape.get("tile_n", 128), mask="band", deterministic=True)
    of = replace(of, products=shape.get("products", "mma"), tuning=shape.get("tuning", ()))
    first, atomic = ptx_of(of, arch), ptx_of(replace(of, deterministic=False), arch)
    in_bulk = of.products != "mma" and kernel not in ("straight warpgroups", "tcgen05, by threads")
    store = "cp.async.bulk.global.shared::cta.bulk_group" if in_bulk else "st.global"
    assert first.count(store) > atomic.count(store)
    assert ("cp.reduce.async.bulk.global.shared::cta" in first) == in_bulk
