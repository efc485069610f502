"""Scripts for bug reports: they need nothing of ours, use the harness's own inputs and masks, and see what it saw."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch
import warm_start
from covering import nightly_unless

from fuzz.core.case import Case, Distribution, Inputs, Storage
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.core.verdict import Finding, Verdict
from fuzz.script import ScriptError, write_script
from fuzz.targets.registry import load
from fuzz.targets.user_function.source_excerpt import excerpt
from fuzz.tensors.arena import build
from oracles.masks import (
    KINDS,
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Intervals,
    Not,
    Or,
    PerBatch,
    PerHead,
    Prefix,
    Tokens,
    TopK,
    Window,
    kinds,
)
from oracles.problem import Bias, Problem, dense_mask
from oracles.reference.attention import reference

ROOT = Path(__file__).resolve().parents[3]
HOST = ("torch.sdpa.math", "torch.sdpa.flash", "torch.flex", "sdpa")

# Put before a script: imports of the harness fail.
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(f"the script imports {{name}}")
sys.meta_path.insert(0, Block())
"""


def problem(**changes) -> Problem:
    plain = {"lengths_q": (17,), "lengths_k": (23,), "heads_q": 2, "heads_kv": 2, "dim": 16, "dim_v": 16}
    return Problem(**{**plain, "dtype": "float32", **changes})


TOKENS = Tokens(("10011", "", "0111"))
BLOCKS = Blocks(4, 8, ("FM.", ".FM", "M"), 3)
INTERVALS = Intervals((((0, 3), (7, 9)), (), ((2, 30),), ((4, 6),)))
TWO = {"lengths_q": (17, 4), "lengths_k": (9, 13)}

SPREAD = {
    "full": (problem(), Inputs()),
    "causal": (problem(mask=Causal()), Inputs(distribution="large")),
    "bottom_right_gqa": (problem(mask=Causal("bottom_right"), heads_q=4), Inputs(seed=5)),
    "window_half": (problem(mask=Window(3, 2, "bottom_right"), dtype="float16"), Inputs(distribution="needle")),
    "prefix_bf16": (problem(mask=Or((Prefix(3), Causal())), dtype="bfloat16"), Inputs(distribution="adversarial")),
    "documents": (problem(mask=Documents((3, 9), (0, 12)), scale=0.5), Inputs(distribution="integers")),
    "intervals": (problem(mask=INTERVALS), Inputs(distribution="constant")),
    "blocks_batch": (problem(mask=BLOCKS, **TWO), Inputs(seed=9)),
    "tokens_not": (problem(mask=Not(And((TOKENS, Window(None, 4))))), Inputs()),
    "per_head": (problem(mask=PerHead((Causal(), BLOCKS, Prefix(2))), heads_q=6), Inputs(distribution="adversarial")),
    "top_k": (problem(mask=TopK(3, Causal(), 5), lengths_q=(9, 9), lengths_k=(9, 9), heads_q=4), Inputs()),
    "top_k_alone": (problem(mask=TopK(2), heads_q=1, heads_kv=1), Inputs()),
    "per_batch": (problem(mask=PerBatch((TOKENS, Full())), lengths_q=(5, 5), lengths_k=(6, 6)), Inputs()),
    "ragged": (problem(mask=Causal(), **TWO), Inputs(distribution="needle")),
    "bias": (problem(bias=Bias(False, True, True, False), mask=Causal()), Inputs()),
    "bias_kv_heads": (problem(bias=Bias(kv_heads=True), heads_q=4), Inputs()),
    "bias_no_grad": (problem(bias=Bias(True, False, False, True, grad=False), **TWO), Inputs()),
    "softcap": (problem(softcap=3.0, mask=Causal(), bias=Bias()), Inputs(distribution="large")),
    "strides": (
        problem(mask=Causal(), dim_v=8),
        Inputs(q=Storage("bshd", 1, 1), k=Storage("bhds", 8), v=Storage("sbhd", 0, 3), do=Storage("expanded")),
    ),
    "one_hot": (problem(mask=Causal(), scale=1.0, **TWO), Inputs(4, "one_hot")),
    "uniform_pow2": (problem(mask=Causal(), scale=0.25, dtype="float16"), Inputs(4, "uniform_pow2")),
    "index_values": (problem(heads_q=4, scale=0.25), Inputs(4, "index_values")),
    "forward_only": (problem(backward=False, mask=Window(2, 0)), Inputs()),
    "no_keys": (problem(lengths_k=(0,)), Inputs()),
}


