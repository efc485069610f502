"""Shows that the accuracy budget is neither lax nor jumpy: PyTorch's own kernels never reach it, gross faults pass it
at once.

    python ci/calibrate_accuracy.py --device cpu  --cases 20000 --jobs 1 --out ci/results/accuracy_cpu.json
    python ci/calibrate_accuracy.py --device cuda --cases 20000 --jobs 8 --out ci/results/accuracy_cuda.json

Good kernels: the torch.* targets of that device on cases drawn by fuzz.generate.cases, `--cases` in all. For each the
largest ratio (error over budget, 1 is the limit), by tensor, dtype and distribution, and the cases that came nearest.
Faults: an fp32 PyTorch kernel with one thing wrong, on the same cases: how many cases until the first finding, over
seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.core import case as case_module
from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.signature import signature
from fuzz.core.support import Support
from fuzz.core.target import Tensors
from fuzz.core.verdict import Verdict
from fuzz.corpus import entry
from fuzz.generate.cases import MEDIUM, cases
from fuzz.judging.judge import oracle_device
from fuzz.targets import registry
from fuzz.tensors.arena import Arena, build
from fuzz.tensors.to_cpu import to_cpu
from oracles.accuracy import FUSED, Judgement, judge, same_precision
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import dense_mask
from oracles.reference.attention import attention, reference

NEAREST = 5
SEEDS = 20
REGRESSIONS = Path(__file__).resolve().parent.parent / "corpus" / "regressions"
TILE = 64


class Enough(Exception):
    """Ends a drawing loop."""


def draw(target: Any, count: int, start: int, each: Callable[[Case], None]) -> None:
    """Calls `each` on `count` cases of the harness's own generator; `each` may raise Enough."""

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(target, MEDIUM, repeats=1))
    def loop(drawn: Case) -> None:
        each(drawn)

    with contextlib.suppress(Enough):
        loop()


def judged(case: Case, arena: Arena, outputs: Outputs, numerics: Numerics) -> Judgement:
    """The judgement of one execution, where `arena` is: a session's own choice of device (fuzz.judging.judge)."""
    t, p, home = arena.tensors(), case.problem, arena.buffer.device
    if outputs.o.device != home:
        (outputs,), _ = to_cpu([outputs], torch.zeros(1, dtype=torch.bool, device=outputs.o.device))
    right = reference(p, t.q, t.k, t.v, bias=t.bias, do=t.do)
    same = same_precision(p, t.q, t.k, t.v, bias=t.bias, do=t.do, numerics=numerics)
    return judge(p, outputs, right, same)


# ---------------------------------------------------------------------------------------------------- good kernels


