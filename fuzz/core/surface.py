"""Surface: the parameters of a function that a target calls, which of them a case gave, and why some are never given.

An adapter decides what can be asked of a kernel, so a parameter that it never gives hides every bug behind it. Each
adapter declares the Surface of its functions and calls them through `Surface.call`, which notes what it was given:
the call as it was made, not as the case would have it. `recording` collects the notes of a case, one line of text for
each distinct call, which travels in the verdict and the session's records; `Given` adds such lines up.

Text of a call:  scaled_dot_product_attention query=f16+4d+contiguous+grad attn_mask=bool+4d+expanded is_causal=True
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

REQUIRED = inspect.Parameter.empty
LAYOUTS = ("contiguous", "strided", "expanded")
# Kinds of one sort: where a session saw one of them, the others are listed as never given.
SORTS = (LAYOUTS, ("True", "False"), ("zero", "positive", "negative"))
_DTYPES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.bool: "bool",
    torch.int32: "i32",
    torch.uint8: "u8",
}
_ALIGNED = 16  # bytes


class NotRun(Exception):
    """A call was noted, and not made."""


@dataclass(frozen=True)
class _Notes:
    texts: dict[str, None]
    dry: bool


_notes: _Notes | None = None  # of the case that is judged just now


@dataclass(frozen=True)
class Apart:
    """Reason why none of the parameters `one` is ever given together with any of `other`."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    why: str

    def covers(self, pair: tuple[str, str]) -> bool:
        """True if `pair` is one of theirs, in any order."""
        a, b = pair
        return (a in self.one and b in self.other) or (b in self.one and a in self.other)


@dataclass(frozen=True)
class Surface:
    """Interface of one function.

    name       of the function, as reports show it
    defaults   its parameters in order, each with its default, or REQUIRED
    kernel     whether it runs the kernel; False: it makes an argument of one that does
    never      reason, by parameter, why a session never gives it another value than the default
    apart      reasons why pairs of parameters are never given together; a pair with a parameter of `never` needs none
    elsewhere  parameters with a reason that only other versions of the function have
    """

    name: str
    defaults: Mapping[str, Any]
    never: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[Apart, ...] = ()
    kernel: bool = True
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.never, *(x for apart in self.apart for x in (*apart.one, *apart.other))):
            if name not in self.defaults:
                raise ValueError(f"never, apart: {self.name} has no parameter {name!r}; it has {', '.join(self.names)}")

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "", **reasons: Any) -> Surface:
        """Surface of a Python function, by its signature. *args and **kwargs count as no parameter. Reasons about
        parameters that the installed version lacks are left out (`elsewhere`)."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = [p for p in inspect.signature(function).parameters.values() if p.kind not in kinds]
        defaults, never = {p.name: p.default for p in found}, reasons.pop("never", {})
        known = {parameter: why for parameter, why in never.items() if parameter in defaults}
        elsewhere = tuple(parameter for parameter in never if parameter not in defaults)
        return cls(name or function.__name__, defaults, never=known, elsewhere=elsewhere, **reasons)

    @classmethod
    def declared(cls, signature: str, **reasons: Any) -> Surface:
        """Surface from the text of a signature, for a function whose import takes seconds or needs a GPU:
        "attend(q, k, v, scale=None)". Defaults are literals."""
        (node,) = ast.parse(f"def {signature}: ...").body
        assert isinstance(node, ast.FunctionDef)
        given = node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        defaults = dict(zip(names, [REQUIRED] * (len(names) - len(given.defaults)), strict=False))
        pairs = zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True)
        defaults |= {name: ast.literal_eval(value) for name, value in pairs}
        for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            defaults[one.arg] = REQUIRED if value is None else ast.literal_eval(value)
        return cls(node.name, defaults, **reasons)

    @classmethod
    def of_schema(cls, schema: Any, name: str, **reasons: Any) -> Surface:
        """Surface of an operator, by its schema (torch.ops.aten.x.default._schema)."""
        defaults = {a.name: a.default_value if a.has_default_value() else REQUIRED for a in schema.arguments}
        return cls(name, defaults, **reasons)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters, in order."""
        return tuple(self.defaults)

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The parameters that have a default."""
        return tuple(name for name, default in self.defaults.items() if default is not REQUIRED)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of optional parameters without those of `never`."""
        return tuple(combinations([name for name in self.optional if name not in self.never], 2))

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """function(*args, **kwargs), noted where a case is recorded. Raises what the function raises."""
        if _notes is not None:
            _notes.texts[self._text(args, kwargs)] = None
            if _notes.dry and self.kernel:
                raise NotRun
        return function(*args, **kwargs)

    def together(self, pair: tuple[str, str]) -> str:
        """Reason why the pair is never given together; "": there is none."""
        return next((apart.why for apart in self.apart if apart.covers(pair)), "")

    def _text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        words = [self.name]
        for name, value in (*zip(self.names, args, strict=False), *kwargs.items()):
            if not _same(value, self.defaults.get(name, REQUIRED)):
                words.append(f"{name}={kind(value)}")
        return " ".join(words)


