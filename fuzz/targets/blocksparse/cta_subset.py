"""Some CTAs of the block-sparse forward kernel, on the emulated GPU: `variant={"ctas": "7,9000"}`.

With it a case may have millions of tokens, and shows what happens to an index there: see fuzz/judging/cta_subset.py.
The block lists come from the parameters of a band, so nothing of the size of the mask is ever made.
"""

from __future__ import annotations

import random
import re
from typing import Any

import torch

from fuzz.core.case import Case, Inputs, Order, Storage
from fuzz.core.support import Rule
from fuzz.core.target import Tensors
from fuzz.targets.blocksparse.block_lists import options_of, products_of
from fuzz.targets.blocksparse.devices import emulated, emulator_of
from fuzz.targets.blocksparse.variants import kernels_for
from kernels.blocksparse.lists.types import Band, BlockSparse
from kernels.blocksparse.spec.injection import Injections
from oracles.masks import Window
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, Dtype, Problem

MOST = 64  # CTAs of a case
ORDERS: tuple[Order, ...] = ("bshd", "bhsd", "sbhd")  # a row's elements lie together
ELEMENTS = (9 << 28, 17 << 28)  # of K and V: an eighth more than 2 ** 31, a sixteenth more than 2 ** 32
MOST_TOKENS, MOST_ROWS = 2_500_000, 50_000_000  # of a head, whose blocks are listed; of LSE, which is looked at whole


