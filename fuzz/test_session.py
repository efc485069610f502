"""What `pytest -n auto fuzz` collects: one item per lane (a target and a share of its cases); see
fuzz/pytest_plugin.py."""

from fuzz.session.plan import Lane
from fuzz.session.report import reproduce
from fuzz.session.worker import Worker


def test_lane(attnfuzz_lane: Lane, attnfuzz_worker: Worker) -> None:
    """Fails when the lane met a failure that the corpus does not explain."""
    new = attnfuzz_worker.run_lane(attnfuzz_lane)
    files = attnfuzz_worker.wanted.files
    assert not new, "\n".join(f"{record.message}\n    {reproduce(record.finding, files)}" for record in new)
