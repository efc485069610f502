"""Modules that every process of a session needs, imported once, before its workers are forked (fuzz/session/pool.py).
Nothing here starts a thread or opens a device."""

from __future__ import annotations

import fuzz.judging.judge
import fuzz.runner.zygote
import fuzz.targets.registry  # noqa: F401
