"""Memory of a GPU that several processes share: given back where it gets scarce, and waited for where it ran out.

PyTorch keeps what it frees for its next allocation. Sixteen processes that each keep what their largest case took fill
a card of 80 GB, and then one runs out of memory for no fault of its own or its kernel's. So a process gives back what
it keeps as soon as little is free, and a case that runs out is asked once more when others have let go. A kernel that
needs more than there is runs out again.
"""

from __future__ import annotations

import time

import torch

from fuzz.core.verdict import Verdict

SCARCE = 0.25  # of the card's memory, that should be free
RETRIED = "run once more: the GPU's memory had run out"
LOOK = 0.25  # seconds between two looks at the card, which ask the driver
PATIENCE = 15.0  # seconds to wait for that before a case is asked once more


_looked: dict[torch.device, float] = {}  # when, by time.monotonic()


def give_back(device: torch.device) -> None:
    """Frees what PyTorch keeps where little of the GPU's memory is free; looks at most every LOOK seconds."""
    if device.type != "cuda" or time.monotonic() < _looked.get(device, 0.0) + LOOK:
        return
    _looked[device] = time.monotonic()
    if _free(device) < SCARCE:
        torch.cuda.empty_cache()


def wait_for_memory(device: torch.device, patience: float = PATIENCE) -> None:
    """Frees what PyTorch keeps, and waits until others have let go too, or for `patience` seconds."""
    until = time.monotonic() + patience
    torch.cuda.empty_cache()
    while _free(device) < SCARCE and time.monotonic() < until:
        time.sleep(0.1)


def ran_out(verdict: Verdict) -> bool:
    """True if the target ran out of memory."""
    return any(finding.kind == "out_of_memory" for finding in verdict.findings)


def _free(device: torch.device) -> float:
    """Share of the GPU's memory that nobody has."""
    free, total = torch.cuda.mem_get_info(device)
    return free / total
