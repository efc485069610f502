"""A Ray cluster as the machines of a fleet: the one module that imports Ray (pip install 'attnfuzz[fleet]').

A worker is an actor of its own process on a node that was chosen for it, with a share of one of the node's GPUs, or
some of its CPUs. Several share a GPU, because one leaves it idle while it draws a case and checks the answer before:
sixteen ran 379 cases a second on an H200 of which one case took 33 ms (ci/results/throughput_h200.json). Ray restarts
none: FleetCrew does, once the cases on record say what is left of its shard.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fuzz.compiling.build_key import Build
from fuzz.fleet.compiling import Compilers, Result, compile_here
from fuzz.fleet.kernels import Kernel
from fuzz.fleet.member import Slot
from fuzz.fleet.messages import Job, News, Order, decode, encode
from fuzz.fleet.worker import FleetWorker

LOCAL_STORE = 128 << 20  # bytes of Ray's object store on a machine that Ray is started on: messages are small
NEWS = 1.0  # seconds that a worker waits for something to tell
CALLS = 4  # of one worker that may be under way at once
NODES = 1.0  # seconds between two looks at the list of nodes
RETRIES = 2  # of a build whose node dies
MOST_SHARE = 16  # workers of a GPU
BUSY = 64  # builds of one node at once, at most


class RayCluster:
    """A connection to a cluster, as long as the `with` block.

    address  'auto', 'host:port', 'ray://host:port'; None: Ray is started on this machine, and ended with the block
    gpu      a worker has a GPU, which `share` of them share (0: one for each CPU of the node, at most MOST_SHARE)
    cpus     of a worker without a GPU
    Raises ConnectionError where no cluster answers.
    """

    def __init__(self, address: str | None, gpu: bool, cpus: int = 1, share: int = 0) -> None:
        self._gpu, self._cpus, self._share = gpu, cpus, share
        self._waiting: dict[Any, str] = {}
        self._actors: dict[str, Any] = {}
        self._slots: list[Slot] = []
        self._looked = -NODES
        _connect(address)
        self._actor = ray.remote(_Actor)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    def slots(self) -> list[Slot]:
        """The places of nodes that are there at this moment."""
        if time.monotonic() - self._looked > NODES:
            self._slots = [slot for node in _nodes() for slot in self._slots_of(node)]
            self._looked = time.monotonic()
        return self._slots

    def start(self, slot: Slot, name: str, order: Order) -> RayHandle:
        """An actor at a place that is free."""
        taken = {"num_gpus": slot.gpu, "num_cpus": 0} if slot.gpu else {"num_cpus": self._cpus}
        place = NodeAffinitySchedulingStrategy(slot.node, soft=False)
        actor = self._actor.options(max_concurrency=CALLS, scheduling_strategy=place, **taken).remote(encode(order))
        self._actors[name] = actor
        self._ask(name)
        return RayHandle(self, name, actor)

    def poll(self, seconds: float) -> list[tuple[str, News | str]]:
        """News by the name of the worker, or why it is gone; waits for some, `seconds` at most."""
        if not self._waiting:
            time.sleep(seconds)
            return []
        refs = list(self._waiting)
        if not ray.wait(refs, num_returns=1, timeout=seconds, fetch_local=False)[0]:
            return []
        told: list[tuple[str, News | str]] = []
        for ref in ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]:
            name = self._waiting.pop(ref)
            try:
                told.append((name, decode(ray.get(ref), News)))
                self._ask(name)
            except RayError as error:
                self.forget(name)  # it may be there all the same, behind a network that is not
                told.append((name, _reason(error)))
        return told

    def share(self, kernel: Kernel) -> object:
        """Puts a kernel into the object store, from which each node takes it once."""
        return ray.put(kernel)

    def compilers(self) -> Compilers:
        """Tasks on the CPUs of nodes without a GPU, or of all where each has one."""
        return RayCompilers()

    def runnable(self, device: str, files: tuple[str, ...]) -> list[str]:
        """Names of the targets that a worker can run. Raises RayError."""
        taken = {"num_gpus": 1, "num_cpus": 0} if self._gpu else {"num_cpus": 1}
        found: list[str] = ray.get(ray.remote(_runnable).options(**taken).remote(device, files))
        return found

    def forget(self, name: str) -> None:
        """Ends an actor; nothing more is told of it."""
        actor = self._actors.pop(name, None)
        if actor is not None:
            with suppress(RayError):
                ray.kill(actor)
        self._waiting = {ref: other for ref, other in self._waiting.items() if other != name}

    def _ask(self, name: str) -> None:
        self._waiting[self._actors[name].news.remote(NEWS)] = name

    def _slots_of(self, node: dict[str, Any]) -> list[Slot]:
        there = node["Resources"]
        gpus, cpus = int(there.get("GPU", 0)), int(there.get("CPU", 0))
        host = f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})"
        if not self._gpu:
            return [Slot(node["NodeID"], host, i) for i in range(cpus // self._cpus)]
        share = self._share or min(max(cpus // max(gpus, 1), 1), MOST_SHARE)
        part = (10_000 // share) / 10_000  # Ray counts in these units
        return [Slot(node["NodeID"], host, i, part) for i in range(gpus * share)]


class RayHandle:
    """An actor's mailbox."""

    def __init__(self, cluster: RayCluster, name: str, actor: Any) -> None:
        self._cluster, self._name, self._actor = cluster, name, actor

    def give(self, job: Job, kernels: Sequence[object]) -> None:
        """Sends a job, with kernels from the object store."""
        self._actor.give.remote(encode(job), *kernels)

    def stop(self) -> None:
        """Asks it to end after the case at hand."""
        self._actor.stop.remote()

    def kill(self) -> None:
        """Ends its process."""
        self._cluster.forget(self._name)


