"""What a scenario runs in: its own server on its own core, clients to connect, and waits with a limit."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.bench.clients import Client, ClientFailed
from tests.bench.codec import Codec
from tests.bench.machine import Cores, settle_on
from tests.bench.scale import CONNECT_SECONDS_MAX, CONNECTING_AT_ONCE_MAX, SETTLE_SECONDS_MAX, START_SECONDS_MAX, Scale
from tests.support.backends import ROLE, Backends
from tests.support.server import PushqServer

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
"""The checkout that this benchmark belongs to."""
_POLL_S = 0.002
_REQUEST_S_MAX = 30.0

C = TypeVar("C", bound=Client)


class Checkable(Protocol):
    error: Exception | None


class Server:
    """A running Pushq, its admin key, and the queues that a scenario creates on it."""

    def __init__(self, process: PushqServer, start_s: float) -> None:
        self.process = process
        self.start_s = start_s
        """The duration of the first start, on an empty folder."""
        self.port = process.port
        self.key = process.key

    def create(self, queue: str, **config: Any) -> None:
        self._call("PUT", f"/v1/queues/{queue}", config)

    def stats(self, queue: str) -> dict[str, int]:
        stats: dict[str, int] = self._call("GET", f"/v1/queues/{queue}")["stats"]
        return stats

    def rss_anon_mib(self) -> float:
        return round(self.process.rss_anon_kib() / 1024, 1)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.process.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.process.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_S_MAX, context=self.process.tls) as answer:
            return json.loads(answer.read())


class World:
    """The folder, cores and sizes of one run."""

    def __init__(
        self, scale: Scale, cores: Cores, folder: Path, patience_s: float = 0.0, against: Path | None = None
    ) -> None:
        self.scale = scale
        self.cores = cores
        self.folder = folder
        self.patience_s = patience_s
        self.against = against
        """Another checkout, whose server is compared with ours."""

    @contextmanager
    def server(
        self,
        tree: Path = ROOT,
        *,
        extra: Sequence[str] = (),
        env: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        below: Sequence[str] = (),
    ) -> Iterator[Server]:
        """A ready server on an empty data folder; afterwards it is killed and the folder removed. See `PushqServer`."""
        place = Path(tempfile.mkdtemp(prefix="pushq-bench-", dir=self.folder))
        process = PushqServer(place / "data", *extra, tree=tree, env=env, tls=tls, below=below)
        try:
            start_s = self.start(process)
            yield Server(process, start_s)
        finally:
            process.kill()
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def cluster(self) -> Iterator[Server]:
        """A gateway of three backends over etcd, each the leader of one of three shards, sharing all cores."""
        place = Path(tempfile.mkdtemp(prefix="pushq-bench-", dir=self.folder))
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        try:
            with Backends(place, ROLE, shards=3) as backends:
                backends.all_in_sync()
                began = time.monotonic()
                with PushqServer(place / "gateway", env=backends.gateway_env("gateway")) as gateway:
                    yield Server(gateway, time.monotonic() - began)
        finally:
            os.sched_setaffinity(0, own)
            shutil.rmtree(place, ignore_errors=True)

    def start(self, process: PushqServer) -> float:
        """Starts a server on its core; returns the seconds until it was ready."""
        began = time.monotonic()
        process.launch()
        settle_on(process.pid, self.cores.server)
        deadline = began + START_SECONDS_MAX
        while not process.is_ready():
            if not process.is_running() or time.monotonic() > deadline:
                raise ClientFailed(f"the server was not ready\n{process.log_tail()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began


Served = Callable[[World], AbstractContextManager[Server]]
"""The server that a scenario runs against."""


async def connect(make: Callable[[], C], count: int = 1, *, tls: ssl.SSLContext | None = None) -> list[C]:
    """Connects `count` clients, each subscribed or connected as its class does."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE_MAX)

    async def one() -> C:
        async with gate:
            client = make()
            await loop.create_connection(lambda: client, HOST, client.port, ssl=tls)
            await client.ready
            return client

    async with asyncio.timeout(CONNECT_SECONDS_MAX):
        return list(await asyncio.gather(*[one() for _ in range(count)]))


def check(clients: Iterable[Checkable]) -> None:
    for client in clients:
        if client.error is not None:
            raise client.error


def close(clients: Iterable[Client]) -> None:
    for client in clients:
        client.close()


async def until(
    is_done: Callable[[], bool],
    clients: Iterable[Checkable],
    what: Callable[[], str],
    *,
    seconds_max: float = SETTLE_SECONDS_MAX,
) -> None:
    """Waits for what is in flight. Raises if a client failed, or reports `what` is missing when the time is up."""
    watched = list(clients)
    deadline = time.monotonic() + seconds_max
    while not is_done():
        check(watched)
        if time.monotonic() > deadline:
            raise ClientFailed(f"not done after {seconds_max:g} s: {what()}")
        await asyncio.sleep(_POLL_S)
    check(watched)


def client_args(codec: Codec, server: Server) -> tuple[Codec, int, str]:
    """The first arguments of every client."""
    return codec, server.port, server.key