def test_the_spread_holds_every_kind_of_mask_and_of_numbers():
    assert set().union(*(kinds(p.mask) for p, _ in SPREAD.values())) == set(KINDS)
    of_native_sparse = {"cancelling"}
    assert {i.distribution for _, i in SPREAD.values()} == set(get_args(Distribution)) - of_native_sparse


def case_of(target: str, name: str) -> Case:
    p, inputs = SPREAD[name]
    if target == "torch.flex":  # eager flex_attention has no backward on a CPU
        p = msgspec.structs.replace(p, backward=False)
    return Case(target, p, inputs)


def executed(text: str) -> tuple[dict, int]:
    """The script's names after it ran here, and its exit code."""
    module = types.ModuleType(f"script_{abs(hash(text))}")
    sys.modules[module.__name__] = module
    try:
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, "script.py", "exec"), module.__dict__)
        return module.__dict__, ended.value.code
    finally:
        del sys.modules[module.__name__]


def alone(text: str, folder: Path, *free: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, in another folder, with the harness out of reach (but for `free`)."""
    blocked = sorted({"fuzz", "oracles", "kernels"} - set(free))
    (folder / "script.py").write_text(BLOCK.format(blocked=blocked) + text)
    return warm_start.run(["-I", str(folder / "script.py")], cwd=folder)


def taken(*targets: str) -> list[tuple[str, str]]:
    """The pairs of target and case that the target takes."""
    return [(t, name) for t in targets for name in SPREAD if refusal(load(t), case_of(t, name)) is None]


@pytest.mark.parametrize(
    "target, name", [nightly_unless(at % 3 == 0, *pair) for at, pair in enumerate(taken(*HOST[:3]))]
)
def test_a_correct_kernel_passes_on_the_harness_own_inputs(target, name):
    case = case_of(target, name)
    names, code = executed(write_script(case, load(target), None))
    assert code == 0
    arena = build(case, "cpu")
    for tensor in ("q", "k", "v", "do", "bias"):
        ours = arena.tensor(tensor)
        if ours is None:
            continue
        theirs = names[tensor]
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), tensor
        assert ours.stride() == theirs.stride() or ours.numel() == 0, tensor
    if "keep" in names:
        assert torch.equal(names["keep"], dense_mask(case.problem))
    given = arena.tensors()
    right = reference(case.problem, given.q, given.k, given.v, bias=given.bias, do=given.do, precision=torch.float64)
    for tensor, x in right.items():
        assert torch.allclose(names["want"][tensor], x.double(), rtol=1e-9, atol=1e-9), tensor


@pytest.mark.parametrize("target, name", [("torch.sdpa.math", "per_head"), ("torch.flex", "softcap")])
def test_a_script_needs_nothing_of_ours(target, name, tmp_path):
    ran = alone(write_script(case_of(target, name), load(target), None), tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "passes"), ran.stderr


def test_the_bundled_kernel_needs_its_own_folder_only(tmp_path):
    pytest.importorskip("triton")
    case = case_of("sdpa", "bias")
    ran = alone(write_script(case, load("sdpa", device="interpreter"), None), tmp_path, "kernels")
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "passes"), ran.stderr


def test_a_planted_bug_fails(tmp_path):
    pytest.importorskip("triton")
    name = "sdpa!tail_keys_not_masked"
    wrong = write_script(Case(name, problem(), Inputs()), load(name, device="interpreter"), None)
    ran = alone(wrong, tmp_path, "kernels")
    assert ran.returncode == 1 and ran.stdout.splitlines()[-1].startswith("FAILS: o"), ran.stdout + ran.stderr


OWN = '''\
from __future__ import annotations
import math
import torch
from fuzz.targets import target

UNUSED = open(__file__).read()
SHIFT = 0.0


def _softmax(scores: torch.Tensor):
    top = scores.amax(-1, keepdim=True).clamp_min(-1e30)
    weights = torch.exp(scores - top)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


@target("right", dtypes=["float32"])
def right(q, k, v, mask, scale):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return _softmax((q @ k.mT * scale + SHIFT).masked_fill(~mask, -math.inf)) @ v


@target("wrong", dtypes=["float32"])
def wrong(q, k, v, mask, scale):
    return right(q, k, v, mask, scale * 1.01)


@target("padding", dtypes=["float32"])
def padding(q, k, v, mask, scale):
    return right(q, k, v, mask, scale) / mask.any(-1, keepdim=True)


@target("packed", dtypes=["float32"], layouts=["packed"])
def packed(q, k, v, mask, scale, cu_seqlens_q, cu_seqlens_k, bias=None, softcap=0.0):
    parts = []
    for b in range(len(cu_seqlens_q) - 1):
        n_q, n_k = slice(*cu_seqlens_q[b : b + 2].tolist()), slice(*cu_seqlens_k[b : b + 2].tolist())
        one = [x[part].transpose(0, 1)[None] for x, part in ((q, n_q), (k, n_k), (v, n_k))]
        seen = mask[min(b, len(mask) - 1), :, : one[0].shape[2], : one[1].shape[2]][None]
        k_, v_ = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in one[1:])
        if not one[1].shape[2]:
            parts.append(0 * one[0][0].transpose(0, 1))
            continue
        scores = one[0] @ k_.mT * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            own = bias[min(b, len(bias) - 1)][None]
            scores = scores + own[..., : scores.shape[2], : scores.shape[3]]
        parts.append((_softmax(scores.masked_fill(~seen, -math.inf)) @ v_)[0].transpose(0, 1))
    return torch.cat(parts)


@target("asks", dtypes=["float32"])
def asks(q, k, v, problem, mask):
    """Reads the problem."""
    assert problem.heads_q == q.shape[1]
    return right(q, k, v, mask, problem.scale_value)


@target("repeats", dtypes=["float32"])
def repeats(q, k, v, mask, scale, _state=[0]):
    _state[0] += 1
    return right(q, k, v, mask, scale) * (1 + 1e-7 * (_state[0] % 3))


@target("writes", dtypes=["float32"])
def writes(q, k, v, mask, scale):
    out = right(q, k, v, mask, scale)
    with torch.no_grad():
        k.mul_(2)
    return out


@target("raises", dtypes=["float32"])
def raises(q, k, v, mask):
    raise RuntimeError("no kernel for this shape")
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    return lambda name: load(name, (str(file),))


def test_a_users_kernel_is_in_the_script_with_what_it_uses_and_no_more(own, tmp_path):
    text = write_script(case_of("right", "bottom_right_gqa"), own("right"), None)
    assert "def _softmax" in text and "SHIFT = 0.0" in text and "import math" in text
    assert "UNUSED" not in text and "def wrong" not in text and "@target" not in text
    ran = alone(text, tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "passes"), ran.stderr


def test_names_of_a_users_file_do_not_meet_those_of_the_script(tmp_path):
    file = tmp_path / "names.py"
    text = OWN.split("@target")[0] + "def formulas(s):\n    return _softmax(s)\n\n\n"
    text += '@target("run", dtypes=["float32"])\ndef run(q, k, v, mask, scale):\n'
    file.write_text(text + "    return formulas((q @ k.mT * scale).masked_fill(~mask, -math.inf)) @ v\n")
    ran = alone(write_script(case_of("run", "causal"), load("run", (str(file),)), None), tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["passes"]), ran.stderr


def test_a_users_wrong_kernel_fails(own, tmp_path):
    ran = alone(write_script(case_of("wrong", "causal"), own("wrong"), None), tmp_path)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.splitlines()[-1] == "FAILS: o, dq, dk, dv"


def test_what_lies_in_the_padding_is_no_error(own, tmp_path):
    case = Case("padding", problem(backward=False, **TWO), Inputs())
    ran = alone(write_script(case, own("padding"), None), tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "passes"), ran.stderr
    assert "inf" not in ran.stdout


PACKED = {
    "plain": problem(layout="packed", mask=Causal("bottom_right"), heads_q=4, lengths_q=(5, 0, 9), lengths_k=(7, 3, 0)),
    "bias": problem(layout="packed", bias=Bias(True, False, True, True), softcap=2.0, **TWO),
    "shared_bias": problem(
        layout="packed", bias=Bias(False, True, True, False), mask=PerBatch((TOKENS, Full())), **TWO
    ),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("distribution", ["needle", "adversarial", "cancelling"])
def test_packed_sequences(own, name, distribution):
    case = Case("packed", PACKED[name], Inputs(3, distribution, q=Storage("bshd", 3, 1)))
    names, code = executed(write_script(case, own("packed"), None))
    arena = build(case, "cpu")
    given = arena.tensors()
    assert torch.equal(given.q, names["q"]) and torch.equal(given.k, names["k"])
    right = reference(case.problem, given.q, given.k, given.v, bias=given.bias, do=given.do, precision=torch.float64)
    for tensor, x in right.items():
        assert torch.allclose(names["want"][tensor], x.double(), rtol=1e-9, atol=1e-9), tensor
    assert code == 0


def test_a_kernel_that_asks_for_the_problem_gets_its_numbers(own, tmp_path):
    ran = alone(write_script(case_of("asks", "causal"), own("asks"), None), tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "passes"), ran.stderr


PUBLISHED = """
import os
import sys

import torch

from fuzz.targets import Size, target
from oracles.numerics import EXACT, Numerics

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "published"))
try:
    from kernel_of_others import softmax
