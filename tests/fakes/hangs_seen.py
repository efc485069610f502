"""A target that hangs and can say what its device's memory shows meanwhile."""

from __future__ import annotations

import time
from typing import Any

from honest import attention

from fuzz.core.support import Support
from fuzz.targets.autograd import AutogradTarget
from oracles.numerics import EXACT
from oracles.problem import dense_mask


class Seen(AutogradTarget):
    """Sleeps in its run; each look counts."""

    summary = "hangs, and says where"
    numerics = EXACT
    support = Support(dtypes=("float32",))

    def __init__(self, name: str, seconds: float, broken: bool = False) -> None:
        self.name, self._seconds, self._broken = name, seconds, broken
        self._looks = 0

    def forward(self, case, tensors):
        time.sleep(self._seconds)
        p = case.problem
        return attention(tensors.q, tensors.k, tensors.v, dense_mask(p), p.scale_value, p.softcap, None)

    def look(self) -> dict[str, Any]:
        self._looks += 1
        if self._broken:
            raise RuntimeError("blind")
        return {
            "semaphores": {"m3": 2, "look": self._looks},
            "explained": "m_block 3 stands at 2; n_blocks 2, 3 wait there\nand more",
        }


TARGETS = [
    Seen("fake.hangs_seen", 3600),
    Seen("fake.hangs_unseen", 3600, broken=True),
    Seen("fake.slow_seen", 0.15),
]
