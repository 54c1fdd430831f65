"""A backend process that serves unreplicated nodes to gateways, one per shard."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from backend_store.client.embedded import EmbeddedStore
from backend_store.node.node import Node
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.env import open_engine
from backend_store.storage.writer import prepare_interpreter
from backend_store.wire.tls import mutual_tls
from gateway.dev_ca import create, issue
from tests.support.forked import Forked
from tests.support.server import POLL_S, READY_S_MAX, STOP_S_MAX, ServerFailed, free_port

_ROOT = Path(__file__).resolve().parents[2]
READY = "backend ready"


class Backend:
    """One backend on one folder, with certificates of its own authority. After `kill`, `start` uses the same port.

    It serves the given `shards` of `count` in total; the first shard of the cluster has the definitions of all queues.
    """

    def __init__(self, folder: Path, shards: Sequence[int] = (0,), *, count: int = 1) -> None:
        self.folder = folder
        self.port = free_port()
        self._shards = ",".join(map(str, shards))
        self._count = count
        self.log_path = folder / f"backend{self._shards}.log"
        authority = folder / "ca"
        if not authority.exists():
            create(authority)
            issue(authority, ["127.0.0.1"])
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def gateway_env(self) -> dict[str, str]:
        """Settings of a gateway that stores its messages on this backend."""
        ca = self.folder / "ca"
        return {
            "PUSHQ_STORE__BACKENDS": f"127.0.0.1:{self.port}",
            "PUSHQ_STORE__TLS_CERT": str(ca / "127.0.0.1.crt"),
            "PUSHQ_STORE__TLS_KEY": str(ca / "127.0.0.1.key"),
            "PUSHQ_STORE__TLS_CA": str(ca / "ca.crt"),
        }

    def start(self) -> Self:
        command = ["tests.support.backend", str(self.folder), str(self.port)]
        command += [self._shards, str(self._count)]
        before = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = Forked(command, cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + READY_S_MAX
        while READY not in self.log_path.read_text(errors="replace")[before:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"the backend did not start\n{self.log_path.read_text(errors='replace')[-4000:]}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._process = None


async def _serve(folder: Path, port: int, shards: Sequence[int], count: int) -> None:
    ca = folder / "ca"
    services = {}
    for shard in shards:
        data = folder / f"data{shard}"
        data.mkdir(exist_ok=True)
        node = Node(open_engine(data), directory=data, is_keyless=True)
        await node.start()
        services[shard] = StoreService(EmbeddedStore(node), shards=count if shard == 0 else 1)
    tls = mutual_tls(ca / "127.0.0.1.crt", ca / "127.0.0.1.key", ca / "ca.crt", is_server=True)
    server = StoreServer(services)
    await server.listen("127.0.0.1", port, tls)
    print(READY, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for service in services.values():
        service.close()
    await server.close()
    for service in services.values():
        await service.store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("shards", type=lambda given: [int(one) for one in given.split(",")])
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    os.umask(0o077)
    prepare_interpreter()
    asyncio.run(_serve(given.folder, given.port, given.shards, given.count))