except ImportError:
    softmax = None


def make(scaled):
    def attention(q, k, v, mask, scale):
        scores = (q @ k.mT * scaled(scale)).masked_fill(~mask, -1e30)
        return softmax(scores) @ v

    return attention


for name, scaled in {"twice": lambda scale: 2 * scale, "once": lambda scale: scale}.items():
    target(name, dtypes=["float32"], gqa=False, size=Size(1 << 12), numerics=EXACT)(make(scaled))


@target("late", dtypes=["float32"], gqa=False, axes="bshd", causal_align="bottom_right")
def late(q, k, v, causal, key_padding_mask, scale):
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * scale
    scores = scores.masked_fill(~key_padding_mask, -1e30)
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~keep, -1e30)
    return (softmax(scores) @ v.transpose(1, 2)).transpose(1, 2)
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    (folder / "published").mkdir()
    (folder / "published" / "kernel_of_others.py").write_text("def softmax(x):\n    return x.softmax(-1)\n")
    file = folder / "adapter.py"
    file.write_text(PUBLISHED)
    before = list(sys.path)
    yield lambda name: load(name, (str(file),))
    sys.path[:] = before


@pytest.mark.parametrize(("name", "code"), [("once", 0), ("twice", 1), ("late", 0)])
def test_kernels_that_a_function_makes_and_that_lie_elsewhere_run_as_written(published, tmp_path, name, code):
    mask = Full() if name == "late" else Causal()
    lengths_k = (9, 4) if name == "late" else (9, 9)
    case = Case(name, problem(mask=mask, lengths_q=(7, 7), lengths_k=lengths_k))
    ran = alone(write_script(case, published(name), None), tmp_path)
    assert ran.returncode == code, ran.stderr + ran.stdout
    assert ran.stdout.splitlines()[-1] == ("passes" if code == 0 else "FAILS: o, dq, dk, dv")


