"""Are FlashAttention-4's known bugs found without a GPU? Runs its cases of corpus/regressions on the emulated GPU for
sm_90a, and writes ci/results/flash_attention_4_emulated_host.json: what is found, and at which line of its source.

    python ci/flash_attention_4_emulated.py        with flash-attn-4 (pip install '.[fa4]'); compiles some 20 kernels
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.corpus.store import load_all
from fuzz.judging.judge import execute
from fuzz.targets.flash_attention_4.emulated import EmulatedFlashAttention4

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "torch", "numba")


def main() -> int:
    """Exit code 1 where a known bug was not found."""
    os.environ["ATTNFUZZ_ARCH"] = "sm_90a"  # before a target asks for it
    target = EmulatedFlashAttention4()
    rows: list[dict[str, Any]] = []
    for entry in load_all(ROOT / "corpus" / "regressions"):
        if entry.case.target != target.name:
            continue
        start = time.perf_counter()
        verdict = execute(entry.case, target, lambda phase, limit: None)
        first = verdict.findings[0] if verdict.findings else None
        rows.append(
            {
                "file": entry.name,
                "on_a_gpu": entry.expect,
                "emulated": verdict.outcome,
                "finding": f"{first.oracle}/{first.kind}: {first.message}" if first else "",
                "source": first.place.source if first and first.place else "",
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
        print(f"{entry.name}: {verdict.outcome} {rows[-1]['finding'][:150]}", flush=True)
    found = sum(row["emulated"] != "pass" for row in rows)
    result = {
        "what": "FlashAttention-4's known bugs for sm_90, on the emulated GPU",
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "command": "python ci/flash_attention_4_emulated.py",
        "found": found,
        "of": len(rows),
        "cases": rows,
    }
    out = ROOT / "ci" / "results" / "flash_attention_4_emulated_host.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{found} of {len(rows)} found")
    return int(found < len(rows))


if __name__ == "__main__":
    sys.exit(main())