class RayCompilers:
    """Builds as tasks, no more on a node than it has CPUs. They ask Ray for no CPU: the workers may have them all."""

    def __init__(self) -> None:
        self._task = ray.remote(compile_here)
        self._doing: dict[Any, tuple[Build, str]] = {}

    def jobs(self) -> int:
        """CPUs that compile."""
        return sum(self._room().values())

    def submit(self, build: Build) -> None:
        """Begins a build on the node that has most CPUs to spare."""
        busy = Counter(node for _, node in self._doing.values())
        room = self._room()
        node = max(room, key=lambda one: room[one] - busy[one])
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        ref = self._task.options(num_cpus=0, max_retries=RETRIES, scheduling_strategy=place).remote(build)
        self._doing[ref] = build, node

    def ended(self, seconds: float) -> list[tuple[Build, Result]]:
        """Builds that have ended; waits for one, `seconds` at most."""
        if not self._doing:
            time.sleep(seconds)
            return []
        found = []
        for ref in ray.wait(list(self._doing), num_returns=1, timeout=seconds)[0]:
            build, _ = self._doing.pop(ref)
            try:
                found.append((build, ray.get(ref)))
            except RayError as error:
                found.append((build, Result(0.0, why=f"its node was lost: {_reason(error)}", machine=True)))
        return found

    def cancel(self) -> None:
        """Ends all builds."""
        for ref in self._doing:
            with suppress(RayError):
                ray.cancel(ref, force=True)
        self._doing.clear()

    def _room(self) -> dict[str, int]:
        nodes = _nodes()
        without = [node for node in nodes if not node["Resources"].get("GPU")]
        return {node["NodeID"]: min(max(int(node["Resources"].get("CPU", 1)), 1), BUSY) for node in without or nodes}


class _Actor(FleetWorker):
    """A worker in a process of Ray's."""

    def __init__(self, order: bytes) -> None:
        numbers, node = ray.get_gpu_ids(), ray.get_runtime_context().get_node_id()
        super().__init__(order, f"{platform.node()} ({node[:6]}) GPU {numbers[0]}" if numbers else "")


def _runnable(device: Any, files: tuple[str, ...]) -> list[str]:
    from fuzz.session.plan import runnable

    return list(runnable(device, files))


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a CPU actor keeps its CUDA_VISIBLE_DEVICES
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    local: dict[str, Any] = {} if address else {"object_store_memory": LOCAL_STORE, "include_dashboard": False}
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "local", **quiet, **local)  # not to one that happens to run here
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ConnectionError(f"ray {address or ''}: {str(error).strip().splitlines()[0]}") from error
    signal.signal(signal.SIGTERM, ours)  # Ray's would end this process before its workers' last records are written
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what becomes of nodes and actors is said by the session


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _reason(error: RayError) -> str:
    """One line of Ray's message."""
    if isinstance(error, ActorUnavailableError):
        return "its node does not answer"
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    cause = next((line for line in lines if "exited" in line or "died" in line or "Error" in line), "")
    return (cause or (lines[0] if lines else type(error).__name__))[:300]
