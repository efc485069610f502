"""A PostgreSQL server of its own for tests: the distribution's binaries, on loopback, in a temporary folder.

PostgreSQL refuses to run as root; root starts it as the user `postgres`, which the distribution's package makes.
"""

from __future__ import annotations

import glob
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PLACES = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/bin"
USER = "postgres"
STARTS = 30.0  # seconds until it has to answer
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_wal_size=4GB")


def binaries() -> Path | None:
    """The folder of initdb and postgres, of the newest version; None: the distribution's package is not installed."""
    found = [Path(folder) for place in PLACES for folder in glob.glob(place)]
    there = [folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()]
    return max(
        there, key=lambda folder: [int(part) for part in folder.parts[-2].split("-") if part.isdigit()], default=None
    )


@dataclass
class Server:
    """A running server; `database` gives the URL of a new one."""

    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, name: str) -> str:
        """URL of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def database(self, template: str = "template1") -> str:
        """URL of a new database, a copy of another one."""
        import psycopg

        name = f"ledger{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)


@contextmanager
def server(folder: Path, settings: tuple[str, ...] = FAST) -> Iterator[Server]:
    """Runs a server in `folder`, which is its own. Raises RuntimeError where it does not start."""
    where = binaries()
    assert where is not None
    data, port = Path(tempfile.mkdtemp(prefix="attnfuzz-postgres-", dir=folder)), _free_port()
    user: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(data, USER)
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    init = [str(where / "initdb"), "-D", str(data), "-A", "trust", "-U", USER, "-E", "UTF8", "--no-locale", "--no-sync"]
    done = subprocess.run([*user, *init], capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise RuntimeError(f"initdb: {done.stderr}")
    options = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *settings]
    command = [str(where / "postgres"), "-D", str(data), *(word for option in options for word in ("-c", option))]
    with (folder / "postgres.log").open("w") as log:
        running = subprocess.Popen([*user, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    try:
        _wait(port, running, folder / "postgres.log")
        yield Server(port)
    finally:
        running.terminate()  # a smart shutdown would wait for clients; SIGTERM is that, so SIGQUIT follows
        try:
            running.wait(2)
        except subprocess.TimeoutExpired:
            running.send_signal(3)
            running.wait(10)
        shutil.rmtree(data, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    until = time.monotonic() + STARTS
    while True:
        try:
            psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if running.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL does not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