class Ctas:
    """The values of the option: linear indices in the grid of the forward kernel, with commas; '' for all."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(r"(\d{1,10}(,\d{1,10})*)?", value) is not None

    def __repr__(self) -> str:
        return "CTAs with commas"


def ctas_of(case: Case) -> tuple[int, ...]:
    """The CTAs that the case runs; (): all of them."""
    text = str(case.variant.get("ctas", ""))
    return tuple(dict.fromkeys(int(number) for number in text.split(","))) if text else ()


def seed_cases(target: str) -> tuple[Case, ...]:
    """What every session of the emulated kernel begins with: the first and the last CTAs at 2,000,000 tokens, with rows
    far apart (bshd) and with heads far apart (bhsd): offsets beyond 2 ** 32 elements."""
    cases = []
    for order, heads_q, heads_kv in (("bshd", 40, 20), ("bhsd", 20, 20)):
        problem = Problem(
            (2_000_000,), (2_000_000,), heads_q, heads_kv, 128, 128, "float16", mask=Window(70, 5), backward=False
        )
        (kernel,) = [one for one in kernels_for(problem) if one["mask"] == "band"]
        last = heads_q * -(-2_000_000 // kernel["tile_m"]) - 1
        storage = Storage(order)  # type: ignore[arg-type]
        inputs = Inputs(q=storage, k=storage, v=storage)
        variant = kernel | {"ctas": f"7,9000,{last // 2},{last}"}
        cases.append(Case(target, problem, inputs, variant, repeats=2))
    return tuple(cases)


def draw_case(draw: random.Random, target: str, repeats: int) -> Case:
    """A case whose offsets mostly go beyond 2 ** 31 elements, or 2 ** 32, of a dim that has a kernel with a band as
    mask. Five CTAs run: those of the last head's first and last rows, and three others."""
    known: list[tuple[Dtype, int]] = [(dtype, dim) for dtype in ("bfloat16", "float16") for dim in range(64, 129, 8)]
    kernels = {one: _bands(Problem((1,), (1,), 1, 1, one[1], one[1], one[0])) for one in known}
    dtype, dim = draw.choice([one for one in known if kernels[one]])
    kernel = draw.choice(kernels[dtype, dim])
    heads_kv, group = draw.choice((8, 12, 20)), draw.choice((1, 1, 2))
    heads_q = heads_kv * group
    most = min(MOST_TOKENS, MOST_ROWS // heads_q)
    len_q = min(draw.choice(ELEMENTS) // (heads_kv * dim), most) + draw.choice((-1, 0, 1, 40))
    len_k = len_q + draw.choice((0, 0, -3, 65))
    # with a single key a row's LSE is 0, which looks as if it had not been written
    band = Window(draw.choice((64, 70, 200)), draw.choice((0, 5, 64)), draw.choice(("top_left", "bottom_right")))
    problem = Problem((len_q,), (len_k,), heads_q, heads_kv, dim, dim, dtype, mask=band, backward=False)
    m_blocks = -(-len_q // kernel["tile_m"])
    last = heads_q * m_blocks - 1
    ctas = sorted({last, _first_of_last_head(problem, m_blocks), *(draw.randint(0, last) for _ in range(3))})
    q, k, v = (Storage(draw.choice(ORDERS)) for _ in range(3))
    variant = kernel | {"ctas": ",".join(map(str, ctas))}
    return Case(target, problem, Inputs(draw.randint(0, 255), q=q, k=k, v=v), variant, repeats=repeats)


def _first_of_last_head(p: Problem, m_blocks: int) -> int:
    """The CTA of the last query head's tile that is launched first, of one sequence with a window as mask. Heads are
    launched in sections, whose tiles alternate (`place_of` of forward/kernel.py)."""
    from kernels.blocksparse.launch.forward import query_heads_of_section

    assert isinstance(p.mask, Window) and p.mask.left is not None and p.mask.right is not None
    band = Band(p.mask.left, p.mask.right, torch.zeros(1, dtype=torch.int32))
    k = torch.empty(1, p.len_k, p.heads_kv, p.dim, dtype=getattr(torch, p.dtype), device="meta")
    section = query_heads_of_section(k, 1, p.heads_q, band)
    before = (p.heads_q - 1) // section * section
    return before * m_blocks + p.heads_q - 1 - before


def _bands(problem: AnyProblem) -> list[dict[str, Any]]:
    return [one for one in kernels_for(problem) if one["mask"] == "band"]


def run(case: Case, tensors: Tensors, into: Outputs, repeat: int, blocks: BlockSparse, injection: Injections) -> str:
    """Launches the CTAs of the case; returns the names of what was launched."""
    from kernels.blocksparse.launch import forward as launch

    device, p = emulated(), case.problem
    device.begin(emulator_of(options_of(case), repeat), only=ctas_of(case))
    begin = torch.zeros(p.batch, dtype=torch.int32)
    lengths = [torch.tensor(x, dtype=torch.int32) for x in (p.lengths_q, p.lengths_k)]
    q, k, v, o = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v, into.o))
    assert into.lse is not None
    scale = p.dim**-0.5 if p.scale is None else p.scale
    sequences = launch.Sequences(begin, lengths[0], begin, lengths[1])
    products = products_of(case, device.arch)
    launch.forward(
        q, k, v, o, into.lse, sequences, blocks,
        scale=scale, softcap=p.softcap or None, injection=injection.forward, host=injection.host, products=products,
        resident=launch.INT32_MAX,  # a CTA's tile is that of its number, and no other
    )  # fmt: skip
    return ", ".join(device.launched)


def _cannot(case: Case, emulated_here: bool) -> bool:
    p, options = case.problem, options_of(case)
    ctas = ctas_of(case)
    if not ctas:
        return False
    fits = all(x % 8 == 0 for s in (case.inputs.q, case.inputs.k, case.inputs.v) for x in (s.pad, s.offset))
    band: Any = p.mask
    grid = p.batch * p.heads_q * -(-p.len_q // int(options["tile_m"]))
    return not (
        emulated_here
        and not p.backward
        and p.layout == "padded"
        and not p.ragged
        and min(p.len_q, p.len_k) > 0
        and isinstance(band, Window)
        and options["mask"] == "band"
        and options["lists"] == "csr"
        and not options["wide"]
        and fits
        and not case.relations
        and len(ctas) <= MOST
        and max(ctas) < grid
    )


def rules(emulated_here: bool) -> tuple[Rule, ...]:
    """Rules for CTA-subset cases."""
    why = (
        "ctas: on the emulated GPU only, of a forward pass over padded sequences of one length, with a window as mask, "
        f"mask='band', lists='csr', one set of lists, 16-byte aligned rows and no relations; at most {MOST}, inside "
        "the grid"
    )
    return (Rule(why, lambda case: _cannot(case, emulated_here)),)