def good(name: str, device: str, count: int, start: int) -> dict[str, Any]:
    """Statistics of one target over `count` cases: counts, histogram in tenths, largest ratios, nearest cases.

    Findings that a bug in corpus/regressions explains are counted by its explanation, and left out of the ratios.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    target = registry.load(name, device="cuda" if device == "cuda" else "host")
    histogram: Counter[str] = Counter()
    largest: dict[str, float] = {}
    nearest: list[tuple[float, str, str]] = []
    skipped: Counter[str] = Counter()
    bugs: Counter[str] = Counter()
    entries = entry.load_all(REGRESSIONS)

    def each(case: Case) -> None:
        if refusal(target, case) is not None:
            skipped["declared refusal"] += 1
            return
        arena = build(case, oracle_device(case, torch.device(device)))
        tensors = arena.to(torch.device(device)).tensors()
        try:
            target.prepare(case, tensors)
            execution = target.run(case, tensors)
        except Exception as error:
            skipped[f"raised {type(error).__name__}: {str(error).splitlines()[0][:100]}"] += 1
            return
        found = judged(case, arena, execution.outputs, target.numerics)
        if found.findings:
            explained = entry.known(signature(case, Verdict(case.id, "fail", findings=found.findings)), entries)
            if explained is not None:
                bugs[explained.explanation] += 1
                return
        histogram["over" if found.ratio > 1 else f"{math.floor(found.ratio * 10) / 10:.1f}"] += 1
        for tensor, worst in found.worst.items():
            for key in (tensor, f"{tensor} {case.problem.dtype}", case.inputs.distribution, "all"):
                largest[key] = max(largest.get(key, 0.0), worst.ratio)
            for grain, ratio in worst.ratios.items():
                largest[f"by {grain}"] = max(largest.get(f"by {grain}", 0.0), ratio)
        text = "; ".join(f.message for f in found.findings) or _nearest(found)
        nearest.append((found.ratio, text, case_module.to_json(case, indent=0).strip()))
        nearest.sort(key=lambda x: -x[0])
        del nearest[NEAREST + sum(ratio > 1 for ratio, _, _ in nearest) :]

    draw(target, count, start, each)
    return {
        "target": name,
        "cases": sum(histogram.values()) + sum(bugs.values()),
        "findings": histogram["over"],
        "known_bugs": dict(bugs),
        "histogram": dict(sorted(histogram.items())),
        "largest": {key: round(value, 4) for key, value in sorted(largest.items())},
        "skipped": dict(skipped),
        "nearest": [list(x) for x in nearest],
    }


def _nearest(found: Judgement) -> str:
    if not found.worst:
        return "nothing to compare"
    tensor, worst = max(found.worst.items(), key=lambda item: item[1].ratio)
    return f"{tensor} by {max(worst.ratios, key=lambda grain: worst.ratios[grain])} at {worst.at}"


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Statistics of one target from several processes."""
    whole = parts[0]
    for part in parts[1:]:
        whole["cases"] += part["cases"]
        whole["findings"] += part["findings"]
        for name in ("histogram", "skipped", "known_bugs"):
            whole[name] = dict(sorted((Counter(whole[name]) + Counter(part[name])).items()))
        for key, value in part["largest"].items():
            whole["largest"][key] = max(whole["largest"].get(key, 0.0), value)
        whole["nearest"] = sorted([*whole["nearest"], *part["nearest"]], key=lambda x: -x[0])
    whole["nearest"] = whole["nearest"][: NEAREST + min(whole["findings"], 50)]
    return whole


# ---------------------------------------------------------------------------------------------------------- faults


EVERYTHING = Support(bias=True, bias_grad=True, softcap=True, lse=True, strides=False, zero_lengths=False)


@dataclass(frozen=True)
class Faulty:
    """Stand-in for a kernel under test: everything is supported, nothing is refused."""

    name: str = "faulty"
    support: Support = EVERYTHING
    rules: tuple = ()
    variants: tuple = ({},)
    session_size: None = None


@dataclass
class Attempt:
    """Inputs of the faulty kernel, float32 and padded, to be spoiled in place by a fault."""

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keep: torch.Tensor
    scale: float
    softcap: float
    extra_zeros: int = 0


def spoiled(case: Case, tensors: Tensors, fault: Fault) -> Outputs:
    """Answers of the fp32 kernel, rounded to the problem's dtype, with `fault` in it."""
    p = case.problem
    keep = dense_mask(p, tensors.q.device).expand(p.batch, p.heads_q, p.len_q, p.len_k)
    leaves = [x.detach().float().requires_grad_() for x in (tensors.q, tensors.k, tensors.v)]
    bias = None if tensors.bias is None else tensors.bias.detach().float().requires_grad_()
    a = fault.before(Attempt(case, *leaves, keep=keep, scale=p.scale_value, softcap=p.softcap))
    k, v, kept, added = a.k, a.v, a.keep, bias
    if a.extra_zeros:
        pad = (0, 0, 0, a.extra_zeros)
        k, v = torch.nn.functional.pad(k, pad), torch.nn.functional.pad(v, pad)
        kept = torch.nn.functional.pad(kept, (0, a.extra_zeros), value=True)
        if bias is not None:
            added = torch.nn.functional.pad(bias.expand(*bias.shape[:-1], p.len_k), (0, a.extra_zeros))
    o, lse = attention(a.q, k, v, kept, scale=a.scale, softcap=a.softcap, bias=added)
    outputs = {"o": o.detach(), "lse": lse.detach()}
    if tensors.do is not None:
        grads = torch.autograd.grad(o, [*leaves, *([bias] if bias is not None else [])], tensors.do.float())
        outputs |= dict(zip(("dq", "dk", "dv", "dbias"), grads, strict=False))
        if p.bias is not None and not p.bias.grad:
            outputs.pop("dbias", None)
    fault.after(case, outputs)
    float32 = {"lse"} | ({"dbias"} if p.bias is not None and p.bias.dtype == "float32" else set())
    return Outputs(**{n: x if n in float32 else x.to(p.torch_dtype) for n, x in outputs.items()})


