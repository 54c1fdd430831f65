"""The parent of a server's processes: starts them, restarts those that die, and ends them in order.

It serves no requests, so little in it can fail. It reserves the port by binding it without listening: each gateway
process binds the port too, and the kernel spreads connections over them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from gateway.admission.memory import limit_bytes
from gateway.config.load import MEMORY_BYTES_MIN
from gateway.config.settings import Settings
from gateway.limits import LISTEN_BACKLOG
from gateway.listener.server import ADMIN_SOCKET, bind_tcp, bind_unix
from gateway.observability.logs import configure_logs
from gateway.processes.child import Spec, packed, said
from gateway.processes.core import (
    EXIT_CANNOT_START,
    STORAGE,
    Crew,
    Drain,
    Effect,
    Kill,
    Over,
    Serving,
    Start,
    name_of,
)
from gateway.roles.errors import CannotStart
from gateway.roles.systemd import SIGNALS, tell_ready, tell_stopping
from gateway.serve import announce, cannot_listen

log = structlog.get_logger("pushq.processes")


def serve_several(settings: Settings) -> None:
    """Serves until a signal ends it. Raises `CannotStart`."""
    configure_logs(settings.logs)
    over = asyncio.run(_Parent(settings).run())
    if over.exit_code == EXIT_CANNOT_START:
        raise CannotStart(over.detail)
    if over.exit_code:
        sys.exit(over.exit_code)


@dataclass(slots=True)
class _Child:
    process: asyncio.subprocess.Process
    line: socket.socket


@dataclass(slots=True)
class _Parent:
    settings: Settings
    _crew: Crew = field(init=False)
    _children: dict[int, _Child] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    _admin: socket.socket | None = None
    _over: asyncio.Future[Over] = field(init=False)
    _signals: int = 0
    _made_master_key: bool = False

    async def run(self) -> Over:
        settings = self.settings
        self._crew = Crew(settings.gateways, drain_ms=settings.limits.drain_window_s * 1000)
        self._over = asyncio.get_running_loop().create_future()
        with _kept(settings) as port:
            self.settings = _at(settings, port.getsockname()[1])
            self._handle_signals()
            self._apply(self._crew.begin())
            over = await self._over
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._admin is not None:
            self._admin.close()
            (settings.directory / ADMIN_SOCKET).unlink(missing_ok=True)
        log.info("all processes have exited")
        return over

    # ------------------------------------------------------------------------------------------------- signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        if self.settings.http.tls_cert:
            loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            # A second signal means not to wait; confirmed messages are on the disk.
            for child_number in self._children:
                self._kill(child_number)
            os._exit(128 + number)
        log.info("draining", signal=signal.Signals(number).name)
        tell_stopping()
        self._apply(self._crew.asked_to_end(_now_ms()))

    def _pass_on(self, number: int) -> None:
        """Passes a signal on to the gateways, which reload their certificate."""
        for child_number, child in self._children.items():
            if child_number != STORAGE and self._crew.is_ready(child_number):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    child.process.send_signal(number)

    # ------------------------------------------------------------------------------------------------- effects

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(number):
                    self._background(self._live(number), name_of(number))
                case Drain(number):
                    self._have_end(number)
                case Kill(number):
                    log.warning("a process does not exit and is killed", process=name_of(number))
                    self._kill(number)
                case Serving():
                    with contextlib.suppress(OSError):  # the reader of its output has gone
                        announce(self.settings, self.settings.address.port, is_new=self._made_master_key)
                    tell_ready()
                case Over():
                    if not self._over.done():
                        self._over.set_result(effect)
        self._arm()

    def _kill(self, number: int) -> None:
        if (child := self._children.get(number)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                child.process.kill()

    def _have_end(self, number: int) -> None:
        child = self._children.get(number)
        if child is None:
            return  # it is being started; `_started` checks the phase
        with contextlib.suppress(OSError):  # it is just ending
            child.line.shutdown(socket.SHUT_WR)
            if not self._crew.is_ready(number):
                child.process.terminate()  # it has no sessions yet to close in order

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at_ms := self._crew.wakes_ms()) is not None:
            seconds = max(0, at_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._crew.tick(_now_ms()))

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------ one process

    async def _live(self, number: int) -> None:
        """One process, from its start to its end."""
        exit_code = -1
        try:
            child = await self._started(number)
        except OSError as error:
            log.error("a process cannot be started", process=name_of(number), error=str(error))
            self._crew.failed(number, f"cannot start {name_of(number)}: {error}")
        else:
            try:
                await self._heard(number, child)
            except Exception:
                # Closing its connection ends the process, and it is restarted as any that ended.
                log.exception("invalid message from a process", process=name_of(number))
            finally:
                child.line.close()
            exit_code = await child.process.wait()
            self._children.pop(number, None)
        is_wanted = self._crew.phase in ("starting", "serving")
        (log.warning if is_wanted else log.info)("process exited", process=name_of(number), exit_code=exit_code)
        self._apply(self._crew.ended(number, exit_code, _now_ms()))

    async def _started(self, number: int) -> _Child:
        """Raises `OSError`."""
        is_storage = number == STORAGE
        if self._admin is None and not is_storage:
            # The storage process holds the folder's lock, so a leftover socket is not in use.
            self._admin = bind_unix(self.settings.directory)
            self._admin.listen(LISTEN_BACKLOG)
        fds = [] if is_storage or self._admin is None else [self._admin.fileno()]
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Without -P a module in the current folder could shadow one of ours.
                *("-P", "-m", "gateway.processes", "storage" if is_storage else f"gateway-{number}"),
                stdin=theirs.fileno(),
                pass_fds=fds,
                process_group=0,  # the parent handles a terminal's Ctrl-C
            )
        child = self._children[number] = _Child(process, ours)
        ours.setblocking(False)
        if self._crew.phase not in ("starting", "serving") and (not is_storage or self._crew.phase != "draining"):
            self._have_end(number)
        return child

    async def _heard(self, number: int, child: _Child) -> None:
        """Sends the process its role, and reads its messages until it ends."""
        loop, heard = asyncio.get_running_loop(), b""
        admin = self._admin.fileno() if self._admin is not None else -1
        try:
            await loop.sock_sendall(child.line, packed(Spec(number, self.settings.gateways, self.settings, admin)))
            while some := await loop.sock_recv(child.line, 65536):
                *lines, heard = (heard + some).split(b"\n")
                for line in lines:
                    self._said(number, line)
        except OSError:
            pass  # it has ended

    def _said(self, number: int, line: bytes) -> None:
        word = said(line)
        if word.failed:
            log.error("a process cannot start", process=name_of(number), reason=word.failed)
            self._apply(self._crew.failed(number, word.failed))
            return
        self._made_master_key |= word.made_master_key
        self._apply(self._crew.ready(number, _now_ms()))


def _kept(settings: Settings) -> socket.socket:
    """Binds the port without listening, so that no other server gets it. Raises `CannotStart`."""
    try:
        with bind_tcp(settings.address) as alone:
            alone.listen()  # fails if any process listens, even a server that shares its port
            address = settings.address._replace(port=alone.getsockname()[1])
        return bind_tcp(address, is_shared=True)
    except OSError as error:
        raise cannot_listen(settings, error) from None


def _at(settings: Settings, port: int) -> Settings:
    """The settings for the children: the port that was bound, and each one's share of the memory."""
    host, _, _ = settings.http.listen.rpartition(":")
    http = msgspec.structs.replace(settings.http, listen=f"{host}:{port}")
    overload = settings.overload
    if not overload.memory_max_bytes:
        part = max(MEMORY_BYTES_MIN, limit_bytes() // (settings.gateways + 1))
        overload = msgspec.structs.replace(overload, memory_max_bytes=part)
    return msgspec.structs.replace(settings, http=http, overload=overload)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
