"""A session on a cluster of which a node is killed, beside the same session on one machine: what is lost, or differs.

    python ci/benchmarks/fleet.py --cases 10000 --out ci/results/fleet_host.json          # two nodes of this machine
    python ci/benchmarks/fleet.py --device cuda --nodes 1 --gpus 1 2 --cases 5000         # one GPU beside two

one      `attnfuzz run`: the verdict of each case, by its shard and its place in it
fleet    `attnfuzz fleet` on --nodes nodes of Ray's on this machine, with a worker on each, or --gpus GPUs on each
         (several numbers: one run for each). When half of the cases are on record, all processes of a node are killed
         at once, unless it is the only one; ten seconds later a new node takes its place
checked  no case is missing, on record or in the ledger; none is there twice; case ids, outcomes, ratios (error over
         error budget) and causes of failures are equal, and so is the number of findings of each target
Exits with 1 where one of these does not hold. On GPUs the nodes share those of this machine out among them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fuzz.core.signature import cause  # noqa: E402
from fuzz.ledger.query import read  # noqa: E402
from fuzz.ledger.tables.database import Ledger  # noqa: E402
from fuzz.session.records import Record, machine, settlement  # noqa: E402
from fuzz.session.resume import read_session  # noqa: E402

STORE = 96 << 20  # bytes of a node's object store
REPLACED_AFTER = 10.0  # seconds
TARGETS = ("torch.sdpa.math", "fake.ignores_softcap")
FILES = (ROOT / "tests" / "fakes" / "lies.py",)


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="attnfuzz-fleet-") as folder:
        result: dict[str, Any] = {"commit": _commit(), "ray": version("ray"), "machine": machine()}
        one = None
        if options.one:
            one = _session(Path(folder) / "one", _command("run", options, Path(folder) / "one"))
            result["one"] = one["told"]
            print("one machine:", one["told"], flush=True)
        result["fleets"] = []
        for gpus in options.gpus if options.device == "cuda" else [0]:
            here = Path(folder) / f"fleet{gpus}"
            fleet = _fleet(here, options, gpus)
            told = fleet["told"] | (_compared(one, fleet) if one is not None else {})
            result["fleets"].append(told)
            print("fleet:", told, flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(_right(told, options.cases) for told in result["fleets"]) else 1


def _fleet(folder: Path, options: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """A session on a cluster that is made for it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=_node(options, gpus, 0))
    nodes = [cluster.add_node(**_node(options, gpus, number)) for number in range(1, options.nodes)]
    try:
        command = _command("fleet", options, folder, "--address", cluster.address)
        began = time.monotonic()
        session = subprocess.Popen(command, cwd=ROOT, env=_environment())
        killed_at = None
        if options.kill and nodes:
            killed_at = _wait_for(folder, options.cases // 2, session)
            print(f"killing a node at {killed_at} cases, {time.monotonic() - began:.0f} s", flush=True)
            _kill(cluster, nodes[-1])
            time.sleep(REPLACED_AFTER)
            cluster.add_node(**_node(options, gpus, options.nodes - 1))
        code = session.wait()
        found = _read(folder, code, time.monotonic() - began)
        found["told"] |= {"nodes": options.nodes, "GPUs of a node": gpus, "node killed at": killed_at}
        return found
    finally:
        cluster.shutdown()


def _environment() -> dict[str, str]:
    """This process's, with this checkout before what it imports already."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _node(options: argparse.Namespace, gpus: int, number: int) -> dict[str, Any]:
    """Arguments of a node: a CPU for its worker, or GPUs of this machine that no other node has."""
    made: dict[str, Any] = {"object_store_memory": STORE, "include_dashboard": False}
    if options.device != "cuda":
        return made | {"num_cpus": 1}
    own = ",".join(str(number * gpus + i) for i in range(gpus))
    cpus = (os.cpu_count() or 1) // options.nodes
    return made | {"num_cpus": cpus, "num_gpus": gpus, "env_vars": {"CUDA_VISIBLE_DEVICES": own}}


def _kill(cluster: Any, node: Any) -> None:
    """SIGKILL to every process of a node, its workers' children too, as where a machine loses its power."""
    raylets = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
    family = [process for raylet in raylets for process in (raylet, *raylet.children(recursive=True))]
    for process in family:
        process.kill()
    psutil.wait_procs(family, 10)
    cluster.remove_node(node, allow_graceful=False)


def _session(folder: Path, command: Sequence[str]) -> dict[str, Any]:
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=_environment(), check=False).returncode
    return _read(folder, code, time.monotonic() - began)


