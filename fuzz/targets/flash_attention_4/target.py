"""flash_attn.cute: FlashAttention-4 (PyPI flash-attn-4), where it is importable, for sm_90 and sm_100.

What its two functions have an option for and a Problem can ask: dense and packed sequences, used lengths,
causal, windows, grouped heads, softcap, deterministic gradients; any other mask as a mask_mod that reads a tensor, with
block lists or without. What it refuses is a table (flash_attention_4_refusals.py). Its kernels are compiled before they
are run, and ahead of a session with `attnfuzz compile`, which needs no GPU (flash_attention_4_tables.py).

A narrower session, with fewer kernels to compile: `FlashAttention4(support=…)` in the TARGETS of a --target-file.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as replace_struct
from torch import Tensor

from fuzz.compiling import Build, Compiled
from fuzz.core.case import CODED, Case, Inputs, Storage, attention_of, to_json
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Execution, Tensors
from fuzz.devices.present import cuda_present
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.flash_attention_4 import unsupported as refusals
from fuzz.targets.flash_attention_4.arguments import mask_options
from fuzz.targets.flash_attention_4.calls import Call, call_of, dry_run, forward, prepared, refusing
from fuzz.targets.flash_attention_4.compile_cache import LAUNCHES, SOURCES, connect, planned, unusable, warm
from fuzz.targets.flash_attention_4.extras import HD256, bounds_of, extras_for, fits
from fuzz.targets.flash_attention_4.script import text_of
from fuzz.targets.flash_attention_4.sinks import counting_sink, without_sink
from fuzz.targets.flash_attention_4.surface import DENSE, VARLEN
from fuzz.targets.flash_attention_4.unsupported import OPTIONS, blocks_for, options_of
from fuzz.tensors.arena import build
from oracles.masks import Causal, Full, Mask, PerBatch, PerHead, Prefix, Window, varies_by_batch, varies_by_head
from oracles.numerics import TENSOR_CORES, Numerics
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, shapes

RECIPE = "fuzz.targets.flash_attention_4.recipe:kernel"
DEFAULT_ARCH = "sm_90a"  # what a machine without a GPU draws and compiles for; $ATTNFUZZ_ARCH for the other
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    softcap=True,
    dim=(4, 256, 4),
    lse=True,
)
# A kernel's options depend on whether a length is within one tile; the tiles' sizes that there are, and one more.
LENGTHS = (8, 16, 32, 42, 48, 64, 80, 96, 128, 512)
# ex2 on sm_100 is a polynomial of degree 3 for a share of the elements; the softcap's tanh is tanh.approx.f32.
NUMERICS = {
    "sm_90a": replace(TENSOR_CORES, tanh=2.0**-10.9),
    "sm_100a": replace(TENSOR_CORES, tanh=2.0**-10.9, exp=1e-4),
}


class FlashAttention4(AutogradTarget, Compiled):
    """flash_attn.cute.flash_attn_func and flash_attn_varlen_func.

    support  narrower than SUPPORT, for a session that is to compile fewer kernels
    """

    name = "flash_attn.cute"
    device: Device = "cuda"
    summary = "FlashAttention-4"
    kernel_names = "kernel_cutlass"  # what is looked at under a sanitizer
    proof: tuple[str, ...] = ("fwd sm_",)
    variants: tuple[dict[str, str | int | bool], ...] = (dict(OPTIONS),)
    pairs_per_second = 1e9

    def __init__(self, support: Support = SUPPORT) -> None:
        self.support = support
        self.rules = refusals.rules(self.arch())
        self.numerics = NUMERICS[self.arch()]

    def arch(self) -> str:
        """What its kernels are compiled for on this machine."""
        return _arch()

    def uncompilable(self) -> str | None:
        """See Compiled."""
        return None if _installed() else "needs flash-attn-4 (pip install --pre flash-attn-4)"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if (why := self.uncompilable() or super().missing()) is not None:
            return why
        if _capability() not in ("9.0", "10.0"):
            return f"this adapter knows its kernels for compute capability 9.0 and 10.0, not {_capability()}"
        return unusable()

    def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
        """Every way to say the mask, with every other option that the problem has a use for."""
        ways = ["mask_mod"]
        if mask_options(problem) is not None:
            ways = ["options", "options", "mask_mod"]
        if bounds_of(problem) is not None:
            ways.append("scalars")
        if problem.layout == "padded" and not problem.ragged and problem.len_q and problem.len_k:
            ways.append("blocks")
        ordered = (False, True) if problem.backward else (False,)
        packing = ("auto", "off") if problem.group > 1 else ("auto",)
        found = []
        for way, deterministic, pack_gqa in product(ways, ordered, packing):
            one: dict[str, Any] = {"mask": way, "deterministic": deterministic, "pack_gqa": pack_gqa}
            if way != "blocks":
                found.append(one)
                continue
            one["block"] = blocks_for(problem, self.arch())
            orders = ("ascending", "descending") if deterministic else ("ascending",)
            if not deterministic or self.arch() != "sm_90a":  # refused there, after seconds of tracing
                found += [one | {"order": order} for order in orders]
        more = [one | extra for one, extra in product(found, extras_for(problem)) if fits(one, extra)]
        if self.arch() == "sm_90a":  # which refuses them; elsewhere splits round as `numerics` does not say
            more += [one | {"splits": 2} for one in found for _ in range(1 + len(more) // (16 * len(found)))]
        else:
            more = [one for one in more if one["mask"] != "blocks" or "function" not in one]
            if max(problem.dim, problem.dim_v) == 256:
                more = [one for one in more if not HD256 & set(one)]
        if not problem.backward:  # one case in ten: most are of what backward cannot ask
            return tuple(found) + tuple(more) + tuple(one for one in more if "keys" in one) * 2
        return tuple(found) * max(len(more) // len(found), 1) + tuple(more)

    def may_differ(self, case: Case) -> frozenset[str]:
        """dQ is added to in any order, and with grouped heads dK and dV too, unless asked for otherwise."""
        if options_of(case)["deterministic"]:
            return frozenset()
        return frozenset({"dq", "dk", "dv"} if case.problem.group > 1 else {"dq"})

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """The kernels that a case launches, for `arch`; none where that arch refuses it, or no kernel is compiled."""
        if arch not in refusals.ARCHS or any(rule.applies(case) for rule in refusals.rules(arch)):
            return ()
        if not (sum(case.problem.lengths_q) and sum(case.problem.lengths_k)):
            return ()
        return _builds(_representative(case), arch)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles or loads every kernel that the case launches, and makes its mask and block lists."""
        connect(self.arch())
        dry_run(self._call(case, tensors))
        if tensors.q.is_cuda:
            warm(self.arch())

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE, in the problem's layout."""
        call, counts = self._call(case, tensors), _counting(case)
        if counts:
            sink = counting_sink(attention_of(case), tensors.q, tensors.k, tensors.v)
            call = replace(call, options=call.options | {"learnable_sink": sink})
        o, lse = forward(call)
        o = o if case.problem.layout == "packed" else o.transpose(1, 2)
        return without_sink(o, lse, call.options["learnable_sink"]) if counts else (o, lse)

    def reads_values(self, case: Case) -> bool:
        """See Target: a sink that counts is made for the scores."""
        return _counting(case)

    def numerics_of(self, case: Case) -> Numerics:
        """See Target: where a sink is taken out again O and dO are rounded once more, as of a call that has all keys,
        whose O is put together with that of a call without any."""
        return replace(self.numerics, merged=max(case.problem.len_k, 1)) if _counting(case) else self.numerics

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget."""
        LAUNCHES.clear()
        with refusing():
            found = super().run(case, tensors)
        return replace(found, outputs=_padded(case.problem, found.outputs))

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget."""
        LAUNCHES.clear()
        with refusing():
            found = super().run_around(case, tensors, others)
        return replace(found, outputs=_padded(case.problem, found.outputs))

    def executed(self, case: Case, o: Tensor) -> str:
        """The kernels that were launched."""
        launched = ", ".join(one.name for one in LAUNCHES.kept)
        if not launched and not (sum(case.problem.lengths_q) and sum(case.problem.lengths_k)):
            return "fwd sm_: nothing to launch without queries or keys"
        return launched

    def expected_seconds(self, case: Case) -> float:
        """The first launch of a kernel loads it into the GPU, and a case may have ten that are new to the process."""
        return 0.1 + super().expected_seconds(case)

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (DENSE, VARLEN)

    def look(self) -> dict[str, Any]:
        """The kernel of a run that does not end."""
        stuck = LAUNCHES.hanging()
        why = "every kernel that was launched has ended" if stuck is None else f"{stuck} does not end"
        return {"kernel": stuck or "", "launched": [one.name for one in LAUNCHES.kept], "explained": why}

    def script_call(self, case: Case) -> Text:
        """`forward` as text, for masks that its options can say."""
        p, options = case.problem, options_of(case)
        said = mask_options(p)
        if options["mask"] != "options" or said is None:
            raise ScriptError(f"{self.name}: no script for mask={options['mask']}, which needs a mask_mod")
        if options["sink"] == "undone":
            raise ScriptError(f"{self.name}: no script for sink=undone, whose sink is worked out from the scores")
        return text_of(p, options, said)

    def _call(self, case: Case, tensors: Tensors) -> Call:
        return call_of(case, tensors, _prepared(case, tensors.q.device))


