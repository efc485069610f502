"""State of a child that a target may change and the next target would meet: found, put back, and named.

    state = ProcessState()     # once, before any target is loaded
    state.begin()              # before a case: random numbers start where they always start
    changes = state.end()      # after it

PyTorch's settings are put back after every call of a target (`call`), so that the oracles do not meet them either; the
working directory, sys.path, the environment, warnings' filters and functions of PyTorch that were replaced, after the
case. All of it together takes 0.2 to 0.4 ms a case (ci/benchmarks/harness.py, `state`). Random numbers are no finding:
a target may draw them, but the next case begins with the same ones.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional

from fuzz.core.verdict import Finding, Location
from fuzz.runner import torch_settings
from fuzz.runner.torch_settings import Change

CHANGED_STATE = "changed_state"  # kind of the finding
SEED = 0
_TORCH = os.path.dirname(torch.__file__)
_Result = TypeVar("_Result")

_noted: list[Change] = []  # by `call`, since the case began


def call(work: Callable[[], _Result]) -> _Result:
    """Calls `work` and puts PyTorch's settings back to what they were; what it changed is noted for the case's end."""
    before = torch_settings.read()
    try:
        return work()
    finally:
        _noted.extend(torch_settings.put_back(before))


def finding(changes: list[Change], subject: str = "its call") -> Finding:
    """The finding of a target that left these changes after `subject`."""
    texts = list(dict.fromkeys(change.text for change in changes))
    more = f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""
    message = f"the target changes global state and leaves it so after {subject}: {'; '.join(texts[:3])}{more}"
    return Finding("protocol", CHANGED_STATE, message, place=Location(pattern=changes[0].name))


class ProcessState:
    """Global state that every case of a child must begin with, as it was when this object was made.

    `end` gives the changes that are findings of the target; `aside` the names of the others that were put back, as of
    variables of the environment, which libraries set when they are first used.
    """

    def __init__(self) -> None:
        self._settings = torch_settings.read()
        self._spaces = [_Namespace(name, owner) for name, owner in _owners()]
        self._cwd, self._path = _cwd(), list(sys.path)
        self._environ = dict(os.environ)
        self._raw_environ = dict(os.environ._data)  # type: ignore[attr-defined]
        self._filters = list(warnings.filters)
        self.aside: list[str] = []

    def begin(self) -> None:
        """A case begins: whatever draws random numbers draws the same ones, whichever cases came before."""
        _noted.clear()
        self.aside = []
        torch.default_generator.manual_seed(SEED)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(SEED)
        random.seed(SEED)
        np.random.seed(SEED)

    def end(self) -> list[Change]:
        """The target's changes of the case, once each; everything that can be put back is."""
        changes = [*_noted, *torch_settings.put_back(self._settings)]
        _noted.clear()
        for space in self._spaces:
            changes += space.put_back()
        changes += self._put_back_folder()
        self.aside = [*self._put_back_environment(), *self._put_back_lists()]
        return list(dict.fromkeys(changes))

    def _put_back_folder(self) -> list[Change]:
        now = _cwd()
        if now == self._cwd:
            return []
        with suppress(OSError):
            os.chdir(self._cwd)
        name = "the working directory"
        return [Change(name, f"{name} was {self._cwd} and is {now or 'gone'}", lost=_cwd() != self._cwd)]

    def _put_back_environment(self) -> list[str]:
        if os.environ._data == self._raw_environ:  # type: ignore[attr-defined]
            return []
        names = sorted(
            name for name in {*os.environ, *self._environ} if os.environ.get(name) != self._environ.get(name)
        )
        for name in names:
            if name in self._environ:
                os.environ[name] = self._environ[name]
            else:
                del os.environ[name]
        return names

    def _put_back_lists(self) -> list[str]:
        """sys.path as it was, with what came to it at its end: a library that looks for its modules there still finds
        them, and none of them hides another's. The filters of warnings."""
        aside = []
        if sys.path[: len(self._path)] != self._path:
            sys.path[:] = [*self._path, *(entry for entry in sys.path if entry not in self._path)]
            aside.append("sys.path")
        if warnings.filters != self._filters:
            warnings.filters[:] = self._filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
            aside.append("warnings.filters")
        return aside


class _Namespace:
    """The functions of a module or class of PyTorch's, of which a target may have replaced some."""

    def __init__(self, name: str, owner: Any) -> None:
        self._name, self._owner = name, owner
        self._take()

    def _take(self) -> None:
        self._saved = dict(vars(self._owner))
        self._values = list(self._saved.values())

    def put_back(self) -> list[Change]:
        """Changes of functions that are others than before; names that came to it are none, unless they hide one that
        a class inherits."""
        with suppress(Exception):  # values that are others may not know how to be compared
            if list(vars(self._owner).values()) == self._values:
                return []
        changes = []
        for name, found in dict(vars(self._owner)).items():
            was = self._saved.get(name, _inherited(self._owner, name))
            if found is was or not callable(was) or _torch_s_own(name, found):
                continue
            changes.append(self._restored(name, f"was replaced by {_described(found)}"))
        for name in self._saved.keys() - vars(self._owner).keys():
            changes.append(self._restored(name, "is gone"))
        self._take()
        return changes

    def _restored(self, name: str, how: str) -> Change:
        with suppress(Exception):
            if name in self._saved:
                setattr(self._owner, name, self._saved[name])
            else:
                delattr(self._owner, name)
        lost = vars(self._owner).get(name) is not self._saved.get(name)
        return Change(f"{self._name}.{name}", f"{self._name}.{name} {how}", lost)


def _inherited(owner: Any, name: str) -> Any:
    return getattr(owner.__base__, name, None) if isinstance(owner, type) else None


def _owners() -> tuple[tuple[str, Any], ...]:
    return (
        ("torch", torch),
        ("torch.nn.functional", torch.nn.functional),
        ("torch.Tensor", torch.Tensor),
        ("torch._C._nn", torch._C._nn),
        ("torch.linalg", torch.linalg),
        ("torch.autograd", torch.autograd),
    )


def _torch_s_own(name: str, found: Any) -> bool:
    """True of a wrapper that PyTorch puts around a function of its own when one of its modules is first imported."""
    code = getattr(found, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH) and getattr(found, "__name__", "") == name


def _described(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if name else repr(value)[:80]


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
