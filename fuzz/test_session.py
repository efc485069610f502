"""What `pytest -n auto fuzz` collects: one item per shard (a target and a share of its cases); see
fuzz/pytest_plugin.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.core.signature import cause
from fuzz.session.plan import Shard
from fuzz.session.precompile.ready import ReadyShards
from fuzz.session.worker import Worker


def test_shard(attnfuzz_shard: Shard, attnfuzz_worker: Worker, record_property: Callable[[str, object], None]) -> None:
    """Fails when the shard met a failure that the corpus does not explain.

    Its properties, which --junitxml writes: `cases`, and for each failure `failure`: its case and its raw signature.
    """
    ReadyShards(Path(attnfuzz_worker.settings.folder)).wait(attnfuzz_shard, attnfuzz_worker.late)
    known = len(attnfuzz_worker.faults)
    met = attnfuzz_worker.run_shard(attnfuzz_shard)
    record_property("cases", attnfuzz_shard.cases)
    for record in met:
        if record.signature is not None:
            record_property(
                "failure", f"case {record.case_id}, signature {cause(record.signature).id}: {record.message}"
            )
    if met:
        causes = {
            uid: f"signature {uid}: case {record.case_id}: {record.message}"
            for record in reversed(met)
            if record.signature is not None and (uid := cause(record.signature).id)
        }
        more = "each is confirmed, minimised and saved after the last case: see the end of the session"
        lines = [f"{len(met)} of {attnfuzz_shard.cases} cases failed; {more}", *causes.values()]
        pytest.fail("\n".join(lines), pytrace=False)
    if faults := attnfuzz_worker.faults[known:]:
        pytest.fail("\n".join(faults), pytrace=False)
