"""What flash_attn.cute refuses, as a table: the arch, the reason, when, and where in its source it says so.

Read from flash-attn-4 4.0.0b36. 'refuses': it raises, at its interface or while it traces the kernel, and the harness
asks now and then; accepting is a finding. 'cannot': its interface has no such thing, or this adapter does not say it.
Each row that refuses has an example, which the tests ask FlashAttention-4 itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fuzz.core.case import Case
from fuzz.core.support import Rule
from fuzz.targets.flash_attention_4.arguments import MASKS, mask_options
from fuzz.targets.flash_attention_4.extras import EXTRAS, bounds_of, misplaced
from oracles.masks import Causal, Full, Prefix, Window
from oracles.problem import AnyProblem, Problem

# Every option of a variant, with its default. edge: the mask's tensor ends where mapped memory ends. exits: on the
# emulated GPU, bulk copies in flight when a CTA exits are findings. Both show known bugs that would hide others.
OPTIONS: dict[str, str | int | bool] = {
    "mask": "options",
    "deterministic": False,
    "pack_gqa": "auto",
    "splits": 1,
    "block": "128x128",
    "order": "ascending",
    "edge": False,
    "exits": False,
    **{name: values[0] for name, values in EXTRAS.items()},
}
_KNOWN: dict[str, tuple[str | int | bool, ...]] = {
    "mask": MASKS,
    "deterministic": (False, True),
    "pack_gqa": ("auto", "on", "off"),
    "splits": (1, 2, 3),
    "order": ("ascending", "descending"),
    "edge": (False, True),
    "exits": (False, True),
    **EXTRAS,
}
ARCHS = ("sm_90a", "sm_100a")
_PLAIN = Problem((256,), (256,), 2, 2, 64, 64, "bfloat16")


@dataclass(frozen=True)
class Row:
    """One refusal. `source` is file:line of flash_attn/cute; `example` the fields of a Problem that differ from a plain
    one (256 tokens, 2 heads, head dim 64), and `variant` its options."""

    why: str
    applies: Callable[[Case], bool]
    archs: tuple[str, ...] = ARCHS
    kind: Literal["cannot", "refuses"] = "refuses"
    source: str = ""
    example: tuple[tuple[str, Any], ...] = ()
    variant: tuple[tuple[str, Any], ...] = ()

    def case(self, target: str) -> Case:
        """The example."""
        fields = {name: getattr(_PLAIN, name) for name in _PLAIN.__struct_fields__} | dict(self.example)
        return Case(target=target, problem=Problem(**fields), variant=dict(self.variant), repeats=1)


def rules(arch: str) -> tuple[Rule, ...]:
    """The rows of one arch, as the harness reads them."""
    return tuple(Rule(row.why, row.applies, row.kind) for row in TABLE if arch in row.archs)


def options_of(case: Case) -> dict[str, Any]:
    """A case's options with the defaults."""
    return OPTIONS | case.variant


def blocks_for(problem: AnyProblem, arch: str) -> str:
    """Block sizes that both passes take, as 'MxN': see `_NOT_ITS_TILES` and the two rows after it."""
    if arch == "sm_90a":
        return f"128x{_backward_tile_n(problem.dim)}"
    return "256x256" if problem.dim == 192 else "256x128"


def _backward_tile_n(dim: int) -> int:
    """Keys of a tile of the sm_90 backward pass with block lists."""
    return 128 if dim <= 128 else 96 if dim <= 192 else 64


def _block(case: Case) -> tuple[int, int]:
    m, _, n = str(options_of(case)["block"]).partition("x")
    return int(m), int(n)


def _unknown(case: Case) -> bool:
    options = options_of(case)
    if set(options) != set(OPTIONS) or any(options[name] not in known for name, known in _KNOWN.items()):
        return True
    m, _, n = str(options["block"]).partition("x")
    return not (m.isdigit() and n.isdigit() and 16 <= int(m) <= 1024 and 16 <= int(n) <= 1024)


