"""The coordinator over etcd: implements the transactions, reads, sessions and watches of `coordinator`."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from backend_store.cluster.coordinator import SessionLost, boot_seconds
from backend_store.cluster.core.checks import check_prefix, check_read, check_transaction, check_ttl
from backend_store.cluster.core.values import (
    NEVER,
    Changes,
    Outcome,
    Page,
    Revision,
    SessionId,
    Transaction,
)
from backend_store.cluster.etcd.codec import (
    AlreadyThere,
    Anything,
    KeepAliveAnswer,
    LeaseAnswer,
    RangeAnswer,
    TxnAnswer,
    outcome_of,
    range_request,
    record_of,
    txn_request,
)
from backend_store.cluster.etcd.members import AnswerTooBig, Members
from backend_store.cluster.etcd.watch import Watch
from backend_store.cluster.limits import RECORDS_PER_PAGE_MAX, WATCHES_MAX
from backend_store.cluster.session import Session
from backend_store.model import Unavailable

T = TypeVar("T")
NAMESPACE: Final = b"pushq/"
TXN: Final = "/v3/kv/txn"
RANGE: Final = "/v3/kv/range"
GRANT: Final = "/v3/lease/grant"
REVOKE: Final = "/v3/lease/revoke"
KEEP_ALIVE: Final = "/v3/lease/keepalive"


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    endpoints: Sequence[str]
    """`http://HOST:PORT` or `https://HOST:PORT` of members of one cluster; the first is preferred."""
    tls: ssl.SSLContext | None = None
    """The trusted authorities and, where etcd asks for one, our certificate."""
    user: str = ""
    password: str = field(default="", repr=False)
    namespace: bytes = NAMESPACE
    """Prefix of every key, so that other programs may use the same etcd."""


async def open_etcd(config: EtcdConfig) -> EtcdCoordinator:
    """Raises `UnsupportedServer` if a member that answers must not be used, `Unavailable` if none answers."""
    members = Members(config.endpoints, tls=config.tls, user=config.user, password=config.password)
    try:
        silent: Unavailable | None = None
        answered = 0
        for member in members.endpoints:
            try:
                await members.vet(member)
                answered += 1
            except Unavailable as error:
                silent = error
        if not answered and silent is not None:
            raise silent
    except BaseException:
        await members.close()
        raise
    return EtcdCoordinator(members, config.namespace)


class EtcdCoordinator:
    """Implements `Coordinator`. Made by `open_etcd`; the caller closes it."""

    def __init__(self, members: Members, namespace: bytes, *, clock: Callable[[], float] = boot_seconds):
        self._members = members
        self._namespace = namespace
        self._clock = clock
        self._sessions: set[Session] = set()
        self._watches: set[Watch] = set()

    async def transact(self, transaction: Transaction) -> Outcome:
        check_transaction(transaction)
        request = txn_request(self._namespace, transaction)
        answer = await self._members.ask(TXN, request, TxnAnswer, writes=not transaction.is_read_only)
        return outcome_of(self._namespace, transaction, answer)

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
        behind = self._namespace + after if after else b""
        while True:
            request = range_request(
                self._namespace + prefix, after=behind, limit=limit, at=at, changed_after=changed_after
            )
            try:
                answer = await self._members.ask(RANGE, request, RangeAnswer)
                break
            except AnswerTooBig:
                if limit == 1:
                    raise
                limit //= 2
        records = tuple(record_of(self._namespace, found) for found in answer.kvs)
        revision = Revision(answer.header.revision) if at is None else at
        return Page(records, revision, answer.count, answer.more)

    async def watch(self, prefix: bytes, *, after: Revision) -> AsyncGenerator[Changes, None]:
        check_prefix(prefix)
        if len(self._watches) >= WATCHES_MAX:
            raise Unavailable(f"{WATCHES_MAX} watches are open, the most that a process has")
        watch = Watch(self._members, self._namespace, prefix, after)
        self._watches.add(watch)
        try:
            while True:
                yield await watch.take()
        finally:
            self._watches.discard(watch)
            await watch.close()

    async def open_session(self, ttl_s: int, *, is_alive: Callable[[], bool] = lambda: True) -> Session:
        check_ttl(ttl_s)
        # We choose the id, so that a repeated request after a lost answer makes no second lease.
        id = SessionId(secrets.randbelow(2**63 - 1) + 1)
        sent_at = self._clock()
        try:
            await self._members.ask(GRANT, {"ID": str(id), "TTL": str(ttl_s)}, LeaseAnswer)
        except AlreadyThere:
            pass
        session = Session(
            id, ttl_s, sent_at=sent_at, clock=self._clock, keep=self._keep, end=self._end, is_alive=is_alive
        )
        self._sessions = {other for other in self._sessions if not other.is_lost} | {session}
        return session

    async def _keep(self, session: SessionId) -> bool:
        answer = await self._lease(KEEP_ALIVE, session, KeepAliveAnswer)
        return answer.result.TTL > 0

    async def _end(self, session: SessionId) -> None:
        try:
            await self._lease(REVOKE, session, Anything)
        except SessionLost:
            pass

    async def _lease(self, path: str, session: SessionId, kind: type[T]) -> T:
        return await self._members.ask(path, {"ID": str(session)}, kind, once=True)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions))
        for watch in list(self._watches):
            await watch.end("the coordinator is closed")
        await self._members.close()
