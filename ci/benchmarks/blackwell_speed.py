"""Speed of the block-sparse kernels by tcgen05 on a Blackwell GPU, beside FlashAttention-4 where it imports.

    python ci/benchmarks/blackwell_speed.py --out speed_b200.json
    python ci/benchmarks/blackwell_speed.py --emulated --out /tmp/x.json     tiny, on the emulated GPU: its syntax

Rows are causal, full and window masks; 16 query heads on 16 and on 2 KV heads, bfloat16. Of each: forward by tcgen05,
with one and with two query tiles in a CTA, both also with all exponentials by MUFU.EX2 ("no polynomials"), two also
with a CTA for each tile instead of persistent ones, and by the portable kernel; backward by tcgen05, also on pairs of
CTAs, each atomic and deterministic, and by the portable one; FlashAttention-4's forward, backward and deterministic
backward. Medians of CUDA events around each call after a warm-up, in milliseconds, all in one process. 'difference' is
the largest one of a result from the portable kernel's, over that one's largest value. Results are written as they come;
what fails is a row's 'error', and what `--max-time` leaves out is listed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fuzz.session.records import machine  # noqa: E402
from kernels.blocksparse import block_sparse_attention  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.lists.bands import band  # noqa: E402
from kernels.blocksparse.lists.builder import dense  # noqa: E402
from kernels.blocksparse.lists.schedule import DESCENDING  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.spec.variant import PAIR, PAIR_KEYS  # noqa: E402

TILE, DISAGREE = 128, 0.02
NO_POLYNOMIALS = (("polynomials", 0),)  # all exponentials by MUFU.EX2
MOST = 2**31 - 1  # persistent CTAs: more than tiles, so that each has one
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A problem. window: keys to the left that a query sees, 0 for all; kept: pairs of query and key of a head."""

    mask: str
    tokens: int
    dim: int
    batch: int = 1
    heads: tuple[int, int] = (16, 16)
    window: int = 0

    @property
    def kept(self) -> int:
        """Pairs of query and key that the mask keeps, of a head."""
        n = self.tokens
        if self.mask == "full":
            return n * n
        return n * (n + 1) // 2 - (max(n - self.window - 1, 0) * (n - self.window) // 2 if self.window else 0)


ROWS = (
    *(Row(mask, 8192, dim, 2) for dim in (128, 64) for mask in ("causal", "full")),
    *(Row(mask, 2048, dim, 8) for dim in (128, 64) for mask in ("causal", "full")),
    *(Row("causal", 32768, dim) for dim in (128, 64)),
    *(Row("window", 32768, dim, window=2048) for dim in (128, 64)),
    *(Row("causal", 8192, dim, 2, (16, 2)) for dim in (128, 64)),
)
TINY = (Row("causal", 256, 64, heads=(1, 1)),)


def main() -> int:
    """Times all rows; exit code 1 where one failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-time", type=float, default=900.0, help="begin no row after so many seconds (900)")
    parser.add_argument("--emulated", action="store_true", help="tiny, on the emulated GPU")
    given = parser.parse_args()
    until, rows, left = time.monotonic() + given.max_time, [], []
    with emulated() if given.emulated else nullcontext():
        for row in TINY if given.emulated else ROWS:
            if time.monotonic() > until:
                left.append(asdict(row))
                continue
            rows.append(timed(row, "cpu" if given.emulated else "cuda"))
            print(json.dumps(rows[-1]), flush=True)
            result = {"machine": machine(), "emulated": given.emulated, "tcgen05": rows, "left_out": left}
            given.out.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [row for row in rows if row["errors"] or any(x > DISAGREE for x in row["difference"].values())]
    return 1 if wrong else 0


def emulated() -> Any:
    """Block in which kernels run on the emulated GPU."""
    from fuzz.devices.emulated import on_emulated_gpu

    return on_emulated_gpu("sm_100a", resident_ctas=2)


def timed(row: Row, device: str) -> dict[str, Any]:
    """A row's times, rates and differences."""
    torch.manual_seed(0)
    heads_q, heads_kv = row.heads

    def tensor(heads: int) -> Tensor:
        made = torch.randn(row.batch, row.tokens, heads, row.dim, dtype=torch.bfloat16, device=device)
        return made.requires_grad_()

    q, k, v = tensor(heads_q), tensor(heads_kv), tensor(heads_kv)
    do = torch.randn(q.shape, device=device).to(q.dtype)
    found: dict[str, Any] = {"ms": {}, "tflops": {}, "difference": {}, "errors": {}}
    right: list[Tensor] = []
    for name, forward in ways(row, device).items():
        try:
            o = forward(q, k, v)
            of_inputs = (q, k, v) if o.requires_grad else ()
            results = [o, *(torch.autograd.grad(o, of_inputs, do, retain_graph=True) if of_inputs else ())]
            right = right or results  # the portable kernel comes first
            found["difference"][name] = max(map(difference, results, right))
            if "deterministic" not in name and "pairs of CTAs" not in name:  # the forward pass is that of others
                found["ms"][f"{name} forward"] = median(partial(_no_gradients, forward, q, k, v), device)
            if of_inputs:
                found["ms"][f"{name} backward"] = median(
                    partial(torch.autograd.grad, o, of_inputs, do, retain_graph=True), device
                )
        except Exception as error:
            found["errors"][name] = f"{type(error).__name__}: {error}"[:300]
    pairs = 4 * row.kept * row.dim * heads_q * row.batch
    for name, ms in found["ms"].items():
        found["tflops"][name] = round(pairs * (2.5 if name.endswith("backward") else 1.0) / ms / 1e9, 1)
    return {**asdict(row), **found}


