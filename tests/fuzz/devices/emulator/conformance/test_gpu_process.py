"""A GPU that is asked through a process of its own, here a stand-in for it."""

import os
import time

import pytest

from fuzz.devices.emulator.conformance.driver import ContextLostError
from fuzz.devices.emulator.conformance.gpu_process import GpuProcess


class FakeGpu:
    name, arch = "a GPU", "sm_90"

    def __init__(self):
        self.lost = False

    def run(self, what):
        if self.lost:
            raise AssertionError("asked although its context is lost")
        if what == "hang":
            time.sleep(100)
        if what == "exit":
            os._exit(3)
        if what == "lost":
            self.lost = True
            raise ContextLostError("cuCtxSynchronize: CUDA_ERROR_LAUNCH_FAILED")
        if what == "refused":
            raise RuntimeError("cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX")
        return f"{what} answered"


@pytest.fixture
def gpu():
    gpu = GpuProcess(FakeGpu, limit_s=0.5)
    yield gpu
    gpu.close()


@pytest.mark.parametrize(
    ("what", "words", "begun"),
    [
        ("hang", "hang: no answer in 0.5 s", 2),
        ("exit", "the process that used the GPU ended", 2),
        ("lost", "cuCtxSynchronize: CUDA_ERROR_LAUNCH_FAILED", 2),
        ("refused", "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX", 1),
    ],
)
def test_a_kernel_that_fails_costs_its_own_answer_alone(gpu, what, words, begun):
    assert (gpu.name, gpu.arch) == ("a GPU", "sm_90")
    assert gpu.ask("run", "one") == "one answered"
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=words):
        gpu.ask("run", what)
    assert time.monotonic() - start < 5
    assert gpu.ask("run", "two") == "two answered"
    assert gpu.begun == begun


def test_a_machine_without_a_gpu_is_told():
    def missing():
        raise OSError("libcuda.so.1: cannot open shared object file")

    with pytest.raises(RuntimeError, match=r"libcuda\.so\.1"):
        GpuProcess(missing)
