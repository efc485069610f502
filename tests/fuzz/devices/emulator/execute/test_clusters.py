"""Clusters of CTAs: who is where, the barrier, and what CTAs do with each other's shared memory."""

import pytest
import torch
from ptx_tools import HEADER, Emulator, kernel, run

from fuzz.devices.emulator import TiledTensor

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RANK = "mov.u32 %r70, %cluster_ctarank;"
# address of `s` in the next CTA of a cluster of `ctas`
NEXT = (
    RANK
    + "add.u32 %r71, %r70, 1; rem.u32 %r71, %r71, {ctas}; mov.u32 %r72, s; mapa.shared::cluster.u32 %r73, %r72, %r71;"
)
FIRST = "setp.ne.u32 %q0, %t, 0;"  # @!%q0: thread 0
OUT = "mul.wide.u32 %d0, %c, 4; add.s64 %d0, %p0, %d0; @!%q0 st.global.b32 [%d0], {value};"  # a word for each CTA
INIT = "@!%q0 mbarrier.init.shared::cta.b64 [s], {count};"
FENCED = "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
WAIT = "W{n}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %q1, [s], {parity}; @!%q1 bra W{n};"
EXPECT = "@!%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], {count};"


def words(n):
    return torch.zeros(n, dtype=torch.int32)


def ok(report):
    assert report.ok, str(report)
    return True


@pytest.mark.parametrize("dispatch", ["in_order", "reversed", "permuted"])
def test_special_registers_tell_the_place_in_the_cluster(dispatch):
    grid, cluster = (4, 6, 2), (2, 3, 1)
    names = ["cluster_ctarank", "cluster_nctarank", *(f"{name}.{x}" for x in "xyz" for name in (
        "ctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"))]  # fmt: skip
    body = """mov.u32 %r0, %ctaid.y; mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %nctaid.y;
mad.lo.u32 %r1, %r1, %r3, %r0; mad.lo.u32 %r1, %r1, %r2, %c; mul.wide.u32 %d0, %r1, 128; add.s64 %d0, %p0, %d0;
mov.pred %q3, %is_explicit_cluster; selp.b32 %r9, 1, 0, %q3; st.global.b32 [%d0+124], %r9;"""
    for i, name in enumerate(names):
        body += f"mov.u32 %r{10 + i}, %{name}; st.global.b32 [%d0+{4 * i}], %r{10 + i};"
    out = words(48 * 32)
    assert ok(run(body, out, grid=grid, block=1, cluster=cluster, dispatch=dispatch, resident_ctas=13))
    for i, row in enumerate(out.view(48, 32).tolist()):
        at = i % 4, i // 4 % 6, i // 24
        found = dict(zip(names, row, strict=False))
        assert row[31] == 1
        assert found["cluster_ctarank"] == at[0] % 2 + 2 * (at[1] % 3) and found["cluster_nctarank"] == 6
        for axis, x in enumerate("xyz"):
            assert found[f"ctaid.{x}"] == at[axis]
            assert found[f"clusterid.{x}"] == at[axis] // cluster[axis]
            assert found[f"nclusterid.{x}"] == grid[axis] // cluster[axis]
            assert found[f"cluster_ctaid.{x}"] == at[axis] % cluster[axis]
            assert found[f"cluster_nctaid.{x}"] == cluster[axis]


