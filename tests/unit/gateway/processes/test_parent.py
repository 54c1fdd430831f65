"""A server's processes that end in odd ways, seen by their parent. Each is a real one, of a few lines of shell."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.load import load_settings
from gateway.processes import parent
from gateway.processes.core import DESK, STORAGE, Crew, Kill, Serving
from gateway.processes.parent import _Child, _Parent

pytestmark = pytest.mark.anyio


def made(tmp_path: Path) -> _Parent:
    file = tmp_path / "pushq.toml"
    file.write_text(f"gateways = 2\ndata = {str(tmp_path)!r}\n")
    found = _Parent(load_settings({}, {}, file).settings)
    found._crew = Crew(2, drain_ms=1_000)
    found._over = asyncio.get_running_loop().create_future()
    return found


@pytest.fixture
async def ended() -> AsyncIterator[_Child]:
    """A process that has ended, of which the parent has not heard yet."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec("true", stdin=theirs.fileno())
        await process.wait()
        yield _Child(process, ours)


@pytest.fixture
async def running() -> AsyncIterator[_Child]:
    """A process that any signal ends, also where these tests run below one that ignores SIGHUP (nohup)."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            process = await asyncio.create_subprocess_exec("sleep", "600", stdin=theirs.fileno())
        finally:
            signal.signal(signal.SIGHUP, inherited)
        yield _Child(process, ours)
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_process_that_speaks_nonsense_counts_as_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade below a parent that runs on. It was never started again, and a drain waited for it."""
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\necho nonsense >&0; cat >/dev/null\n")
    shell.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(shell))
    server = made(tmp_path)
    server._apply(server._crew.begin())
    over = await asyncio.wait_for(server._over, 30)
    assert "storage process exited with code 0" in over.detail
    assert not server._children and not server._crew.is_alive(STORAGE)


async def test_a_process_that_has_just_ended_keeps_no_other_from_its_kill(
    tmp_path: Path, ended: _Child, running: _Child
) -> None:
    server = made(tmp_path)
    server._children = {DESK: ended, DESK + 1: running}
    server._apply([Kill(DESK), Kill(DESK + 1)])
    assert await asyncio.wait_for(running.process.wait(), 30) == -signal.SIGKILL


async def test_a_process_that_has_just_ended_keeps_no_other_from_a_signal(
    tmp_path: Path, ended: _Child, running: _Child
) -> None:
    server = made(tmp_path)
    server._children = {DESK: ended, DESK + 1: running}
    for number in server._children:
        server._crew.ready(number, 0)
    server._pass_on(signal.SIGHUP)
    assert await asyncio.wait_for(running.process.wait(), 30) == -signal.SIGHUP


async def test_a_service_manager_hears_that_it_serves_though_nobody_reads_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object, **__: object) -> None:
        raise BrokenPipeError

    told: list[bool] = []
    monkeypatch.setattr(parent, "announce", unread)
    monkeypatch.setattr(parent, "tell_ready", lambda: told.append(True))
    made(tmp_path)._apply([Serving()])
    assert told == [True]
