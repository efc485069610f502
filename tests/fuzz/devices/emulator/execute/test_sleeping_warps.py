"""Warps that wait for a bulk copy: an emulated warp that has asked in vain sleeps until something changes."""

import torch
from ptx_tools import run

# warp 0 waits; thread 32 says how many bytes come, and some time later issues the copy that brings them
LATE = """setp.ne.u32 %q0, %t, 0;
@!%q0 mbarrier.init.shared.b64 [s], 1;
bar.sync 0;
setp.lt.u32 %q1, %t, 32;
@!%q1 bra LOADS;
W: mbarrier.try_wait.parity.shared.b64 %q1, [s], 0;
@!%q1 bra W;
bra END;
LOADS: setp.ne.u32 %q1, %t, 32;
@%q1 bra END;
mbarrier.arrive.expect_tx.shared.b64 _, [s], 64;
mov.u32 %r0, 0;
D: add.u32 %r0, %r0, 1;
setp.lt.u32 %q1, %r0, 60;
@%q1 bra D;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+16], [%p0], 64, [s];
END:"""


def test_a_warp_does_not_sleep_on_a_phase_whose_copy_was_issued_since_it_asked():
    """Under one of these schedules the copy is issued between the warp's question and its sleep."""
    for seed in range(100, 200):
        report = run(LATE, torch.arange(16, dtype=torch.int32), block=64, shared=128, warp_schedule="random", seed=seed)
        assert report.status == "finished", seed
