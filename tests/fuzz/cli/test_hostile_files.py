"""Files that somebody sends: FIFOs, devices, bombs, control codes. One line, exit code 2, soon and in little memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "ci"))
from attacks import hostile_files  # noqa: E402

from fuzz.core.case import CaseError, from_json, load  # noqa: E402
from fuzz.corpus.store import load_good  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return hostile_files.write(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("command", ["repro", "minimize"])
def test_every_hostile_file_is_refused_in_one_line(files, command):
    wrong = {name: said for name, path in files.items() if (said := hostile_files.measure(command, path))}
    assert not wrong


def test_a_corpus_of_hostile_files_is_read_without_them(files, tmp_path):
    good, bad = load_good(next(iter(files.values())).parent)
    assert not good and len(bad) == sum(path.parent != Path("/dev") for path in files.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (hostile_files.case().replace('"dim":', '"dim": 16, "dim":'), "'dim' stands twice in one object"),
        (hostile_files.case(mask={"kind": "or", "of": [{"kind": "causal"}] * 5000}), "too many parts, at most 4096"),
        (hostile_files.case(mask=0).replace('"mask": 0', f'"mask": {hostile_files.nested(65)}'), "at most 64 levels"),
        (hostile_files.case(mask={"kind": "documents", "q_bounds": list(range((1 << 17) + 1))}), "too many intervals"),
    ],
)
def test_what_is_out_of_bounds_is_named(text, said):
    with pytest.raises(CaseError, match=said):
        from_json(text)


def test_masks_within_the_bounds_are_read(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(hostile_files.case(mask=0).replace('"mask": 0', f'"mask": {hostile_files.nested(60)}'))
    assert load(path).problem.mask
