"""What the machine can do right now: a sync, a commit, an echo. Ratios to these are robust against other load."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import lmdb

from tests.bench.clients import ClientFailed
from tests.bench.codec import client_frame
from tests.bench.machine import Meter, settle_on
from tests.bench.rows import Row
from tests.bench.scale import BODY_BYTES
from tests.bench.world import HOST, World, check
from tests.support.server import free_port

ROUNDS_PER_SECOND = 75
CHUNK_BYTES = 64 * 1024
CONNECTIONS = 16
IN_FLIGHT = 16
_START_S_MAX = 15.0
_ROOT = Path(__file__).resolve().parents[2]


async def baseline(world: World) -> Row:
    place = Path(tempfile.mkdtemp(prefix="pushq-bench-", dir=world.folder))
    try:
        rounds = max(10, int(ROUNDS_PER_SECOND * world.scale.seconds))
        meter = Meter(_Nobody())
        found: Row = {"fdatasync_us": fdatasync_us(place, rounds), "commit_us": commit_us(place, rounds)}
        disturbed_pct = meter.figures()["other_cpu_pct"]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    echoed = await _echo(world)
    return found | echoed | {"other_cpu_pct": max(disturbed_pct, echoed["other_cpu_pct"])}


class _Nobody:
    """Stands in for the server in a measurement without one."""

    def cpu_s(self) -> float:
        return 0.0


def fdatasync_us(place: Path, rounds: int) -> float:
    """The median duration of appending one body and its fdatasync."""
    data = b"x" * BODY_BYTES
    descriptor = os.open(place / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:

        def append() -> None:
            os.write(descriptor, data)
            os.fdatasync(descriptor)

        return _median_us(rounds, append)
    finally:
        os.close(descriptor)


def commit_us(place: Path, rounds: int) -> float:
    """The median duration of an LMDB transaction that puts one chunk, with the default flags."""
    chunk = b"x" * CHUNK_BYTES
    with lmdb.open(str(place / "lmdb"), map_size=1 << 30) as env:
        numbers = iter(range(rounds))

        def commit() -> None:
            with env.begin(write=True) as txn:
                txn.put(next(numbers).to_bytes(8, "big"), chunk)

        return _median_us(rounds, commit)


def _median_us(rounds: int, work: Callable[[], None]) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1e6, 1)


class _EchoServer:
    """The echo's process, as needed by `Meter`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _echo_process(world: World, port: int) -> Iterator[_EchoServer]:
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.echo", str(port)], cwd=_ROOT)
    try:
        settle_on(process.pid, world.cores.server)
        yield _EchoServer(process)
    finally:
        process.kill()
        process.wait()


class _Echoed(asyncio.Protocol):
    """Keeps frames in flight. All frames have the same size, so they are counted by bytes."""

    def __init__(self, port: int) -> None:
        self.error: Exception | None = None
        self.bytes_back = 0
        self._port = port
        self._is_open = False
        self._frame = client_frame(b"x" * BODY_BYTES, 2)
        self._back_bytes = len(self._frame) - 4  # a server's frame has no mask
        self._answered = 0

    @property
    def count(self) -> int:
        return self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(
            f"GET / HTTP/1.1\r\nHost: {HOST}:{self._port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            # Nothing follows the handshake until we have sent something.
            if not data.startswith(b"HTTP/1.1 101 "):
                self.error = ClientFailed(f"no upgrade: {data[:200]!r}")
            self._is_open = True
            self.transport.write(self._frame * IN_FLIGHT)
            return
        self.bytes_back += len(data)
        fresh = self.bytes_back // self._back_bytes - self._answered
        self._answered += fresh
        self.transport.write(self._frame * fresh)


async def _echo(world: World) -> Row:
    loop, port, scale = asyncio.get_running_loop(), free_port(), world.scale
    with _echo_process(world, port) as server:
        await _until_open(port)
        make = partial(_Echoed, port)
        clients = [(await loop.create_connection(make, HOST, port))[1] for _ in range(CONNECTIONS)]
        await asyncio.sleep(scale.warmup_seconds)
        meter, began = Meter(server), sum(client.count for client in clients)
        await asyncio.sleep(scale.seconds / 2)
        count = sum(client.count for client in clients) - began
        figures = meter.figures(count)
        check(clients)
        for client in clients:
            client.transport.abort()
    return {"rate": round(count / figures["wall_s"]), "unit": "echoes/s", **figures}


async def _until_open(port: int) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            writer.close()
            await writer.wait_closed()
            return