EXCHANGE = f"""{NEXT} {FIRST}
mad.lo.u32 %r0, %c, 100, %t; mul.lo.u32 %r1, %t, 4; add.u32 %r2, %r72, %r1; st.shared.b32 [%r2], %r0;
{SYNC}
add.u32 %r3, %r73, %r1; ld.shared::cluster.b32 %r4, [%r3];
{SYNC}
mov.u32 %r5, %ntid.x; mad.lo.u32 %r5, %c, %r5, %t;
mul.wide.u32 %d0, %r5, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r4;"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ctas", "block"), [(2, 64), (4, 96), (16, 32)])
def test_a_cta_reads_what_another_has_written(schedule, ctas, block):
    grid = 3 * ctas
    out = words(grid * block)
    report = run(
        EXCHANGE.format(ctas=ctas), out, grid=grid, block=block, shared=512, cluster=(ctas,), resident_ctas=5,
        warp_schedule=schedule, dispatch="permuted", checks=Emulator().checks | {"equal_writes"},
    )  # fmt: skip
    assert ok(report)
    cta = torch.arange(grid)
    other = cta // ctas * ctas + (cta + 1) % ctas
    assert torch.equal(out.view(grid, block), (100 * other[:, None] + torch.arange(block)).int())


def test_some_ctas_of_the_grid_run_with_their_clusters():
    out = words(24 * 32)
    assert ok(run(EXCHANGE.format(ctas=4), out, grid=24, shared=128, cluster=(4,), only=[9]))
    ran = out.view(24, 32).ne(0).any(1).nonzero().flatten().tolist()
    assert ran == [8, 9, 10, 11]


def test_a_cta_alone_is_a_cluster():
    out = words(96)
    assert ok(run(EXCHANGE.format(ctas=1), out, grid=3, shared=128))
    assert out.tolist() == [100 * c + t for c in range(3) for t in range(32)]


def test_generic_addresses_reach_other_ctas():
    body = f"""{RANK} {FIRST} xor.b32 %r71, %r70, 1; mov.u64 %d1, s; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, %r71;
add.u32 %r0, %c, 7; @!%q0 st.b32 [%d1+4], %r0; {SYNC} ld.b32 %r1, [%d2+4];
cvta.to.shared::cluster.u64 %d3, %d2; cvt.u32.u64 %r2, %d3; ld.shared::cluster.b32 %r3, [%r2+4];
getctarank.u64 %r4, %d2; getctarank.shared::cluster.u32 %r5, %r2;
isspacep.shared::cta %q3, %d2; isspacep.shared::cluster %q4, %d2; isspacep.shared %q5, %d1;
selp.b32 %r6, 1, 0, %q3; selp.b32 %r7, 10, 0, %q4; add.u32 %r6, %r6, %r7; selp.b32 %r7, 100, 0, %q5;
add.u32 %r6, %r6, %r7; {SYNC}
mul.wide.u32 %d0, %c, 32; add.s64 %d0, %p0, %d0;
@!%q0 st.global.v4.b32 [%d0], {{%r1, %r3, %r4, %r5}}; @!%q0 st.global.b32 [%d0+16], %r6;"""
    out = words(16)
    assert ok(run(body, out, grid=2, cluster=(2,)))
    assert out.view(2, 8)[:, :5].tolist() == [[8, 8, 1, 1, 110], [7, 7, 0, 0, 110]]


def test_bit_24_of_an_address_tells_the_ctas_of_a_pair_apart():
    """Blackwell's kernels clear it to get the address in the even CTA of the pair."""
    body = f"""{RANK} {FIRST} add.u32 %r0, %c, 50; @!%q0 st.shared.b32 [s], %r0; {SYNC}
mov.u32 %r1, s; and.b32 %r1, %r1, 0xFEFFFFFF; ld.shared::cluster.b32 %r2, [%r1]; {SYNC} {OUT.format(value="%r2")}"""
    out = words(4)
    assert ok(run(body, out, grid=4, cluster=(4,)))
    assert out.tolist() == [50, 50, 52, 52]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_atomics_on_the_shared_memory_of_another_cta(schedule):
    body = f"""{RANK} {FIRST} @!%q0 st.shared.b32 [s], 0; {SYNC}
mov.u32 %r0, s; mapa.shared::cluster.u32 %r1, %r0, 0; atom.shared::cluster.add.u32 %r2, [%r1], 1;
red.relaxed.cluster.shared::cluster.add.u32 [%r1], 2; {SYNC} ld.shared.b32 %r3, [s]; {OUT.format(value="%r3")}"""
    out = words(8)
    assert ok(run(body, out, grid=8, block=64, cluster=(4,), warp_schedule=schedule, dispatch="reversed"))
    assert out.tolist() == [768, 0, 0, 0] * 2


