"""A warp that spins sleeps, and is woken: however its turns fall between those of the warp that it waits for."""

import pytest
import torch
from ptx_tools import run

ROUNDS = 100
# two CTAs take turns: each writes a number and waits until the other has answered with it
TURNS = f"""mov.b32 %r0, 0; setp.ne.b32 %q0, %c, 0; @%q0 bra OTHER;
FIRST: add.s32 %r0, %r0, 1; st.release.gpu.global.b32 [%p0], %r0;
W0: ld.acquire.gpu.global.b32 %r1, [%p0+128]; setp.ne.b32 %q1, %r1, %r0; @%q1 bra W0;
setp.lt.s32 %q2, %r0, {ROUNDS}; @%q2 bra FIRST; bra END;
OTHER: add.s32 %r0, %r0, 1;
W1: ld.acquire.gpu.global.b32 %r1, [%p0]; setp.ne.b32 %q1, %r1, %r0; @%q1 bra W1;
st.release.gpu.global.b32 [%p0+128], %r0; setp.lt.s32 %q2, %r0, {ROUNDS}; @%q2 bra OTHER; END:"""


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_write_between_the_last_look_and_falling_asleep_is_not_missed(seed):
    memory = torch.zeros(64, dtype=torch.int32)
    report = run(TURNS, memory, grid=2, block=1, resident_ctas=2, warp_schedule="random", seed=seed)
    assert report.ok, str(report)
    assert memory[0] == memory[32] == ROUNDS
