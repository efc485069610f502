"""What users see of compiling: the progress line, the summary, what failed and where its log is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console

from fuzz.compiling.build_key import Build
from fuzz.compiling.pool import Ended, Pool
from fuzz.process.progress import ProgressLine


def compile_all(pool: Pool, builds: Iterable[Build], console: Console) -> list[Ended]:
    """Compiles `builds` with a progress line on `console`, then prints the summary."""
    todo = list(dict.fromkeys(builds))
    ended: list[Ended] = []
    began = time.monotonic()
    with ProgressLine("attnfuzz compile", "kernels", console) as line:
        line.show(0, len(todo))
        for one in pool.build(todo):
            ended.append(one)
            failed = sum(e.status == "failed" for e in ended)
            line.show(len(ended), len(todo), f"{failed} failed" if failed else "")
    for text in summary(ended, time.monotonic() - began, pool):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return ended


def summary(ended: list[Ended], seconds: float, pool: Pool) -> list[str]:
    """One line of counts, two lines for each failure, the cache's folder. Removes what the cache has too much of."""
    counts = Counter(one.status for one in ended)
    jobs = min(pool.jobs, counts["built"] + counts["failed"])
    workers = "1 worker" if jobs == 1 else f"{jobs} workers"
    rate = f", {60 * counts['built'] / seconds:.0f} a minute with {workers}" if counts["built"] else ""
    lines = [
        f"{len(ended)} kernels in {seconds:.1f} s: {counts['cached']} cached, {counts['built']} compiled, "
        f"{counts['failed']} failed{rate}"
    ]
    for one in ended:
        if one.status == "failed":
            kept = pool.cache.failure(one.build)
            lines.append(f"FAILED {one.build.name}: {one.why}")
            if kept is not None and kept.why == one.why:  # a full disk keeps none, or an earlier one
                lines.append(f"    log: {pool.cache.folder / 'failures' / f'{one.build.key}.json'}")
    lines.append(f"cache: {pool.cache.folder}")
    if removed := pool.cache.prune():
        lines.append(f"cache: removed {removed / (1 << 20):.0f} MiB that were not used for a day")
    return lines
