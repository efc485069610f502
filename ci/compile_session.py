"""Compiles, before a session of nsa on a GPU, the kernels that its cases launch: each once, shared among processes.

    python ci/compile_session.py --cases 3000 --seed 72 --jobs 14

A session's workers compile what they meet. All meet the same kernels first, so that 14 of them compile most kernels 14
times. This draws the first cases of the session, plans their calls without running one, and compiles each kernel once:
Triton's into Triton's cache, those of kernels.blocksparse into the artifact cache. Without a GPU it compiles for the
emulated one, of `sm_90a`. Prints a line for each share; exits with 1 where a kernel does not compile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from fuzz.compiling.cache import Cache
from fuzz.compiling.pool import Pool
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Tensors
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import emulated
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse.devices import arch_with_gpu, connect
from fuzz.targets.nsa.gpu import GpuNativeSparse
from fuzz.targets.nsa.target import arguments
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant
from kernels.nsa import plan as plan_of_call
from kernels.sdpa.launch import Launch
from oracles.native_sparse.problem import NativeSparse

TARGET = "nsa"
ENOUGH = 1500  # cases after which hardly a kernel is new


def drawn_cases(settings: Settings, most: int) -> Iterator[Case]:
    """The cases of a session's first shards that run, at least `most` where there are so many."""
    target, count = GpuNativeSparse(), 0
    for shard in plan(settings):
        cases: list[Case] = []
        explore(shard, drawer_of(target, settings), cases.append, seed_cases(shard, target, settings))
        count += len(cases)
        yield from (case for case in cases if target.runs(case) and refusal(target, case) is None)
        if count >= most:
            return


def tensors_of(case: Case, device: str) -> Tensors:
    """Uninitialised tensors of a case's shapes (batch, heads, length, dim), or (rows, heads, dim) of packed cases."""
    p = case.problem
    assert isinstance(p, NativeSparse)

    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=p.torch_dtype, device=device)

    def tokens(heads: int) -> torch.Tensor:
        if p.layout == "packed":
            return new(sum(p.lengths), heads, p.dim)
        return new(len(p.lengths), p.len_q, heads, p.dim).transpose(1, 2)

    weights: dict[str, torch.Tensor] = {}
    for name in p.weights:
        weights[name] = new(p.heads_q, 3, p.dim) if name == "w_gate" else new(p.heads_kv, p.dim, p.dim)
    return Tensors(tokens(p.heads_q), tokens(p.heads_kv), tokens(p.heads_kv), **weights)


def kernels_of(settings: Settings, most: int) -> tuple[list[Launch], list[Variant]]:
    """Kernels of the session's cases, each once: Triton's, of which each has one launch, and block-sparse ones."""
    device, products = ("cuda", None) if torch.cuda.is_available() else ("cpu", "wgmma")
    launches: dict[tuple, Launch] = {}
    variants: dict[Variant, None] = {}
    for case in drawn_cases(settings, most):
        tensors = tensors_of(case, device)
        q, k, v = GpuNativeSparse.tokens(case, tensors)
        call = plan_of_call(q, k, v, backward=case.problem.backward, products=products, **arguments(case, tensors))
        variants |= dict.fromkeys(call.variants)
        for launch in call.launches:
            if launch.programs:
                launches.setdefault(launch.compile_key, launch)
    return list(launches.values()), list(variants)


def compile_triton(settings: Settings, most: int, share: int, shares: int) -> int:
    """Compiles a share of Triton's kernels; how many failed."""
    began = time.monotonic()
    launches = kernels_of(settings, most)[0][share::shares]
    planned, failed = time.monotonic() - began, 0
    for launch in launches:
        try:
            launch.compile()
        except Exception as error:
            failed += 1
            print(f"{launch.kernel.__name__}: FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
    took = time.monotonic() - began - planned
    print(f"share {share} of {shares}: planned in {planned:.1f} s, {len(launches)} kernels in {took:.1f} s", flush=True)
    return failed


def compile_variants(settings: Settings, most: int, jobs: int) -> int:
    """Compiles the block-sparse kernels; how many failed."""
    began = time.monotonic()
    arch = arch_with_gpu() if torch.cuda.is_available() else "sm_90a"
    builds = [build_of(variant, arch, NO_INJECTION) for variant in kernels_of(settings, most)[1]]
    failed = 0
    with Pool(Cache(), jobs) as pool:
        for ended in pool.build(builds):
            if ended.status == "failed":
                failed += 1
                print(f"{ended.build.name}: FAILED: {ended.why}", flush=True)
    print(f"{len(builds)} block-sparse kernels in {time.monotonic() - began:.1f} s", flush=True)
    return failed


def main() -> int:
    """Everything; 1 where a kernel does not compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=ENOUGH, help=f"cases that are planned ({ENOUGH})")
    parser.add_argument("--jobs", type=int, default=4, help="processes, half of them for each compiler (4)")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = Settings(targets=(TARGET,), device="cuda", cases=options.cases, seed=options.seed)
    half = max(options.jobs // 2, 1)
    connect("cuda" if torch.cuda.is_available() else "emulator")
    with nullcontext() if torch.cuda.is_available() else emulated("sm_90a"):
        if options.share is not None:
            return int(compile_triton(settings, options.most, options.share, half) > 0)
        own = [sys.executable, *sys.argv]
        children = [subprocess.Popen([*own, "--share", str(share)]) for share in range(half)]
        failed = compile_variants(settings, options.most, half)
    return int(sum(child.wait() for child in children) + failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
