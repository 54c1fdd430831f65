"""Coordinators for tests, embedded and over a real etcd, and the outside events they have to cope with.

`python -m tests.support.coordinators count FOLDER` runs an embedded coordinator that increments a counter in a record
and prints each number once it is durable. `… hold ENDPOINT KEY` wins an election at etcd and reports what it believes.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from backend_store.cluster.coordinator import Coordinator, boot_seconds, get
from backend_store.cluster.core.values import Changes, Put, Record, Revision, SessionId, Transaction, absent, changed_at
from backend_store.cluster.election import Election
from backend_store.cluster.embedded_host import EmbeddedHost, open_embedded
from backend_store.cluster.etcd.driver import EtcdConfig, open_etcd
from backend_store.cluster.fencing import Fenced, put_fenced
from backend_store.model import OutcomeUnknown, Unavailable
from tests.support.patience import PATIENCE_S

COUNTER = b"counter"
WITHIN_S = PATIENCE_S
"""How long a test waits for something that must happen: far longer than it takes."""
FAILOVER_S_MAX = 15.0
"""The limit for a cluster that lost a member, on a machine that is also busy with other things."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Coordinated:
    """A coordinator and its surroundings."""

    coordinator: Coordinator
    compact: Callable[[Revision], None]
    another: Callable[[], AbstractAsyncContextManager[Coordinator]]
    """The same records as seen by another process. An embedded coordinator has none: it is the same object."""


def fail_loudly(error: BaseException) -> None:
    raise AssertionError("storage failed during a test") from error


def open_folder(folder: Path) -> EmbeddedHost:
    return open_embedded(folder, on_fatal=fail_loudly)


@asynccontextmanager
async def over_etcd(*endpoints: str, namespace: bytes = b"test/") -> AsyncIterator[Coordinator]:
    coordinator = await open_etcd(EtcdConfig(endpoints, namespace=namespace))
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def put(coordinator: Coordinator, key: bytes, value: bytes = b"", session: SessionId | None = None) -> Revision:
    return (await coordinator.transact(Transaction(then=(Put(key, value, session),)))).revision


async def find(coordinator: Coordinator, key: bytes) -> Record | None:
    return (await get(coordinator, key))[0]


async def revisions_up_to(watch: AsyncIterator[Changes], up_to: Revision) -> list[Revision]:
    """The revisions that a watch reports, up to `up_to`."""
    heard: list[Revision] = []
    async with asyncio.timeout(30):
        async for changes in watch:
            if changes.events:
                heard.append(changes.revision)
            if changes.revision >= up_to:
                return heard
    raise AssertionError("the watch ended")


async def write_through(coordinator: Coordinator, key: bytes, value: bytes) -> Revision:
    """Writes exactly once: if the outcome is unknown, the record is read back before a retry."""
    while True:
        try:
            return (await coordinator.transact(Transaction((absent(key),), (Put(key, value),)))).revision
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0.05)


@contextmanager
def helper(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this module; killed at the end if it is still running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.coordinators", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


async def _count(folder: Path) -> None:
    coordinator = open_folder(folder).coordinator
    session = await coordinator.open_session(2)
    await put(coordinator, b"alive", b"", session.id)
    record = await find(coordinator, COUNTER)
    number = 0 if record is None else int(record.value)
    at = Revision(0) if record is None else record.changed_at
    while True:
        number += 1
        counted = Transaction((changed_at(COUNTER, at),), (Put(COUNTER, b"%d" % number),))
        outcome = await coordinator.transact(counted)
        assert outcome.succeeded
        at = outcome.revision
        print(number, at, flush=True)


async def _hold(endpoint: str, key: bytes) -> None:
    """For each input line, prints whether it believes to hold the key, and whether it could write."""
    coordinator = await open_etcd(EtcdConfig([endpoint], namespace=b"test/"))
    session = await coordinator.open_session(2)
    right = await Election(coordinator, key).campaign(session, b"process")
    record = await put_fenced(coordinator, right, b"written", b"by the holder", based_on=None)
    print("holds", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        believes = session.is_held and boot_seconds() < session.held_until
        try:
            record = await put_fenced(coordinator, right, b"written", b"late", based_on=record)
            print(believes, "written", flush=True)
        except Fenced:
            print(believes, "fenced", flush=True)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    match sys.argv[1:]:
        case ["count", folder]:
            asyncio.run(_count(Path(folder)))
        case ["hold", endpoint, key]:
            asyncio.run(_hold(endpoint, key.encode()))
        case _:
            sys.exit("count FOLDER | hold ENDPOINT KEY")
