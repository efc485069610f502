"""Semaphore order: whether a deterministic backward pass ends, predicted from its block lists and ranks alone, and if
it does not, which CTA waits for which semaphore, and why.

NOTE [semaphore order] CTAs start in launch order, at most `resident_ctas` of them at once; a CTA visits dQ tiles in the
order of its lists. At each visit it waits until the tile's semaphore equals its rank (acquire), adds to dQ, and
increments the semaphore (release).

Where no two CTAs wait for the same value of one semaphore, at most one CTA can increment it at any time, and the CTA
that this enables stays enabled. How far the CTAs get does not depend on timing then, so one run of the worklist below
holds for every run, in O(entries). Where two CTAs wait for one value (a duplicate entry), or a CTA releases without
waiting, a semaphore may pass a value before its waiter reads it. Then the launch ends "never" if it would not end even
when a CTA waited for "at least its rank", which is the best that a real run can do; otherwise it "depends" on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from oracles.dq_visits import FREE, Visits
from oracles.finding import Finding, Location

MOST = 8  # semaphores, and CTAs of each, that a text names
Ends: TypeAlias = Literal["always", "never", "depends"]
Cause: TypeAlias = Literal["no_rank", "passed", "not_resident", "cycle"]


@dataclass(frozen=True)
class Wait:
    """A resident CTA that waits forever.

    cta          its position in the launch
    tile, rank   the dQ tile whose semaphore it waits for, and the value that it waits for
    value        the semaphore's last value
    cause, root  why its chain of waits ends, and at which tile: no remaining CTA has the semaphore's value as its rank
                 ("no_rank"), the semaphore has passed the rank ("passed"), the CTA with that rank does not become
                 resident ("not_resident"), or the chain closes ("cycle")
    """

    cta: int
    batch: int
    head_kv: int
    n_block: int
    tile: tuple[int, int, int]
    rank: int
    value: int
    cause: Cause
    root: tuple[int, int, int]


@dataclass(frozen=True)
class IncompleteTile:
    """A dQ tile that does not get all its adds: its semaphore's last value, and the number of visits that remain."""

    tile: tuple[int, int, int]
    value: int
    remaining: int


@dataclass(frozen=True)
class Outcome:
    """Prediction for one launch.

    ends        "always", "never", or "depends": on timing, or on more than this analysis looks at
    visits      number of visits that are done
    waits, incomplete   empty where the launch ends; those of one possible run where it depends
    semaphores  the last value of each tile
    text        the prediction in one line, and a further line for each semaphore that CTAs wait for, up to MOST
    """

    ends: Ends
    visits: int
    waits: tuple[Wait, ...]
    incomplete: tuple[IncompleteTile, ...]
    semaphores: tuple[int, ...]
    text: str


def predict(visits: Visits, resident_ctas: int) -> Outcome:
    """Predicts whether the launch ends with so many resident CTAs, whatever the timing; if not, where CTAs wait.

    Raises ValueError for resident_ctas below 1, negative releases, or a tile out of range.
    """
    if resident_ctas < 1:
        raise ValueError(f"resident_ctas: needs at least 1, got {resident_ctas}")
    if any(not 0 <= tile < visits.tiles for tile in visits.tile):
        wrong = [tile for tile in visits.tile if not 0 <= tile < visits.tiles]
        raise ValueError(f"tile: needs 0 … {visits.tiles - 1}, got {wrong[:8]}")
    if any(added < 0 for added in visits.release):
        raise ValueError("release: needs no negative value")
    at, value, launched = _run(visits, resident_ctas)
    done = sum(now - start for now, start in zip(at, visits.begin, strict=False))
    over = done == len(visits.tile)
    sure = not _timing_matters(visits)
    ends: Ends = ("always" if over else "never") if sure else "depends"
    if not sure and not _ends_at_best(visits, resident_ctas):
        ends = "never"
    waits = () if over else _waits(visits, at, value, launched)
    incomplete = () if over else _incomplete(visits, at, value)
    lines = [_headline(ends, over, len(incomplete), resident_ctas, visits), *_lines(visits, at, value, waits)]
    return Outcome(ends, done, waits, incomplete, tuple(value), "\n".join(lines))


