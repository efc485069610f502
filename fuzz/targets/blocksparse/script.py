"""What the adapter of blocksparse does, as lines of a script that needs only `kernels`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.targets import merge_by_lse
from fuzz.targets.blocksparse import block_lists, two_calls
from fuzz.targets.blocksparse.block_lists import FASTEST, HALVED, options_of, schedule_of
from fuzz.targets.blocksparse.by_head import by_head, first_blocks
from fuzz.targets.blocksparse.turned import TURNED, turned
from oracles.masks import Causal, Window
from oracles.problem import cumulative

_ROOT = Path(__file__).resolve().parents[3]


def blocksparse_text(case: Case, mutant: str) -> Text:
    """Block lists from `keep` (or from the band's parameters), and the call."""
    p, options = case.problem, options_of(case)
    halved = options["lists"] == HALVED
    tile_n = int(options["tile_n"]) * (2 if halved else 1)
    order = "ASCENDING" if halved else "schedule"
    tiles = f"tile_m={options['tile_m']}, tile_n={tile_n}, schedule={order}, backward={p.backward}"
    how, wide = str(options["mask"]), options["wide"]
    call = [f"schedule = {_schedule(case)}"]
    if how == "intervals":
        pad = f"(0, -keep.shape[2] % {options['tile_m']})"
        call.append(f"bounds = torch.nn.functional.pad(runs(keep), {pad})")
    call.append(f"blocks = {_built(case, tiles)}")
    if halved:
        half = f"halve_keys(blocks, {list(p.lengths_k)})"
        call.append(f"blocks = {f'with_order({half}, schedule)' if p.backward else half}")
    first = first_blocks(p, tile_n) if how == "band" else []
    if first:
        call.append(f"blocks = by_head(blocks, {first}, {-(-p.len_k // tile_n)})")
    turns = options["schedule"] == TURNED and p.backward
    if turns:
        call.append("blocks = turned(blocks)")
    if wide:
        beside = f"tile_m={wide}, tile_n={options['tile_n']}, backward=False"
        call.append(f"blocks = replace(blocks, wide={_built(case, beside)})")
    planned = options["schedule"] == "planned" and p.backward
    turned_back = planned and block_lists.reverses(case)
    split = two_calls.splits(case)
    if split:
        call.append("calls = [keys_of_parity(blocks, parity) for parity in (0, 1)]")
    if planned:
        heads = f"heads_q={p.heads_q}, heads_kv={p.heads_kv}, batch={p.batch}, packed={p.layout == 'packed'}"
        heads += ", pairs=1" * turned_back
        turn = "replace({0}, schedule=replace({0}.schedule, reverses=True))"
        best = f"least_blocking(blocks, {heads}).blocks"
        call.append(f"calls = [{best} for blocks in calls]" if split else f"blocks = {best}")
        if turned_back:
            back = turn.format("blocks")
            call.append(f"calls = [{back} for blocks in calls]" if split else f"blocks = {back}")
    if options["paired"]:
        order = _schedule(case, paired=True)
        paired = _built(case, f"tile_m=128, tile_n={options['paired']}, schedule={order}, backward=True")
        if planned:
            paired = f"least_blocking({paired}, {heads}).blocks"
        if turned_back:
            call += [f"paired = {paired}", f"paired = {turn.format('paired')}"]
            paired = "paired"
        call.append(f"blocks = replace(blocks, paired={paired})")
    kernel = f'MUTANTS["{mutant}"]' if mutant else "block_sparse_attention"
    given = [f"scale={p.scale!r}"] * (p.scale is not None) + [f"softcap={p.softcap!r}"] * (p.softcap > 0)
    given.append(f"deterministic={bool(options['deterministic'])}")
    if options["products"] != FASTEST:
        given.append(f"products={options['products']!r}")
    names = ("cu_seqlens_q", "cu_seqlens_k") if p.layout == "packed" else ("lengths_q", "lengths_k")
    if p.layout == "packed" or p.ragged:
        for name, each in zip(names, (p.lengths_q, p.lengths_k), strict=True):
            numbers = list(cumulative(each) if p.layout == "packed" else each)
            call.append(f"{name} = torch.tensor({numbers}, dtype=torch.int32, device=q.device)")
            given.append(f"{name}={name}")
    answer = f"{kernel}(q, k, v, blocks, {', '.join(given)})"
    if split:
        call += [f"parts = [{answer} for blocks in calls]", *merge_by_lse.lines(packed=p.layout == "packed")]
    else:
        call.append(f"o, lse = {answer}")
    sources = {
        "bits": "kernels.blocksparse.lists.from_mask import from_mask",
        "intervals": "kernels.blocksparse.lists.intervals import intervals",
        "band": "kernels.blocksparse.lists.bands import band",
        "none": "kernels.blocksparse.lists.builder import dense",
    }
    source = (
        "kernels.mutants.blocksparse.table import MUTANTS" if mutant else f"kernels.blocksparse.api import {kernel}"
    )
    lines = [f"sys.path.insert(0, {str(_ROOT)!r})  # the folder that holds `kernels`"]
    imported = [source, sources[how], _SCHEDULES] + [_PLANNER] * planned + [*_TWO_CALLS] * split + [*_TURNED] * turns
    imported += [*_BY_HEAD] * bool(first)
    imported += [*_HALVES] * halved + ["dataclasses import replace"] * bool(wide or options["paired"] or turned_back)
    lines += [f"from {one}  # noqa: E402" for one in sorted(set(imported))]
    parts: list[Callable[..., Any]] = [block_lists.runs, block_lists._positions] * (how == "intervals")
    if split:
        parts += [two_calls.keys_of_parity, two_calls.listed, two_calls.beside]
    if first:
        parts.append(by_head)
    if turns:
        parts.append(turned)
    if parts:
        lines += ["from torch import Tensor  # noqa: E402", *(f"\n\n{inspect.getsource(part)}" for part in parts)]
    return Text(tuple(call), ("import sys",), "\n".join(lines), how not in ("band", "none"), lse=True)


_PLANNER = "kernels.blocksparse.planner.planner import least_blocking"
_TWO_CALLS = (  # what keys_of_parity reads
    "dataclasses import replace",
    "kernels.blocksparse.lists.lpt import with_lpt_order",
    "kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, entries, exclusive_sum",
    "kernels.blocksparse.lists.write_order import with_order",
)
_HALVES = (
    "kernels.blocksparse.lists.halves import halve_keys",
    "kernels.blocksparse.lists.write_order import with_order",
)
_TURNED = (  # what turned reads
    "dataclasses import replace",
    "kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse",
    "kernels.blocksparse.lists.write_order import with_order",
)
_BY_HEAD = (  # what by_head reads
    "collections.abc import Sequence",
    "dataclasses import replace",
    "kernels.blocksparse.lists.lpt import with_lpt_order",
    "kernels.blocksparse.lists.transpose import with_backward",
    "kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse",
    "kernels.blocksparse.lists.write_order import with_order",
)
_SCHEDULES = "kernels.blocksparse.lists.schedule import ALIKE, ASCENDING, DESCENDING, permutation"


def _built(case: Case, tiles: str) -> str:
    """Block lists of these tiles."""
    p = case.problem
    lengths, nested = f"{list(p.lengths_q)}, {list(p.lengths_k)}", bool(options_of(case)["nested"])
    return {
        "bits": f"from_mask(keep, {lengths}, {tiles})",
        "intervals": f"intervals(bounds, {lengths}, {tiles})",
        "band": f"band({lengths}, {_sides(case)}, {tiles}{', nested=True' * nested}, device=q.device)",
        "none": f"dense({lengths}, {tiles}, device=q.device)",
    }[str(options_of(case)["mask"])]


def _schedule(case: Case, *, paired: bool = False) -> str:
    schedule = schedule_of(case, paired=paired)
    if schedule.positions is None:
        return "ALIKE" if schedule.alike else schedule.kind.upper()
    return f"permutation(torch.tensor({schedule.positions.tolist()}, dtype=torch.int32, device=q.device))"


def _sides(case: Case) -> str:
    match case.problem.mask:
        case Causal(align):
            return f"left=None, right=0, align={align!r}"
        case Window(left, right, align):
            return f"left={left}, right={right}, align={align!r}"
    if first_blocks(case.problem, 1):
        return "left=None, right=0, align='bottom_right'"
    return "left=None, right=None"
