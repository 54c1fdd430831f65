"""Processes that start with everything imported: each is forked from one process that has only imported it.

Importing the whole server takes most of a second of CPU time, which hundreds of tests would each pay. A fork runs what
`python -m MODULE ARGUMENTS` runs: the same module from its first line, in its own process, session and environment. The
differences: `/proc/PID/cmdline` is the first process's, modules are already imported, and cleaning up at exit is left
to the kernel. Tests of start-up itself use `subprocess`.

    python -m tests.support.forked FD    (the first process; FD: a socket of packets)

Each packet is a JSON request; a start request carries three descriptors, for stdin, stdout and stderr.

    {"argv": ["gateway", "serve", …], "cwd": …, "env": {…}, "session": bool, "beside": pid or null}  →  {"pid": 17}
    {"ended": 17}  →  {"status": null}, or the status from `waitpid`

It ends when the other end of its socket is closed.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_PACKET_BYTES_MAX = 1 << 17
_TRACED_S = 0.01
_PR_SET_PDEATHSIG = 1
ROLES = (
    "gateway.serve",
    "gateway.roles.backend",
    "gateway.roles.metadata",
    "gateway.roles.metadata_directory",
    "gateway.roles.manager",
    "tests.support.backend_main",
)
WITH_A_REQUEST = ("encodings.idna", "httpcore2", "push.client", "push.client.transports", "truststore")
"""Modules that a command imports when it first sends a request."""


class Forked:
    """One process: the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        start_new_session: bool = False,
        beside: int | None = None,
    ) -> None:
        """`argv`: a module and its arguments. `stdin` is a file; `stdout` and `stderr` are as in `Popen`, with pipes
        read as text. `beside`: a process whose network and mount namespaces it joins; it is then killed along with the
        first process."""
        self.argv = argv
        self.returncode: int | None = None
        self.stdout: io.TextIOWrapper | None = None
        given = dict(os.environ if env is None else env)
        request = {"argv": list(argv), "cwd": str(cwd), "env": given, "session": start_new_session, "beside": beside}
        with open(os.devnull, "r+b") as null:
            given_in = null if stdin == subprocess.DEVNULL else stdin
            theirs = null if stdout == subprocess.DEVNULL else stdout
            if stdout == subprocess.PIPE:
                reading, writing = os.pipe()
                self.stdout = io.TextIOWrapper(open(reading, "rb"))  # noqa: SIM115 - as `Popen` does
                theirs = open(writing, "wb")  # noqa: SIM115
            errors = null if stderr == subprocess.DEVNULL else theirs if stderr == subprocess.STDOUT else stderr
            try:
                answer = _first().ask(request, [_fd(one) for one in (given_in, theirs, errors)])
            finally:
                if stdout == subprocess.PIPE:
                    theirs.close()  # type: ignore[union-attr]
        self.pid: int = answer["pid"]
        self._end = os.pidfd_open(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def fileno(self) -> int:
        """Readable once the process has ended, until it is reaped."""
        return self._end

    def poll(self) -> int | None:
        if self.returncode is None:
            status = _first().ask({"ended": self.pid})["status"]
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.returncode is None:
            select.select([self._end], [], [], timeout)
        while (code := self.poll()) is None:
            # It is still running, or traced: a tracer is told of its end before the parent.
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(list(self.argv), timeout or 0.0)
            time.sleep(_TRACED_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _fd(file: IO[bytes] | int) -> int:
    return file if isinstance(file, int) else file.fileno()


class _First:
    """The first process of a test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        packet = json.dumps(request).encode()
        assert len(packet) <= _PACKET_BYTES_MAX, "the environment is too large for a packet"
        with self._lock:
            socket.send_fds(self._socket, [packet], fds)
            answer = self._socket.recv(_PACKET_BYTES_MAX)
        assert answer, f"the process that forks servers ended with {self._process.wait(5)}"
        found: dict[str, Any] = json.loads(answer)
        return found


@functools.cache
def _first() -> _First:
    return _First()


# ------------------------------------------------------------------------------------------------ the first process


def _served(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Forks on request. Returns the request in a child, and None in the first process once the channel is closed."""
    while True:
        packet, fds, _, _ = socket.recv_fds(channel, _PACKET_BYTES_MAX, 3)
        if not packet:
            return None
        request = json.loads(packet)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = {"status": status if pid else None}
        else:
            child = os.fork()
            if child == 0:
                return request, fds
            for fd in fds:
                os.close(fd)
            answer = {"pid": child}
        channel.send(json.dumps(answer).encode())


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    if request["session"]:
        os.setsid()
    if request["beside"] is not None:
        _move(request["beside"])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    _open_streams()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    module, *arguments = request["argv"]
    sys.argv = [module, *arguments]
    code = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    _end(code or 0)


def _open_streams() -> None:
    """Reopens the streams: the first process's remember whether its own files were seekable or terminals."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        was = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        setattr(sys, name, open(fd, mode, buffering, was.encoding, was.errors, closefd=False))  # noqa: SIM115


def _move(beside: int) -> None:
    """Joins the network and mount namespaces of that process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for kind in ("net", "mnt"):
        with open(f"/proc/{beside}/ns/{kind}", "rb") as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {kind} of {beside}")


def _end(code: int) -> None:
    """Does what an interpreter does at exit, except for clearing modules: they are shared with the first process, and
    copying each touched page takes a tenth of a second in total."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_everything() -> None:
    commands = importlib.import_module("gateway.cli").COMMANDS.values()
    for module in (*ROLES, *(place.partition(":")[0] for place in commands), *WITH_A_REQUEST):
        importlib.import_module(module)
    importlib.import_module("web_console.pages.render").templates()
    importlib.import_module("gateway.config.load").known_settings()


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        _import_everything()
        # Exempt existing objects: a garbage collection in a child would copy all of them, which takes a fifth of a
        # second.
        gc.collect()
        gc.freeze()
        asked = _served(channel)
    if asked is not None:
        _become(*asked)


if __name__ == "__main__":
    main()