def dry_call(case: Case) -> Call:
    """The call of a case with tensors of its shapes and strides on the CPU, whatever their numbers."""
    zeros = {name: torch.zeros(shape) for name, shape in shapes(case.problem).items() if name in ("q", "k", "v", "do")}
    if not case.problem.backward:
        zeros.pop("do")
    return call_of(case, build(case, "cpu", zeros).tensors(), prepared(case, options_of(case), "cpu"))


@lru_cache(maxsize=1)
def _prepared(case: Case, device: torch.device) -> dict[str, Any]:
    """Made once for all repeats of a case."""
    return prepared(case, options_of(case), device)


_known: dict[tuple[str, str, str], Build] = {}  # one build for a kernel, whichever case it was met with first


@lru_cache(maxsize=1 << 16)
def _builds(case: Case, arch: str) -> tuple[Build, ...]:
    """Builds of kernels, equal for equal kernels within a process, so that a plan holds each once."""
    found = []
    for table, key in planned(dry_call(case), arch):
        if (table, key, arch) not in _known:
            options = {"kernel": table, "key": key, "case": to_json(case, indent=0).replace("\n", "")}
            _known[table, key, arch] = Build.of(RECIPE, options, arch, SOURCES)
        found.append(_known[table, key, arch])
    return tuple(found)


