"""The kernels' tests run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import os
from contextlib import suppress

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the interpreter multiplies small tiles

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Triton imports this at the first launch, where it asks for the variable again: by then a test in the same process
    # may have loaded target files that need it unset
    with suppress(ImportError):
        import triton.experimental.gluon  # noqa: F401

        from fuzz.targets.triton_interpreter import patch_interpreter

        patch_interpreter()


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def guarded(monkeypatch):
    """Every torch.empty is filled with NaN and lies between guard bands; yields a check that they are untouched."""
    bands = []
    band, pattern = 4096, 0x5A
    empty = torch.empty

    def poisoned_empty(*size, **options):
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        tensor = empty(shape, **options)
        if not tensor.is_floating_point():
            return tensor
        length = tensor.numel() * tensor.itemsize
        room = empty(length + 2 * band, dtype=torch.uint8, device=tensor.device)
        room.fill_(pattern)
        bands.append((room[:band], room[band + length :]))
        return room[band : band + length].view(tensor.dtype).view(tensor.shape).fill_(float("nan"))

    def untouched():
        return all(bool((part == pattern).all()) for pair in bands for part in pair)

    monkeypatch.setattr(torch, "empty", poisoned_empty)
    return untouched
