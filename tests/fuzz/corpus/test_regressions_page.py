"""corpus/regressions/README.md: the causes of PyTorch's failures on a GPU, the files of each, and their programs."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fuzz.core.refusal import refusal
from fuzz.core.signature import explains
from fuzz.corpus.store import load_all
from fuzz.targets.registry import load

FOLDER = Path(__file__).parents[3] / "corpus" / "regressions"
PAGE = (FOLDER / "README.md").read_text().partition("## PyTorch on a GPU")[2]
ROWS = dict(re.findall(r"^\| ([a-z-]+) \| .* \| (`.*`) \|$", PAGE, re.M))
PROGRAMS = dict(re.findall(r"^### ([^\n]+)\n.*?```python\n(.*?)```\n```\n.+?```", PAGE, re.S | re.M))
ENTRIES = [e for e in load_all(FOLDER) if e.case.target.startswith("torch.") and e.found and e.found.device == "cuda"]


def files(cause):
    return re.findall(r"`([^`]+)`", ROWS[cause])


def causes(entry):
    """The causes that name the entry's file: 'cudnn_nan_scale_*' is torch.sdpa.cudnn_nan_scale_*.json."""
    stem = entry.name.removesuffix(".json").removeprefix("torch.").removeprefix("sdpa.")
    return [cause for cause in ROWS if any(fnmatch(stem, pattern) for pattern in files(cause))]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_file_has_one_cause(entry):
    assert len(causes(entry)) == 1 and entry.known
    refused = refusal(load(entry.case.target, device="cuda"), entry.case)
    assert refused is None or (entry.signature.kind, refused.kind) == ("accepted", "refuses")


def test_every_cause_has_a_file():
    named = {cause for entry in ENTRIES for cause in causes(entry)}
    assert named == set(ROWS) and len(ROWS) == 13


def test_every_program_is_pytorch_alone():
    told = {cause for title in PROGRAMS for cause in title.split(" and ")}
    assert told < set(ROWS) and len(told) == 9
    for title, text in PROGRAMS.items():
        compile(text, title, "exec")
        imported = re.findall(r"^(?:from|import) ([a-z]+)", text, re.M)
        assert set(imported) == {"torch"}, title


def test_no_file_hides_another_ones_case():
    """So that a session names the right cause, whichever file it looks at first."""
    for entry in ENTRIES:
        others = [e for e in ENTRIES if causes(e) != causes(entry) and explains(e.signature, entry.signature)]
        assert not others, (entry.name, [e.name for e in others])
