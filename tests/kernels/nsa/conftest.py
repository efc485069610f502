"""kernels.nsa runs on a GPU where there is one; elsewhere its attention kernels run on the emulated GPU, and its Triton
kernels in Triton's interpreter."""

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

    runtime.launch_elsewhere(emulated())
    yield
    runtime.launch_elsewhere(None)
