"""Timelines show who waited for what, in both formats."""

import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import torch
from ptx_tools import run

from fuzz.devices.emulator.report import timeline
from fuzz.devices.emulator.report.save import save
from fuzz.devices.emulator.report.timeline_svg import svg

TURNS = """
$spin:
ld.acquire.gpu.global.b32 %r0, [%p0];
{turn}
setp.ne.s32 %q0, %r0, %r1;
@%q0 bra $spin;
mov.b32 %r2, 1;
red.release.gpu.global.add.u32 [%p0], %r2;
"""
BACKWARDS = TURNS.format(turn="sub.s32 %r1, %n, %c; sub.s32 %r1, %r1, 1;")


def waits(line):
    return [s for s in line.slices if s.kind == timeline.WAIT]


def test_a_wait_ends_when_its_turn_comes():
    report = run(BACKWARDS, torch.zeros(1, dtype=torch.int32), grid=4, block=1, resident_ctas=4, trace=True)
    (line,) = report.timelines
    assert report.ok and line.complete and line.ctas() == [(i, 0, 0) for i in range(4)]
    found = waits(line)
    assert {s.cta[0] for s in found} == {0, 1, 2} and not any(s.open for s in found)
    assert found[0].label == "waits for argument 0[0] = 0 to become 3"


def test_a_deadlock_stays_open():
    report = run(BACKWARDS, torch.zeros(1, dtype=torch.int32), grid=4, block=1, resident_ctas=2, trace=True)
    assert report.status == "deadlock"
    assert [(s.cta[0], s.open) for s in waits(report.timelines[0])] == [(0, True), (1, True)]


def test_a_saved_timeline_can_be_read(tmp_path):
    report = run(BACKWARDS, torch.zeros(1, dtype=torch.int32), grid=3, block=1, resident_ctas=2, trace=True)
    save(report.timelines, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert {"load", "wait"} <= {e["cat"] for e in complete} and all(e["dur"] > 0 for e in complete)
    assert any("forever" in e["name"] for e in complete)
    names = {e["tid"]: e["args"]["name"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]
             if e["name"] == "thread_name"}  # fmt: skip
    assert list(names.values()) == [f"CTA {c}{w}" for c in (0, 1) for w in ("", ", warp 0")]
    picture = (tmp_path / "t.svg").read_text()
    ET.fromstring(picture)
    assert "waits for argument 0[0] = 0 to become 1" in picture


def test_the_barrier_of_a_cluster_is_one():
    body = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    report = run(body, torch.zeros(1, dtype=torch.int32), grid=4, block=64, cluster=(2,), resident_ctas=4, trace=True)
    found = [s for s in report.timelines[0].slices if s.kind == timeline.BARRIER]
    assert report.ok and found and {s.label for s in found} == {"barrier of the cluster"}
    assert not any(s.open for s in found) and not waits(report.timelines[0])


def test_barriers_are_waits_of_their_own():
    body = "setp.lt.s32 %q0, %t, 32; @!%q0 bra $on; nanosleep.u32 1; $on: bar.sync 0;"
    report = run(body, torch.zeros(1, dtype=torch.int32), block=64, trace=True)
    assert {s.label for s in report.timelines[0].slices if s.kind == timeline.BARRIER} == {"barrier 0"}


def test_a_cta_as_a_whole_does_one_thing_after_another():
    body = "setp.lt.s32 %q0, %t, 32; @!%q0 bra $on; nanosleep.u32 1; $on: bar.sync 0;"
    (line,) = run(
        body, torch.zeros(1, dtype=torch.int32), grid=3, block=96, trace=True, warp_schedule="random"
    ).timelines
    for cta in line.ctas():
        track = line.track(cta)
        assert all(a.end <= b.start for a, b in pairwise(track))
        ran = [s for s in line.slices if s.cta == cta and s.kind in (timeline.LOAD, timeline.COMPUTE)]
        assert sum(s.length for s in track if s.kind in (timeline.LOAD, timeline.COMPUTE)) == sum(s.length for s in ran)


def test_ctas_that_never_started_are_counted():
    report = run(BACKWARDS, torch.zeros(1, dtype=torch.int32), grid=5, block=1, resident_ctas=2, trace=True)
    assert report.timelines[0].never_started == 3 and "3 CTAs never started" in svg(report.timelines)
