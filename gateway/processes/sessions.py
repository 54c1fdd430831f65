"""Sessions go on at any gateway: the one that a client comes back to takes the session from the one that has it.

The leader of the first shard passes the question on (see `backend_store.client.sessions`); the leases change hands at
the backends that granted them. A gateway that stops leaves its sessions there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec
import structlog

from backend_store.client import GroupQueue, Lease, open_group
from backend_store.client.sessions import session_suffix
from backend_store.model import CHUNK_MESSAGES_MAX, NotFound, PushqError
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.sessions import GiveSession, LeaveSessions, LeftSession, SeekSession
from backend_store.wire.store_frames import Bits, of_bits, to_bits
from gateway.processes.limits import (
    LEAVE_BYTES_SOFT_MAX,
    LEAVE_SECONDS_MAX,
    PLACE_SECONDS_MAX,
    SESSION_BYTES_MAX,
    SESSIONS_PER_ASK_MAX,
)
from push.core.resume import Absent, Parked
from push.delivery.hub import Hub
from push.delivery.lookup_retry import found
from push.ports import Principal

log = structlog.get_logger("pushq.gateway")

_LEASE_BYTES_MAX = 2 * (CHUNK_MESSAGES_MAX // 8) + 8
"""What a lease takes in a session beside its token."""
_RECEIPT_BYTES = 4

_answer = msgspec.msgpack.Decoder(bytes | None).decode


class Moving(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway gives away of a session, by tenant and place: tokens with the messages that the client holds and
    those that it has not begun with, and receipts that it lost while it was away."""

    tenant: str
    held: list[tuple[str, str, dict[str, tuple[Bits, Bits]]]]
    lost: list[tuple[str, str, list[str]]]


_moving = msgspec.msgpack.Decoder(Moving).decode
Sent = Parked[list[Lease]]


class SharedSessions:
    """The sessions of one gateway process towards the others."""

    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self.suffix = session_suffix(store.id)

    def give_from(self, hub: Hub) -> None:
        """From now on other gateways get the sessions of `hub`."""
        self._store.sought = lambda session, principal_id: self._give(hub, session, principal_id)

    def _give(self, hub: Hub, session: str, principal_id: str) -> None:
        parked = hub.give_away(session, principal_id)
        if parked is not None:
            log.info("a session goes on at another gateway", session=session[:6])
        self._store.background(self._say(GiveSession(session, None if parked is None else _packed(parked))))

    async def _say(self, given: GiveSession) -> None:
        try:
            await self._store.ask(given, may_repeat=True)
        except PushqError as error:
            log.info("a session was not given away", session=given.session[:6], reason=error.detail)

    async def fetch(self, session: str, principal: Principal) -> Sent | None:
        """See `push.ports.Elsewhere`."""
        asked = SeekSession(session, principal.id, self._store.id, principal.tenant)
        content = _answer(await self._store.ask(asked, may_repeat=True))
        if content is None:
            return None
        moving = _moving(content)
        parked: Sent = Parked(session, principal.id, 0, tenant=moving.tenant)
        for tenant, place, receipts in moving.lost:
            parked.lost[tenant, place] = receipts
        async with asyncio.TaskGroup() as group:
            for tenant, place, tokens in moving.held:
                group.create_task(self._take_over(parked, (tenant, place), tokens))
        return parked

    async def _take_over(self, parked: Sent, at: tuple[str, str], tokens: dict[str, tuple[Bits, Bits]]) -> None:
        """Takes the leases of one place. Those that cannot be had return to their queue when their time is over."""
        holder = Absent(parked.lost.setdefault(at, []))
        try:
            async with asyncio.timeout(PLACE_SECONDS_MAX):
                queue = await self._queue(*at)
            leases = await queue.take_over({token: to_bits(bits) for token, (bits, _) in tokens.items()}, holder)
        except (PushqError, TimeoutError) as error:
            log.info("leases stay at another gateway", queue=at[1], reason=str(error) or "not found in time")
            return
        for lease in leases:
            lease.untried = lease.bits & to_bits(tokens[lease.token][1])
        parked.held[at] = leases

    async def _queue(self, tenant: str, place: str) -> RemoteQueue:
        """A queue, or a group of a stream that is still there. Raises `PushqError`."""
        name, _, group = place.partition("/")
        queue = await found(lambda: self._store.queue(tenant, name))
        if not group:
            return queue
        if await found(lambda: queue.find_group(group)) is None:
            raise NotFound(f"group {group!r} of stream {name!r} was deleted")
        answer: asyncio.Future[GroupQueue | PushqError] = asyncio.get_running_loop().create_future()

        def told(result: GroupQueue | PushqError) -> None:
            if not answer.done():
                answer.set_result(result)

        open_group(cast(Any, queue), group, None, told)
        opened = await answer
        if isinstance(opened, PushqError):
            raise opened
        return cast(RemoteQueue, opened)

    async def leave(self, hub: Hub) -> None:
        """Leaves the sessions of a gateway that stops, after it was drained, to the gateways that their clients come
        back to."""
        now_ms, parked = hub.awake_ms(), hub.parked.all()
        life_ms = max((one.until_ms - now_ms for one in parked), default=0)
        if life_ms <= 0:
            return
        self._store.keep_leases(life_ms)
        try:
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                for some in _frames(parked):
                    await self._store.ask(LeaveSessions(some, life_ms), may_repeat=True)
        except (PushqError, TimeoutError) as error:
            log.warning("sessions were not left to other gateways", sessions=len(parked), reason=str(error))


def _frames(parked: Iterable[Sent]) -> Iterator[list[LeftSession]]:
    """Sessions to be left, in lists that fit into a request."""
    some: list[LeftSession] = []
    size = 0
    for one in parked:
        some.append(LeftSession(one.session, one.principal_id, one.tenant, _packed(one)))
        size += len(some[-1].content)
        if size >= LEAVE_BYTES_SOFT_MAX or len(some) >= SESSIONS_PER_ASK_MAX:
            yield some
            some, size = [], 0
    if some:
        yield some


class _Room:
    """What is left of `SESSION_BYTES_MAX`."""

    def __init__(self) -> None:
        self.bytes = SESSION_BYTES_MAX

    def takes(self, size: int) -> bool:
        self.bytes -= size
        return self.bytes >= 0


def _packed(parked: Sent) -> bytes:
    room = _Room()
    held = []
    for (tenant, place), leases in parked.held.items():
        tokens: dict[str, tuple[int, int]] = {}
        for part in (part for lease in leases for part in lease.parts() if part.bits):
            if part.token not in tokens and not room.takes(len(part.token) + _LEASE_BYTES_MAX):
                break
            bits, untried = tokens.get(part.token, (0, 0))
            tokens[part.token] = bits | part.bits, untried | part.untried & part.bits
        if tokens:
            sent = {token: (of_bits(bits), of_bits(untried)) for token, (bits, untried) in tokens.items()}
            held.append((tenant, place, sent))
    lost = []
    for (tenant, place), receipts in parked.lost.items():
        if fitting := [receipt for receipt in receipts if room.takes(len(receipt) + _RECEIPT_BYTES)]:
            lost.append((tenant, place, fitting))
    if room.bytes < 0:
        log.warning(
            "a session goes on with a part of its leases", session=parked.session[:6], bytes_max=SESSION_BYTES_MAX
        )
    return msgspec.msgpack.encode(Moving(parked.tenant, held, lost))
