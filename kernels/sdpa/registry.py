"""Registry: sets of injected steps by name, of one kernel; "" names the correct set."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Sets of steps by name, begun with the correct one."""

    def __init__(self, correct: T) -> None:
        self._known: dict[str, T] = {"": correct}

    def register(self, name: str, injection: T) -> None:
        """Makes a mutant's steps known to the custom operators. Raises ValueError where others have that name."""
        if self._known.setdefault(name, injection) is not injection:
            raise ValueError(f"injection: the name {name!r} is taken; choose another")

    def find(self, name: str) -> T:
        """The steps of that name. Raises ValueError where there are none."""
        try:
            return self._known[name]
        except KeyError:
            known = f"{sorted(self._known)} (import kernels.mutants)"
            raise ValueError(f"injection: got {name!r}, need one of {known}") from None
