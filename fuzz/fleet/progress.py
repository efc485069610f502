"""The compiling of a fleet's session, with the fleet's workers in the progress line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuzz.compiling.pool import Pool
from fuzz.session.plan import Shard
from fuzz.session.precompile.background_compile import BackgroundCompile
from fuzz.session.settings import Settings


class FleetCompile(BackgroundCompile):
    """A BackgroundCompile on a cluster. workers: says how many there are."""

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[Shard],
        ready: Callable[[Shard], None],
        make_pool: Callable[[], Pool],
        archs: Mapping[str, str],
        workers: Callable[[], str],
    ) -> None:
        super().__init__(settings, shards, ready, make_pool=make_pool, archs=archs)
        self._workers = workers

    def progress(self) -> str:
        """The workers, and what is compiled at this moment."""
        return " · ".join(filter(None, (self._workers(), super().progress())))
