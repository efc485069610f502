"""ci/check_planted_emulator.py: it looks for the mutants that the targets name."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))

from check_planted_emulator import CTA_PAIRS

from fuzz.targets.blocksparse import cta_pairs

RESULT = Path(__file__).parents[2] / "ci/results/planted_cta_pairs_host.json"


def test_all_mutants_of_pairs_of_ctas_are_looked_for_and_were_found():
    assert set(CTA_PAIRS) == cta_pairs.MUTANTS
    rows = json.loads(RESULT.read_text())["bugs"]
    assert {row["bug"] for row in rows} == cta_pairs.MUTANTS
    for row in rows:
        assert row["named"] and set(row["checks"]) & set(CTA_PAIRS[row["bug"]]), row["bug"]
