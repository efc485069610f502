"""The process that workers are forked from: `python -m fuzz.runner.zygote PARENT_PIPE CONTROL REQUESTS STACKS`.

Started fresh and alone (the arguments are descriptors), it imports torch, the judge and the targets once, touches no
device, runs no case, and forks a worker whenever the last one is lost: 10 ms instead of the seconds of the imports.
A fork is safe only while the process has a single thread and no device open. Where an import has changed that (a
user's file that starts CUDA, say), it does not fork: it becomes the worker, and the client starts a fresh zygote.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from fuzz.process import fork_server, parent_death
from fuzz.process.imports import freeze, importing
from fuzz.runner.copies import RETURNED, children
from fuzz.runner.wire import Connection, Ended, Forked, Gone, Ready, Start, ToWorker
from fuzz.runner.worker import Workshop, refused, serve

_MOST = 1 << 16  # bytes of a request: the names of the targets to load first


def main(arguments: list[str]) -> None:
    """Serves one client until it is gone."""
    parent_pipe, control_fd, requests_fd, stacks_fd = fork_server.begin(arguments)
    parent_death.allow_tracing()
    parent_death.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # never swallowed as a KeyboardInterrupt by a target
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=stacks_fd, all_threads=True)
    os.set_inheritable(stacks_fd, False)
    control, requests = (socket.socket(fileno=number) for number in (control_fd, requests_fd))
    control.set_inheritable(False)
    requests.set_inheritable(False)
    with contextlib.suppress(Gone):
        _Zygote(Connection(control, Start), requests, parent_pipe).run()
    os._exit(0)


class _Zygote:
    def __init__(self, control: Connection, requests: socket.socket, parent_pipe: int) -> None:
        self._control, self._requests, self._parent_pipe = control, requests, parent_pipe
        self._worker: int | None = None
        self._bell, ringer = socket.socketpair()
        ringer.setblocking(False)
        self._ringer = ringer

    def run(self) -> None:
        """Imports, then forks when asked and reports how workers end."""
        try:
            start = self._control.receive()
            with importing():
                workshop = Workshop(start)
            freeze()
        except BaseException as error:
            self._control.send(refused(error))
            return
        self._control.send(Ready())
        self._listen_for_deaths()
        poll = select.poll()
        for source in (self._requests, self._bell):
            poll.register(source, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self._bell.fileno():
                    self._bell.recv(4096)
                    self._report()
                else:
                    self._request(workshop)

    def _listen_for_deaths(self) -> None:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)

    def _report(self) -> None:
        """Says how the worker ended. It stays a zombie until the next one, so that its pid stays its own."""
        if self._worker is None:
            return
        ended = os.waitid(os.P_PID, self._worker, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            self._end_orphans()
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self._control.send(Ended(self._worker, code))

    def _end_orphans(self) -> None:
        """Ends what a worker that has ended left behind, in whatever session: they are this process's children now."""
        for pid in children():
            if pid != self._worker:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def _request(self, workshop: Workshop) -> None:
        data, given, _, _ = socket.recv_fds(self._requests, _MOST, 2, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise Gone("closed")
        try:
            for name in json.loads(data):
                workshop.load(name)
        except BaseException as error:
            self._control.send(refused(error))
            for number in given:
                os.close(number)
            return
        if self._worker is not None:
            os.waitpid(self._worker, 0)
            self._end_orphans()
            self._worker = None
        if not _may_fork():
            self._control.send(Forked(os.getpid()))
            parent_death.tie(given[1])
            self._work(workshop, given[0])
        pid = os.fork()
        if pid == 0:
            fork_server.begin_child(given[1])
            os.close(self._parent_pipe)
            self._control.close()
            self._work(workshop, given[0])
        self._worker = pid
        for number in given:
            os.close(number)
        self._control.send(Forked(pid))

    def _work(self, workshop: Workshop, connection_fd: int) -> NoReturn:
        """Is the worker from here on; it leads a process group, and is tied to its parent-death pipe."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        parent_death.allow_tracing()
        parent_death.adopt_orphans()
        for mine in (self._bell, self._ringer, self._requests):
            mine.close()
        worker = os.getpid()
        with contextlib.suppress(Gone):
            serve(workshop, Connection(socket.socket(fileno=connection_fd), ToWorker))
        os._exit(0 if os.getpid() == worker else RETURNED)


def _may_fork() -> bool:
    """One thread, and no NVIDIA device open: CUDA does not survive a fork."""
    if len(os.listdir("/proc/self/task")) > 1:
        return False
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("/dev/nvidia"):
                return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
