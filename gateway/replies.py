"""Answers to publishes under an idempotency key, kept to be given again without asking the partition.

They save a round trip and tell that a first request is still under way. Nothing rests on them: a reply that was
forgotten, or a Redis that is gone, sends the repeat to the partition, which has the last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from cachetools import TLRUCache

from backend_store.model import Claim, Unavailable
from gateway.guard import GuardSettings
from gateway.limits import REPLIES_MESSAGES_MAX, REPLIES_SECONDS_MAX, REQUEST_RUNNING_MS_MAX

if TYPE_CHECKING:
    from gateway.guard import Guard, Guards


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a call was answered; without places while it is under way."""

    payload: bytes
    places: tuple[tuple[int, int], ...] | None = None
    """(partition, seq) of each message, in the order of the call."""
    fsynced: bool = True
    replicas: int = 1


class _Kept(NamedTuple):
    reply: Reply
    seconds: float


class MemoryReplies:
    """Replies of this process: the least recently used make room, each goes when its queue's window is over."""

    def __init__(self, messages_max: int = REPLIES_MESSAGES_MAX) -> None:
        self._running: dict[bytes, Reply] = {}
        """Of calls under way: as many as those are."""
        self._kept: TLRUCache[bytes, _Kept] = TLRUCache(
            messages_max,
            ttu=lambda key, kept, now: now + kept.seconds,
            getsizeof=lambda kept: len(kept.reply.places or ()),
        )

    def begin(self, claim: Claim) -> Reply | None:
        """The reply of an earlier call, or None: from now on this one is under way."""
        known = self._running.get(claim.key)
        if known is None and (kept := self._kept.get(claim.key)) is not None:
            known = kept.reply
        if known is None:
            self._running[claim.key] = Reply(claim.payload)
        return known

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        self.drop(claim)
        if len(reply.places or ()) <= self._kept.maxsize:
            self._kept[claim.key] = _Kept(reply, window_ms / 1000)

    def drop(self, claim: Claim) -> None:
        """The call came to nothing that may be said again."""
        self._running.pop(claim.key, None)


_PREFIX: Final = b"pushq:reply:"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Reply).decode


class RedisReplies:
    """Replies that gateways share. What Redis does not answer in time is as good as not known."""

    def __init__(self, url: str, guards: Guards, *, identity: bytes) -> None:
        """`identity`: of the data that the replies are about; a restored copy must not be told of the original's."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        # One try: the guard says when another one makes sense.
        self._client: Any = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=REPLIES_SECONDS_MAX,
            socket_connect_timeout=REPLIES_SECONDS_MAX,
        )
        self._guard: Guard = guards.guard("redis_replies", GuardSettings(failures=(OSError, RedisError)))
        self._prefix = _PREFIX + identity + b":"

    async def begin(self, claim: Claim) -> Reply | None:
        """As of `MemoryReplies`. None as well when Redis does not say."""
        name, mark = self._prefix + claim.key, _encode(Reply(claim.payload))
        try:
            found: bytes | None = await self._guard.call(
                lambda: self._client.set(name, mark, nx=True, get=True, px=REQUEST_RUNNING_MS_MAX),
                deadline_s=REPLIES_SECONDS_MAX,
            )
            return _decode(found) if found else None
        except (Unavailable, msgspec.MsgspecError):
            return None

    async def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        name, value = self._prefix + claim.key, _encode(reply)
        await self._try(lambda: self._client.set(name, value, px=window_ms))

    async def drop(self, claim: Claim) -> None:
        name = self._prefix + claim.key
        await self._try(lambda: self._client.delete(name))

    async def _try(self, do: Any) -> None:
        try:
            await self._guard.call(do, deadline_s=REPLIES_SECONDS_MAX, idempotent=True)
        except Unavailable:
            pass  # the mark goes by itself; the partition knows what was accepted

    async def close(self) -> None:
        await self._client.aclose()