@pytest.mark.parametrize("aligned", [".aligned", ""])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_barrier_keeps_phases_apart(aligned, schedule):
    """Ten rounds: a CTA writes for its neighbour, both wait, it reads and both wait again."""
    sync = f"barrier.cluster.arrive.release{aligned}; barrier.cluster.wait.acquire{aligned};"
    body = f"""{NEXT.format(ctas=2)} {FIRST} mov.u32 %r0, 0; mov.u32 %r9, 0;
LOOP: mad.lo.u32 %r1, %r0, 10, %r70; @!%q0 st.shared::cluster.b32 [%r73], %r1;
{sync} ld.shared.b32 %r2, [s]; add.u32 %r9, %r9, %r2; {sync}
add.u32 %r0, %r0, 1; setp.lt.u32 %q1, %r0, 10; @%q1 bra LOOP; {OUT.format(value="%r9")}"""
    out = words(4)
    assert ok(run(body, out, grid=4, block=64, cluster=(2,), warp_schedule=schedule))
    assert out.tolist() == [460, 450, 460, 450]


def test_threads_may_arrive_in_different_branches_where_they_are_not_aligned():
    body = f"""{NEXT.format(ctas=2)} {FIRST} setp.lt.u32 %q2, %t, 7; @!%q0 st.shared.b32 [s], %c; @%q2 bra A;
barrier.cluster.arrive; barrier.cluster.wait; bra B; A: nanosleep.u32 1; barrier.cluster.arrive; barrier.cluster.wait;
B: ld.shared::cluster.b32 %r1, [%r73]; {SYNC} {OUT.format(value="%r1")}"""
    out = words(2)
    assert ok(run(body, out, grid=2, block=40, cluster=(2,)))
    assert out.tolist() == [1, 0]


def test_threads_that_have_exited_are_not_waited_for():
    body = f"""{FIRST} {RANK} setp.ge.u32 %q2, %t, 40; @%q2 ret; setp.eq.u32 %q3, %r70, 1; @%q3 ret;
barrier.cluster.arrive; barrier.cluster.wait; {OUT.format(value="5")}"""
    out = words(2)
    assert ok(run(body, out, grid=2, block=64, cluster=(2,)))
    assert out.tolist() == [5, 0]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("relaxed", ["", ".release.cluster"])
def test_an_arrival_at_the_mbarrier_of_another_cta_hands_its_writes_over(schedule, relaxed):
    body = f"""{NEXT.format(ctas=2)} {FIRST} {INIT.format(count=32)} {FENCED}
shl.b32 %r1, %t, 2; add.u32 %r2, %r73, %r1; mad.lo.u32 %r3, %c, 1000, %t; st.shared::cluster.b32 [%r2+16], %r3;
mbarrier.arrive{relaxed}.shared::cluster.b64 _, [%r73];
{WAIT.format(n=0, parity=0)} add.u32 %r4, %r72, %r1; ld.shared.b32 %r5, [%r4+16];
mad.lo.u32 %r6, %c, 32, %t; mul.wide.u32 %d0, %r6, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r5;"""
    out = words(128)
    assert ok(run(body, out, grid=4, shared=256, cluster=(2,), warp_schedule=schedule))
    other = torch.tensor([1, 0, 3, 2])
    assert torch.equal(out.view(4, 32), (1000 * other[:, None] + torch.arange(32)).int())


