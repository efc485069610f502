"""What `pytest -n auto fuzz` collects: one item per shard (a target and a share of its cases); see
fuzz/pytest_plugin.py."""

from pathlib import Path

import pytest

from fuzz.session.plan import Shard
from fuzz.session.ready import ReadyShards
from fuzz.session.report import reproduce
from fuzz.session.worker import Worker


def test_shard(attnfuzz_shard: Shard, attnfuzz_worker: Worker) -> None:
    """Fails when the shard met a failure that the corpus does not explain."""
    ReadyShards(Path(attnfuzz_worker.settings.folder)).wait(attnfuzz_shard)
    known = len(attnfuzz_worker.faults)
    new = attnfuzz_worker.run_shard(attnfuzz_shard)
    files = attnfuzz_worker.settings.files
    if new:
        found = [f"{record.message}\n    {reproduce(record.finding, files)}" for record in new]
        pytest.fail("\n".join(found), pytrace=False)
    if faults := attnfuzz_worker.faults[known:]:
        pytest.fail("\n".join(faults), pytrace=False)
