"""What systemd is told, on a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.roles.systemd import tell_ready, tell_stopping


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify") if request.param == "file" else f"\0pushq-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(path)
        line.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path.replace("\0", "@"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield line


@pytest.mark.anyio
async def test_it_says_that_it_is_ready_and_that_it_ends(manager: socket.socket) -> None:
    tell_ready()
    tell_stopping()
    assert [manager.recv(64), manager.recv(64)] == [b"READY=1", b"STOPPING=1"]
    with pytest.raises(BlockingIOError):
        manager.recv(64)


@pytest.mark.anyio
async def test_a_watched_process_gives_signs_of_life_while_its_loop_gets_on(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    tell_ready()
    loop = asyncio.get_running_loop()
    heard = [await loop.sock_recv(manager, 64) for _ in range(4)]
    assert heard == [b"READY=1"] + [b"WATCHDOG=1"] * 3


@pytest.mark.anyio
async def test_a_watch_over_another_process_is_not_ours(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    tell_ready()
    assert manager.recv(64) == b"READY=1"
    with pytest.raises(BlockingIOError):
        manager.recv(64)


@pytest.mark.anyio
@pytest.mark.parametrize("address", ["", "relative", "/nobody/listens/here"])
async def test_a_server_goes_on_where_nobody_listens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    tell_ready()
    tell_stopping()


@pytest.mark.anyio
async def test_a_manager_that_does_not_read_holds_nobody_up(manager: socket.socket) -> None:
    for _ in range(1_000):
        tell_stopping()