ASYNC = f"""{NEXT.format(ctas=2)} {FIRST} {INIT.format(count=1)} st.shared.v4.b32 [s+16], {{0, 0, 0, 0}};
st.shared.v4.b32 [s+32], {{0, 0, 0, 0}}; {FENCED} {SYNC}"""
ASYNC_OUT = """ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [s+16]; mul.wide.u32 %d0, %c, 16; add.s64 %d0, %p0, %d0;
@!%q0 st.global.v4.b32 [%d0], {%r0, %r1, %r2, %r3};"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("store", "count", "expected"),
    [
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r73+16], %r10, [%r73];", 4, [7, 0, 0, 0]),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%r73+16], {%r10, -1}, [%r73];", 8,
         [7, -1, 0, 0]),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r73+16], {1, 2, 3, 4}, [%r73];", 16,
         [1, 2, 3, 4]),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u64 [%r73+16], {%d9, 9}, [%r73];", 16, [5, 1, 9, 0]),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r73+16], %r10, [%r73];", 4,
         [7, 0, 0, 0]),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.s32 [%r73+16], -3, [%r73];", 4,
         [-3, 0, 0, 0]),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%r73+16], %d9, [%r73];", 8,
         [5, 1, 0, 0]),
    ],
)  # fmt: skip
def test_words_sent_to_another_cta_are_there_when_its_mbarrier_says_so(schedule, store, count, expected):
    body = f"""{ASYNC} {EXPECT.format(count=count)} mov.b32 %r10, 7; mov.b64 %d9, 0x100000005; @!%q0 {store}
{WAIT.format(n=0, parity=0)} {ASYNC_OUT}"""
    out = words(16)
    assert ok(run(body, out, grid=4, shared=64, cluster=(2,), warp_schedule=schedule))
    assert out.view(4, 4).tolist() == [expected] * 4


def test_reductions_of_several_threads_add_up():
    body = f"""{ASYNC} {EXPECT.format(count=128)}
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r73+16], %t, [%r73];
{WAIT.format(n=0, parity=0)} {ASYNC_OUT}"""
    out = words(8)
    assert ok(run(body, out, grid=2, shared=64, cluster=(2,)))
    assert out.view(2, 4).tolist() == [[496, 0, 0, 0]] * 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_bulk_copy_from_one_shared_memory_to_another(schedule):
    body = f"""{NEXT.format(ctas=2)} {FIRST} {INIT.format(count=1)} {EXPECT.format(count=128)}
