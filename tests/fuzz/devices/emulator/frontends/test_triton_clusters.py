"""Triton kernels whose programs are clusters of CTAs on the emulated GPU. They run in a process of their own."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).resolve().parents[5]


def test_a_product_and_a_sum_over_the_ctas_of_a_cluster():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    script = [str(ROOT / "tests/support/emulator/emulated_triton_clusters.py"), "sm_90a", "sm_100a"]
    done = warm_start.run(script, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert len(seen) == 6
    assert set(map(json.dumps, seen.values())) == {"[true, []]"}, seen