def _command(name: str, options: argparse.Namespace, folder: Path, *more: str) -> list[str]:
    given = [part for target in options.target for part in ("--target", target)]
    given += [part for file in options.target_file for part in ("--target-file", str(file))]
    asked = ["--cases", str(options.cases), "--seed", str(options.seed), "--size", options.size]
    places = ["--output-dir", str(folder), "--ledger", f"{folder}.sqlite", "--corpus", ""]
    return [sys.executable, "-m", "fuzz.cli.main", name, *given, *asked, "--device", options.device, *places, *more]


def _wait_for(folder: Path, cases: int, session: subprocess.Popen[bytes]) -> int:
    """Waits until so many cases are on record; how many there are."""
    there = 0
    while there < cases and session.poll() is None:
        time.sleep(1.0)
        there = sum(path.read_bytes().count(b"\n") for path in folder.glob("records-*.jsonl"))
    return there


def _read(folder: Path, code: int, seconds: float) -> dict[str, Any]:
    """The cases on record of a session, and those in its ledger."""
    records = read_session(folder).records
    with Ledger(f"{folder}.sqlite", create=False) as ledger:
        tallies = int(read.tallies(ledger)["cases"].sum())
        runs = len(read.runs(ledger, str(read.sessions(ledger)["session"].iloc[0])))
    met = sorted({_signature(one) for one in settlement(folder).new if one.status == "new"})
    return {
        "records": records,
        "findings": met,
        "told": {
            "exit code": code,
            "seconds": round(seconds),
            "records": len(records),
            "records a second": round(len(records) / seconds, 1),
            "in the ledger": [runs, tallies],
            "outcomes": dict(sorted(Counter(record.outcome for record in records).items())),
            "cases by worker": dict(sorted(Counter(record.worker for record in records).items())),
            "findings": met,
        },
    }


def _signature(settled: Any) -> str:
    s = settled.signature
    return f"{s.target}: {s.kind} {', '.join(s.tensors)} with {', '.join(s.features) or 'nothing'}"


def _compared(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Cases that are missing, there twice, or other ones."""
    here, there = _by_place(one["records"]), _by_place(other["records"])
    return {
        "lost": len(here.keys() - there.keys()),
        "counted twice": len(other["records"]) - len(there),
        "not of the session": len(there.keys() - here.keys()),
        "other verdicts": sum(there[place] != verdict for place, verdict in here.items() if place in there),
        "same findings": _by_target(one["findings"]) == _by_target(other["findings"]),
    }


def _by_target(findings: Sequence[str]) -> Counter[str]:
    return Counter(one.partition(":")[0] for one in findings)


def _by_place(records: Sequence[Record]) -> dict[tuple[str, int], tuple[str, str, float, str]]:
    return {
        (one.shard, one.index): (one.case_id, one.outcome, one.ratio, cause(one.signature).id if one.signature else "")
        for one in records
    }


def _right(told: dict[str, Any], cases: int) -> bool:
    whole = told["records"] == cases and told["in the ledger"] == [cases, cases]
    bad = (told.get(name, 0) for name in ("lost", "counted twice", "not of the session", "other verdicts"))
    return whole and not any(bad) and bool(told.get("same findings", True))


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cases", type=int, default=500)
    add("--seed", type=int, default=0)
    add("--size", default="small")
    add("--device", default="host", choices=("host", "cuda"))
    add("--nodes", type=int, default=2)
    add("--gpus", type=int, nargs="+", default=[1], help="of each node, with --device cuda")
    add("--target", action="append", help=f"default: {', '.join(TARGETS)}")
    add("--target-file", action="append", type=Path, help="files of --target")
    add("--no-kill", dest="kill", action="store_false", help="kill no node")
    add("--no-one", dest="one", action="store_false", help="leave out the session on one machine")
    add("--out", type=Path)
    options = parser.parse_args()
    if not options.target:
        options.target, options.target_file = list(TARGETS), list(FILES)
        if options.device == "cuda":  # the fakes are of the host
            options.target, options.target_file = ["torch.sdpa.math"], []
    options.target_file = options.target_file or []
    return options


if __name__ == "__main__":
    sys.exit(main())
