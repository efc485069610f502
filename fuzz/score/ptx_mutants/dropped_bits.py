"""Proof from a kernel's text that bits in which a changed sum differs are dropped by every instruction that reads it.

A descriptor of shared memory has an address without its lowest four bits: a constant is added to an address, and the
sum is shifted right. Where the address has zeros in its lowest bits (possible_values.py), the sum with another constant
differs in no other bits as long as the constants do not.
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.possible_values import Bits

_ADDED = re.compile(r"\s*add\.[su]32\s+(%r\d+), (%r\d+), (\d+);\s*$")


def low_bits_are_dropped(text: str, changed: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX adds a constant to a register, in the changed text
    another one, and every instruction that reads the sum drops the bits that differ, see above; False where that is not
    known."""
    here, there = (_ADDED.match(one.splitlines()[number - 1]) for one in (text, changed))
    if here is None or there is None or here.groups()[:2] != there.groups()[:2] or here[1] == here[2]:
        return False
    bits, (total, base) = Bits(text), here.groups()[:2]
    low = (int(here[3]) ^ int(there[3])).bit_length()
    if bits.of(base) & ((1 << low) - 1) or bits.registers.giving(total) != number - 1:
        return False
    reads = [i for i in bits.registers.named[total] if i != number - 1]
    shifts = [re.match(rf"\s*shr\.u32\s+%r\d+, {total}, (\d+);\s*$", bits.registers.lines[i]) for i in reads]
    return all(one is not None and low <= int(one[1]) < 32 for one in shifts)
