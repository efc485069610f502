"""Reads PTX text into plain data: kernels with their parameters, registers, labels and instructions.

Only syntax; what an instruction means is decided in `decode/decoder.py`, which refuses what it does not know. Covers
what NVVM writes: entries, calls of functions (which are put in place of the call), nested scopes with registers of
their own (inline assembly), vector and address operands, predicates, module and function variables, and directives that
change nothing here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from fuzz.devices.emulator.ptx_functions import Call, Function, call, functions


class PtxError(ValueError):
    """PTX that this reader does not understand, with its line."""


@dataclass(frozen=True)
class Param:
    """A kernel parameter: its place in the parameter block (bytes), size and name. kind: its type ('u64', 'f32'), with
    '[]' where it is an array of them, as structs are ('b8[]')."""

    name: str
    offset: int
    size: int
    kind: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable in .shared, .global or .const memory. `size` 0 means the dynamic shared memory."""

    name: str
    space: str
    align: int
    size: int
    data: bytes | None = None


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register, a variable, a parameter, or None for a plain number."""

    base: str | None
    offset: int


@dataclass(frozen=True)
class Instruction:
    """One PTX statement. Operands: names, ints, ('f32', bits), Address, or tuples of those for vectors.

    source  number of the file and line that it was compiled from, where `.loc` says so; Kernel.place names them
    inlined  the same of the call that a compiler put the function's code in place of; None: of no such code
    """

    name: str
    operands: tuple[object, ...]
    guard: str | None
    negated: bool
    line: int
    text: str
    source: tuple[int, int] | None = None
    inlined: tuple[int, int] | None = None


@dataclass
class Kernel:
    """An entry: `labels` give the index of the instruction that they stand before, `registers` the type of each
    name, `files` the source files by their number.

    cluster           CTAs of a cluster (.reqnctapercluster); None where the PTX does not say
    explicit_cluster  it must be launched with clusters (.explicitcluster)
    max_cluster       the most CTAs of a cluster (.maxclusterrank), 0: not said
    grid_of_clusters  its grid counts clusters (.blocksareclusters)
    entry_registers   the most registers of a thread when it starts, by .maxnreg or .maxntid; 0: not said
    undefined         registers that the compiler says have any value (`// implicit-def:`)
    """

    name: str
    params: list[Param] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    cluster: tuple[int, int, int] | None = None
    explicit_cluster: bool = False
    max_cluster: int = 0
    grid_of_clusters: bool = False
    entry_registers: int = 0
    undefined: set[str] = field(default_factory=set)

    def place(self, instruction: Instruction) -> str:
        """The source line of an instruction: 'attention.py:41'; '' where the PTX does not say. With inlined code the
        line of the outermost call too: 'softmax.py:12 inlined at attention.py:41'."""
        inner, outer = self._line(instruction.source), self._line(instruction.inlined)
        return f"{inner} inlined at {outer}" if inner and outer and inner != outer else inner

    def _line(self, source: tuple[int, int] | None) -> str:
        if source is None or source[0] not in self.files:
            return ""
        return f"{PurePath(self.files[source[0]]).name}:{source[1]}"


@dataclass
class Module:
    """A PTX file."""

    target: str
    version: str
    kernels: dict[str, Kernel]
    variables: list[Variable]
    files: dict[int, str] = field(default_factory=dict)

    @cached_property
    def used(self) -> frozenset[str]:
        """Names that the kernels' operands have: registers, and those variables that are used. CUDA's headers declare
        hundreds of others."""
        names, rest = set(), [i.operands for kernel in self.kernels.values() for i in kernel.instructions]
        while rest:
            for one in rest.pop():
                if isinstance(one, tuple):
                    rest.append(one)
                else:
                    names.add(one.base if isinstance(one, Address) else one)
        return frozenset(name for name in names if isinstance(name, str))


SM_REGISTERS, MOST_REGISTERS, REGISTER_UNIT = 65536, 256, 8
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_SKIPPED = (".pragma", ".reqntid", ".maxntid", ".minnctapersm", ".maxnreg", ".noreturn",
            ".reqnctapercluster", ".explicitcluster", ".maxclusterrank", ".address_size", ".alias",
            ".blocksareclusters", ".callprototype")  # fmt: skip


_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_SECTION = re.compile(r"\.section\b[^{;]*\{[^}]*\}")
_WHOLE_LINE = re.compile(r"\.(version|target|address_size|file|loc|section|inline_begin|inline_end|implicit_def)\b")
_BOUNDS = re.compile(
    r"\.(reqntid|maxntid|minnctapersm|maxnreg|noreturn|reqnctapercluster|explicitcluster|maxclusterrank)"
)
_HEADER = re.compile(r"(\.visible|\.weak|\.extern)?\s*\.(entry|func)\b")
_STATEMENT_END, _HEADER_END = re.compile('[";]'), re.compile('[";{]')
_F32, _F64 = re.compile(r"(-?)0[fF]([0-9a-fA-F]{8})"), re.compile(r"(-?)0[dD]([0-9a-fA-F]{16})")
_INTEGER, _OCTAL = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?"), re.compile(r"0[0-7]+")
_BRACKET = re.compile(r"[{\[(\]})]")
_INLINE = re.compile(r"^[ \t]*//[ \t]*(begin|end) inline asm[ \t]*$", re.M)
_IMPLICIT = re.compile(r"^[ \t]*//[ \t]*implicit-def:[ \t]*(%\w+)[ \t]*$", re.M)


def _strip_comments(text: str) -> str:
    """The text without comments; those around inline assembly, and those that name a register without a value, become
    directives of this reader."""
    text = _IMPLICIT.sub(r".implicit_def \1", _INLINE.sub(r".inline_\1", text))
    blank = lambda m: "\n" * m.group(0).count("\n")  # noqa: E731
    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)


def _statements(text: str):  # type: ignore[no-untyped-def]
    """(line, text) of statements, labels ('name:'), headers (ending in '{') and scope braces."""
    at, line, n = 0, 1, len(text)
    while at < n:
        if text[at] in " \t\r\n":
            line += text[at] == "\n"
            at += 1
            continue
        start, first = at, line
        if text[at] in "{}":
            yield first, text[at]
            at += 1
            continue
        label = _LABEL.match(text, at)
        if label:
            yield first, label.group(1) + ":"
            line += label.group(0).count("\n")
            at = label.end()
            continue
        header = None
        if text[at] == ".":
            section = _SECTION.match(text, at)  # debug information: no statements
            if section:
                line += section.group(0).count("\n")
                at = section.end()
                continue
            stop = text.find("\n", at) % (n + 1)  # -1: the end
            head = text[at:stop]
            if _WHOLE_LINE.match(head):
                yield first, head.strip()
                at = stop
                continue
            if _BOUNDS.match(head):
                at = stop
                continue
            header = _HEADER.match(head)
        ends = _HEADER_END if header else _STATEMENT_END
        while (found := ends.search(text, at)) and found.group() == '"':
            at = text.index('"', found.end()) + 1
        at = found.start() if found else n
        body = text[start:at]
        line += body.count("\n")
        if at < n and text[at] == "{":
            yield first, body + "{"
        else:
            yield first, body.strip()
        at += 1


def number(text: str) -> object:
    """An immediate: an int, or ('f32' | 'f64', bits)."""
    t = text.strip()
    if not t or t[0] not in "-0123456789":
        return None
    m = _F32.fullmatch(t)
    if m:
        return ("f32", int(m.group(2), 16) ^ (0x80000000 if m.group(1) else 0))
    m = _F64.fullmatch(t)
    if m:
        return ("f64", int(m.group(2), 16) ^ ((1 << 63) if m.group(1) else 0))
    m = _INTEGER.fullmatch(t)
    if m:
        digits = m.group(2)
        value = int(digits, 8) if _OCTAL.fullmatch(digits) else int(digits, 0)
        return -value if m.group(1) else value
    return None


def split(text: str) -> list[str]:
    """Operands at the top level of braces and brackets."""
    if not _BRACKET.search(text):
        plain = [part.strip() for part in text.split(",")]
        return plain if plain[-1] else plain[:-1]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


@dataclass(frozen=True)
class _Frame:
    """A call whose function is being read: the label that it returns to, and the source line of the call."""

    function: Function
    end: str
    source: tuple[int, int] | None


class _Reader:
    def __init__(self, text: str) -> None:
        self.module = Module("", "", {}, [])
        self.kernel: Kernel | None = None
        self.scopes: list[dict[str, str]] = []
        self.fresh = 0
        self.skip = 0  # depth inside a function that is not an entry
        self.source: tuple[int, int] | None = None
        self.inlined: tuple[int, int] | None = None
        self.outermost: dict[tuple[int, ...], tuple[int, int]] = {}  # file, line, column of inlined code → the call's
        self.inline = ""  # in inline assembly: 'begun'; 'named' after its first .loc
        self.statements = list(_statements(_strip_comments(text)))
        self.functions = functions(self.statements)
        self.frames: list[_Frame] = []  # calls whose functions' statements are being read, the outermost first
        self.call_params: set[str] = set()  # names of variables that hold arguments and results of calls
        for at, (line, statement) in enumerate(self.statements):
            self.at = at
            try:
                self.statement(line, statement)
            except PtxError:
                raise
            except (ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError) as error:
                raise PtxError(f"line {line}: cannot read {statement[:120]!r} ({error})") from error

    def statement(self, line: int, s: str) -> None:
        if not s:  # a semicolon alone
            return
        if self.skip:
            self.skip += 1 if s == "{" else (-1 if s == "}" else 0)
        elif s == "{":
            self.scopes.append({})
            self.labels_ahead()
        elif s == "}":
            self.scopes.pop()
            if not self.scopes:
                self.kernel = None
        elif s.endswith("{"):
            self.header(s[:-1])
        elif s.endswith(":"):
            assert self.kernel is not None
            self.kernel.labels[self.rename(s[:-1])] = len(self.kernel.instructions)
        elif s and s[0] != ".":
            self.instruction(line, s)
        elif s.startswith(".version"):
            self.module.version = s.split()[1]
        elif s.startswith(".target"):
            self.module.target = s.split()[1].rstrip(",")
        elif s.startswith(".file"):
            self.module.files[int(s.split()[1])] = re.findall(r'"([^"]*)"', s)[-1]
        elif s.split()[0] == ".loc":
            if self.inline != "named":  # LLVM counts on with each line of inline assembly
                self.location(s)
            self.inline = self.inline and "named"
        elif s.startswith(".inline"):
            self.inline = "begun" if s == ".inline_begin" else ""
        elif s.startswith(".implicit_def"):
            if self.kernel is not None:
                self.kernel.undefined.add(self.rename(s.split()[1]))
        elif s.startswith((*_SKIPPED, ".section")) or not s:
            return
        elif s.startswith(".reg"):
            self.registers(s)
        elif s.startswith((".extern .func", ".func", ".visible .func", ".weak .func")):
            return
        else:
            self.variable(s)

    def location(self, s: str) -> None:
        """.loc file line column, function_name …, inlined_at file line column."""
        found = re.findall(r"(\d+) (\d+) (\d+)(?=,|$)", s + ",")
        here, *call_there = [(int(file), int(line), int(column)) for file, line, column in found]
        self.source = here[:2] if here[1] else None
        self.inlined = self.frames[0].source if self.frames else None
        if call_there:
            self.outermost[here] = self.outermost.get(call_there[0], call_there[0][:2])
            self.inlined = self.inlined or self.outermost[here]

    def labels_ahead(self) -> None:
        """Declares the labels of the inner scope that begins here: branches to them may come before they do."""
        depth = 0
        for _, s in self.statements[self.at + 1 :]:
            depth += (s == "{") - (s == "}")
            if depth < 0:
                return
            if depth == 0 and s.endswith(":"):
                self.rename(s[:-1], declare=True)

    def header(self, s: str) -> None:
        if ".entry" not in s:
            self.skip = 1
            return
        name = re.search(r"\.entry\s+([\w$]+)", s)
        assert name
        kernel = Kernel(name.group(1), files=self.module.files)
        inner = re.search(r"\((.*)\)", s, re.S)
        at = 0
        for text in split(inner.group(1)) if inner else []:
            m = re.search(r"([\w$%]+)\s*(?:\[\s*(\d+)\s*\])?\s*$", text)
            kind = re.search(r"\.([busf](8|16|32|64))\b", text)
            align = re.search(r"\.align\s+(\d+)", re.sub(r"\.ptr.*", "", text))
            assert m and kind
            size = SIZES[kind.group(2)]
            boundary = int(align.group(1)) if align else size
            at = -(-at // boundary) * boundary
            total = size * int(m.group(2) or 1)
            kernel.params.append(Param(m.group(1), at, total, kind.group(1) + "[]" * bool(m.group(2))))
            at += total
        self.cluster(kernel, s)
        kernel.entry_registers = _entry_registers(s)
        self.kernel = self.module.kernels[kernel.name] = kernel
        self.source = self.inlined = None
        self.scopes = [{}]

    @staticmethod
    def cluster(kernel: Kernel, s: str) -> None:
        """Directives about clusters in the header of a kernel."""
        size = re.search(r"\.reqnctapercluster\s+([\d\s,]+)", s)
        most = re.search(r"\.maxclusterrank\s+(\d+)", s)
        if size:
            x, y, z = ([int(n) for n in size.group(1).split(",")] + [1, 1])[:3]
            kernel.cluster = (x, y, z)
        kernel.explicit_cluster = ".explicitcluster" in s
        kernel.max_cluster = int(most.group(1)) if most else 0
        kernel.grid_of_clusters = ".blocksareclusters" in s

    def registers(self, s: str) -> None:
        assert self.kernel is not None
        m = re.match(r"\.reg\s*(?:\.v\d\s+)?\.(\w+)\s+(.*)", s, re.S)
        assert m
        for name in split(m.group(2)):
            many = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
            names = [f"{many.group(1)}{i}" for i in range(int(many.group(2)))] if many else [name]
            for one in names:
                self.kernel.registers[self.rename(one, declare=len(self.scopes) > 1)] = m.group(1)

    def rename(self, name: str, declare: bool = False) -> str:
        """The name in force here: registers of an inner scope get a mark that keeps them apart."""
        if declare:
            self.fresh += 1
            self.scopes[-1][name] = f"{name}@{self.fresh}"
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def variable(self, s: str) -> None:
        space = re.search(r"\.(shared|global|const|local|param)\b", s)
        kind = re.search(r"\.[busf](8|16|32|64)\b\s*([\w$%]+)\s*((?:\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$", s, re.S)
        assert space and kind
        align = re.search(r"\.align\s+(\d+)", s)
        element = SIZES[kind.group(1)]
        count = 1
        for dim in re.findall(r"\[\s*(\d*)\s*\]", kind.group(3)):
            count *= int(dim or 0)
        data = None
        if kind.group(4):
            values = [number(v) for v in kind.group(4).strip().strip("{}").split(",")]
            plain = [v[1] if isinstance(v, tuple) else v for v in values]
            data = b"".join((int(v) % (1 << 8 * element)).to_bytes(element, "little") for v in plain)  # type: ignore[call-overload, arg-type]
        boundary = int(align.group(1)) if align else element
        name, place = kind.group(2), space.group(1)
        if place == "param":  # of a call: memory of the caller's
            name, place = self.rename(name, declare=True), "local"
            self.call_params.add(name)
        elif self.frames and place == "local":
            self.rename(name, declare=True)
        variable = Variable(self.rename(name), place, boundary, element * count, data)
        (self.kernel.variables if self.kernel else self.module.variables).append(variable)

    def operand(self, text: str) -> object:
        if text.startswith("{"):
            return tuple(self.operand(part) for part in split(text[1:-1]))
        if text.startswith("["):
            inner = text[1:-1].strip()
            if "," in inner:
                return tuple(
                    self.operand(part) if part.startswith("{") else self.address(part) for part in split(inner)
                )
            return self.address(inner)
        if "|" in text:
            return tuple(self.operand(part.strip()) for part in text.split("|"))
        value = number(text)
        if value is not None:
            return value
        if text == "WARP_SZ":
            return 32
        if text.startswith("!"):
            return "!" + self.rename(text[1:].strip())
        return self.rename(text)

    def address(self, inner: str) -> Address:
        m = re.fullmatch(r"([\w$%.]+)\s*(?:([+-])\s*(-?\w+))?", inner)
        assert m, inner
        offset = int(m.group(3), 0) * (-1 if m.group(2) == "-" else 1) if m.group(3) else 0
        plain = number(m.group(1))
        if isinstance(plain, int):
            return Address(None, plain + offset)
        return Address(self.rename(m.group(1)), offset)

    def instruction(self, line: int, s: str) -> None:
        assert self.kernel is not None
        text = " ".join(s.split())
        m = re.match(r"(?:@(!?)([\w$%]+)\s+)?([a-zA-Z][\w.:]*)\s*(.*)", text)
        assert m
        name, rest = m.group(3), m.group(4)
        if name.split(".")[0] == "call":
            parts = call(text)
            if parts is not None and self.call(parts):
                return
            operands: tuple[object, ...] = (
                ("", ()) if parts is None else (parts.callee, tuple(map(self.rename, parts.arguments)))
            )
        else:
            operands = tuple(self.operand(part) for part in split(rest))
        if name.startswith(("ld.param", "st.param")) and any(
            isinstance(x, Address) and x.base in self.call_params for x in operands
        ):
            name = name.replace(".param", ".local")
        elif name == "ret" and self.frames:
            name, operands = "bra", (self.frames[-1].end,)
        guard = self.rename(m.group(2)) if m.group(2) else None
        self.kernel.instructions.append(
            Instruction(name, operands, guard, m.group(1) == "!", line, text, self.source, self.inlined)
        )

    def call(self, parts: Call) -> bool:
        """Reads the statements of the function that is called. False where that cannot be: it has no body, calls
        itself, or is known at run time only; then the call stays an instruction."""
        assert self.kernel is not None
        function = self.functions.get(parts.callee)
        if function is None or any(frame.function is function for frame in self.frames):
            return False
        self.fresh += 1
        frame = _Frame(function, f"{function.name}@{self.fresh}", self.source)
        given = (*parts.results, *parts.arguments)
        names = {
            own: self.rename(theirs) for own, theirs in zip((*function.results, *function.params), given, strict=True)
        }
        before = self.statements, self.at, self.source, self.inlined
        self.frames.append(frame)
        self.scopes.append(names)
        self.statements, self.at = list(function.body), -1
        self.labels_ahead()
        for at, (line, statement) in enumerate(self.statements):
            self.at = at
            self.statement(line, statement)
        self.kernel.labels[frame.end] = len(self.kernel.instructions)
        self.scopes.pop()
        self.frames.pop()
        self.statements, self.at, self.source, self.inlined = before
        return True


def _entry_registers(header: str) -> int:
    """Kernel.entry_registers: .maxnreg, or the registers of an SM divided among the threads that .maxntid (.reqntid)
    and .minnctapersm promise it room for, as ptxas does; a multiple of 8."""
    most = re.search(r"\.maxnreg\s+(\d+)", header)
    if most:
        return int(most.group(1)) // REGISTER_UNIT * REGISTER_UNIT
    threads = re.search(r"\.(?:reqntid|maxntid)\s+([\d\s,]+)", header)
    if not threads:
        return 0
    warps = -(-math.prod(int(n) for n in threads.group(1).split(",")) // 32)
    ctas = re.search(r"\.minnctapersm\s+(\d+)", header)
    share = SM_REGISTERS // (32 * warps * int(ctas.group(1) if ctas else 1))
    return min(share, MOST_REGISTERS) // REGISTER_UNIT * REGISTER_UNIT


def parse(text: str) -> Module:
    """Reads a PTX file. Raises PtxError with the line of what it cannot read."""
    return _Reader(text).module
