"""Modules that every process of a session needs: imported once, by the server that the session's workers are forked
from (fuzz/session/pool.py), whose zygotes are forks of them in turn. Nothing here starts a thread or opens a device.
"""

from __future__ import annotations

import torch.fx.experimental.symbolic_shapes  # noqa: F401

import fuzz.judging.judge
import fuzz.runner.zygote
import fuzz.session.worker
import fuzz.targets.registry  # noqa: F401
import oracles.reference.numba_loops  # noqa: F401
