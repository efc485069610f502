"""Races of two lanes of one warp in shared memory: CUDA C++ kernels with and without the bug."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from fuzz.devices.emulator import Cuda, Report, emulated
from fuzz.devices.emulator.config import DEFAULT_CHECKS

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
BEFORE = "race: read of an unordered write"
AFTER = "race: write over an unordered read"
NEIGHBOUR = "s[i] = i; {} x[i] = s[i ^ 1];"
# stmatrix of eight rows of 16 bytes: lanes 0 to 7 give the rows' addresses, all 32 lanes the values
STMATRIX = """
unsigned row = (unsigned)__cvta_generic_to_shared(s + 4 * (i & 7));
asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(row), "r"(i) : "memory");
"""
LDMATRIX = """
unsigned row = (unsigned)__cvta_generic_to_shared(s + 4 * (i & 7)), v;
asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) : "r"(row) : "memory");
"""
CP_ASYNC = """
unsigned to = (unsigned)__cvta_generic_to_shared(s + i);
asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + i) : "memory");
asm volatile("cp.async.wait_all;" ::: "memory");
"""


@pytest.fixture
def found() -> Callable[..., set[str]]:
    """Findings of a kernel of one warp (or more) with this body; x: 64 numbers, s: 64 of shared memory, i: the thread's
    number."""

    def found(body: str, checks: frozenset[str] = DEFAULT_CHECKS | {"lanes"}, threads: int = 32) -> set[str]:
        source = f"__global__ void f(int* x) {{ __shared__ __align__(16) int s[64]; int i = threadIdx.x; {body} }}"
        with emulated("sm_90a", triton=False, strict=False, checks=checks):
            report: Report = Cuda(source).kernel(1, threads)(torch.zeros(64, dtype=torch.int32))
        assert report.status == "finished", report
        return {f"{one.kind}: {one.detail}" for one in report.findings}

    return found


def test_a_race_names_both_lanes_and_is_found_only_where_asked_for(found: Callable[..., set[str]]) -> None:
    body = NEIGHBOUR.format("")
    assert found(body) == {
        f"{BEFORE}: reads shared memory byte 4, which lane 1 of the same warp writes; no __syncwarp or other barrier "
        "orders the two accesses"
    }
    assert not found(body, DEFAULT_CHECKS)


@pytest.mark.parametrize(
    "sync",
    [
        "__syncwarp();",
        "__syncthreads();",
        "x[32 + i] = __shfl_xor_sync(~0u, i, 1);",
        "x[32 + i] = __ballot_sync(~0u, i & 1);",
        "if (i < 16) __syncwarp(0xFFFFu); else __syncwarp(0xFFFF0000u);",
    ],
)
def test_lanes_that_wait_for_each_other_do_not_race(found: Callable[..., set[str]], sync: str) -> None:
    assert not found(NEIGHBOUR.format(sync))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("s[0] = i; __syncwarp(); x[i] = s[0];", "race: two writes"),
        ("s[0] = 7; __syncwarp(); x[i] = s[0];", ""),  # writes of one value are the check equal_writes, off here
        ("s[i] = i; __syncwarp(); int v = s[i ^ 1]; s[i] = v;", AFTER),
        ("s[i] = i; __syncwarp(); int v = s[i ^ 1]; __syncwarp(); s[i] = v;", ""),
        ("s[i] = i; int v = s[i]; s[i] = v + 1; x[i] = s[i];", ""),
        ("if (i == 0) s[0] = 0; __syncwarp(); x[i] = atomicAdd(s, i);", ""),
        ("if (i == 0) s[0] = 0; x[i] = atomicAdd(s, i);", BEFORE),
        ("if (i == 3) { for (int n = 0; n < 4; n++) s[n] = n; x[0] = s[2]; }", ""),
        (f"{STMATRIX} __syncwarp(); x[i] = s[31 - i];", ""),
        (f"{STMATRIX} x[i] = s[31 - i];", BEFORE),
        (f"s[i] = i; __syncwarp(); {LDMATRIX} x[i] = v;", ""),
        (f"s[i] = i; {LDMATRIX} x[i] = v;", ""),  # all lanes wait there before they read
        (f"s[i] = i; {LDMATRIX} s[i ^ 1] = v;", AFTER),
        (f"{CP_ASYNC} __syncwarp(); x[i] = s[i ^ 1];", ""),
        (f"{CP_ASYNC} x[i] = s[i ^ 1];", BEFORE),
    ],
)
def test_which_accesses_of_lanes_race(found: Callable[..., set[str]], body: str, kind: str) -> None:
    checks = DEFAULT_CHECKS - {"equal_writes"} | {"lanes"}
    details = found(body, checks)
    assert bool(details) is bool(kind), details
    assert all(one.startswith(kind) for one in details)


def test_warps_race_as_they_do_without_the_check(found: Callable[..., set[str]]) -> None:
    body = "s[i] = i; {} x[i] = s[63 - i];"
    races = found(body.format("__syncwarp();"), threads=64)
    assert races and not any("of the same warp" in one for one in races)
    assert found(body.format("__syncwarp();"), DEFAULT_CHECKS, 64) == races
    assert not found(body.format("__syncthreads();"), threads=64)


def test_more_lanes_of_one_clock_than_one_are_remembered(found: Callable[..., set[str]]) -> None:
    """The lane that writes is the last one that has read; lanes before it have read too."""
    details = found("s[i] = i; __syncwarp(); int v = s[5]; if (i == 31) s[5] = v + 1; x[i] = v;")
    assert details == {
        f"{AFTER}: writes shared memory byte 20, which lane 0 of the same warp reads; no __syncwarp or other barrier "
        "orders the two accesses"
    }
