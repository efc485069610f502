"""Child of trial.py: runs one case again and again with the code that PYTHONPATH names, one run for each line of input.

python -P trial_child.py ENTRY.json DEVICE [FILE …]     answers: one line of JSON, {"verdict": …} or {"untestable": why}

It uses no more of the harness than older revisions have, and is run by its path: it may be newer than the code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(path: str, device: str, *files: str) -> int:
    """Exit code 0; whatever prevents a run is an answer, and ends the child."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what targets print is no answer

    def answer(kind: str, value: Any) -> None:
        answers.write(json.dumps({kind: value}) + "\n")

    try:
        from fuzz.core.case import to_json
        from fuzz.corpus.store import load
        from fuzz.runner import Runner
        from fuzz.targets.registry import load as load_target

        entry = load(path)
        case, before = entry.case, entry.after
        target = load_target(case.target, files, device)  # type: ignore[arg-type]
        if (missing := target.missing()) is not None:
            answer("untestable", f"{case.target} cannot run: {missing}")
            return 0
        with Runner("cuda:0" if device == "cuda" else device, files=files) as runner:
            for _ in sys.stdin:
                for one in before:
                    runner.run(one)
                answer("verdict", json.loads(to_json(runner.run(case))))
    except BaseException as error:
        answer("untestable", f"{type(error).__name__}: {error}".split("\n")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
