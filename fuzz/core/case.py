"""Case: a problem, the target and its variant, the recipe of the inputs, repeats. JSON both ways.

A Case is a frozen value; its id is a hash of its content, so equal cases have equal ids on every machine. The JSON is
the corpus's format: it needs neither a generator nor its seeds to be replayed (the inputs' `seed` feeds a fixed
counter-based function of fuzz/tensors/values.py). `schema()` publishes it as JSON Schema (fuzz/core/case.schema.json).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fuzz.core.case_bounds import BOUNDS, BYTES, too_large
from oracles.metamorphic.relations import RELATIONS
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import Problem

VERSION = 1
SCHEMA_PATH = Path(__file__).with_name("case.schema.json")

Distribution: TypeAlias = Literal[
    "normal",
    "large",
    "needle",
    "integers",
    "constant",
    "adversarial",
    "cancelling",
    "one_hot",
    "uniform_pow2",
    "index_values",
]
CODED: tuple[Distribution, ...] = ("one_hot", "uniform_pow2", "index_values")  # inputs with exact answers
SHARED = "bhs"  # axes that a tensor may have stride 0 on
Order: TypeAlias = Literal["bhsd", "bshd", "sbhd", "bhds", "expanded"]


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Layout of one tensor in memory.

    order   the axes from the slowest to the fastest: b batch, h heads, s sequence, d dim (b is absent when packed);
            'expanded' is a single value with stride 0 on every axis (for the output's gradient only, as `out.sum()`
            makes it)
    pad     elements left unused after each run of the fastest axis (poisoned)
    offset  elements before the first one: 0 is aligned, 1 is aligned to one element only
    shared  axes of stride 0, as Tensor.expand makes them: a subset of 'bhs', along which all elements are the first one
    """

    order: Order = "bhsd"
    pad: int = 0
    offset: int = 0
    shared: str = ""

    def __post_init__(self) -> None:
        if self.shared != "".join(axis for axis in SHARED if axis in self.shared):
            raise ValueError(f"shared: must be a subset of {SHARED!r} in that order, got {self.shared!r}")
        for name in ("pad", "offset"):
            if not 0 <= getattr(self, name) <= 4096:
                raise ValueError(f"{name}: must be between 0 and 4096 elements, got {getattr(self, name)}")


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Recipe of the inputs: what the numbers are, how the tensors lie in memory, and which of q, k and v require no
    gradient (`detached`; of a bias its problem says so)."""

    seed: int = 0
    distribution: Distribution = "normal"
    q: Storage = Storage()
    k: Storage = Storage()
    v: Storage = Storage()
    do: Storage = Storage()
    detached: tuple[Literal["q", "k", "v"], ...] = ()

    def __post_init__(self) -> None:
        for name in ("q", "k", "v"):
            if getattr(self, name).order == "expanded":
                raise ValueError(f"{name}.order: 'expanded' is for do only")
        if self.distribution in CODED and any(x.shared for x in (self.q, self.k, self.v, self.do)):
            raise ValueError(
                f"shared: must be '' with inputs of distribution {self.distribution!r}, which spell out keys"
            )
        if list(self.detached) != [name for name in ("q", "k", "v") if name in self.detached]:
            raise ValueError(f"detached: must be names of q, k, v in that order, each once, got {list(self.detached)}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: must be in [0, 2**31), got {self.seed}")


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """One execution to judge.

    problem    of one of the operations, which its tag `op` names: docs/how_to/add_an_operation.md
    variant    the target's own options
    repeats    so many runs must agree bit for bit
    relations  how the question is asked again (oracles/metamorphic/relations.py); their draws come from the inputs'
               seed
    """

    target: str
    problem: Problem | NativeSparse
    inputs: Inputs = Inputs()
    variant: dict[str, str | int | bool] = {}
    repeats: int = 3
    relations: tuple[str, ...] = ()
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version: this program reads version {VERSION}, got {self.version}")
        if not 1 <= self.repeats <= 10_000:
            raise ValueError(f"repeats: must be between 1 and 10000, got {self.repeats}")
        bias = self.problem.bias
        if self.problem.backward and len(self.inputs.detached) == 3 and not (bias and bias.grad):
            raise ValueError("detached: a backward pass needs an input that requires a gradient, got q, k and v")
        for name in self.relations:
            if name not in RELATIONS:
                raise ValueError(f"relations: must be of {', '.join(RELATIONS)}, got {name!r}")

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the content."""
        return hashlib.sha256(msgspec.json.encode(normal(self), order="sorted")).hexdigest()[:12]


