"""kernels.nsa runs on a GPU where there is one; elsewhere its attention kernels run on the emulated GPU, and its Triton
kernels in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("cutlass")


@pytest.fixture(autouse=True)
def _gpu():
    if torch.cuda.is_available():
        yield
        return
    pytest.importorskip("llvmlite")
    from fuzz.targets.blocksparse.devices import emulated
    from kernels.blocksparse.compile import runtime

    before = runtime._elsewhere
    runtime.launch_elsewhere(emulated())
    yield
    runtime.launch_elsewhere(before)


@pytest.fixture
def adds_in_any_order(_gpu):
    """The emulated GPU says nothing of adds whose order is not fixed."""
    if torch.cuda.is_available():
        yield
        return
    from fuzz.devices.emulator.config import DEFAULT_CHECKS
    from fuzz.targets.blocksparse.devices import emulated

    device = emulated()
    before = device.emulator
    device.begin(replace(before, checks=DEFAULT_CHECKS - {"unordered_adds"}))
    yield
    device.begin(before)