@dataclass(frozen=True)
class Fault:
    """One thing wrong, before the formula or after it."""

    before: Callable[[Attempt], Attempt] = lambda a: a
    after: Callable[[Case, dict[str, torch.Tensor]], None] = lambda case, outputs: None


def _swap_heads(a: Attempt) -> Attempt:
    heads = list(range(a.q.shape[1]))
    heads[:2] = heads[1::-1] if len(heads) > 1 else heads
    return replace(a, q=a.q[:, heads])


def _grown(keep: torch.Tensor) -> torch.Tensor:
    return keep | torch.nn.functional.pad(keep, (1, -1))


def _last_tile_dropped(a: Attempt) -> Attempt:
    start = (a.keep.shape[-1] - 1) // TILE * TILE
    keep = a.keep.clone()
    if start > 0:
        keep[..., start:] = False
    return replace(a, keep=keep)


def _last_rows_shifted(case: Case, outputs: dict[str, torch.Tensor]) -> None:
    start = (case.problem.len_q - 1) // TILE * TILE
    if start > 0:
        outputs["o"][:, :, start:] = outputs["o"][:, :, start:].roll(1, 2)


def _wrong_group(a: Attempt) -> Attempt:
    heads_kv, group = a.k.shape[1], a.q.shape[1] // a.k.shape[1]
    order = torch.arange(a.q.shape[1]).view(group, heads_kv).T.flatten().to(a.q.device)
    return replace(a, q=a.q[:, order])


def _scale_by(name: str, factor: float) -> Callable[[Case, dict[str, torch.Tensor]], None]:
    def after(case: Case, outputs: dict[str, torch.Tensor]) -> None:
        if name in outputs:
            outputs[name] *= factor

    return after


def _zero_last_head(name: str) -> Callable[[Case, dict[str, torch.Tensor]], None]:
    def after(case: Case, outputs: dict[str, torch.Tensor]) -> None:
        if name in outputs:
            outputs[name][:, -1] = 0

    return after


def _roll_heads(name: str) -> Callable[[Case, dict[str, torch.Tensor]], None]:
    def after(case: Case, outputs: dict[str, torch.Tensor]) -> None:
        if name in outputs:
            outputs[name] = outputs[name].roll(1, 1)

    return after


NONE = Fault()
FAULTS: dict[str, Fault] = {
    "nothing wrong": NONE,
    "scale dropped": Fault(lambda a: replace(a, scale=1.0)),
    "K permuted": Fault(lambda a: replace(a, k=a.k.roll(1, 2))),
    "Q's heads swapped": Fault(_swap_heads),
    "one key too many at the mask's edge": Fault(lambda a: replace(a, keep=_grown(a.keep))),
    "last tile of keys dropped": Fault(_last_tile_dropped),
    "mask inverted": Fault(lambda a: replace(a, keep=~a.keep)),
    "dQ scaled twice": Fault(after=_scale_by("dq", 2.0)),
    "one key too few at the mask's edge": Fault(lambda a: replace(a, keep=~_grown(~a.keep))),
    "last tile of rows shifted by one": Fault(after=_last_rows_shifted),
    "dK of the last head missing": Fault(after=_zero_last_head("dk")),
    "LSE in base 2": Fault(after=_scale_by("lse", math.log2(math.e))),
    "softcap ignored": Fault(lambda a: replace(a, softcap=0.0)),
    "dV of the next head": Fault(after=_roll_heads("dv")),
    "tail keys read as zeros": Fault(lambda a: replace(a, extra_zeros=-a.k.shape[2] % TILE)),
    "KV head is h mod heads_kv": Fault(_wrong_group),
    "scale 1 % too large": Fault(lambda a: replace(a, scale=a.scale * 1.01)),
    "dV 1 % too large": Fault(after=_scale_by("dv", 1.01)),
}


