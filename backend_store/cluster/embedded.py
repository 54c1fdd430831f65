"""The coordinator of one process: its state in memory, its rows in the node's storage, and one task that makes all
changes.

Every change is one durable commit before it is visible. History is in memory only: after a restart a watch begins with
a new list, as its reader does too. Sessions resume with their whole time, so that their records expire in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

import msgspec
import structlog

from backend_store.cluster.coordinator import Compacted, SessionLost, boot_seconds
from backend_store.cluster.core.checks import check_prefix, check_read, check_transaction, check_ttl
from backend_store.cluster.core.state import CompactedAway, Decision, State, UnknownSession
from backend_store.cluster.core.values import NEVER, Changes, Outcome, Page, Record, Revision, SessionId, Transaction
from backend_store.cluster.limits import (
    EMBEDDED_COMMANDS_MAX,
    EMBEDDED_EXPIRY_SECONDS,
    EMBEDDED_SESSIONS_MAX,
    RECORDS_PER_PAGE_MAX,
    WATCHES_MAX,
)
from backend_store.cluster.session import Session
from backend_store.model import InvalidRequest, OutcomeUnknown, StorageFull, Unavailable
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.engine import StorageFull as DiskFull
from backend_store.storage.seal import seal, unseal

log = structlog.get_logger("pushq.coordinator")

RECORDS: Final = b"coordinator/record/"
SESSIONS: Final = b"coordinator/session/"
REVISION: Final = b"coordinator/revision"
_ROWS_PER_READ: Final = 256
_REVISIONS_PER_LOOK: Final = 256
"""Revisions of the history that a watch scans before it yields to other tasks."""

V = TypeVar("V")
_encode = msgspec.msgpack.Encoder().encode
_record: msgspec.msgpack.Decoder[tuple[bytes, int, int, int, int | None]] = msgspec.msgpack.Decoder(
    tuple[bytes, int, int, int, int | None]
)


@dataclass(frozen=True, slots=True)
class _Transact:
    transaction: Transaction
    done: asyncio.Future[Outcome]


@dataclass(frozen=True, slots=True)
class _Open:
    ttl_s: int
    done: asyncio.Future[SessionId]


@dataclass(frozen=True, slots=True)
class _End:
    session: SessionId
    done: asyncio.Future[None]


_Command = _Transact | _Open | _End


class EmbeddedCoordinator:
    """Implements `Coordinator`. The caller closes it."""

    def __init__(
        self,
        engine: Engine,
        write: Callable[[Batch], Awaitable[None]],
        *,
        clock: Callable[[], float] = boot_seconds,
        new_session: Callable[[], int] = lambda: secrets.randbelow(2**63 - 1) + 1,
    ):
        """`write` commits rows durably; it raises the storage's `StorageFull` where nothing was written."""
        self._write = write
        self._clock = clock
        self._new_session = new_session
        stored = engine.get(Table.META, REVISION)
        revision = 1 if stored is None else int.from_bytes(unseal(REVISION, stored))
        self._state = State(_stored_records(engine), _stored_sessions(engine), revision, clock())
        self._commands: asyncio.Queue[_Command | None] = asyncio.Queue(EMBEDDED_COMMANDS_MAX)
        self._news = asyncio.Event()
        self._open_sessions: set[Session] = set()
        self._watches = 0
        self._ended = ""
        self._owner = asyncio.get_running_loop().create_task(self._run(), name="embedded coordinator")

    async def transact(self, transaction: Transaction) -> Outcome:
        check_transaction(transaction)
        if transaction.is_read_only:
            self._check_open()
            return self._state.decide(transaction, self._clock()).outcome
        return await self._ask(lambda done: _Transact(transaction, done))

    async def read(
        self,
        prefix: bytes,
        *,
        after: bytes = b"",
        limit: int = RECORDS_PER_PAGE_MAX,
        at: Revision | None = None,
        changed_after: Revision = NEVER,
    ) -> Page:
        check_read(prefix, after, limit)
        self._check_open()
        if at is not None and at > self._state.revision:
            raise InvalidRequest(f"at {at} has not happened yet: the coordinator is at revision {self._state.revision}")
        with _kept():
            return self._state.read(prefix, after=after, limit=limit, at=at, changed_after=changed_after)

    async def watch(self, prefix: bytes, *, after: Revision) -> AsyncGenerator[Changes, None]:
        check_prefix(prefix)
        if self._watches >= WATCHES_MAX:
            raise Unavailable(f"{WATCHES_MAX} watches are open, the most that a process has")
        self._watches += 1
        try:
            while True:
                self._check_open()
                with _kept():
                    told, after = self._state.changes(prefix, after, _REVISIONS_PER_LOOK)
                for changes in told:
                    yield changes
                if after >= self._state.revision:
                    await self._wait_for_news()
                else:
                    await asyncio.sleep(0)
        finally:
            self._watches -= 1

    async def open_session(self, ttl_s: int, *, is_alive: Callable[[], bool] = lambda: True) -> Session:
        check_ttl(ttl_s)
        sent_at = self._clock()
        session = Session(
            await self._ask(lambda done: _Open(ttl_s, done)),
            ttl_s,
            sent_at=sent_at,
            clock=self._clock,
            keep=self._keep,
            end=self._end,
            is_alive=is_alive,
        )
        self._open_sessions = {other for other in self._open_sessions if not other.is_lost} | {session}
        return session

    async def close(self) -> None:
        """Waits for writes in progress: their callers get the outcome."""
        await asyncio.gather(*(session.close() for session in self._open_sessions))
        self._stop("the coordinator is closed")
        self._commands.put_nowait(None)
        await asyncio.gather(self._owner, return_exceptions=True)

    def compact(self, revision: Revision) -> None:
        """Forgets history before this revision, as happens automatically where there is too much."""
        self._state.compact(revision)
        self._tell()

    # ------------------------------------------------------------------------------------------------- commands

    async def _ask(self, command: Callable[[asyncio.Future[V]], _Command]) -> V:
        self._check_open()
        if self._commands.full():
            raise Unavailable(f"{EMBEDDED_COMMANDS_MAX} writes wait for the coordinator's disk", retry_after_ms=1000)
        done: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look_at)
        self._commands.put_nowait(command(done))
        # A cancelled caller does not cancel the command: the owner finishes it.
        return await asyncio.shield(done)

    def _check_open(self) -> None:
        if self._ended:
            raise Unavailable(self._ended)

    async def _keep(self, session: SessionId) -> bool:
        self._check_open()
        now = self._clock()
        if not self._state.is_held(session, now):
            return False
        self._state.keep(session, now)
        return True

    async def _end(self, session: SessionId) -> None:
        await self._ask(lambda done: _End(session, done))

    async def _wait_for_news(self) -> None:
        await self._news.wait()

    def _tell(self) -> None:
        """Wakes all waiting watches; later ones wait for the next news."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    # -------------------------------------------------------------------------------------------------- the owner

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + EMBEDDED_EXPIRY_SECONDS
        try:
            while not self._ended:
                try:
                    async with asyncio.timeout_at(look_at):
                        command = await self._commands.get()
                except TimeoutError:
                    for session in self._state.over(self._clock()):
                        await self._expire(session)
                    look_at = loop.time() + EMBEDDED_EXPIRY_SECONDS
                else:
                    if command is not None:
                        await self._perform(command)
        except OutcomeUnknown as error:
            self._stop(f"the coordinator stopped: {error.detail}")
        except BaseException as error:
            self._stop(f"the coordinator failed: {error!r}")
            raise

    async def _expire(self, session: SessionId) -> None:
        log.info("a session has expired", session=session)
        try:
            await self._commit(self._state.decide_end(session))
        except StorageFull as error:
            # The session is over all the same; its records are removed when there is room.
            log.warning("an expired session cannot be removed", session=session, error=error.detail)

    async def _perform(self, command: _Command) -> None:
        try:
            match command:
                case _Transact(transaction, done):
                    decision = self._state.decide(transaction, self._clock())
                    await self._commit(decision)
                    _answer(done, decision.outcome)
                case _Open(ttl_s, opened):
                    _answer(opened, await self._opened(ttl_s))
                case _End(session, ended):
                    if session in self._state.sessions:
                        await self._commit(self._state.decide_end(session))
                    _answer(ended, None)
                case _:
                    assert_never(command)
        except UnknownSession as error:
            _fail(command.done, SessionLost(f"{error}: open a new one"))
        except StorageFull as error:
            _fail(command.done, error)
        except OutcomeUnknown as error:
            _fail(command.done, error)
            raise
        except BaseException as error:
            _fail(command.done, OutcomeUnknown(f"the coordinator failed: {error!r}"))
            raise

    async def _opened(self, ttl_s: int) -> SessionId:
        if len(self._state.sessions) >= EMBEDDED_SESSIONS_MAX:
            raise StorageFull(f"{EMBEDDED_SESSIONS_MAX} sessions are open, the most that the coordinator has")
        session = SessionId(self._new_session())
        batch = Batch()
        _stage(batch, _session_key(session), ttl_s.to_bytes(4))
        await self._store(batch)
        self._state.open(session, ttl_s, self._clock())
        return session

    async def _commit(self, decision: Decision) -> None:
        """Commits a decision, then makes it visible."""
        batch = Batch()
        for event in decision.events:
            record = event.record
            if record is None:
                batch.delete(Table.META, RECORDS + event.key)
            else:
                row = (record.value, record.created_at, record.changed_at, record.version, record.session)
                _stage(batch, RECORDS + event.key, _encode(row))
        if decision.events:
            _stage(batch, REVISION, decision.outcome.revision.to_bytes(8))
        if decision.ended is not None:
            batch.delete(Table.META, _session_key(decision.ended))
        if not batch:
            return
        await self._store(batch)
        self._state.apply(decision)
        self._tell()

    async def _store(self, batch: Batch) -> None:
        try:
            await self._write(batch)
        except DiskFull as error:
            raise StorageFull(f"the coordinator's disk is full, nothing was written: {error}") from error
        except Exception as error:
            raise OutcomeUnknown(f"a write of the coordinator failed: {error}") from error

    def _stop(self, reason: str) -> None:
        self._ended = self._ended or reason
        while not self._commands.empty():
            if (command := self._commands.get_nowait()) is not None:
                _fail(command.done, Unavailable(self._ended))
        self._tell()


def _answer(done: asyncio.Future[V], value: V) -> None:
    if not done.done():
        done.set_result(value)


def _look_at(done: asyncio.Future[Any]) -> None:
    """Retrieves an error whose caller has gone, so that asyncio does not report it as lost."""
    if not done.cancelled():
        done.exception()


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except CompactedAway as error:
        raise Compacted(str(error), error.oldest) from None


# ------------------------------------------------------------------------------------------------------------ rows


def _stage(batch: Batch, key: bytes, row: bytes) -> None:
    batch.put(Table.META, key, seal(key, row))


def _session_key(session: SessionId) -> bytes:
    return SESSIONS + session.to_bytes(8)


def _rows(engine: Engine, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key without the prefix, row)."""
    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    while found := engine.scan(Table.META, start, end, _ROWS_PER_READ):
        for key, row in found:
            yield key[len(prefix) :], unseal(key, row)
        start = found[-1][0] + b"\x00"


def _stored_records(engine: Engine) -> Iterator[Record]:
    for key, row in _rows(engine, RECORDS):
        value, created_at, changed_at, version, session = _record.decode(row)
        bound = None if session is None else SessionId(session)
        yield Record(key, value, Revision(created_at), Revision(changed_at), version, bound)


def _stored_sessions(engine: Engine) -> Iterator[tuple[SessionId, int]]:
    for key, row in _rows(engine, SESSIONS):
        yield SessionId(int.from_bytes(key)), int.from_bytes(row)