def _representative(case: Case) -> Case:
    """A small case with the same kernels: they depend on no number, on lengths and counts only by what LENGTHS says, on
    strides only by which are 0, and on the mask only as far as its options go. Where that is not so, a kernel is
    compiled when its case comes. Without max_seqlen the total of all lengths stands for the longest."""
    p, given = case.problem, case.inputs
    options = options_of(case)
    unbounded = options["hints"] == "none"
    batch = 1 if unbounded else min(p.batch, 2)
    longest = (sum(p.lengths_q), sum(p.lengths_k)) if unbounded else (p.len_q, p.len_k)
    len_q, len_k = (next((n for n in LENGTHS if n >= length), LENGTHS[-1]) for length in longest)
    problem = replace_struct(
        p,
        lengths_q=(len_q,) * batch,
        lengths_k=(len_k, *(len_k - p.ragged,) * (batch - 1)),
        heads_q=min(p.heads_kv, 2) * p.group,
        heads_kv=min(p.heads_kv, 2),
        mask=Full()
        if options["mask"] == "scalars"
        else _simplest(p.mask, options["mask"] == "options" or options["flags"]),
        scale=None,
    )
    q, k, v, do = (Storage(shared=getattr(given, name).shared) for name in ("q", "k", "v", "do"))
    inputs = Inputs(q=q, k=k, v=v, do=given.do if given.do.order == "expanded" else do)
    return replace_struct(case, inputs=inputs, problem=problem, repeats=1, relations=())


def _simplest(mask: Mask, options: bool) -> Mask:
    """With the same options of flash_attn_func; or, where it is a tensor, with the same axes."""
    if options:
        match mask:
            case Causal():
                return Causal("bottom_right")
            case Window(left, right, _):
                return Window(left and 8, right and 8, "bottom_right")
        return mask
    found: Mask = Prefix(1)
    if varies_by_head(mask):
        found = PerHead((found,))
    return PerBatch((found,)) if varies_by_batch(mask) else found


def _counting(case: Case) -> bool:
    """True if the case has a sink that counts; one whose inputs may have an exact answer has one that adds nothing."""
    return options_of(case)["sink"] == "undone" and case.inputs.distribution not in CODED


def _padded(problem: AnyProblem, outputs: Outputs) -> Outputs:
    """FlashAttention-4 leaves rows past a sequence's used length unwritten; here they hold what is asked for there."""
    if problem.layout == "packed" or not problem.ragged:
        return outputs

    def filled(name: str, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        lengths = problem.lengths_k if name in ("dk", "dv") else problem.lengths_q
        past = torch.arange(x.shape[2], device=x.device)[None, :] >= torch.tensor(lengths, device=x.device)[:, None]
        past = past[:, None] if name == "lse" else past[:, None, :, None]
        return x.masked_fill(past, float("-inf") if name == "lse" else 0.0)

    there: Any = {name: filled(name, x) for name, x in outputs.items()}
    return replace(outputs, **there)


@cache
def _arch() -> str:
    named = os.environ.get("ATTNFUZZ_ARCH")
    if named in refusals.ARCHS:
        return str(named)
    if cuda_present() and _installed():
        return {"9": "sm_90a", "10": "sm_100a"}.get(_capability().partition(".")[0], DEFAULT_ARCH)
    return DEFAULT_ARCH


@cache
def _capability() -> str:
    """Arch of the first GPU, asked of the driver's tool, since CUDA must not start here; '' where that cannot be
    said."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return (said.split() or [""])[0]


@cache
def _installed() -> bool:
    """True if its packages are there; found without importing them, which takes seconds."""
    from importlib.util import find_spec

    found = find_spec("flash_attn")
    places = found.submodule_search_locations if found is not None else None
    there = any((Path(place) / "cute" / "interface.py").is_file() for place in places or ())
    return there and all(find_spec(name) is not None for name in ("cutlass", "quack", "tvm_ffi"))
