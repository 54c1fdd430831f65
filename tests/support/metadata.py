"""Metadata services for tests: in this process, behind a socket of this process, and in a process of their own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from backend_store.metadata.embedded import Metadata
from backend_store.metadata.local import LocalMetadata
from backend_store.metadata.remote import RemoteMetadata
from backend_store.metadata.server import serve_metadata
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S
from tests.support.server import free_port

SECRET = "the secret of these tests"
READY_S_MAX = PATIENCE_S
_ROOT = Path(__file__).resolve().parents[2]


def local_service(now_ms: int = 1000) -> LocalMetadata:
    """A service over in-memory rows."""
    engine = MemoryEngine()

    async def write(rows: Batch) -> None:
        engine.commit(rows, lambda: None)

    return LocalMetadata(Metadata(engine, write), lambda: now_ms)


@contextlib.asynccontextmanager
async def remote_service(service: LocalMetadata) -> AsyncIterator[RemoteMetadata]:
    """The same service behind a socket."""
    server = await serve_metadata(service, SECRET, "127.0.0.1", 0)
    port = next(iter(server.sockets)).getsockname()[1]
    remote = RemoteMetadata(f"ws://127.0.0.1:{port}", SECRET)
    try:
        assert await remote.connected(5)
        yield remote
    finally:
        await remote.close()
        server.close()
        await server.wait_closed()


class MetadataProcess:
    """A `pushq metadata` process. `start` after `kill` uses the same data and port."""

    def __init__(self, data: Path, *, tls: Mapping[str, str] | None = None) -> None:
        """`tls`: the files for `--tls-…`, by name."""
        self.data = data
        self.port = free_port()
        self.url = f"{'ws' if tls is None else 'wss'}://127.0.0.1:{self.port}"
        self._flags = [word for name, file in (tls or {}).items() for word in (f"--tls-{name}", file)]
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def secret(self) -> str:
        return (self.data / "metadata.secret").read_text().strip()

    @property
    def secret_file(self) -> Path:
        return self.data / "metadata.secret"

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    def start(self) -> Self:
        assert self._process is None, "it is already running"
        command = ["gateway", "metadata", "--data", str(self.data)]
        self._process = Forked(
            [*command, "--listen", f"127.0.0.1:{self.port}", *self._flags],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        deadline = time.monotonic() + READY_S_MAX
        for line in self._process.stdout:
            if line.startswith("ready"):
                return self
            assert time.monotonic() < deadline, "pushq metadata was not ready in time"
        raise AssertionError(f"pushq metadata ended with {self._process.wait(5)}")

    def stall(self) -> None:
        """Suspends it: its sockets stay open, but it does nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def reload(self) -> None:
        self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def stop(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(10)
        self.kill()
        return code
