"""`attnfuzz fleet`: a session whose workers are on the machines of a Ray cluster."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from fuzz.cli.command import command as _command
from fuzz.ledger import place
from fuzz.session import settings

if TYPE_CHECKING:
    from fuzz.session.settings import Settings

STALL, WAIT = 900.0, 300.0  # as fuzz.fleet.member.Options


def add(sub: Any) -> None:
    """Adds the command."""
    command = _command(
        sub,
        "fleet",
        fleet,
        "run a fuzz session on the machines of a Ray cluster, with workers on each GPU",
        "attnfuzz fleet --address auto --target blocksparse --cases 100000 --ledger postgresql://ledger/attnfuzz",
        "attnfuzz fleet --address auto --device host --worker-cpus 2 --cases 20000",
        "attnfuzz fleet --address auto --resume .attnfuzz/sessions/20261123-041500-77",
    )
    option = command.add_argument
    option(
        "--address",
        metavar="HOST:PORT",
        help="the cluster: 'auto' on one of its machines, host:port, ray://host:port (default: Ray is started here)",
    )
    settings.add_options(option)
    option("--resume", metavar="DIR", help="go on with the session of this folder, on any cluster")
    option(
        "--worker-cpus",
        type=settings.positive,
        default=1,
        metavar="N",
        help="CPUs of a worker that has no GPU (1)",
    )
    option(
        "--workers-per-gpu",
        type=settings.positive,
        default=0,
        metavar="N",
        help="workers that share a GPU (one for each CPU of its machine, at most 16)",
    )
    option(
        "--health-target",
        metavar="NAME",
        help="target of the health check; 'none': no check (torch.sdpa.math; none on the emulated GPU)",
    )
    option(
        "--stall",
        type=settings.seconds,
        default=STALL,
        metavar="SECONDS",
        help=f"a worker without a verdict for so long is given up, and its GPU drained ({STALL:g})",
    )
    option(
        "--wait",
        type=settings.seconds,
        default=WAIT,
        metavar="SECONDS",
        help=f"wait so long for a machine where there is no worker left ({WAIT:g})",
    )
    place.add_option(option)


def fleet(options: argparse.Namespace) -> int:
    """Runs it; returns the exit code."""
    from fuzz.cli.commands import exit_code, make_console, session_settings
    from fuzz.ledger.ingest.beside import beside
    from fuzz.session.pool import run_session

    asked = session_settings(options)
    try:
        from fuzz.fleet.cluster import RayCluster
        from fuzz.fleet.crew import FleetCrew
    except ModuleNotFoundError as error:
        raise _usage(f"attnfuzz fleet needs Ray: pip install 'attnfuzz[fleet]' ({error})") from None
    from fuzz.fleet.health import TARGET
    from fuzz.fleet.member import Options

    health = options.health_target or ("none" if asked.device == "emulator" else TARGET)
    how = Options("" if health == "none" else health, options.stall, options.wait)
    with RayCluster(options.address, asked.device == "cuda", options.worker_cpus, options.workers_per_gpu) as cluster:
        hire = partial(FleetCrew, cluster, how)
        asked = _with_targets(asked, cluster)
        ended = run_session(
            asked,
            None,
            make_console(),
            resume=bool(options.resume),
            beside=beside(options.ledger),
            hire=hire,
            command="fleet",
        )
    return exit_code(ended)


def _with_targets(asked: Settings, cluster: Any) -> Settings:
    """Settings that name their targets: those that a worker can run, and not those of this machine."""
    import msgspec

    if asked.targets:
        return asked
    names = cluster.runnable(asked.device, asked.files)
    if not names:
        raise _usage(f"no target runs on {asked.device} on the cluster")
    return msgspec.structs.replace(asked, targets=tuple(names))


def _usage(message: str) -> Exception:
    from fuzz.targets.registry import TargetError

    return TargetError(message)
