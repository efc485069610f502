"""A persistent kernel for Blackwell: CTAs that take others out of the grid by clusterlaunchcontrol, in CuTe DSL."""

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64, cute
from cutlass.memory import SmemAllocator


class Persistent:
    """Adds 1 to the word of each CTA of a grid of `ctas`, done by those that start."""

    def __init__(self, ctas: int) -> None:
        self.ctas = ctas

    @cute.jit
    def __call__(self, words: cute.Pointer, stream: cuda.CUstream):
        tensor = cute.make_tensor(words, cute.make_layout(self.ctas))
        self.kernel(tensor).launch(grid=(self.ctas, 1, 1), block=(64, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, words: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        shared = SmemAllocator()
        response = shared.allocate_tensor(Int32, cute.make_layout(4), 16)
        ready = shared.allocate_array(Int64)
        if thread == 0:
            cute.arch.mbarrier_init(ready, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        phase, more = Int32(0), Int32(1)
        while more != 0:
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(ready, 16)
                cute.arch.issue_clc_query(ready, response.iterator, False)
                words[tile] = words[tile] + 1
            cute.arch.mbarrier_wait(ready, phase)
            phase = phase ^ 1
            tile, _, _, valid = cute.arch.clc_response(response.iterator)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()
            more = Int32(valid)