def _launches(case: Case) -> bool:
    """Without queries or keys it returns zeros before it looks at most of its options."""
    return sum(case.problem.lengths_q) > 0 and sum(case.problem.lengths_k) > 0


def _backward(case: Case) -> bool:
    return case.problem.backward and _launches(case)


def _uses(case: Case, mask: str) -> bool:
    return options_of(case)["mask"] == mask


def _wrong_blocks_sm90(case: Case) -> bool:
    """Its forward pass shrinks its tiles to the blocks, its backward pass does not."""
    m, n = _block(case)
    dim = case.problem.dim
    return (
        _uses(case, "blocks")
        and _backward(case)
        and (n != _backward_tile_n(dim) or m % (128 if dim <= 64 else 64) != 0)
    )


def _wrong_blocks_sm100(case: Case) -> bool:
    m, n = _block(case)
    p = case.problem
    packed = options_of(case)["pack_gqa"] != "off" and "per_head" not in str(p.mask)
    rows = p.len_q * (p.group if packed else 1)
    stage = 256 if rows > 128 and p.dim_v != 256 else 128
    return _uses(case, "blocks") and _launches(case) and (m % stage != 0 or n % 128 != 0)


_DIM_256 = (("dim", 256), ("dim_v", 256))
TABLE: tuple[Row, ...] = (
    Row("options that this adapter does not know", _unknown, kind="cannot"),
    Row(
        "mask=options says full, causal and window only, both of these aligned at the bottom right",
        lambda c: _uses(c, "options") and mask_options(c.problem) is None,
        kind="cannot",
    ),
    Row(
        "mask=scalars says one band of keys around the diagonal, of whole sequences' own positions",
        lambda c: _uses(c, "scalars") and bounds_of(c.problem) is None,
        kind="cannot",
    ),
    Row(
        "flags=True is about a mask that is said by a tensor too",
        lambda c: bool(options_of(c)["flags"]) and (_uses(c, "options") or _uses(c, "scalars")),
        kind="cannot",
    ),
    Row(
        "extras that the problem has no use for, or that would change its answer: see extras.py",
        lambda c: misplaced(c.problem, {name: options_of(c)[name] for name in EXTRAS}) != "",
        kind="cannot",
    ),
    Row(
        "keys=paged with block lists, a softcap as a score_mod, or splits: one at a time",
        lambda c: (
            options_of(c)["keys"] == "paged"
            and (_uses(c, "blocks") or options_of(c)["scores"] != "softcap" or int(options_of(c)["splits"]) > 1)
        ),
        kind="cannot",
    ),
    Row(
        "head dim 256 with a sink, a score_mod, or pages",
        lambda c: (
            max(c.problem.dim, c.problem.dim_v) == 256
            and (
                bool(options_of(c)["sink"])
                or options_of(c)["scores"] == "score_mod"
                or options_of(c)["keys"] == "paged"
            )
        ),
        ("sm_100a",),
        kind="cannot",
    ),
    Row(
        "edge=True is about the mask's tensor, which mask=options has none of",
        lambda c: bool(options_of(c)["edge"]) and (_uses(c, "options") or _uses(c, "scalars")),
        kind="cannot",
    ),
    Row(
        "block lists for sequences of different lengths: here for equally long ones only",
        lambda c: _uses(c, "blocks") and (c.problem.layout == "packed" or c.problem.ragged),
        kind="cannot",
    ),
    Row(
        "block lists and flash_attn_varlen_func, which takes lists of all sequences' blocks in one row there: not made",
        lambda c: _uses(c, "blocks") and options_of(c)["function"] == "varlen",
        ("sm_100a",),
        kind="cannot",
    ),
    Row(
        "block lists without blocks: with no query, or no key, it needs none",
        lambda c: _uses(c, "blocks") and not _launches(c),
        kind="cannot",
    ),
    Row(
        "pack_gqa=on without groups",
        lambda c: options_of(c)["pack_gqa"] == "on" and c.problem.group == 1,
        kind="cannot",
    ),
    Row(
        "a head dim that is no multiple of 8",
        lambda c: c.problem.dim % 8 != 0 or c.problem.dim_v % 8 != 0,
        source="interface.py:121",
        example=(("dim", 100), ("dim_v", 100)),
    ),
    Row(
        "head dims above 128, but for 192 with 128 and 256 with 256",
        lambda c: (
            max(c.problem.dim, c.problem.dim_v) > 128
            and (c.problem.dim, c.problem.dim_v) not in ((192, 128), (256, 256))
        ),
        ("sm_100a",),
        source="interface.py:136",
        example=(("dim", 160), ("dim_v", 160)),
    ),
    Row(
        "several splits of the keys",
        lambda c: int(options_of(c)["splits"]) > 1 and _launches(c),
        ("sm_90a",),
        source="interface.py:1646",
        variant=(("splits", 2),),
    ),
    Row(
        "grouped heads and dim_v other than dim in the backward pass",
        lambda c: _backward(c) and c.problem.group > 1 and c.problem.dim != c.problem.dim_v,
        ("sm_90a",),
        source="flash_bwd_sm90.py:116",
        example=(("heads_kv", 1), ("dim_v", 128)),
    ),
    Row(
        "a deterministic backward pass with block lists",
        lambda c: _backward(c) and _uses(c, "blocks") and bool(options_of(c)["deterministic"]),
        ("sm_90a",),
        source="flash_bwd_sm90.py:1920",
        example=(("mask", Prefix(100)),),
        variant=(("mask", "blocks"), ("deterministic", True)),
    ),
    Row(
        "blocks that are not those of its backward pass: 128, 96 or 64 keys up to head dim 128, 192, 256",
        _wrong_blocks_sm90,
        ("sm_90a",),
        source="block_sparsity.py:662",
        example=(("mask", Prefix(100)),),
        variant=(("mask", "blocks"), ("block", "128x64")),
    ),
    Row(
        "blocks that are no multiples of 128 keys and of 256 queries (128 for at most 128 rows of queries)",
        _wrong_blocks_sm100,
        ("sm_100a",),
        source="block_sparsity.py:566",
        example=(("mask", Prefix(100)),),
        variant=(("mask", "blocks"), ("block", "128x128")),
    ),
    Row(
        "head dim 192, block lists and a backward pass, but for blocks of 256 keys",
        lambda c: _backward(c) and _uses(c, "blocks") and c.problem.dim == 192 and _block(c)[1] % 256 != 0,
        ("sm_100a",),
        source="interface.py:2437",
        example=(("mask", Prefix(100)), ("dim", 192), ("dim_v", 128)),
        variant=(("mask", "blocks"), ("block", "256x128")),
    ),
    Row(
        "head dim 256 with a window in the backward pass",
        lambda c: _backward(c) and c.problem.dim == 256 and _windowed(c),
        ("sm_100a",),
        source="sm100_hd256_2cta_fmha_backward.py:60",
        example=(*_DIM_256, ("mask", Window(64, 0, "bottom_right"))),
    ),
    Row(
        "head dim 256 with a softcap in the backward pass",
        lambda c: _backward(c) and c.problem.dim == 256 and c.problem.softcap > 0,
        ("sm_100a",),
        source="interface.py:2936",
        example=(*_DIM_256, ("softcap", 30.0)),
    ),
    Row(
        "head dim 256 with a mask_mod or block lists in the backward pass",
        lambda c: _backward(c) and c.problem.dim == 256 and not _uses(c, "options"),
        ("sm_100a",),
        source="sm100_hd256_2cta_fmha_backward.py:67",
        example=(*_DIM_256, ("mask", Prefix(100))),
        variant=(("mask", "mask_mod"),),
    ),
)


def _windowed(case: Case) -> bool:
    """True if its options make a window of the mask: one side open and 0 on the right is causal, both open is full."""
    mask = case.problem.mask
    if not _uses(case, "options") or isinstance(mask, Full | Causal):
        return False
    return isinstance(mask, Window) and (mask.left is not None or mask.right not in (0, None))
