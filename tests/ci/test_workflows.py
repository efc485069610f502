"""Workflows and cluster scripts: what they call exists, with these options; what one job takes another one made."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ci.nightly.options import parse as parse_night
from ci.nightly.stages import NAMES
from fuzz.cli.parsers import parser

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'attnfuzz[docs]'")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"]]
VARIABLES = {"CASES": "10", "SEED": "1", "ARCH": "sm_100a", "GPU_ARCH": "sm_100a", "GPU_TARGETS": "blocksparse"}
SCRIPTS = [
    ROOT / "ci/nightly.sh",
    ROOT / "ci/bundle.sh",
    *sorted(ROOT.glob("ci/slurm/*")),
    *sorted(ROOT.glob("ci/bundle/*")),
]


def runs(name: str, job: str) -> list[str]:
    """The shell scripts of a job."""
    return [step["run"] for step in WORKFLOWS[name]["jobs"][job]["steps"] if "run" in step]


def words(text: str, program: str) -> list[list[str]]:
    """The arguments of every call of a program in a script, variables filled in."""
    text = text.replace("\\\n", " ").replace('"${targets[@]}"', "--target blocksparse")
    text = re.sub(r"\$\{?(\w+)\}?", lambda found: VARIABLES.get(found[1], "x"), text)
    calls = re.findall(rf"(?:^|\s){re.escape(program)} ([^|&;>\n)]*)", text, re.M)
    return [shlex.split(call) for call in calls]


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_jobs_wait_for_jobs_that_exist_and_take_what_those_made(name: str, job: str) -> None:
    jobs = WORKFLOWS[name]["jobs"]
    needs = jobs[job].get("needs", [])
    needs = [needs] if isinstance(needs, str) else needs
    assert set(needs) <= set(jobs) and jobs[job]["timeout-minutes"] <= 360
    made = {
        step["with"]["name"]
        for one in needs
        for step in jobs[one]["steps"]
        if step.get("uses", "").startswith("actions/upload-artifact")
    }
    for step in jobs[job]["steps"]:
        if step.get("uses", "").startswith("actions/download-artifact"):
            pattern = step["with"].get("name") or step["with"]["pattern"]
            assert any(Path(one).match(pattern) for one in made), pattern
        assert "uses" not in step or re.fullmatch(r"[\w/-]+@v\d+", step["uses"])


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_commands_of_a_job_have_these_options(name: str, job: str) -> None:
    targets = re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.M)
    for text in runs(name, job):
        for call in words(text, ".venv/bin/attnfuzz"):
            if call[:1] != ["report"]:  # what it does without is in the script
                parser().parse_args([*call, "x"] if call == ["import"] else call)
        for call in words(text, "make"):
            assert call[0] in targets
            night = next((part[5:] for part in call if part.startswith("ARGS=")), None)
            if call[0] == "nightly" and night:
                parse_night(shlex.split(night), NAMES)


def test_gpu_runners_and_images_are_variables() -> None:
    for flow, job in (("nightly.yml", "b200"), ("gpu.yml", "b200")):
        made = WORKFLOWS[flow]["jobs"][job]
        assert "vars.B200_LABELS" in made["runs-on"] and "vars.B200_LABELS" in made["if"]
        assert "vars.B200_IMAGE" in made["container"]["image"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.read_text().startswith("#!/usr/bin/env bash\n") and (
        script.suffix == ".sbatch" or os.access(script, os.X_OK)
    )


FAKE_SBATCH = """#!/usr/bin/env bash
# runs every task of an array at once; answers with a number
script=${@: -1}; tasks=0
while (($# > 1)); do [[ $1 == --array ]] && tasks=${2#0-}; shift; done
for ((task = 0; task <= tasks; task++)); do SLURM_ARRAY_TASK_ID=$task bash "$script" >> "$FOLDER/logs/all" 2>&1; done
echo "$RANDOM;cluster"
"""
FAKE_ATTNFUZZ = """#!/usr/bin/env bash
echo "$@" >> "$FOLDER/calls"
while (($#)); do [[ $1 == --output-dir ]] && mkdir -p "$2" && touch "$2/session.json"; shift; done
exit 0
"""


def test_a_night_on_a_cluster_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    for name, text in (("sbatch", FAKE_SBATCH), ("attnfuzz", FAKE_ATTNFUZZ)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    folder = tmp_path / "night"
    changed = {"ATTNFUZZ": f"{tmp_path}/attnfuzz", "FOLDER": str(folder), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for number in (1, 2):
        command = [str(ROOT / "ci/slurm/submit.sh"), "2"]
        subprocess.run(command, env=os.environ | changed | {"SEED": "7"}, check=True, capture_output=True)
        calls = [shlex.split(line) for line in (folder / "calls").read_text().splitlines()]
        resumed = [call for call in calls if "--resume" in call]
        assert len(resumed) == 2 * (number - 1)
    seeds = [call[call.index("--seed") + 1] for call in calls if call[0] in ("run", "compile") and "--seed" in call]
    assert seeds[:4] == ["7000", "7001", "7000", "7001"]
    for call in calls:
        if call[0] != "report":
            parser().parse_args(call)
