"""The calls that a session's cases would make, without a run: the adapters' own code on tensors on the CPU.

So the surface coverage of a target is known on a machine that cannot run it. Only what an adapter does after its kernel
has answered is left out.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.surface import Given, NotRun, recording
from fuzz.core.target import Target
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import Shard, plan
from fuzz.session.settings import Settings
from fuzz.targets.registry import load
from fuzz.tensors.arena import build


def dry_calls(target: Target, case: Case) -> tuple[str, ...]:
    """Texts of the calls of one case, up to the first kernel; () for a case that the target does not take, or of which
    it runs a part only, on tensors that may be larger than the machine's memory."""
    refused = refusal(target, case)
    if (refused is not None and refused.kind == "cannot") or target.ctas_of(case):
        return ()
    expected = (NotRun, ValueError, NotImplementedError) if refused is not None else (NotRun,)
    with recording(dry=True) as calls, suppress(*expected):
        target.run(case, build(case, "cpu").tensors())
    return tuple(calls)


def dry_coverage(settings: Settings) -> dict[str, list[Given]]:
    """Parameters that the cases of a session give to each target that `settings` names. Raises TargetError."""
    found: dict[str, list[Given]] = {}
    for shard in plan(settings):
        target = load(shard.target, settings.files, settings.device)
        given = found.setdefault(shard.target, [Given(surface) for surface in target.surfaces()])
        _add(shard, target, settings, given)
    return found


def _add(shard: Shard, target: Target, settings: Settings, found: list[Given]) -> None:
    def add(case: Case) -> None:
        texts = dry_calls(target, msgspec.structs.replace(case, repeats=1))
        for given in found:
            given.add(texts)

    explore(shard, drawer_of(target, settings, shard), add, seed_cases(shard, target, settings))
