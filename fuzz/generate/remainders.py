"""Lengths whose remainders by a tile are spread: 16 in a case, and all 64 in any four cases of different quarters.

A compiled kernel compares each row of its tile with a length by an instruction of its own. A wrong one shows for the
lengths that end at one of its rows: one remainder in 4 to 64, as rows are dealt to threads. Lengths that are drawn one
by one leave most remainders out.

NOTE [quarters] Quarter c has the remainders 4·i + (i // 4 + c) % 4, for i from 0 to 15: one of each four in a row, and
one of each four that are 16 apart. So a bound of four rows in either order is met in every case.
"""

from __future__ import annotations

from fuzz.generate.masks import Draw

TILE = 64
QUARTERS = 4
LONGER = (0, 0, 0, TILE)  # tokens before the last tile


def quarter(number: int) -> tuple[int, ...]:
    """The 16 remainders of a quarter, NOTE [quarters]."""
    return tuple(4 * i + (i // 4 + number) % QUARTERS for i in range(TILE // 4))


def spread_lengths(draw: Draw) -> tuple[int, ...]:
    """16 lengths with the remainders of a quarter, from any of them on; a remainder of 0 is a whole tile."""
    found = quarter(draw.randint(0, QUARTERS - 1))
    first, more = draw.randint(0, len(found) - 1), draw.choice(LONGER)
    return tuple(more + (n or TILE) for n in found[first:] + found[:first])