@contextmanager
def recording(*, dry: bool = False) -> Iterator[dict[str, None]]:
    """The texts of the calls that are made meanwhile in this process, each once, in order. dry: no kernel is run; its
    call raises NotRun."""
    global _notes
    before, _notes = _notes, _Notes({}, dry)
    try:
        yield _notes.texts
    finally:
        _notes = before


def kind(value: Any) -> str:
    """Kind of a value, as words joined by '+': of a tensor its dtype, dimensions, layout, 'unaligned' (to 16 bytes)
    and 'grad'; of a number its sign; of a tuple the kinds of its elements; of a mapping its keys, of a named tuple the
    fields that are set."""
    if isinstance(value, Tensor):
        return _tensor_kind(value)
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return "zero" if value == 0 else "positive" if value > 0 else "negative"
    if isinstance(value, str):
        return value.replace(" ", "_")
    if isinstance(value, Mapping):
        return "+".join(sorted(map(str, value))) or "empty"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "+".join(n for n, x in zip(value._fields, value, strict=True) if x is not None and x is not False)
    if isinstance(value, tuple | list):
        return "+".join(dict.fromkeys(map(kind, value))) or "empty"
    return "function" if inspect.isroutine(value) else type(value).__name__


def _tensor_kind(x: Tensor) -> str:
    words = _laid_out(x.dtype, x.shape, x.stride())
    if x.data_ptr() % _ALIGNED:
        words += "+unaligned"
    return words + "+grad" if x.requires_grad else words


@lru_cache(maxsize=1024)
def _laid_out(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    run, layout = 1, "contiguous"
    for size, stride in reversed(axes):
        if stride != run:
            layout = "strided"
        run *= size
    if any(stride == 0 for _, stride in axes):
        layout = "expanded"
    if 0 in shape:
        layout = "empty"
    return f"{_DTYPES.get(dtype) or str(dtype).removeprefix('torch.')}+{len(shape)}d+{layout}"


def _same(value: Any, default: Any) -> bool:
    """True if the value is the default, so that the parameter is not given."""
    if value is default:
        return True
    return type(value) is type(default) and not isinstance(value, Tensor) and bool(value == default)


@dataclass
class Given:
    """Calls of one function added up: in how many of the cases each parameter, each kind of its values, and each pair
    of parameters was given."""

    surface: Surface
    cases: int = 0
    parameters: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    together: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, texts: Iterable[str]) -> None:
        """Adds the calls of one case; those of other functions are left out."""
        calls = [
            dict(_split(word) for word in words) for name, *words in map(str.split, texts) if name == self.surface.name
        ]
        if not calls:
            return
        self.cases += 1
        self.parameters.update({name for call in calls for name in call})
        for name in self.surface.names:
            seen = {word for call in calls if name in call for word in call[name].split("+")}
            if any(name not in call for call in calls):
                seen.add(kind(self.surface.defaults[name]))
            self.kinds.setdefault(name, Counter()).update(seen)
        self.together.update({pair for pair in self.surface.pairs for call in calls if set(pair) <= call.keys()})

    def never(self) -> list[str]:
        """The parameters that were never given."""
        return [name for name in self.surface.names if not self.parameters[name]]

    def never_together(self) -> list[tuple[str, str]]:
        """The pairs of parameters that were never given together, of those that need no reason of their own."""
        return [pair for pair in self.surface.pairs if not self.together[pair]]

    def unexplained(self) -> list[str]:
        """The parameters that were never given, and for which the adapter has no reason."""
        return [name for name in self.never() if name not in self.surface.never]

    def unexplained_pairs(self) -> list[tuple[str, str]]:
        """The pairs that were never given together without a reason; those with a parameter that was never given at
        all are left out."""
        gone = set(self.never())
        return [pair for pair in self.never_together() if not gone & set(pair) and not self.surface.together(pair)]

    def stale(self) -> list[str]:
        """Reasons of the adapter that are no longer true: a parameter or a pair that was given all the same."""
        found = [name for name in self.surface.never if self.parameters[name]]
        return found + [
            f"{a} + {b}" for a, b in self.surface.pairs if self.together[a, b] and self.surface.together((a, b))
        ]

    def missing_kinds(self, name: str) -> list[str]:
        """Kinds of a parameter that was given which were never seen, though others of their sort were."""
        seen = self.kinds.get(name, Counter())
        return [kind for sort in SORTS if any(seen[one] for one in sort) for kind in sort if not seen[kind]]


def _split(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value
