"""A git repository with planted regressions: a PyTorch attention in a target file, one commit after the other.

14 commits. Three bugs come in with commits of their own, one of them shows in about three runs of ten, and one commit
does not import; the rest change nothing that a test could see.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

FILE = "attention.py"
HEAD = '''"""Attention in PyTorch, as a target."""

import os

import torch
from fuzz.targets import target

{extra}

@target("mine", dtypes=["float32"])
def attention(q, k, v, mask, scale, softcap):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = {scores}
    {cap}
    scores = scores.masked_fill(~mask, -1e30)
    weights = scores.softmax(-1) * mask
    {weights}
    return {result}
'''
SOUND = {
    "extra": "",
    "scores": "q @ k.transpose(-1, -2) * scale",
    "cap": "scores = softcap * (scores / softcap).tanh() if softcap else scores",
    "weights": "pass",
    "result": "weights @ v",
}
CAP = "the cap is taken before the scale"
FLAKY = "weights are kept in a buffer that is shared with another stream"
ROWS = "long sequences lose their last key"
BROKEN = "torch.nn.attention is used"


@dataclass(frozen=True)
class Planted:
    """The repository; commits: hash by title, oldest first."""

    folder: Path
    commits: dict[str, str]


def planted(folder: Path) -> Planted:
    """Makes the repository in `folder`."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    text = dict(SOUND)
    steps: list[tuple[str, dict[str, str]]] = [
        ("attention as a target", {}),
        ("a comment", {"extra": "# scores in the inputs' precision"}),
        ("a name for the fill value", {"extra": "FILL = -1e30"}),
        (
            CAP,
            {
                "scores": "q @ k.transpose(-1, -2)",
                "cap": "scores = (softcap * (scores / softcap).tanh() if softcap else scores) * scale",
            },
        ),
        ("a second name", {"extra": "FILL = -1e30\nTILE = 64"}),
        ("imports in order", {"extra": "FILL = -1e30\nTILE = 64\nDIM = 128"}),
        (BROKEN, {"extra": "from torch.nn.attention import no_such_name"}),
        (
            FLAKY,
            {
                "extra": "TILE = 64",
                "weights": "weights = weights * (0.5 if group > 1 and os.urandom(1)[0] < 77 else 1.0)",
            },
        ),
        ("a constant less", {"extra": "# no constant"}),
        ("einsum", {"result": "torch.einsum('bhqk,bhkd->bhqd', weights, v)"}),
        (
            ROWS,
            {"result": "torch.einsum('bhqk,bhkd->bhqd', weights[..., :96], v[:, :, :96])"},
        ),
        ("a shorter comment", {"extra": "# constants: none"}),
        ("a constant again", {"extra": "TILE = 128"}),
        ("the last one", {"extra": "TILE = 256"}),
    ]
    commits = {}
    for title, changed in steps:
        text |= changed
        (folder / FILE).write_text(HEAD.format(**text))
        git(folder, "add", FILE)
        git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", title)
        commits[title] = git(folder, "rev-parse", "HEAD")
    return Planted(folder, commits)


def git(folder: Path, *arguments: str) -> str:
    """Output of a git command in `folder`."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
