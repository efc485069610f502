"""Sums up a GPU session of `blocksparse`: outcomes, phases, and in how many cases more CTAs were launched than fit.

    python ci/summarise_blocksparse.py FOLDER --out ci/results/blocksparse_session_h200.json

The cases are drawn again from the session's own settings (records keep only failing ones), which gives the same ones as
long as its shards do not climb. CTAs of the ordered backward pass are counted from its grid; how many fit, from the
registers and the shared memory of the compiled kernel in the artifact cache (CUDA C++ programming guide, compute
capability 9.0: 65,536 registers, 228 KiB, 2,048 threads; 1 KiB of a CTA's shared memory is the system's).
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from summarise_sessions import publish, summary  # noqa: E402

from fuzz.compiling import Cache  # noqa: E402
from fuzz.core.case import Case  # noqa: E402
from fuzz.core.refusal import refusal  # noqa: E402
from fuzz.session.draw import climbs, drawer_of, explore, seed_cases  # noqa: E402
from fuzz.session.plan import plan  # noqa: E402
from fuzz.session.records import Reader, Record  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402
from fuzz.targets.blocksparse.block_lists import options_of  # noqa: E402
from fuzz.targets.registry import load  # noqa: E402
from kernels.blocksparse.backward.tiling import choose_tiling  # noqa: E402
from kernels.blocksparse.planner.group_split import choose_group_split  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

REGISTERS, SHARED, OWN, MOST_THREADS = 65_536, 228 << 10, 1 << 10, 2_048
PHASES = ("draw", "inputs", "inspect", "reference", "prepare", "run", "judge", "leaks", "total")
_CUDA, _REGCOUNT = 190, 0x2F  # ELF's machine; EIATTR_REGCOUNT of .nv.info: (symbol, registers)


def registers(data: bytes) -> int:
    """Registers of a thread of the kernel whose cubin is inside `data`; ValueError where there is none."""
    start = data.find(b"\x7fELF\x02", 1)
    while start >= 0:
        if struct.unpack_from("<H", data, start + 18)[0] == _CUDA:
            found = list(_counts(data[start:]))
            if found:
                return max(found)
        start = data.find(b"\x7fELF\x02", start + 1)
    raise ValueError("data: holds no cubin that says its registers")


def _counts(cubin: bytes) -> Iterator[int]:
    """Yields every EIATTR_REGCOUNT of a cubin."""
    (offset,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, offset + i * size) for i in range(count)]
    for section in sections:
        name = cubin[sections[names][4] + section[0] :].split(b"\0", 1)[0]
        if name != b".nv.info":
            continue
        at, end = section[4], section[4] + section[5]
        while at + 4 <= end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            if form == 4 and attribute == _REGCOUNT:
                yield struct.unpack_from("<II", cubin, at + 4)[1]
            at += 4 + (value if form == 4 else 0)


def resident(options: dict[str, Any], arch: str, used: int) -> int:
    """CTAs of a backward kernel that one multiprocessor holds, with `used` registers a thread."""
    fields = {name: value for name, value in options.items() if name != "mutant"}
    tiling = choose_tiling(Variant(**fields | {"tuning": ()}), arch)
    by_registers = REGISTERS // (tiling.threads * -(-used // 8) * 8)
    return min(by_registers, SHARED // (tiling.shared_bytes + OWN), MOST_THREADS // tiling.threads)


def ctas(case: Case) -> int:
    """CTAs of the ordered backward pass of a case; 0 without one."""
    p, options = case.problem, options_of(case)
    if not p.backward or not options["deterministic"]:
        return 0
    m_blocks, n_blocks = -(-p.len_q // int(options["tile_m"])), -(-p.len_k // int(options["tile_n"]))
    if not m_blocks:
        return 0
    return (
        p.batch * p.heads_kv * n_blocks * choose_group_split(p.batch, p.heads_q, p.heads_kv, m_blocks, n_blocks, True)
    )


def drawn(settings: Settings) -> list[Case]:
    """The cases of a session, once more. Raises ValueError where its shards climb."""
    shards = plan(settings)
    if any(map(climbs, shards)):
        raise ValueError("cases: so many in one session cannot be drawn again; some of its shards climb")
    found: list[Case] = []
    for shard in shards:
        target = load(shard.target, settings.files, settings.device)
        explore(shard, drawer_of(target, settings), found.append, seed_cases(shard, target, settings))
    return found


def oversubscribed_cases(settings: Settings, records: list[Record], arch: str, processors: int) -> dict[str, Any]:
    """Counts of the cases that ran more CTAs of the ordered backward pass than the GPU holds."""
    ran = {record.case_id: record for record in records if record.outcome != "reject"}
    cases = [case for case in drawn(settings) if case.id in ran]
    target, cache = load("blocksparse", settings.files, settings.device), Cache()
    slots: dict[str, int] = {}
    waves: Counter[str] = Counter()
    repeats, unknown, outcomes = Counter[int](), 0, Counter[str]()
    for case in cases:
        repeats[case.repeats] += 1
        if not (count := ctas(case)) or refusal(target, case) is not None:
            continue
        (build,) = (b for b in target.builds(case, arch) if json.loads(b.options)["kind"] == "backward")  # type: ignore
        if build.key not in slots:
            artifact = cache.load(build)
            used = registers(artifact.object.read_bytes()) if artifact is not None else 0
            slots[build.key] = processors * resident(json.loads(build.options), arch, used) if used else 0
        if not (room := slots[build.key]):
            unknown += 1
        elif count > room:
            outcomes[ran[case.id].outcome] += 1
            waves["more than 2 waves" if count > 2 * room else "1 to 2 waves"] += 1
    return {
        "drawn_again": len(cases),
        "repeats": {str(n): count for n, count in sorted(repeats.items())},
        "ordered_backward_passes_with_more_ctas_than_fit": sum(outcomes.values()),
        "their_outcomes": dict(outcomes),
        "their_waves": dict(waves),
        "kernel_not_in_the_cache": unknown,
        "multiprocessors": processors,
        "ctas_that_fit": dict(sorted(Counter(slots.values()).items())),
    }


def main() -> None:
    """Prints and writes the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--multiprocessors", type=int, default=132, help="of the GPU (H100 and H200: 132)")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    session = json.loads((options.folder / "session.json").read_text())
    settings = msgspec.convert(session["settings"], Settings)
    records = list(Reader(options.folder).new())
    ran = [record for record in records if record.outcome != "reject"]
    result: dict[str, Any] = {"machine": session["machine"], "settings": session["settings"]}
    result["sessions"] = [summary(options.folder)]
    result["crowds"] = oversubscribed_cases(settings, records, options.arch, options.multiprocessors)
    result["features"] = len({name for record in ran for name in record.features})
    result["largest_ratio"] = max((r.ratio for r in ran if r.outcome == "pass"), default=0.0)
    result["mean_ms"] = {
        name: round(1e3 * sum(r.seconds.get(name, 0.0) for r in ran) / max(len(ran), 1), 2) for name in PHASES
    }
    result["refused"] = dict(Counter(r.reason for r in records if r.outcome == "reject").most_common())
    result["findings"] = [
        {"case": r.case_id, "status": r.status, "message": r.message, "known_as": r.finding}
        for r in records
        if r.status
    ]
    if options.note:
        result["note"] = options.note
    publish(result, options.out)


if __name__ == "__main__":
    main()