def findings(outcome: Outcome) -> list[Finding]:
    """One finding where the launch never ends (kind 'hang') or may not end ('nondeterministic'), else none."""
    if outcome.ends == "always":
        return []
    kind = "hang" if outcome.ends == "never" else "nondeterministic"
    first = outcome.incomplete[0].tile if outcome.incomplete else (None, None, None)
    numbers = {"tiles": float(len(outcome.incomplete)), "waiting": float(len(outcome.waits))}
    place = Location(batch=first[0], head=first[1], tile=None if first[2] is None else (first[2], first[2] + 1))
    headline, *lines = outcome.text.splitlines()
    more = f"; CTAs wait for {len(lines) - 1} further semaphores" if len(lines) > 1 else ""
    message = f"{headline}; {lines[0]}{more}" if lines else headline
    return [Finding("semaphore_order", kind, message, "dq", place, numbers)]


def _run(visits: Visits, resident_ctas: int) -> tuple[list[int], list[int], int]:
    """Next visit of each CTA when all have run as far as they get, the semaphores, and the number of CTAs that started.
    O(entries)."""
    at, value = list(visits.begin[:-1]), [0] * visits.tiles
    asleep: dict[tuple[int, int], list[int]] = {}
    launched = min(resident_ctas, visits.ctas)
    ready = list(range(launched - 1, -1, -1))
    while ready:
        cta = ready.pop()
        end = visits.begin[cta + 1]
        here = at[cta]
        while here < end:
            tile, rank = visits.tile[here], visits.rank[here]
            if rank != value[tile] and rank != FREE:
                asleep.setdefault((tile, rank), []).append(cta)
                break
            if visits.release[here]:
                value[tile] += visits.release[here]
                ready += asleep.pop((tile, value[tile]), ())
            here += 1
        at[cta] = here
        if here == end and launched < visits.ctas:
            ready.append(launched)
            launched += 1
    return at, value, launched


def _timing_matters(visits: Visits) -> bool:
    """True where two CTAs wait for one value of a tile, or one frees, without a wait, a tile that another waits for."""
    waiter: dict[tuple[int, int], int] = {}
    free: dict[int, set[int]] = {}
    for cta in range(visits.ctas):
        for here in range(visits.begin[cta], visits.begin[cta + 1]):
            tile, rank = visits.tile[here], visits.rank[here]
            if rank == FREE:
                if visits.release[here]:
                    free.setdefault(tile, set()).add(cta)
            elif waiter.setdefault((tile, rank), cta) != cta:
                return True
    return any(free.get(tile, {cta}) != {cta} for (tile, _), cta in waiter.items())


def _ends_at_best(visits: Visits, resident_ctas: int) -> bool:
    """True where the launch would end if a CTA waited for "at least its rank", of which every real run is a run too."""
    at, value = list(visits.begin[:-1]), [0] * visits.tiles
    asleep: list[list[tuple[int, int]]] = [[] for _ in range(visits.tiles)]
    launched = min(resident_ctas, visits.ctas)
    ready = list(range(launched))
    finished = 0
    while ready:
        cta = ready.pop()
        while at[cta] < visits.begin[cta + 1]:
            tile, rank = visits.tile[at[cta]], visits.rank[at[cta]]
            if rank > value[tile]:
                heappush(asleep[tile], (rank, cta))
                break
            value[tile] += visits.release[at[cta]]
            while asleep[tile] and asleep[tile][0][0] <= value[tile]:
                ready.append(heappop(asleep[tile])[1])
            at[cta] += 1
        else:
            finished += 1
            if launched < visits.ctas:
                ready.append(launched)
                launched += 1
    return finished == visits.ctas and all(rank >= 0 or rank == FREE for rank in visits.rank)


def _waits(visits: Visits, at: list[int], value: list[int], launched: int) -> tuple[Wait, ...]:
    """CTAs that wait, and where their chain of waits ends."""
    movers: dict[int, int] = {}  # tile -> the CTA whose remaining visit would increment its semaphore
    for cta in range(visits.ctas):
        for here in range(at[cta], visits.begin[cta + 1]):
            if visits.rank[here] in (value[visits.tile[here]], FREE) and visits.release[here]:
                movers.setdefault(visits.tile[here], cta)
    waiting = [cta for cta in range(launched) if at[cta] < visits.begin[cta + 1]]
    ends: dict[int, tuple[Cause, int]] = {}
    for first in waiting:
        path: dict[int, None] = {}
        cta = first
        while cta not in ends:
            tile, rank = visits.tile[at[cta]], visits.rank[at[cta]]
            path[cta] = None
            mover = movers.get(tile)
            if rank < value[tile]:
                ends[cta] = ("passed", tile)
            elif mover is None:
                ends[cta] = ("no_rank", tile)
            elif mover >= launched:
                ends[cta] = ("not_resident", tile)
            elif mover in path:
                ends[cta] = ("cycle", tile)
            else:
                cta = mover
        for on in path:
            ends[on] = ends[cta]
    return tuple(
        Wait(
            cta,
            *visits.owner[cta],
            visits.coordinates(visits.tile[at[cta]]),
            visits.rank[at[cta]],
            value[visits.tile[at[cta]]],
            ends[cta][0],
            visits.coordinates(ends[cta][1]),
        )
        for cta in waiting
    )


