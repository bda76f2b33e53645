"""Python processes of a local Spark, forked from one that has imported everything.

Spark starts a Python process for each query and for each kind of work: the planner of a stream, and
daemons that fork workers. Each imports pyspark, Arrow and inorder, 0.3 to 0.5 s of CPU, and most
live for a second. A session on this machine therefore starts one process that imports all of it
while the JVM starts (`serve`), and processes that Spark asks for are forked from it.

Spark starts this file instead of Python (`ask`): it hands its standard streams, environment and
folder to the warm process over a socket, and stays until the forked process has ended, whose exit
status it returns. If Spark ends it, the forked process is ended as well. A process that needs
another search path or another hash seed than the warm one has, or that finds no warm process, is
started as ever.

This file runs without any package installed: nothing but the standard library at its top. Why:
decision 32.
"""

from __future__ import annotations

import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
from typing import Any, NoReturn

TAKEN = b"\x01"
_REQUEST_S = 10.0
_HEAD_BYTES = 4
_STREAMS = (0, 1, 2)
_SAME = ("PYTHONPATH", "PYTHONHASHSEED")

Request = dict[str, Any]


def ask(address: str, python: str, arguments: list[str]) -> int:
    """Have a module run by a process that the warm one forks; return its exit status."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    words = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
            head = len(words).to_bytes(_HEAD_BYTES, "big")
            socket.send_fds(connection, [head], _STREAMS)
            connection.sendall(words)
            taken = connection.recv(1) == TAKEN
        except OSError:
            taken = False
        if not taken:
            os.execv(python, [python, *arguments])  # noqa: S606 - as Spark asked for
        ended = connection.recv(1)
    return ended[0] if ended else 1


class Warm:
    """The warm process: forks for each request, and tells each asker how its process ended."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._own = {name: os.environ.get(name, "") for name in _SAME}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._woken, self._wakes = socket.socketpair()
        self._askers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> Request | None:
        """Serve until standard input ends. In a forked process: return what it is to run."""
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for watched in (0, self._listener, self._woken):
            self._selector.register(watched, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    if not os.read(0, 1024):
                        self._end()
                        return None
                elif key.fileobj is self._woken:
                    self._woken.recv(1024)
                    self._tell()
                elif key.fileobj is self._listener:
                    request = self._take(self._listener.accept()[0])
                    if request is not None:
                        return request
                else:
                    self._lose(key.fileobj)

    def _take(self, asker: socket.socket) -> Request | None:
        """Fork for a request; return it in the forked process."""
        asker.settimeout(_REQUEST_S)
        files: list[int] = []
        try:
            head, files, _, _ = socket.recv_fds(asker, _HEAD_BYTES, len(_STREAMS))
            size, words = int.from_bytes(head, "big"), b""
            while len(words) < size:
                more = asker.recv(size - len(words))
                if not more:
                    raise ConnectionResetError("the asker went")
                words += more
            request: Request = json.loads(words)
            fits = len(files) == len(_STREAMS) and self._fits(request)
        except (OSError, ValueError, KeyError, TypeError):
            fits = False
        pid = -1
        if fits:
            asker.sendall(TAKEN)
            pid = os.fork()
            if pid == 0:
                asker.close()
                self._become(request, files)
                return request
        for number in files:
            os.close(number)
        if pid < 0:
            asker.close()
        else:
            self._askers[pid] = asker
            self._selector.register(asker, selectors.EVENT_READ)
        return None

    def _fits(self, request: Request) -> bool:
        """Tell whether a fork is what a new process would be."""
        given, arguments = request["environment"], request["arguments"]
        if len(arguments) < 2 or arguments[0] != "-m":
            return False
        seed = given.get("PYTHONHASHSEED")
        if seed is not None and seed != self._own["PYTHONHASHSEED"]:
            return False
        return folders(given.get("PYTHONPATH", "")) == folders(self._own["PYTHONPATH"])

    def _become(self, request: Request, files: list[int]) -> None:
        """Make the forked process what was asked for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self._listener, self._woken, self._wakes, *self._askers.values()):
            one.close()
        for number, file in zip(_STREAMS, files, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        random.seed()

    def _tell(self) -> None:
        """Tell the askers of processes that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            asker = self._askers.pop(pid, None)
            if asker is not None:
                self._selector.unregister(asker)
                code = os.waitstatus_to_exitcode(status)
                try:
                    asker.sendall(bytes([code if code >= 0 else 128 - code]))
                except OSError:
                    pass  # it went at the same time
                asker.close()

    def _lose(self, asker: Any) -> None:
        """End the process of an asker that was ended."""
        for pid, other in list(self._askers.items()):
            if other is asker:
                del self._askers[pid]
                os.kill(pid, signal.SIGTERM)
        self._selector.unregister(asker)
        asker.close()

    def _end(self) -> None:
        self._listener.close()
        os.unlink(self._address)
        try:
            os.rmdir(os.path.dirname(self._address))
        except OSError:
            pass  # something else lies there


def folders(path: str) -> list[str]:
    """Return the folders of a search path, each once."""
    return list(dict.fromkeys(part for part in path.split(os.pathsep) if part))


def main(arguments: list[str]) -> NoReturn:
    """Be the warm process: import modules, then serve."""
    import importlib
    import runpy

    address, *modules = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the driver; Spark's processes ignore it too
    warm = Warm(address)  # from now on askers wait
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = warm.serve()
    if request is not None:
        _, module, *rest = request["arguments"]
        sys.argv = [module, *rest]
        sys.modules.pop(module, None)  # it becomes __main__
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    if sys.flags.isolated:
        sys.exit(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
    main(sys.argv[1:])
