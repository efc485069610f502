"""What people see of compiling: the progress bar, the summary, what failed and where its log is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fuzz.compiling.build_key import Build
from fuzz.compiling.pool import Ended, Pool


def compile_all(pool: Pool, builds: Iterable[Build], console: Console) -> list[Ended]:
    """Compiles `builds` behind a progress bar on `console`, and says how it went."""
    todo = list(builds)
    ended: list[Ended] = []
    began = time.monotonic()
    columns = (
        TextColumn("attnfuzz compile"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len({build.key for build in todo}))
        for one in pool.build(todo):
            ended.append(one)
            failed = sum(e.status == "failed" for e in ended)
            progress.update(task, advance=1, description=f"{failed} failed" if failed else "")
    report(ended, time.monotonic() - began, pool, console)
    if removed := pool.cache.prune():
        console.print(f"cache: removed {removed / (1 << 20):.0f} MiB that were not used for a day", highlight=False)
    return ended


def report(ended: list[Ended], seconds: float, pool: Pool, console: Console) -> None:
    """One line of counts, then two lines for each failure."""
    counts = Counter(one.status for one in ended)
    jobs = min(pool.jobs, counts["built"] + counts["failed"])
    workers = "1 worker" if jobs == 1 else f"{jobs} workers"
    rate = f", {60 * counts['built'] / seconds:.0f} a minute with {workers}" if counts["built"] else ""
    console.print(
        f"{len(ended)} keys in {seconds:.1f} s: {counts['cached']} cached, {counts['built']} compiled, "
        f"{counts['failed']} failed{rate}",
        highlight=False,
    )
    for one in ended:
        if one.status == "failed":
            kept = pool.cache.failure(one.build)
            console.print(f"FAILED {one.build.name}: {one.why}", highlight=False, markup=False, soft_wrap=True)
            if kept is not None and kept.why == one.why:  # a full disk keeps none, or an earlier one
                log = pool.cache.folder / "failures" / f"{one.build.key}.json"
                console.print(f"    log: {log}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"cache: {pool.cache.folder}", highlight=False, markup=False, soft_wrap=True)
