"""Settings of every test: one thread for each process, and compiled kernels that all workers and all runs share.

Compiling a kernel costs seconds. The artifact cache builds each key once however many workers ask for it, and its keys
know their sources, so the folder is kept from one run to the next.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ATTNFUZZ_CACHE"] = str(Path(__file__).resolve().parents[1] / ".attnfuzz" / "test-cache")
