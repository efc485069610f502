"""Products and sums of a kernel's PTX, fused as a compiler of PTX may: `mul` and `add` without a rounding modifier.

The PTX ISA, on `mul` and `add`: without a rounding modifier "mul/add and mul/sub sequences may be optimized to use
fused-multiply-add instructions on the target device". ptxas does so, and what it fuses PTX does not say. The emulated
GPU runs PTX as written otherwise, and so cannot see what depends on it: `a * c - b * c` is 0 for a = b as written, and
the rounding error of one product where the other one is fused.

A product is fused with every sum that it is a term of. Where both terms are products, `which` says whose. The value of
a register at a sum is that of its product where each register involved is written once in the kernel, or where product
and sum are in one basic block that writes none of them in between; other sums stay as written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuzz.devices.emulator.config import AS_WRITTEN
from fuzz.devices.emulator.ptx import Instruction, Kernel

# Signs of what a register of a type holds, and its bits
_SIGNS = {
    "f32": (0x80000000, 32),
    "f32x2": (0x8000000080000000, 64),
    "f64": (1 << 63, 64),
    "f16": (0x8000, 16),
    "f16x2": (0x80008000, 32),
    "bf16": (0x8000, 16),
    "bf16x2": (0x80008000, 32),
}
_FORM = re.compile(rf"(mul|add|sub)(\.ftz)?(\.sat)?\.({'|'.join(_SIGNS)})")


@dataclass(frozen=True)
class _Product:
    """A `mul` whose result may become part of a sum. block: number of its basic block; written: how often each of its
    registers had been written after it, in the order of the text."""

    operands: tuple[object, object]
    kind: str
    ftz: bool
    block: int
    written: dict[str, int]


def contracted(kernel: Kernel, which: str) -> Kernel:
    """The kernel with its products fused into its sums; itself where there are none.

    which   of two products: 'first' or 'second'; 'as_written' fuses none
    """
    if which == AS_WRITTEN:
        return kernel
    made = _Contraction(kernel, 0 if which == "first" else 1)
    return made.kernel() if made.fused else kernel


class _Contraction:
    """One pass over a kernel's instructions. fused: number of sums that became `fma`."""

    def __init__(self, kernel: Kernel, favoured: int) -> None:
        self.old, self.favoured, self.fused = kernel, favoured, 0
        self.total = Counter(name for i in kernel.instructions for name in _written(i))
        self.written: Counter[str] = Counter()
        self.products: dict[str, _Product] = {}
        self.registers = dict(kernel.registers)
        self.block = 0
        self.instructions: list[Instruction] = []
        self.places: list[int] = []  # of the first new instruction, by the number of the old one
        starts = set(kernel.labels.values())
        for index, i in enumerate(kernel.instructions):
            self.block += index in starts
            self.places.append(len(self.instructions))
            self.instructions += self._instead(i)
            self._note(i)
        self.places.append(len(self.instructions))

    def kernel(self) -> Kernel:
        """The kernel that the pass has made."""
        labels = {name: self.places[at] for name, at in self.old.labels.items()}
        return replace(self.old, instructions=self.instructions, labels=labels, registers=self.registers)

    def _note(self, i: Instruction) -> None:
        """Counts the registers that instruction `i` writes, and keeps the operands of a product."""
        self.written.update(_written(i))
        form = _FORM.fullmatch(i.name)
        if form is None or form[1] != "mul" or form[3] or i.guard or not isinstance(i.operands[0], str):
            return
        _, x, y = i.operands
        if not (_scalar(x) and _scalar(y)):
            return
        names = {name for name in (i.operands[0], x, y) if isinstance(name, str)}
        # `mul a, a, b`: the a that was multiplied is gone
        if i.operands[0] not in (x, y):
            now = {name: self.written[name] for name in names}
            self.products[i.operands[0]] = _Product((x, y), form[4], bool(form[2]), self.block, now)

    def _instead(self, i: Instruction) -> Iterator[Instruction]:
        """Instructions in place of instruction `i`: itself, or the `fma` of a sum."""
        form = _FORM.fullmatch(i.name)
        if form is not None and form[1] != "mul":
            terms = i.operands[1:]
            for at in (self.favoured, 1 - self.favoured):
                product = self._product(terms[at], form[4], bool(form[2]))
                if product is not None and _scalar(terms[1 - at]):
                    yield from self._fused(i, form, product, at)
                    return
        yield i

    def _product(self, term: object, kind: str, ftz: bool) -> _Product | None:
        """The product that a term is, here."""
        product = self.products.get(term) if isinstance(term, str) else None
        if product is None or (product.kind, product.ftz) != (kind, ftz):
            return None
        once = all(self.total[name] <= 1 for name in product.written)
        near = product.block == self.block and all(self.written[name] == n for name, n in product.written.items())
        return product if once or near else None

    def _fused(self, i: Instruction, form: re.Match[str], product: _Product, at: int) -> Iterator[Instruction]:
        """The `fma` for a sum whose term number `at` is a product."""
        self.fused += 1
        (x, y), other = product.operands, i.operands[2 - at]
        if form[1] == "sub" and at == 0:
            flip, other = self._negative(i, other, form[4])
            yield from flip
        elif form[1] == "sub":
            flip, x = self._negative(i, x, form[4])
            yield from flip
        name = f"fma.rn{form[2] or ''}{form[3] or ''}.{form[4]}"
        yield replace(i, name=name, operands=(i.operands[0], x, y, other), text=f"{i.text} [fused]")

    def _negative(self, i: Instruction, x: object, kind: str) -> tuple[list[Instruction], object]:
        """An operand with its sign flipped, and what writes it."""
        signs, bits = _SIGNS[kind]
        if isinstance(x, tuple):  # a number
            return [], (x[0], x[1] ^ signs)
        if isinstance(x, int):
            return [], x ^ signs
        name = f"%contracted{self.fused}"
        self.registers[name] = f"b{bits}"
        return [replace(i, name=f"xor.b{bits}", operands=(name, x, signs), guard=None, text=f"{i.text} [sign]")], name


def _scalar(x: object) -> bool:
    """True of a register or a number; False of a vector of them."""
    return isinstance(x, str | int) or (isinstance(x, tuple) and x[:1] in (("f32",), ("f64",)))


def _written(i: Instruction) -> Iterator[str]:
    """Registers that an instruction may write: names in its first operand. Stores and waits read theirs, which then
    counts as written: fewer sums are fused."""
    first = i.operands[:1]
    for one in first[0] if first and isinstance(first[0], tuple) else first:
        if isinstance(one, str):
            yield one


__all__ = ["contracted"]