def found(case: Case, oracle: str, kind: str, outcome: str = "fail", tensor: str = "") -> Verdict:
    return Verdict(case.id, outcome, (Finding(oracle, kind, f'{kind} "of" a\\kind', tensor),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target, oracle, kind, said",
    [
        ("repeats", "determinism", "nondeterministic", "o differs in"),
        ("writes", "memory", "changed_input", "the kernel changed k"),
        ("raises", "protocol", "raised", "it raises"),
        ("right", "protocol", "accepted", "it accepted what it documents to refuse"),
    ],
)
def test_the_script_shows_what_was_found(own, tmp_path, target, oracle, kind, said):
    case = case_of(target, "causal")
    ran = alone(write_script(case, own(target), found(case, oracle, kind)), tmp_path)
    assert ran.returncode == 1 and said in ran.stdout.splitlines()[-1], ran.stdout + ran.stderr


def test_writes_around_a_tensor_are_shown_by_guard_bytes(tmp_path):
    file = tmp_path / "spills.py"
    file.write_text(
        OWN.split("@target")[0]
        + '@target("spills", dtypes=["float32"])\ndef spills(q, k, v, mask, scale):\n'
        + "    v.detach().as_strided((1,), (1,), v.storage_offset() + v.numel()).fill_(7)\n"
        + "    return _softmax((q @ k.mT * scale).masked_fill(~mask, -math.inf)) @ v\n"
    )
    case = case_of("spills", "causal")
    text = write_script(case, load("spills", (str(file),)), found(case, "memory", "wrote_outside", tensor="v"))
    ran = alone(text, tmp_path)
    assert ran.returncode == 1 and "the memory of or around v" in ran.stdout, ran.stdout + ran.stderr


def test_a_silent_fall_back_is_shown():
    case = case_of("torch.sdpa.flash", "causal")
    target = load("torch.sdpa.flash")
    names, code = executed(write_script(case, target, found(case, "protocol", "unproven")))
    assert code == 0 and "FlashAttentionForCpu" in names["run"].kernel


def test_a_hang_leaves_a_stack_and_a_note():
    case = case_of("torch.sdpa.math", "causal")
    text = write_script(case, load(case.target), found(case, "runner", "hang", "hang"))
    assert "It did not come to an end" in text and "faulthandler.dump_traceback_later(60, exit=True)" in text
    assert executed(text)[1] == 0


@pytest.mark.parametrize("name", SPREAD)
def test_a_script_is_short_and_holds_no_branch_that_its_case_lacks(name):
    case = case_of("torch.flex", name)
    text = write_script(case, load("torch.flex"), None)
    assert len(text.splitlines()) <= 165
    assert max(len(line) for line in text.splitlines()) <= 160
    p = case.problem
    assert ("softcap" in text) == (p.softcap > 0)
    assert ("bias = normal(" in text) == (p.bias is not None)
    assert ("repeat_interleave" in text) == (p.group > 1)
    assert ("def lay" in text) == (name == "strides")


def test_a_plain_case_takes_about_a_hundred_lines():
    assert len(write_script(case_of("torch.sdpa.math", "causal"), load("torch.sdpa.math"), None).splitlines()) <= 130


def test_a_target_without_a_text_is_one_line():
    class Mute(Target):
        name = "mute"

    with pytest.raises(ScriptError, match="target 'mute' cannot be written as a script: it has no method script_call"):
        write_script(case_of("mute", "full"), Mute(), None)


def test_an_excerpt_takes_what_is_used():
    f = "def f(x: os.PathLike) -> int:\n    return g(x) + B\n"
    source = f"import os\nA = 1\nB = A + 1\n\n\n{f}\n\ndef g(x):\n    return x\n"
    assert excerpt(source, ["g"]) == "def g(x):\n    return x"
    assert excerpt(source, ["f"]).startswith("A = 1\nB = A + 1\n\n\ndef f(x):")
    assert excerpt(source, ["f"], typing=True).startswith("import os\nA = 1")