def _incomplete(visits: Visits, at: list[int], value: list[int]) -> tuple[IncompleteTile, ...]:
    left: dict[int, int] = {}
    for cta in range(visits.ctas):
        for here in range(at[cta], visits.begin[cta + 1]):
            left[visits.tile[here]] = left.get(visits.tile[here], 0) + 1
    return tuple(IncompleteTile(visits.coordinates(tile), value[tile], left[tile]) for tile in sorted(left))


def _headline(ends: Ends, over: bool, incomplete: int, resident_ctas: int, visits: Visits) -> str:
    resident = f"{resident_ctas} resident CTA" + "s" * (resident_ctas != 1)
    if ends == "always":
        return f"ends: all {len(visits.tile)} adds of {visits.ctas} CTAs, with {resident}"
    if over:
        return (
            f"possible deadlock with {resident}, depending on timing: two CTAs wait for one value of a semaphore, or "
            "one increments a semaphore without waiting for it"
        )
    verb = "deadlock" if ends == "never" else "possible deadlock, depending on timing,"
    return f"{verb} with {resident}: {incomplete} of {len(set(visits.tile))} dQ tiles lack some of their adds"


def _lines(visits: Visits, at: list[int], value: list[int], waits: tuple[Wait, ...]) -> list[str]:
    """One line for each semaphore that CTAs wait for: its value, the values that are waited for, and the reason."""
    remaining = {
        (visits.tile[here], visits.rank[here])
        for cta in range(visits.ctas)
        for here in range(at[cta], visits.begin[cta + 1])
    }
    by_tile: dict[tuple[int, int, int], list[Wait]] = {}
    for wait in waits:
        by_tile.setdefault(wait.tile, []).append(wait)
    lines = []
    for tile, here in sorted(by_tile.items())[:MOST]:
        here.sort(key=lambda wait: (wait.rank, wait.n_block))
        blocks, ranks = ([getattr(wait, name) for wait in here[:MOST]] for name in ("n_block", "rank"))
        more = f" and {len(here) - MOST} more" if len(here) > MOST else ""
        waiting = f"the CTAs of n_block {_run_of(blocks)}{more} wait for {_run_of(ranks)}"
        if len(here) == 1:
            waiting = f"the CTA of n_block {blocks[0]} waits for {ranks[0]}"
        root = visits.index(here[0].root)
        reason = _reason(here[0], value[root], (root, value[root]) in remaining)
        lines.append(f"{_semaphore(tile)} is {here[0].value}; {waiting}, {reason}")
    return lines


def _reason(wait: Wait, value: int, known: bool) -> str:
    """Reason why nothing more happens at the end of a chain of waits, whose semaphore has `value`; known: whether a
    remaining visit has that value as its rank."""
    direct, root = wait.root == wait.tile, _semaphore(wait.root)
    if wait.cause == "passed":
        return "which it has passed" if direct else f"behind a CTA that waits for a value that {root} has passed"
    reason = {
        "no_rank": f"no remaining CTA {f'with rank {value} increments it' if known else f'has rank {value}'}",
        "not_resident": f"the CTA with rank {value} is not resident, and no resident CTA ends",
        "cycle": f"the CTA with rank {value} waits, directly or through others, for itself",
    }[wait.cause]
    return f"and {reason}" if direct else f"behind CTAs that wait for {root}: it is {value}, and {reason}"


def _semaphore(tile: tuple[int, int, int]) -> str:
    return "semaphore dq[b {}, h {}, m {}]".format(*tile)


def _run_of(numbers: list[int]) -> str:
    """'2…6' for at least three consecutive numbers, else '2, 4, 5'."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}…{numbers[-1]}"
    return ", ".join(map(str, numbers))
