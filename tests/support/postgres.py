"""A PostgreSQL server of its own for tests: the distribution's binaries, on loopback, in a temporary folder.

PostgreSQL refuses to run as root; root starts it as the user `postgres`, which the distribution's package makes.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        """URL of its database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def drop_tables(self) -> None:
        """Leaves the database without a table."""
        self._do("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def empty_tables(self, names: Sequence[str]) -> None:
        """Removes all rows of tables, which takes a tenth of the time of making them."""
        self._do(f"TRUNCATE {', '.join(names)} RESTART IDENTITY")

    def _do(self, command: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(command.encode())


@contextmanager
def server(settings: tuple[str, ...] = FAST) -> Iterator[Server]:
    """Runs a server in a folder of its own, which its user can reach: pytest's folders are the caller's alone. Raises
    RuntimeError where it does not start."""
    where = binaries()
    assert where is not None
    folder, port = Path(tempfile.mkdtemp(prefix="attnfuzz-postgres-")), _free_port()
    data, user = folder / "data", list[str]()
    if os.geteuid() == 0:
        shutil.chown(folder, USER, USER)
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    init = [str(where / "initdb"), "-D", str(data), "-A", "trust", "-U", USER, "-E", "UTF8", "--no-locale", "--no-sync"]
    running: subprocess.Popen[bytes] | None = None
    try:
        done = subprocess.run([*user, *init], capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr}")
        options = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *settings]
        command = [str(where / "postgres"), "-D", str(data), *(word for option in options for word in ("-c", option))]
        with (folder / "log").open("w") as log:
            running = subprocess.Popen([*user, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        _wait(port, running, folder / "log")
        yield Server(port)
    finally:
        if running is not None:
            running.send_signal(signal.SIGQUIT)  # at once: nobody needs the data
            running.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


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
