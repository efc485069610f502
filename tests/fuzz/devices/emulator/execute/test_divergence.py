"""Lanes of one warp at different places."""

import pytest
import torch
from ptx_tools import own_word, run

FIRST_HALF_SPINS = f"""
setp.eq.s32 %q1, %c, 1; @%q1 bra $writer;
mov.b32 %r2, 0;
setp.ge.s32 %q0, %t, 16; @%q0 bra $others;
$spin: ld.relaxed.gpu.global.b32 %r1, [%p0];
setp.eq.s32 %q0, %r1, 0; @%q0 bra $spin;
bra $meet;
$others: add.s32 %r2, %r2, 1;
$meet: {{meet}}
{own_word("%p1")} st.global.b32 [%d0], %r2;
ret;
$writer: setp.ne.s32 %q0, %t, 0; @%q0 ret;
st.relaxed.gpu.global.b32 [%p0], 1;
"""


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
@pytest.mark.parametrize("meet", ["bar.warp.sync -1;", "shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;"])
def test_lanes_that_wait_for_spinning_ones_go_on_where_they_are(meet, schedule):
    """The second half of the warp adds once and waits; the first half spins until the other CTA writes."""
    flag, sums = torch.zeros(1, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    report = run(FIRST_HALF_SPINS.format(meet=meet), flag, sums, grid=2, warp_schedule=schedule)
    assert report.ok, report
    assert sums.tolist() == [0] * 16 + [1] * 16
