"""`pushq demo`: restarts `pushq serve --dev` after a crash, so the page's crash button shows that nothing is lost."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from signal import SIG_DFL, SIGINT, SIGTERM, Signals, signal
from subprocess import DEVNULL, Popen, TimeoutExpired
from types import FrameType

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.output import put, tell
from gateway.commands.settings import load

RESTARTS_MAX = 20
RESTARTS_WINDOW_S = 60.0
RESTART_PAUSE_S = 0.2
LOOK_S = 0.1
NO_RESTART = frozenset({0, Exit.USAGE, Exit.CANNOT_START})
"""Exit codes that a restart cannot fix; any other is a crash."""
PR_SET_PDEATHSIG = 1


@command("demo")
@click.option("--data", metavar="DIR", default="./pushq-data", show_default=True, help="The data folder.")
@click.option("--listen", metavar="HOST:PORT", help="Listen address.  [default: 127.0.0.1:8080]")
def demo(data: str, listen: str | None) -> None:
    """Start the demo and restart it when it crashes.

    It runs `pushq serve --dev` as a child process and exits with its exit code. After 20 restarts in a minute it gives
    up.
    """
    settings = load({"data": data, "http.listen": listen, "dev": True}, None).settings
    address = settings.address
    if address.port == 0:
        raise click.BadParameter("the demo page needs a fixed port", param_hint="--listen")
    flags = ["--data", data, *(["--listen", listen] if listen else [])]
    supervisor = Supervisor([sys.executable, "-m", "gateway", "serve", "--dev", *flags], (address.host, address.port))
    raise SystemExit(supervisor.run(f"{settings.url(address.port)}/demo"))


class RestartBudget:
    """How often a server may crash before restarting it makes no sense."""

    def __init__(self) -> None:
        self._restarts: deque[float] = deque()

    def spend(self, now: float) -> int | None:
        """Returns the number of restarts within the last minute, including this one; None when they are used up."""
        while self._restarts and self._restarts[0] <= now - RESTARTS_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= RESTARTS_MAX:
            return None
        self._restarts.append(now)
        return len(self._restarts)


class Supervisor:
    """Runs one child after another, until one exits normally."""

    def __init__(self, argv: list[str], address: tuple[str, int]) -> None:
        self._argv = argv
        self._address = address
        self._child: Popen[bytes] | None = None
        self._is_ending = False

    def run(self, url: str) -> int:
        """Runs until a child ends for good; returns its exit code."""
        if _is_listening(self._address):
            host, port = self._address
            raise Failure(f"{host}:{port} is already in use", exit=Exit.CANNOT_START)
        for number in (SIGINT, SIGTERM):
            signal(number, self._forward)
        budget = RestartBudget()
        is_announced = False
        while True:
            self._child = Popen(self._argv, stdin=DEVNULL, process_group=0, preexec_fn=_end_with(os.getpid()))
            if self._is_ending:  # the signal arrived before the child was started
                self._child.terminate()
            is_announced = is_announced or self._announce(url)
            code = self._child.wait()
            if self._is_ending or code in NO_RESTART:
                return code if code >= 0 else 128 - code
            if (restarts := budget.spend(time.monotonic())) is None:
                raise Failure(f"the server crashed {RESTARTS_MAX} times within a minute; last crash: {_cause(code)}")
            tell(f"the server stopped {_cause(code)}; restarting it ({restarts} in the last minute)")
            time.sleep(RESTART_PAUSE_S)

    def _announce(self, url: str) -> bool:
        """Prints the demo's URL as soon as the server accepts connections; returns False if the child ended before."""
        assert self._child is not None
        while not _is_listening(self._address):
            try:
                self._child.wait(LOOK_S)
                return False
            except TimeoutExpired:
                pass
        put(f"demo: {url}")
        return True

    def _forward(self, number: int, _: FrameType | None) -> None:
        """Forwards a signal. The child has its own process group, so a terminal's Ctrl-C does not reach it directly."""
        self._is_ending = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def _is_listening(address: tuple[str, int]) -> bool:
    try:
        with closing(socket.create_connection(address, timeout=LOOK_S)):
            return True
    except OSError:
        return False


def _cause(code: int) -> str:
    return f"by {Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _end_with(parent: int) -> Callable[[], None]:
    """Runs in the child before the server: if the supervisor is killed, the kernel ends the server too."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        signal(SIGINT, SIG_DFL)
        signal(SIGTERM, SIG_DFL)
        prctl(PR_SET_PDEATHSIG, SIGTERM)
        if os.getppid() != parent:  # the parent died in the meantime
            os._exit(0)

    return prepare
