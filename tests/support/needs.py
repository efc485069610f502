"""Marks of tests that need what a machine may lack."""

from __future__ import annotations

import pytest

from fuzz.targets.blocksparse.devices import emulator_there, toolchain_there

needs_emulator = pytest.mark.skipif(not (toolchain_there() and emulator_there()), reason="needs toolchain and emulator")
