"""FlashAttention-4's own measure beside a session, on one machine: its two-pass test run, and its acceptance rule.

    python ci/compare_flash_attention_4.py tests CHECKOUT/tests/cute --workers 16 --out tests.json
    python ci/compare_flash_attention_4.py rule --cases 120 --workers 16 --seconds 100 --out rule.json \
        --target-file ci/flash_attention_4_narrow.py

'tests' copies test_flash_attn_fast.py and conftest.py of a checkout to a folder of its own and runs pytest there twice,
as their CLAUDE.md says: once compiling with fake tensors, then for real. Needs pytest-xdist and einops.
'rule' runs drawn cases once each and asks FlashAttention's rule (oracles/other_projects.py) alone: seconds per case,
without compiling; and what it does not accept. Works on any target and device, so also where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzz.core.case import Case  # noqa: E402
from fuzz.core.refusal import refusal  # noqa: E402
from fuzz.core.target import Device, Target  # noqa: E402
from fuzz.session.draw import drawer_of, explore  # noqa: E402
from fuzz.session.plan import plan  # noqa: E402
from fuzz.session.settings import Settings  # noqa: E402
from fuzz.targets.registry import load  # noqa: E402

THEIRS = ("test_flash_attn_fast.py", "conftest.py")
PASSES = {"compile": "1", "run": "0", "again": "0"}


def two_passes(checkout: Path, workers: int) -> dict[str, Any]:
    """Wall seconds and pytest's last line of each pass; 'again' is 'run' once more, with everything compiled."""
    found: dict[str, Any] = {"workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        for name in THEIRS:
            shutil.copy(checkout / name, folder)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        for name, fake in PASSES.items():
            env = os.environ | {
                "FLASH_ATTENTION_FAKE_TENSOR": fake,
                "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
                "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(Path(folder, "cache")),
            }
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), THEIRS[0]]
            began = time.monotonic()
            ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
            lines = ended.stdout.strip().splitlines() or [""]
            found[name] = {"seconds": round(time.monotonic() - began, 1), "said": lines[-1], "status": ended.returncode}
            print(name, found[name], flush=True)
    return found


def drawn(args: argparse.Namespace) -> list[Case]:
    """The first cases of a session that its target takes."""
    target = load(args.target, args.files, args.device)
    settings = Settings(
        targets=(args.target,), device=args.device, cases=args.of, seed=args.seed, size=args.size, files=args.files
    )
    found: list[Case] = []
    for shard in plan(settings):
        explore(
            shard,
            drawer_of(target, settings),
            lambda case: found.append(case) if refusal(target, case) is None else None,
        )
        if len(found) >= args.cases:
            break
    return found[: args.cases]


def judged(case: Case, target: Target, device: str) -> dict[str, Any]:
    """One run and the rule's answer; preparing, which compiles, is not in the seconds."""
    import torch

    from fuzz.tensors.arena import build
    from oracles.other_projects import CRITERIA, Question

    where = "cuda" if device == "cuda" else "cpu"
    given = build(case, where).tensors()
    target.prepare(case, given)
    began = time.perf_counter()
    outputs = target.run(case, given).outputs
    question = Question(
        case.problem, given.q, given.k, given.v, given.bias, given.do if case.problem.backward else None
    )
    passes = bool(CRITERIA["flash-attention"].passes(question, outputs))
    if where == "cuda":
        torch.cuda.synchronize()
    return {"case": case.id, "passes": passes, "seconds": time.perf_counter() - began}


def work(name: str, files: tuple[str, ...], device: Device, todo: Any, done: Any) -> None:
    """A process of its own: a case that kills it takes no other one along but by the time that it costs."""
    target = load(name, files, device)
    while (case := todo.get()) is not None:
        try:
            done.put(judged(case, target, device))
        except Exception as error:  # a kernel's own: it is the result
            done.put({"case": case.id, "error": f"{type(error).__name__}: {str(error)[:200]}"})


def rule(args: argparse.Namespace) -> dict[str, Any]:
    """See the module."""
    cases = drawn(args)
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for case in [*cases, *[None] * args.workers]:
        todo.put(case)
    processes = [
        context.Process(target=work, args=(args.target, args.files, args.device, todo, done), daemon=True)
        for _ in range(args.workers)
    ]
    for process in processes:
        process.start()
    found: list[dict[str, Any]] = []
    until = time.monotonic() + args.seconds
    while len(found) < len(cases) and time.monotonic() < until:
        try:
            found.append(done.get(timeout=1))
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
    for process in processes:
        process.kill()
    seconds = sorted(one["seconds"] for one in found if "seconds" in one)
    return {
        "target": args.target,
        "workers": args.workers,
        "cases": len(seconds),
        "cases_per_second_of_one_worker": round(len(seconds) / sum(seconds), 1) if seconds else None,
        "median_seconds": seconds[len(seconds) // 2] if seconds else None,
        "not_accepted": sorted(one["case"] for one in found if not one.get("passes", True)),
        "errors": [one for one in found if "error" in one],
        "not_ended": len(cases) - len(found),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tests = commands.add_parser("tests")
    tests.add_argument("checkout", type=Path)
    ruled = commands.add_parser("rule")
    ruled.add_argument("--target", default="flash_attn.cute")
    ruled.add_argument("--target-file", dest="files", action="append", default=[])
    ruled.add_argument("--device", default="cuda", choices=("host", "cuda"))
    ruled.add_argument("--cases", type=int, default=120)
    ruled.add_argument("--of", type=int, default=2200, help="cases of the session whose first ones these are")
    ruled.add_argument("--seed", type=int, default=71)
    ruled.add_argument("--size", default="medium")
    ruled.add_argument("--seconds", type=float, default=100.0)
    for command in (tests, ruled):
        command.add_argument("--workers", type=int, default=16)
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "rule":
        args.files = tuple(args.files)
    found = two_passes(args.checkout, args.workers) if args.command == "tests" else rule(args)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
