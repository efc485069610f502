"""What `pytest -n auto fuzz` collects: one item per shard (a target and a share of its cases); see
fuzz/pytest_plugin.py."""

from pathlib import Path

import pytest

from fuzz.core.signature import cause
from fuzz.session.plan import Shard
from fuzz.session.ready import ReadyShards
from fuzz.session.worker import Worker


def test_shard(attnfuzz_shard: Shard, attnfuzz_worker: Worker) -> None:
    """Fails when the shard met a failure that the corpus does not explain."""
    ReadyShards(Path(attnfuzz_worker.settings.folder)).wait(attnfuzz_shard, attnfuzz_worker.late)
    known = len(attnfuzz_worker.faults)
    met = attnfuzz_worker.run_shard(attnfuzz_shard)
    if met:
        causes = {cause(record.signature).id: record.message for record in met if record.signature is not None}
        more = "each is confirmed, minimised and saved after the last case: see the end of the session"
        lines = [f"{len(met)} of {attnfuzz_shard.cases} cases failed; {more}", *causes.values()]
        pytest.fail("\n".join(lines), pytrace=False)
    if faults := attnfuzz_worker.faults[known:]:
        pytest.fail("\n".join(faults), pytrace=False)
