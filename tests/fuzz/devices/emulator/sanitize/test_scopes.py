"""Races by scope, of volatile accesses, and of two lanes of one warp: CUDA C++ kernels with and without the bug."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fuzz.devices.emulator import Cuda, Report, emulated
from fuzz.devices.emulator.config import DEFAULT_CHECKS

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
SCHEDULES: tuple[dict[str, Any], ...] = ({}, {"dispatch": "reversed", "warp_schedule": "oldest_last"})
# Thread 0 of the grid hands `data` to thread 32 of its CTA, or to CTA 1.
MESSAGE = """
__device__ int flag;
__global__ void message(QUALIFIER int* data, int* out)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        data[0] = 7;
        RELEASE
        atomicExch(&flag, 1);
    }
    else if (blockIdx.x == gridDim.x - 1 && threadIdx.x == blockDim.x - 1) {
        while (atomicAdd(&flag, 0) == 0) {}
        ACQUIRE
        out[0] = data[0];
        WRITE
    }
}
"""
IN_A_CTA, BETWEEN_CTAS = (1, 33), (2, 1)


def found(
    source: str, shape: tuple[int, int], *sizes: int, checks: frozenset[str] = DEFAULT_CHECKS, **words: str
) -> set[str]:
    """Findings of a kernel on int32 zeros, over both schedules. words: put into the source."""
    for word in ("QUALIFIER", "RELEASE", "ACQUIRE", "WRITE", "SYNC"):
        source = source.replace(word, words.get(word.lower(), ""))
    details: set[str] = set()
    for schedule in SCHEDULES:
        with emulated("sm_80", triton=False, strict=False, checks=checks, **schedule):
            report: Report = Cuda(source).kernel(*shape)(*(torch.zeros(n, dtype=torch.int32) for n in sizes))
        assert report.status == "finished", report
        details |= {f"{one.kind}: {one.detail}" for one in report.findings}
    return details


@pytest.mark.parametrize("shape", [IN_A_CTA, BETWEEN_CTAS])
@pytest.mark.parametrize("missing", [None, "release", "acquire"])
def test_a_fence_orders_the_threads_of_its_scope_only(shape: tuple[int, int], missing: str | None) -> None:
    fences = {"release": "__threadfence();", "acquire": "__threadfence();"}
    assert bool(found(MESSAGE, shape, 1, 1, **(fences | ({missing: ""} if missing else {})))) is bool(missing)
    near = fences | {missing or "acquire": "__threadfence_block();"}
    assert bool(found(MESSAGE, shape, 1, 1, **near)) is (shape == BETWEEN_CTAS)


def test_atomics_of_scope_block_race_between_ctas() -> None:
    add = "__global__ void add(int* x) { atomicAdd_block(x, 1); }"
    (race,) = found(add, (2, 1), 1)
    assert "both accesses are strong, but one has the scope of its CTA (.cta), which the other is not part of" in race
    assert not found(add, (1, 64), 1)
    assert not found(add.replace("_block", ""), (2, 1), 1)


def test_volatile_accesses_do_not_race_by_ptx_and_do_by_cpp() -> None:
    message = {"qualifier": "volatile"}
    cpp = DEFAULT_CHECKS | {"volatile"}
    assert not found(MESSAGE, BETWEEN_CTAS, 1, 1, **message)
    assert found(MESSAGE, BETWEEN_CTAS, 1, 1, **message, checks=cpp)
    assert found(MESSAGE, BETWEEN_CTAS, 1, 1, **message, release="__threadfence_block();", checks=cpp)


@pytest.mark.parametrize("shape", [IN_A_CTA, BETWEEN_CTAS])
def test_a_volatile_read_needs_the_fence_of_the_writer_only(shape: tuple[int, int]) -> None:
    message = {"qualifier": "volatile", "release": "__threadfence();"}
    cpp = DEFAULT_CHECKS | {"volatile"}
    assert not found(MESSAGE, shape, 1, 1, **message, checks=cpp)
    assert not found(MESSAGE, shape, 1, 1, **message, write="data[0] = 8;", checks=cpp)  # where it has read
    assert found(MESSAGE.replace("out[0] = data[0]", "data[0] = 8"), shape, 1, 1, **message, checks=cpp)
    assert found(MESSAGE, shape, 1, 1, release="__threadfence();", checks=cpp)  # not volatile


def test_lanes_of_one_warp_race_only_where_asked_for() -> None:
    neighbour = "__global__ void f(int* x) { int i = threadIdx.x; x[i] = i; SYNC x[32 + i] = x[i ^ 1]; }"
    assert not found(neighbour, (1, 32), 64)
    (race,) = found(neighbour, (1, 32), 64, checks=DEFAULT_CHECKS | {"lanes"})
    assert race == (
        "race: read of an unordered write: reads x[1], which lane 1 of the same warp writes; no __syncwarp or other "
        "barrier orders the two accesses"
    )
    for sync in ("__syncwarp();", "__syncthreads();", "__threadfence_block();"):
        assert not found(neighbour, (1, 32), 64, checks=DEFAULT_CHECKS | {"lanes"}, sync=sync)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("x[0] = i;", "race: two writes"),
        ("x[0] += 1;", "race: write over an unordered read"),
        ("if (i == 3) x[0] = 1; else atomicAdd(x, 1);", "race: "),
        ("atomicAdd(x, i);", ""),
        ("x[i] = x[i] + 1; x[i] = 2;", ""),
        ("if (i == 3) x[0] = x[1] + x[2];", ""),
    ],
)
def test_which_accesses_of_lanes_race(body: str, kind: str) -> None:
    source = f"__global__ void f(int* x) {{ int i = threadIdx.x; {body} }}"
    details = found(source, (1, 32), 32, checks=DEFAULT_CHECKS | {"lanes"})
    assert bool(details) is bool(kind)
    assert not kind or any(one.startswith(kind) for one in details)
    assert not found(source, (1, 32), 32)
