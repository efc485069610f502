"""CUDA C++ kernels with thread block clusters on the emulated GPU."""

from functools import lru_cache
from importlib.util import find_spec

import pytest
import torch
from covering import covering, nightly_unless

from fuzz.devices.emulator import Cuda, emulated

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
# bins are spread over the CTAs of a cluster
HISTOGRAM = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) histogram(const int* x, int* out, int n) {
    __shared__ int bins[BINS / CTAS];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < BINS / CTAS; i += blockDim.x) bins[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int* there = cluster.map_shared_rank(bins, x[i] / (BINS / CTAS));
        atomicAdd(there + x[i] % (BINS / CTAS), 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < BINS / CTAS; i += blockDim.x)
        atomicAdd(out + cluster.block_rank() * (BINS / CTAS) + i, bins[i]);
}
"""
# every CTA adds up its part, the first one the parts of all
SUM = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void sum(const float* x, float* out, int n) {
    extern __shared__ float part[];
    cg::cluster_group cluster = cg::this_cluster();
    float mine = 0;
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) mine += x[i];
    for (int step = 16; step; step /= 2) mine += __shfl_down_sync(0xffffffff, mine, step);
    if (threadIdx.x == 0) part[0] = mine;
    cluster.sync();
    if (cluster.thread_rank() == 0) {
        for (unsigned r = 0; r < cluster.num_blocks(); r++) out[0] += *cluster.map_shared_rank(part, r);
    }
    LAST
}
"""
Compiled = lru_cache(Cuda)  # NVRTC takes half a second for each
SCHEDULES = ["in_order", "random", "oldest_last"]


def histogram(source, schedule, ctas):
    """(report, counted, expected)."""
    x = torch.randint(0, 64, (700,), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    out = torch.zeros(64, dtype=torch.int32)
    with emulated("sm_90a", triton=False, strict=False, warp_schedule=schedule, dispatch="permuted"):
        options = (f"-DCTAS={ctas}", "-DBINS=64")
        report = Compiled(source, options=options).kernel(2 * ctas, 64)(x, out, 700)
    return report, out, torch.bincount(x, minlength=64).int()


@pytest.mark.parametrize(
    ("schedule", "ctas"),
    [
        nightly_unless(not case.marks and case.values[1] == 8, *case.values)
        for case in covering(SCHEDULES, [1, 2, 8], strength=1)
    ],
)
def test_a_histogram_in_distributed_shared_memory(schedule, ctas):
    report, out, expected = histogram(HISTOGRAM, schedule, ctas)
    assert report.ok, str(report)
    assert torch.equal(out, expected)


def test_a_histogram_without_its_first_barrier():
    found = set()
    for schedule in SCHEDULES:
        report, _, _ = histogram(HISTOGRAM.replace("cluster.sync();", "__syncthreads();", 1), schedule, 2)
        assert not report.ok
        found |= {f.kind for f in report.findings}
        assert all(f.source.startswith("kernel.cu:") for f in report.findings)
    assert "race: read of an unordered write" in found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_launch_may_say_the_size_of_a_cluster(schedule):
    x, out = torch.arange(500.0), torch.zeros(1)
    with emulated("sm_90a", triton=False, strict=False, warp_schedule=schedule):
        report = Compiled(SUM.replace("LAST", "cluster.sync();")).kernel(4, 32, shared=16, cluster=4)(x, out, 500)
        assert report.ok, str(report)
        assert out.item() == x.sum()
        with pytest.raises(ValueError, match="is no multiple of the cluster"):
            Compiled(SUM.replace("LAST", "")).kernel(6, 32, shared=16, cluster=4)(x, out, 500)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sum_whose_ctas_leave_before_it_is_read(schedule):
    with emulated("sm_90a", triton=False, strict=False, warp_schedule=schedule):
        report = Compiled(SUM.replace("LAST", "")).kernel(4, 32, shared=16, cluster=4)(torch.ones(9), torch.zeros(1), 9)
    assert {f.kind for f in report.findings} == {"shared memory of a CTA that has exited"}