def detection(name: str, device: str, start: int, limit: int) -> dict[str, Any]:
    """Number of cases until the first finding (limit + 1: none)."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    fault, seen, by = FAULTS[name], 0, ""

    def each(case: Case) -> None:
        nonlocal seen, by
        if by or seen > limit:  # Hypothesis runs the last one again
            raise Enough
        seen += 1
        arena = build(case, oracle_device(case, torch.device(device)))
        found = judged(case, arena, spoiled(case, arena.tensors(), fault), FUSED)
        if found.findings:
            first = found.findings[0]
            by = f"{first.tensor} {first.place.pattern}"
            raise Enough
        if seen > limit:
            raise Enough

    draw(Faulty(), limit + 1, start, each)
    return {"fault": name, "cases": seen if by else limit + 1, "by": by}


# ------------------------------------------------------------------------------------------------------------ main


def _call(job: tuple[Callable[..., dict[str, Any]], tuple]) -> dict[str, Any]:
    function, arguments = job
    return function(*arguments)


def run_jobs(jobs: list[tuple[Callable[..., dict[str, Any]], tuple]], workers: int) -> Iterator[dict[str, Any]]:
    """Results in the order of the jobs; spawned processes, as CUDA needs."""
    if workers <= 1:
        yield from map(_call, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(_call, jobs)


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), "threads_per_job": 1}


def main() -> None:
    """Runs both halves and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", type=int, default=2000, help="over all targets")
    parser.add_argument("--targets", nargs="*", help="default: every torch.* target of the device but compiled flex")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=20, help="most cases per fault and seed; 0: leave faults out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.time()
    side = "cuda" if options.device == "cuda" else "host"
    names = options.targets or [
        name
        for name in registry.targets(device=side)
        if name.startswith("torch.") and not (side == "cuda" and name == "torch.flex")
    ]
    share = max(options.jobs, 1)
    weights = {
        name: 0.02 if name == "torch.flex" else 1.0 for name in names
    }  # every flex case compiles: 0.5 s and more
    each = {name: max(int(options.cases * w / sum(weights.values()) / share), 1) for name, w in weights.items()}
    names = names if options.cases else []
    jobs = [(good, (n, options.device, each[n], options.seed * 1000 + j)) for n in names for j in range(share)]
    found: dict[str, list[dict[str, Any]]] = {}
    for result in run_jobs(jobs, options.jobs):
        found.setdefault(result["target"], []).append(result)
    kernels = [merge(parts) for parts in found.values()]
    for k in kernels:
        print(f"{k['target']}: {k['cases']} cases, {k['findings']} findings, largest {k['largest'].get('all')}")
        for ratio, text, case in k["nearest"][:NEAREST]:
            print(f"    {ratio:.3g}  {text}\n        {case[:400]}")
    faults = []
    if options.faults:
        jobs = [(detection, (n, options.device, s, options.faults)) for n in FAULTS for s in range(SEEDS)]
        table: dict[str, list[dict[str, Any]]] = {}
        for result in run_jobs(jobs, options.jobs):
            table.setdefault(result["fault"], []).append(result)
        for name, results in table.items():
            counts = [r["cases"] for r in results]
            row = {"fault": name, "median": statistics.median(counts), "worst": max(counts)}
            row |= {"missed": sum(c > options.faults for c in counts), "of": len(counts)}
            row["found_by"] = dict(Counter(r["by"] for r in results if r["by"]).most_common(3))
            faults.append(row)
            print(name, {key: value for key, value in row.items() if key != "fault"})
    seconds = round(time.time() - began, 1)
    report = {"command": " ".join(sys.argv), "machine": _machine(options.device), "seconds": seconds}
    report |= {"kernels": kernels, "faults": faults}
    print(f"{seconds} s")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