shl.b32 %r1, %t, 2; add.u32 %r2, %r72, %r1; mad.lo.u32 %r3, %c, 100, %t; st.shared.b32 [%r2+128], %r3;
fence.proxy.async.shared::cta; {FENCED} bar.sync 0; add.u32 %r5, %r72, 128;
@!%q0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r73+256], [%r5], 128, [%r73];
{WAIT.format(n=0, parity=0)} ld.shared.b32 %r4, [%r2+256]; {SYNC}
mad.lo.u32 %r6, %c, 32, %t; mul.wide.u32 %d0, %r6, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r4;"""
    out = words(128)
    assert ok(run(body, out, grid=4, shared=384, cluster=(2,), warp_schedule=schedule))
    other = torch.tensor([1, 0, 3, 2])
    assert torch.equal(out.view(4, 32), (100 * other[:, None] + torch.arange(32)).int())


# CTA 0 sends 128 bytes of the tensor %p1 to the CTAs of a mask, which all expect them
MULTICAST = f"""{RANK} {FIRST} {INIT.format(count=1)} fence.proxy.async; {FENCED}
mov.u32 %r1, {{mask}}; cvt.u16.u32 %h0, %r1; shr.u32 %r2, %r1, %r70; and.b32 %r2, %r2, 1; setp.eq.u32 %q4, %r2, 0;
setp.ne.u32 %q5, %r70, 0; @%q4 bra SEND; {EXPECT.format(count=128)}
SEND: @%q5 bra SENT;
@!%q0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
[s+128], [%p1], 128, [s], %h0;
SENT: mov.u32 %r4, -1; shl.b32 %r5, %t, 2; mov.u32 %r6, s; add.u32 %r5, %r6, %r5; @%q4 bra END;
{WAIT.format(n=0, parity=0)} ld.shared.b32 %r4, [%r5+128]; END: {SYNC}
mad.lo.u32 %r7, %c, 32, %t; mul.wide.u32 %d0, %r7, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r4;"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mask", [1, 5, 15])
def test_a_multicast_brings_the_data_to_every_cta_of_the_mask(schedule, mask):
    out, x = words(256), torch.arange(32, dtype=torch.int32)
    report = run(
        MULTICAST.replace("{mask}", str(mask)), out, x, grid=8, shared=256, cluster=(4,), warp_schedule=schedule,
        dispatch="permuted",
    )  # fmt: skip
    assert ok(report)
    for cta, row in enumerate(out.view(8, 32)):
        assert torch.equal(row, x if mask >> cta % 4 & 1 else torch.full_like(x, -1))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_ctas_load_half_of_a_tile_each_for_both(schedule):
    """The way of a Hopper GEMM: every CTA expects the whole tile, and a tensor map brings it in two multicasts."""
    form = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    source = f"""{HEADER.replace("sm_80", "sm_90a")}
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out)
{{
.reg .pred %q0, %q1; .reg .b16 %h0; .reg .b32 %t, %c, %r<80>; .reg .b64 %out, %m, %d<4>;
.shared .align 1024 .b8 s[2048]; .shared .align 8 .b8 bar[8];
ld.param.b64 %out, [out]; mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x;
{RANK} {FIRST} @!%q0 mbarrier.init.shared::cta.b64 [bar], 1; {FENCED} mov.b16 %h0, 3; mov.u32 %r1, s; mov.u32 %r2, bar;
@!%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 2048;
mad.lo.u32 %r3, %r70, 1024, %r1; mul.lo.u32 %r4, %r70, 16;
@!%q0 {form} [%r3], [%m, {{0, %r4}}], [%r2], %h0;
W: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r2], 0; @!%q1 bra W;
mad.lo.u32 %r5, %t, 16, %r1; ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%r5];
mul.wide.u32 %d0, %c, 2048; mul.wide.u32 %d1, %t, 16; add.s64 %d0, %d0, %d1; add.s64 %d0, %out, %d0;
st.global.v4.b32 [%d0], {{%r6, %r7, %r8, %r9}};
ret;
}}"""
    x, out = torch.randn(32, 16), torch.zeros(4, 32, 16)
    module = Emulator(strict=False, warp_schedule=schedule).load_ptx(source)
    assert ok(module.launch("k", (4,), (128,), (TiledTensor(x, (16, 16)), out), cluster=(2,)))
    assert all(torch.equal(tile, x) for tile in out)


def clustered(directives, body="ret;"):
    return f"{HEADER}.visible .entry k() {directives} {{ .reg .b32 %r<4>; {body} }}"


def test_the_kernel_may_say_the_size_of_its_clusters():
    source = kernel(f"{RANK} {FIRST} {OUT.format(value='%r70')}", 1)
    out = words(6)
    sized = source.replace(")\n{", ")\n.explicitcluster\n.reqnctapercluster 3\n{")
    assert ok(Emulator().load_ptx(sized).launch("k", (6,), (32,), (out,)))
    assert out.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("directives", "grid", "cluster", "message"),
    [
        ("", (6,), (4,), "grid: .6, 1, 1. is no multiple of the cluster of .4, 1, 1. CTAs"),
        ("", (2, 3), (1, 2), "is no multiple of the cluster"),
        ("", (32,), (32,), "is 32 CTAs; it has 1 to 16"),
        ("", (2,), (0,), "it has 1 to 16"),
        (".maxclusterrank 4", (8,), (8,), "is 8 CTAs; it has 1 to 4"),
        (".reqnctapercluster 2, 1, 1", (8,), (4,), "is compiled for clusters of .2, 1, 1. CTAs"),
        (".explicitcluster", (8,), None, "has to be launched with the size of a cluster"),
    ],
)
def test_a_cluster_that_cannot_be_is_an_error(directives, grid, cluster, message):
    with pytest.raises(ValueError, match=message):
        Emulator().load_ptx(clustered(directives)).launch("k", grid, (32,), (), cluster=cluster)