def ways(row: Row, device: str) -> dict[str, Attention]:
    """Attention by each kernel, on (batch, tokens, heads, dim); the portable one first."""
    blocks = lists(row, device)
    pairs = replace(blocks, wide=lists(row, device, PAIR))
    of_ctas = replace(blocks, paired=lists(row, device, tile_n=PAIR_KEYS))

    def ours(blocks: BlockSparse, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        by_head = (x.transpose(1, 2) for x in (q, k, v))
        return block_sparse_attention(*by_head, blocks, **options)[0].transpose(1, 2)

    found: dict[str, Attention] = {
        "portable": partial(ours, blocks, products="mma"),
        "tcgen05": partial(ours, blocks, products="tcgen05"),
        "tcgen05, two query tiles": partial(ours, pairs, products="tcgen05"),
        "tcgen05, no polynomials": partial(forward_alone, blocks, tuning=NO_POLYNOMIALS),
        "tcgen05, two query tiles, no polynomials": partial(forward_alone, pairs, tuning=NO_POLYNOMIALS),
        "tcgen05, two query tiles, a CTA for each": partial(forward_alone, pairs, resident=MOST),
        "tcgen05 deterministic": partial(ours, blocks, products="tcgen05", deterministic=True),
        "tcgen05, pairs of CTAs": partial(ours, of_ctas, products="tcgen05"),
        "tcgen05, pairs of CTAs, deterministic": partial(ours, of_ctas, products="tcgen05", deterministic=True),
    }
    if device == "cuda" and importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute"):
        from flash_attn.cute import flash_attn_func

        masks: dict[str, dict[str, Any]] = {"causal": {"causal": True}, "window": {"window_size": (row.window, 0)}}

        def theirs(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            result = flash_attn_func(q, k, v, **masks.get(row.mask, {}), **options)
            return result[0] if isinstance(result, tuple) else result

        found |= {
            "FlashAttention-4": theirs,
            "FlashAttention-4 deterministic": partial(theirs, deterministic=True),
        }
    return found


def forward_alone(blocks: BlockSparse, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The forward pass alone, launched with options of `launch.forward`."""
    o, (batch, tokens, heads) = torch.empty_like(q), q.shape[:3]
    lse = torch.empty(batch, heads, tokens, device=q.device)
    none = torch.zeros(batch, dtype=torch.int32, device=q.device)
    with torch.no_grad():
        launch.forward(
            *(x.detach() for x in (q, k, v, o)),
            lse,
            launch.Sequences(none, none + tokens, none, none + tokens),
            blocks,
            scale=q.shape[-1] ** -0.5,
            products="tcgen05",
            **options,
        )
    return o.detach()


def lists(row: Row, device: str, tile_m: int = TILE, tile_n: int = TILE) -> BlockSparse:
    """The block lists of a row's mask, backward ones too where there are kernels for such tiles."""
    lengths = [row.tokens] * row.batch
    options: Any = {"tile_m": tile_m, "tile_n": tile_n, "device": device, "backward": tile_m == TILE}
    if row.mask == "full":
        return dense(lengths, lengths, **options)
    return band(lengths, lengths, left=row.window or None, right=0, schedule=DESCENDING, **options)


def _no_gradients(forward: Attention, q: Tensor, k: Tensor, v: Tensor) -> None:
    with torch.no_grad():
        forward(q, k, v)


def median(call: Callable[[], Any], device: str, runs: int = 20) -> float:
    """Milliseconds of a call; on the emulated GPU of one call, by the clock."""
    if device == "cpu":
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)
    for _ in range(3):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def difference(got: Tensor, right: Tensor) -> float:
    """The largest difference, over the largest value; inf where a value is not finite."""
    got, right = got.detach().float(), right.detach().float()
    apart = float((got - right).abs().max() / right.abs().max())
    return apart if apart == apart else float("inf")


if __name__ == "__main__":
    sys.exit(main())
