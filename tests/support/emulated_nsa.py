"""kernels.nsa with its Triton kernels compiled and on the emulated GPU too, in a process of its own: Triton decides at
its import whether it interprets. `python emulated_nsa.py` runs a few calls and raises at the first that is wrong, or in
which the emulated GPU finds a race, an access out of bounds or off alignment, or a read of unwritten memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "kernels"))

import torch
from nsa_cases import Call, check
from nsa_rows import beside_alignment, check_results, on_alignment

from fuzz.devices.emulator import emulated
from fuzz.targets.blocksparse.devices import connect
from kernels.nsa import native_sparse_answer

ALL = ("w_k", "w_v", "w_gate")
CALLS = (
    Call((90,), weights=ALL),
    Call((70, 0, 30), 4, 2, packed=True, weights=("w_gate",)).with_setting(causal="strict"),
    Call((33,), dim=40, dtype=torch.float16).with_setting(causal=False),
)


def main() -> None:
    """All calls."""
    connect("emulator")
    for call in CALLS:
        with emulated("sm_90a"):
            check(call, native_sparse_answer)
    with emulated("sm_90a"):
        check_results(on_alignment(), beside_alignment())


if __name__ == "__main__":
    main()
