"""Puts the script together: what it is about, the inputs, the call, the right answer, the comparison."""

from __future__ import annotations

import textwrap

import torch

from fuzz.core.case import CODED, Case
from fuzz.core.case_words import sparse_words
from fuzz.core.script_call import Text
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict, summary
from fuzz.script import formula, inputs, masks
from oracles.masks import Full, Mask, parts, tag

ELEMENT = 10  # standard deviations of the rounding error that one element may be off
TENSOR = 4  # and the root mean square over a tensor
HANG_SECONDS = 60

_ROUND = '''\
def rounding(x, eps=EPS):
    """What rounding does to x: a relative error of at most half a unit in the last place, at random."""
    return x * (1 + eps * (torch.rand_like(x) - 0.5))


def exactly(x, eps=EPS):
    return x'''

_ROUND_HALF = '''\
def rounding(x, eps=EPS):
    """What rounding does to x: at most half a unit in the last place, or half of float16's smallest step, at random."""
    step = 2**-24 * (x != 0) if eps >= EPS else 0.0
    return x * (1 + eps * (torch.rand_like(x) - 0.5)) + step * (torch.rand_like(x) - 0.5)


def exactly(x, eps=EPS):
    return x'''

_COMPARE = """\
def compare(name, x, want, runs):
    \"\"\"Prints how far x is from `want` and how far rounding alone goes; returns whether it is wrong.\"\"\"
    if x is None or x.shape != want.shape:
        print(f"{{name:6}} is {{None if x is None else tuple(x.shape)}}, must be {{tuple(want.shape)}}  WRONG")
        return True
    if not x.numel():
        return False
    noise = torch.stack([torch.where(run == want, 0.0, run - want) for run in runs])
    noise = noise.pow(2).mean(0).sqrt()  # standard deviation of what rounding alone does to each element
    noise = noise.maximum(noise.pow(2).mean(-1, keepdim=True).sqrt()) + {tiny}
    right = x == want.to(x.dtype)
    error = torch.where(right, 0.0, x.double() - want).abs().nan_to_num(nan=float("inf"))
{unpadded}    off = error / noise
    at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    wrong = bool(off[at] > {element} or off.pow(2).mean().sqrt() > {tensor})
    print(
        f"{{name:6}} largest error {{error.max():.3g}}, of rounding alone {{noise.max():.3g}}, worst at {{at}}: "
        f"got {{x[at]:.6g}}, right {{want[at]:.6g}}, {{off[at]:.3g}} times that{{'  WRONG' * wrong}}"
    )
    return wrong"""

_JUDGE = """\
want = {formulas}({arguments}, exactly)
runs = [{formulas}({arguments}, rounding) for _ in range({runs})]
wrong = [name for name, x in got.items() if compare(name, x, want[name], [run[name] for run in runs])]"""

_REPEAT = """\
different = dict.fromkeys(got, 0)
for again in range({repeats}):  # the same bits every time?
    for name, x in run({joined}).items():
        different[name] += not torch.equal(x.contiguous().view(torch.uint8), got[name].contiguous().view(torch.uint8))
wrong += [f"{{name}} differs in {{times}} of {repeats} repeats" for name, times in different.items() if times]"""


