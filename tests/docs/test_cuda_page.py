"""The page "Run a CUDA C++ kernel without a GPU": its script finds what the page says, and its block of code runs."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_start

from fuzz.devices.emulator import Cuda, emulated
from fuzz.devices.emulator.config import ALL_CHECKS, BLOCK_CHECKS

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how_to/cuda_without_gpu.md").read_text()
SCRIPT, BLOCK = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def test_the_script_finds_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SCRIPT)
    command = ["-m", "fuzz.cli.main", "sanitize", "sums.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm_start.run(command, cwd=tmp_path, env=environment, timeout=300)
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    assert done.returncode == 1
    assert _without_registers(done.stdout) == _without_registers(shown), done.stderr


def test_the_block_of_code_runs_and_the_kernel_is_right_with_its_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "    for (int half"
    (tmp_path / "sums.py").write_text(SCRIPT.replace(loop, "    __syncthreads();\n" + loop))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums", raising=False)
    names: dict[str, Any] = {"x": torch.arange(3000.0).view(3, 1000)}
    exec(BLOCK.replace('"sm_90a"', '"sm_90a", triton=False'), names)
    assert names["sums"].tolist() == names["x"].sum(1).tolist()
    assert [report.ok for report in names["gpu"].reports] == [True]


def test_the_checks_of_the_table_are_asked_for_by_name_only() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert {"lanes", "volatile"} < set(named) <= ALL_CHECKS - BLOCK_CHECKS


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("cuda_fp16.h", "*x = __half2float(__float2half(1.5f)) * 2;"),
        ("cuda/atomic", "cuda::atomic_ref<int, cuda::thread_scope_device> r(*x); r.fetch_add(3);"),
        ("cooperative_groups.h", "if (cooperative_groups::this_thread_block().thread_rank() == 0) *x = 3;"),
    ],
)
def test_the_headers_that_the_page_names_are_there(header: str, body: str) -> None:
    x = torch.zeros(1, dtype=torch.int32)
    with emulated("sm_90a", triton=False):
        Cuda(f"#include <{header}>\n__global__ void f(int* x) {{ {body} }}").kernel(1, 1)(x)
    assert x.item() == 3


def _without_registers(text: str) -> str:
    """Findings without the lines and registers of the PTX, which another NVRTC numbers otherwise."""
    return re.sub(r", PTX line \d+: .*", "", text)
