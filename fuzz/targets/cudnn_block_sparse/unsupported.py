"""What cudnn.block_sparse_attention refuses, as a table: the GPU, the reason, when, and where in its source it says so.

Read from nvidia-cudnn-frontend 1.32.0; its contract for the lists is docs/fe-oss-apis/bsa.md of its repository.
'refuses': it raises, and the harness asks now and then; accepting is a finding. 'cannot': it has no such thing, its
contract excludes it, or this adapter does not say it. Each row that refuses has an example, which the tests ask the
package itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.support import Rule
from fuzz.targets.cudnn_block_sparse.arguments import OPTIONS, block_of, blocks, packs
from oracles.problem import Problem

FAMILIES = (9, 10)  # compute capability: sm_90, sm_100
_CONTIGUOUS = Inputs()
_PLAIN = Problem((128,), (128,), 2, 2, 128, 128, "bfloat16")


@dataclass(frozen=True)
class Row:
    """One refusal. `applies` is told the case and the family; `source` is file:line of cudnn/block_sparse_attention;
    `example` the fields of a Problem that differ from a plain one (128 tokens, 2 heads, head dim 128), `variant` its
    options, `inputs` its inputs."""

    why: str
    applies: Callable[[Case, int], bool]
    families: tuple[int, ...] = FAMILIES
    kind: Literal["cannot", "refuses"] = "refuses"
    source: str = ""
    example: tuple[tuple[str, Any], ...] = ()
    variant: tuple[tuple[str, Any], ...] = ()
    inputs: Inputs = _CONTIGUOUS

    def case(self, target: str) -> Case:
        """The example."""
        fields = {name: getattr(_PLAIN, name) for name in _PLAIN.__struct_fields__} | dict(self.example)
        return Case(target, Problem(**fields), self.inputs, dict(self.variant), repeats=1)


def rules(family: int) -> tuple[Rule, ...]:
    """The rows of one family, as the harness reads them."""
    found = [
        Rule(row.why, lambda case, row=row: row.applies(case, family), row.kind)  # type: ignore[misc]
        for row in TABLE
        if family in row.families
    ]
    return (OPTIONS.rule(), *found)


def _option(name: str, case: Case) -> Any:
    return OPTIONS.of(case)[name]


def _wrong_rows(case: Case, family: int) -> bool:
    found = blocks(case, family)
    assert found is not None
    splits = _option("splits", case)
    return splits != 1 and int(found.counts.min()) < (splits if isinstance(splits, int) else 1)


def _wrong_sizes(case: Case, family: int) -> bool:
    found, named = blocks(case, family), _option("sizes", case)
    assert found is not None
    return named != "needed" and int(named) < found.size_rank


def _most_sizes(case: Case, family: int) -> int:
    """Most axes that a tensor of block sizes may have."""
    if family == 10:
        return 1
    return 2 if case.problem.backward else 3


def _too_many_sizes(case: Case, family: int) -> bool:
    found, named = blocks(case, family), _option("sizes", case)
    assert found is not None
    rank = found.size_rank if named == "needed" else int(named)
    whole = bool(((found.keys == block_of(case, family)) | (found.keys == 0)).all())
    return rank > _most_sizes(case, family) and not (named == "needed" and whole)


def _wrong_fixed(case: Case, family: int) -> bool:
    found = blocks(case, family)
    assert found is not None
    return _option("counts", case) == "fixed" and found.fixed is None


def _shared_lists(case: Case, family: int) -> bool:
    found = blocks(case, family)
    assert found is not None
    alike = bool((found.listed == found.listed[:, :1]).all())
    return _option("lists", case) == "shared" and (not alike or _option("order", case) == "shuffled")


def _stores(case: Case) -> tuple[Storage, ...]:
    stores = (case.inputs.q, case.inputs.k, case.inputs.v)
    return (*stores, case.inputs.do) if case.problem.backward else stores


def _strided_dim(case: Case, family: int) -> bool:
    return any(x.order in ("bhds", "expanded") for x in _stores(case))


def _misaligned(case: Case, multiple: int) -> bool:
    """True if a tensor does not begin at a multiple of so many bytes, or dO at one of 16."""
    inputs = case.inputs
    if any(2 * x.offset % multiple for x in (inputs.q, inputs.k, inputs.v)):
        return True
    return case.problem.backward and 2 * inputs.do.offset % 16 != 0


def _misaligned_rows(case: Case, family: int) -> bool:
    return block_of(case, family) == 128 and (_misaligned(case, 16) or any(x.pad % 8 for x in _stores(case)))


def _misaligned_start(case: Case, family: int) -> bool:
    return _misaligned(case, 16) if family == 10 else block_of(case, 9) == 64 and _misaligned(case, 128)


TABLE: tuple[Row, ...] = (
    Row(
        "block=64 on sm_100: products that the emulated GPU does not have (tcgen05.mma.ws)",
        lambda c, f: block_of(c, f) == 64,
        (10,),
        kind="cannot",
    ),
    Row(
        "a mask that is no list of blocks for each query block, whole ones or a block's first keys, as many for all",
        lambda c, f: blocks(c, f) is None,
        kind="cannot",
    ),
    Row(
        "lists of rows that are no whole tensor: an error of the compiler's that no words of the package announce",
        lambda c, f: _option("lists", c) != "plain",
        (10,),
        kind="cannot",
    ),
    Row(
        "splits, whose blocks each query block has fewer of, by its contract; sm_90 alone here",
        lambda c, f: _wrong_rows(c, f) or (f == 10 and _option("splits", c) != 1),
        kind="cannot",
    ),
    Row("counts=fixed where query blocks have different numbers of blocks, or none", _wrong_fixed, kind="cannot"),
    Row("sizes with fewer axes than the mask has a use for", _wrong_sizes, kind="cannot"),
    Row("lists=shared where heads have different lists", _shared_lists, kind="cannot"),
    Row(
        "pack=on without groups, or where lists are not packed",
        lambda c, f: _option("pack", c) == "on" and (c.problem.group == 1 or not packs(c, f)),
        (10,),
        kind="cannot",
    ),
    Row("pack=off without groups", lambda c, f: _option("pack", c) == "off" and c.problem.group == 1, kind="cannot"),
    Row(
        "bucket and gradients are about a backward pass",
        lambda c, f: not c.problem.backward and (_option("bucket", c) != 0 or _option("gradients", c) != "made"),
        kind="cannot",
    ),
    Row(
        "exits is about the backward pass, of sm_90 with blocks of 64; products about sm_90 with blocks of 64",
        lambda c, f: (
            (bool(_option("exits", c)) and (not c.problem.backward or (f == 9 and block_of(c, f) != 64)))
            or (_option("products", c) != "together" and (f == 10 or block_of(c, f) != 64))
        ),
        kind="cannot",
    ),
    Row(
        "a number of queries that is no multiple of 64, with blocks of 64",
        lambda c, f: block_of(c, f) == 64 and c.problem.len_q % 64 != 0,
        (9,),
        source="api.py:234",
        example=(("lengths_q", (100,)),),
    ),
    Row(
        "an odd number of blocks for all query blocks",
        lambda c, f: _option("counts", c) == "fixed" and (blocks(c, f).fixed or 0) % 2 != 0,  # type: ignore[union-attr]
        (10,),
        source="api.py:115",
        variant=(("counts", "fixed"),),
    ),
    Row(
        "different head dims of K and V",
        lambda c, f: c.problem.dim != c.problem.dim_v,
        (10,),
        source="api.py:247",
        example=(("dim_v", 64), ("backward", False)),
    ),
    Row(
        "a backward pass in float16",
        lambda c, f: c.problem.backward and c.problem.dtype == "float16",
        source="api.py:437",
        example=(("dtype", "float16"),),
    ),
    Row(
        "a backward pass with several query heads for a KV head",
        lambda c, f: c.problem.backward and c.problem.group > 1,
        source="api.py:439",
        example=(("heads_kv", 1),),
    ),
    Row(
        "a backward pass with other head dims than 128, on sm_100 64 or 128",
        lambda c, f: (
            c.problem.backward
            and (c.problem.dim != c.problem.dim_v or c.problem.dim not in ((128,) if f == 9 else (64, 128)))
        ),
        source="api.py:448",
        example=(("dim", 96), ("dim_v", 96)),
    ),
    Row(
        "pack=on on sm_90",
        lambda c, f: _option("pack", c) == "on" and c.problem.group > 1,
        (9,),
        source="api.py:250",
        example=(("heads_kv", 1), ("backward", False)),
        variant=(("pack", "on"),),
    ),
    Row(
        "block sizes with more axes than the pass takes: 3 forward and 2 backward on sm_90, 1 on sm_100",
        _too_many_sizes,
        source="api.py:80",
        variant=(("sizes", "3"),),
    ),
    Row(
        "a head dim that is not contiguous",
        _strided_dim,
        source="api.py:45",
        inputs=Inputs(q=Storage("bhds")),
    ),
    Row(
        "rows that do not begin at multiples of 16 bytes, with blocks of 128",
        _misaligned_rows,
        (9,),
        source="_interface.py:1165",
        variant=(("block", "128"),),
        inputs=Inputs(k=Storage("bhsd", 0, 1)),
    ),
    Row(
        "tensors that do not begin at 16 bytes, on sm_90 with blocks of 64 at 128: what its kernels are compiled for",
        _misaligned_start,
        kind="cannot",
    ),
)