class Page:
    """The script of one case; subclasses write that of another operation."""

    def __init__(self, case: Case, target: Target, call: Text, verdict: Verdict | None) -> None:
        self.case, self.target, self.call, self.verdict = case, target, call, verdict
        self.p = case.problem
        self.seen = {(f.oracle, f.kind) for f in (verdict.findings if verdict else ())}
        self.masked = self.p.mask != Full() or self.p.ragged or call.mask
        self.in_formula = self.p.mask != Full() or (self.p.ragged and self.p.layout == "padded")
        self.guard = ("memory", "wrote_outside") in self.seen and not (self._strided() or self._shared())
        self.names = inputs.names(case)
        self.mask_lines: list[str] = []

    def text(self) -> str:
        """The whole script."""
        sections = [self._head(), *self.functions(), self._inputs(), self._run(), self.judge(), self._end()]
        return "\n\n".join(section for section in sections if section).rstrip() + "\n"

    def _strided(self) -> bool:
        stores = (self.case.inputs.q, self.case.inputs.k, self.case.inputs.v, self.case.inputs.do)
        return any(s.order != "bhsd" or s.pad or s.offset for s in stores)

    def _shared(self) -> bool:
        given = self.case.inputs
        return any(s.shared for s in (given.q, given.k, given.v, given.do))

    def _head(self) -> str:
        p, target = self.p, self.target
        said = _plain(summary(self.verdict)) if self.verdict is not None else "no verdict"
        heads = f"{p.heads_q} query heads, {p.heads_kv} KV heads" if p.group > 1 else f"{p.heads_q} heads"
        lengths = f"lengths of q {_short(p.lengths_q)}, of k {_short(p.lengths_k)}"
        what = f"{p.layout}, {p.dtype}, {heads}, {lengths}, dims {p.dim} and {p.dim_v}, mask: {_named(p.mask)}"
        more = [f"scale {p.scale}"] * (p.scale is not None) + [f"softcap {p.softcap}"] * (p.softcap > 0)
        more += (
            sparse_words(p)
            + ["bias"] * (p.bias is not None)
            + ["forward and backward" if p.backward else "forward only"]
        )
        lines = [f'"""{target.name}: {said}', "", *textwrap.wrap(", ".join([what, *more]) + ".", 110)]
        lines += [
            f"Written by attnfuzz for case {self.case.id} with PyTorch {torch.__version__}; needs "
            + ("attnfuzz's emulated GPU, and no other." if self.call.emulated else "nothing of attnfuzz.")
        ]
        lines += self._notes()
        lines += ["It prints every tensor's worst error, ends with FAILS or passes, and exits with 1 or 0.", '"""', ""]
        imports = {"import torch", *self.call.imports}
        if self._strided():
            imports.add("import math")
        if self._hangs():
            imports.add("import faulthandler")
        if {("protocol", "raised"), ("protocol", "refused")} & self.seen:
            imports.add("import traceback")
        if self.case.inputs.distribution in CODED:
            imports |= {"import base64", "import zlib"}
        plain = sorted(line for line in imports if line.startswith("import "))
        lines += [*plain, *sorted(imports - set(plain)), ""]
        device = "cuda" if target.device == "cuda" else "cpu"
        lines += [f'DEVICE = "{device}"', f"DTYPE = torch.{p.dtype}", formula.units(p)]
        lines += [f"SCALE = {p.scale_value!r}"]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        notes = []
        if self._hangs():
            notes.append(
                f"It did not come to an end: after {HANG_SECONDS} s this script shows where it is, and exits with 1."
            )
        for finding in self.verdict.findings if self.verdict else ():
            if finding.oracle == "memory" and not (self.guard and finding.tensor in self.names):
                notes.append(f"What was seen beside its numbers: {_plain(finding.message)}.")
        return notes

    def _hangs(self) -> bool:
        """True if the script may not end; on the emulated GPU a hang is a state that it reports."""
        return self.verdict is not None and self.verdict.outcome == "hang" and not self.call.emulated

    def functions(self) -> list[str]:
        """Functions that the script needs: of the kernel, of its inputs, the right answer, the comparison."""
        found = [self.call.setup] if self.call.setup else []
        found += inputs.helpers(self.case, self.guard)
        if self.masked or inputs.reads_mask(self.case):
            helpers, self.mask_lines = masks.dense(self.p)
            found += helpers
        found += [
            _ROUND_HALF if self.p.dtype == "float16" else _ROUND,
            formula.formulas(self.p, self.target.numerics_of(self.case), self.in_formula),
        ]
        if self.p.layout == "packed":
            found.append(formula.packed(self.p, self.in_formula))
        found.append(self.compare())
        return ["\n" + text for text in found]

    def _inputs(self) -> str:
        masked = bool(self.mask_lines)
        lines = ["\n# The inputs: the same numbers everywhere.", "torch.manual_seed(0)  # only for `rounding`"]
        if masked:
            lines += self.mask_lines + (['keep = keep.to("cuda")'] if self.target.device == "cuda" else [])
        return "\n".join(lines + inputs.lines(self.case, self.guard))

    def _run(self) -> str:
        leaves = self._leaves()
        lines = []
        if self._hangs():
            lines.append(f"faulthandler.dump_traceback_later({HANG_SECONDS}, exit=True)")
        if ("memory", "changed_input") in self.seen:
            lines.append(f"before = {{name: x.clone() for name, x in {self.by_name(self.names)}.items()}}")
        if self.guard:
            lines.append("before_buffers = [memory.clone() for memory in buffers]")
        joined = ", ".join(leaves)
        body = self._body(leaves if self.p.backward else [])
        if self.call.emulated:
            lines.append("gpus = []  # of each run, with the reports of its launches")
            inner = ["gpus.append(gpu)", *(line.removeprefix("    ") for line in body)]
            body = [f"    with {self.call.emulated} as gpu:", *("        " + line if line else "" for line in inner)]
        lines += ["", "", f"def run({joined}):", *body, "", "", *self._called(f"got = run({joined})")]
        return "\n".join(["# The kernel.", *lines] if lines[0] else ["", "# The kernel.", *lines[2:]])

    def _leaves(self) -> list[str]:
        """The inputs whose gradients are asked for; all of them where there is no backward pass."""
        detached = self.case.inputs.detached if self.p.backward else ()
        return (
            [n for n in ("q", "k", "v") if n not in detached]
            + ["bias"] * bool(self.p.bias and self.p.bias.grad)
            + [*self.p.weights]
        )

    def _called(self, call: str) -> list[str]:
        """The call; where the finding is that it raises, with the exception as the failure."""
        if not {("protocol", "raised"), ("protocol", "refused")} & self.seen:
            return [call]
        caught = [
            "except Exception:",
            "    traceback.print_exc()",
            '    print("FAILS: it raises")',
            "    raise SystemExit(1)",
        ]
        return ["try:", "    " + call, *caught]

    def _body(self, leaves: list[str]) -> list[str]:
        """Lines of run(): leaves, the call, the gradients."""
        body = []
        found = ['"o": o.detach()'] + ['"lse": lse.detach()'] * self.call.lse
        if leaves:
            joined = ", ".join(leaves)
            comma = "," * (len(leaves) == 1)
            body.append(f"{joined}{comma} = leaves = [x.detach().requires_grad_() for x in ({joined}{comma})]")
        body += self.call.call
        if leaves:
            grads = [f"d{name}" for name in leaves]
            given = ", ".join(grads) + "," * (len(grads) == 1)
            body.append(f"{given} = torch.autograd.grad(o, leaves, do, materialize_grads=True)")
            found += [f'"{name}": {name}' for name in grads]
        found += [f'"{name}": chosen["{name}"]' for name in self.p.choices]
        if self._unproven():
            body.append("run.kernel = type(o.grad_fn).__name__")
        body.append(f"return {{{', '.join(found)}}}")
        return ["    " + line if line else "" for line in body]

    def _unproven(self) -> bool:
        return ("protocol", "unproven") in self.seen

    def compare(self) -> str:
        """The function that compares one tensor."""
        p, unpadded = self.p, ""
        if p.layout == "padded" and p.ragged:
            pairs = list(zip(p.lengths_q, p.lengths_k, strict=True))
            unpadded = (
                f"    for b, (n_q, n_k) in enumerate({pairs}):  # padding may hold anything\n"
                '        if name != "dbias":\n'
                '            error[b, :, n_k if name in ("dk", "dv") else n_q :] = 0\n'
            )
        return _COMPARE.format(
            element=ELEMENT,
            tensor=TENSOR,
            tiny="2**-25" if p.dtype == "float16" else "torch.finfo(x.dtype).tiny",
            unpadded=unpadded,
        )

    def judge(self) -> str:
        """Lines that leave `wrong` behind, the names of what is wrong."""
        lines = _JUDGE.format(
            formulas="packed_formulas" if self.p.layout == "packed" else "formulas",
            arguments=", ".join([*self.names] + ["keep"] * self.in_formula),
            runs=16 if self.p.pairs <= 1 << 17 else 6,
        )
        return "# The right answer in float64, and what rounding alone does.\n" + lines

    def _end(self) -> str:
        lines: list[str] = []
        joined = ", ".join(self._leaves())
        if any(oracle == "determinism" for oracle, _ in self.seen) or (
            self.verdict and self.verdict.outcome == "flake"
        ):
            lines += ["", *_REPEAT.format(repeats=max(20, self.case.repeats), joined=joined).split("\n")]
        if ("protocol", "wrong_dtype") in self.seen:
            lines += ["", "for name, x in got.items():", '    if name not in ("lse", "dbias") and x.dtype != DTYPE:']
            lines += ['        wrong.append(f"{name} is {x.dtype}")']
        if ("protocol", "accepted") in self.seen:
            lines += ["", 'wrong.append("it accepted what it documents to refuse")']
        if ("memory", "changed_input") in self.seen:
            lines += ["", f"for name, x in {self.by_name(self.names)}.items():"]
            lines += ["    if not torch.equal(x, before[name]):", '        wrong.append(f"the kernel changed {name}")']
        if self.guard:
            lines += ["", f"for name, now, was in zip({self.names}, buffers, before_buffers):"]
            lines += ["    if not torch.equal(now, was):"]
            lines += ['        wrong.append(f"the kernel wrote to the memory of or around {name}")']
        if self._unproven():
            lines += [
                "",
                f"if not any(name in run.kernel for name in {list(self.target.proof)}):  # another kernel ran",
            ]
            lines += ['    wrong.append(f"{run.kernel} ran")']
        if self.call.emulated:
            lines += ["", "for report in [report for gpu in gpus for report in gpu.reports if not report.ok]:"]
            lines += ["    print(report)"]
            lines += ["    kinds = [finding.kind for finding in report.findings] or [report.status]"]
            lines += ["    wrong += [kind for kind in dict.fromkeys(kinds) if kind not in wrong]"]
        if self._hangs():
            lines += ["", "faulthandler.cancel_dump_traceback_later()"]
        lines += ['print(f"FAILS: {\', \'.join(wrong)}" if wrong else "passes")', "raise SystemExit(1 if wrong else 0)"]
        return "\n".join(lines)

    @staticmethod
    def by_name(names: list[str]) -> str:
        """Text of a dictionary of those variables."""
        return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


def _plain(text: str) -> str:
    """One line that cannot end a docstring."""
    return " ".join(text.replace("\\", "/").replace('"""', "'''").split())


def _short(lengths: tuple[int, ...]) -> str:
    return str(lengths[0]) if len(lengths) == 1 else str(list(lengths))


def _named(mask: Mask) -> str:
    inner = parts(mask)
    return tag(mask) + (f"({', '.join(_named(part) for part in inner)})" if inner else "")