def attention_of(case: Case) -> Problem:
    """The problem of a case of attention. Raises TypeError for one of another operation."""
    if not isinstance(case.problem, Problem):
        raise TypeError(f"case {case.id}: needs a problem of attention, got {case.problem.op}")
    return case.problem


def normal(value: Any) -> Any:
    """`value` with every field that equals its default set to that very default, so that equal cases have equal ids.

    The encoder leaves out a default by identity; a case that was put together by hand may hold an equal copy.
    """
    changes = {}
    for name, default in _defaults(type(value)):  # type: ignore[arg-type]
        old = getattr(value, name)
        new = default if old == default else normal(old) if isinstance(old, msgspec.Struct) else old
        if new is not old:
            changes[name] = new
    return msgspec.structs.replace(value, **changes) if changes else value


@lru_cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


class CaseError(ValueError):
    """A file or text that is not a Case; the message is one line that names the field."""


def to_json(value: Any, *, indent: int = 2) -> str:
    """Readable JSON of a Case (or of any frozen struct), with a newline at the end; defaults are left out."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode() + "\n"


def from_json(text: str | bytes, *, where: str = "case") -> Case:
    """Parses a Case. Raises CaseError: one line, '<where>: <field>: what is wrong'."""
    return decode(text, Case, where=where)


def load(path: Path | str) -> Case:
    """Reads a Case from a file. Raises CaseError, also for a file that cannot be read."""
    return from_json(read(path), where=str(path))


def read(path: Path | str) -> bytes:
    """A file's bytes; CaseError in one line where it cannot be read, is no file, or is larger than a case can be."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would keep us waiting
        with open(number, "rb") as file:
            found = os.fstat(number)
            if stat.S_ISREG(found.st_mode) and found.st_size <= BYTES:
                return file.read(BYTES)
    except OSError as error:
        raise CaseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise CaseError(f"{str(path)!r}: cannot be read: {error}") from None
    if stat.S_ISREG(found.st_mode):
        raise CaseError(f"{path}: is too large for a case: {found.st_size >> 20} MiB, at most {BYTES >> 20} MiB")
    raise CaseError(f"{path}: cannot be read: is no regular file")


def decode(text: str | bytes, kind: type, *, where: str) -> Any:
    """JSON to `kind`; every failure is a CaseError of one line that names the field."""
    lists = text.count("[") if isinstance(text, str) else text.count(b"[")
    if lists > 2 * BOUNDS:  # to make them all takes seconds
        raise CaseError(f"{where}: has too many lists for a case, at most {2 * BOUNDS}")
    try:
        _check_keys(text)
        value: Any = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        raise CaseError(f"{where}: {field + ': ' if field else ''}{message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaseError(f"{where}: not JSON: {error}") from None
    except _TwiceError as error:
        raise CaseError(f"{where}: {error} stands twice in one object") from None
    except RecursionError:
        raise CaseError(f"{where}: problem.mask: nested too deeply") from None
    problem = getattr(getattr(value, "case", value), "problem", None)
    if problem is not None and (why := too_large(problem)):
        raise CaseError(f"{where}: {why}")
    return value


class _TwiceError(Exception):
    """A key that an object has twice, of which a parser would silently take one."""


def _check_keys(text: str | bytes) -> None:
    """Raises _TwiceError. What is no JSON is left to the parser that says so best."""
    with suppress(ValueError):
        json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    keys = set()
    for key, _ in pairs:
        if key in keys:
            raise _TwiceError(repr(key))
        keys.add(key)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a Case."""
    found = msgspec.json.schema(Case)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "attnfuzz case", **found}
