"""The fewest cases that cover what a corpus covers: every signature, and every feature of each target.

1. Cases with one id are one case: the explained file stays, then the one with a signature.
2. Failures with one cause are one signature: the smallest case stays.
3. A case that somebody wrote an explanation for stays. So does the case of each signature: none is dropped.
4. Of the others as many stay as the features (and pairs of features) ask for that these leave open: fewest.py.

What a merged case (1, 2) covers beside the one that stays for it is not counted. Every kept case, and
every dropped one, says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuzz.core.case import Case, to_json
from fuzz.core.features import feature_pairs, features, switches
from fuzz.core.signature import explains, look_alike
from fuzz.core.verdict import Signature
from fuzz.corpus.entry import Entry
from fuzz.corpus.fewest import Cover, fewest


@dataclass(frozen=True)
class Kept:
    """An entry that stays, and why."""

    entry: Entry
    why: str


@dataclass(frozen=True)
class Dropped:
    """An entry that goes, and why; instead: the name of the entry that stands for it, or ''."""

    entry: Entry
    why: str
    instead: str = ""


@dataclass(frozen=True)
class Distilled:
    """The cases that stay of a corpus.

    signatures  number of causes; covered: of features (and pairs) by target
    bound       no choice of cases that is allowed has fewer than so many; equal to len(kept): these are the fewest
    """

    kept: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]
    signatures: int
    covered: int
    bound: int

    def __str__(self) -> str:
        proven = "the fewest" if self.bound == len(self.kept) else f"the fewest are {self.bound} or more"
        return (
            f"{len(self.kept)} of {len(self.kept) + len(self.dropped)} cases: {self.signatures} signatures, "
            f"{self.covered} features by target; {proven}"
        )


def distil(entries: Iterable[Entry], *, pairs: bool = False) -> Distilled:
    """The fewest of `entries` that cover what all of them cover. pairs: pairs of features too."""
    dropped: list[Dropped] = []
    rest = _each_case_once(sorted(entries, key=_rank), dropped)
    kept: list[Kept] = []
    open_: list[Entry] = []
    causes: list[Entry] = []
    for entry in rest:
        if entry.signature is None:
            (kept.append(Kept(entry, "explained")) if entry.explanation.strip() else open_.append(entry))
        elif (known := _same_cause(entry.signature, causes)) is not None:
            dropped.append(Dropped(entry, "same cause, and no smaller", known.name))
        else:
            causes.append(entry)
            kept.append(Kept(entry, f"signature {entry.signature.id}"))
    have = {element for one in kept for element in _elements(one.entry.case, pairs)}
    cover = fewest([frozenset(_elements(entry.case, pairs)) - have for entry in open_])
    kept += _chosen(open_, cover, pairs, have)
    stays = set(cover.chosen)
    nothing_new = "covers nothing that the kept cases do not"
    dropped += [Dropped(entry, nothing_new) for number, entry in enumerate(open_) if number not in stays]
    everything = have.union(*(_elements(entry.case, pairs) for entry in open_))
    forced = len(kept) - len(cover.chosen)
    return Distilled(tuple(kept), tuple(dropped), len(causes), len(everything), forced + cover.bound)


def size(case: Case) -> tuple[int, int, int]:
    """Order of cases by size: options, then scores to compute, then the length of the file."""
    return len(switches(case)), case.problem.pairs * case.problem.dim, len(to_json(case))


def _rank(entry: Entry) -> tuple[object, ...]:
    """Explained ones first, then smaller ones: of two that say the same the first stays."""
    return not entry.explanation.strip(), entry.signature is None, *size(entry.case), entry.name


def _each_case_once(entries: Sequence[Entry], dropped: list[Dropped]) -> list[Entry]:
    """Entries with one case each; one that fails after others does is another case."""
    found: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        key = (entry.case.id, *(case.id for case in entry.after))
        if key in found and _says_no_more(entry, found[key]):
            dropped.append(Dropped(entry, "same case", found[key].name))
        else:
            found[key if key not in found else (*key, entry.name)] = entry
    return list(found.values())


def _says_no_more(entry: Entry, known: Entry) -> bool:
    """True if of two entries of one case the second says all that the first does: cause, explanation, expectation."""
    if entry.explanation.strip() and entry.explanation != known.explanation:
        return False
    if entry.signature is None:
        return known.signature is None or not entry.explanation.strip()
    return known.signature is not None and _one_cause(known.signature, entry.signature)


def _same_cause(found: Signature, causes: Iterable[Entry]) -> Entry | None:
    """The kept entry whose failure is the same bug."""
    return next((one for one in causes if one.signature is not None and _one_cause(one.signature, found)), None)


def _one_cause(known: Signature, found: Signature) -> bool:
    """As the ledger groups findings of different nights and machines."""
    return explains(known, found) or explains(found, known) or look_alike(known, found)


def _elements(case: Case, pairs: bool) -> set[tuple[str, ...]]:
    """Traits that a case covers: (target, feature), and (target, feature, other)."""
    names = features(case)
    found: set[tuple[str, ...]] = {(case.target, name) for name in names}
    return found | {(case.target, *pair) for pair in feature_pairs(names)} if pairs else found


def _chosen(entries: Sequence[Entry], cover: Cover, pairs: bool, have: set[tuple[str, ...]]) -> list[Kept]:
    """The entries of a cover, each with what no one before it covers."""
    found, seen = [], set(have)
    for number in cover.chosen:
        new = _elements(entries[number].case, pairs) - seen
        seen |= new
        told = sorted(" and ".join(names) for _, *names in new)
        more = f" and {len(told) - 4} more" if len(told) > 4 else ""
        found.append(Kept(entries[number], f"covers {', '.join(told[:4])}{more}"))
    return found
