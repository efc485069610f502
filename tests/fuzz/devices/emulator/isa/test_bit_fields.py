"""bfe: bit fields of 32 and 64 bits, as the PTX manual defines them; beyond 255, which it does not, as Hopper does."""

import random

import pytest
import torch
from ptx_tools import own_word, run

CASES = 32


def field(x, place, length, width, signed):
    """What bfe gives, as an unsigned number: bit by bit."""
    if width == 32:
        place, length = place & 255, length & 255
    last = (x >> min(place + length - 1, width - 1)) & 1 if signed and length else 0
    bits = [(x >> place + i) & 1 if i < length and place + i < width else last for i in range(width)]
    return sum(bit << i for i, bit in enumerate(bits))


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("sign", ["u", "s"])
def test_a_bit_field_is_that_of_the_manual(width, sign):
    draw = random.Random(width)
    edges = (0, 1, width // 2 - 1, width // 2, width - 2, width - 1, width, width + 1, 255, 256 + 3)
    places, lengths = ([draw.choice((*edges, draw.randrange(width))) for _ in range(CASES)] for _ in range(2))
    values = [draw.getrandbits(width) for _ in range(CASES)]
    signed_values = [x - (x >> width - 1 << width) for x in values]
    kind = {32: torch.int32, 64: torch.int64}[width]
    x, out = torch.tensor(signed_values, dtype=kind), torch.zeros(CASES, dtype=kind)
    place, length = (torch.tensor(given, dtype=torch.int32) for given in (places, lengths))
    r, size = ("%r" if width == 32 else "%d"), width // 8
    body = f"""
{own_word("%p1", "%d10")} ld.global.b32 %r10, [%d10];
{own_word("%p2", "%d11")} ld.global.b32 %r11, [%d11];
mul.wide.u32 %d12, %t, {size}; add.s64 %d13, %p0, %d12; add.s64 %d14, %p3, %d12;
ld.global.b{width} {r}2, [%d13];
bfe.{sign}{width} {r}3, {r}2, %r10, %r11;
st.global.b{width} [%d14], {r}3;
"""
    assert run(body, x, place, length, out, block=CASES).ok
    found = [int(one) % (1 << width) for one in out]
    assert found == [field(*given, width, sign == "s") for given in zip(values, places, lengths, strict=True)]
