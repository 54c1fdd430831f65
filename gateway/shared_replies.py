"""Replies that gateways share in Redis, asked for and written many at a time.

What Redis does not answer in time is as good as not known. While one round trip is under way, what comes meanwhile
waits for the next: so there are few of them under load, and no question waits for others to join it. What nobody waits
for goes with the next question, or a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from backend_store.model import Claim, Unavailable
from gateway.guard import GuardSettings
from gateway.limits import (
    ANSWERS_SECONDS_MAX,
    REPLIES_LINGER_SECONDS,
    REPLIES_PER_TRIP_MAX,
    REPLIES_SECONDS_MAX,
    REQUEST_RUNNING_MS_MAX,
)
from gateway.replies import Reply
from throttling.breaker import BreakerRule

if TYPE_CHECKING:
    from gateway.guard import Guard, Guards

log = structlog.get_logger("pushq.replies")

Told = Callable[[Reply | None], None]

T = TypeVar("T")

_SCRIPT: Final = files("gateway").joinpath("replies.lua").read_text()
_BREAKER: Final = BreakerRule(calls_min=5)
"""Callers wait for each, and nothing rests on it."""
_PREFIX: Final = b"pushq:reply:"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Reply).decode


class _Begun(NamedTuple):
    """A call that asks what is known of it."""

    name: bytes
    mark: bytes
    told: Told


class _Ended(NamedTuple):
    """A call's reply; None where it came to nothing that may be said again."""

    name: bytes
    reply: bytes | None
    window_ms: int


class RedisReplies:
    """Belongs to the event loop."""

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
        self._script = self._client.register_script(_SCRIPT)
        self._guard: Guard = guards.guard(
            "redis_replies", GuardSettings(breaker=_BREAKER, failures=(OSError, RedisError))
        )
        self._prefix = _PREFIX + identity + b":"
        self._begun: list[_Begun] = []
        self._ended: list[_Ended] = []
        self._trips: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, claim: Claim, told: Told) -> None:
        """As of `MemoryReplies`; `told` gets None as well when Redis does not say."""
        self._begun.append(_Begun(self._prefix + claim.key, _encode(Reply(claim.payload)), told))
        self._go()

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        self._ended.append(_Ended(self._prefix + claim.key, _encode(reply), window_ms))
        if len(self._ended) >= REPLIES_PER_TRIP_MAX:
            self._go()
        else:
            self._go_later()

    def drop(self, claim: Claim) -> None:
        """The call came to nothing that may be said again; it may come again at once, so Redis hears it at once. If it
        does not, the mark goes by itself.
        """
        self._ended.append(_Ended(self._prefix + claim.key, None, 0))
        self._go()

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._trips is None:
            self._trips = asyncio.get_running_loop().create_task(self._travel(), name="shared-replies")

    def _go_later(self) -> None:
        if self._trips is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPLIES_LINGER_SECONDS, self._go)

    async def _travel(self) -> None:
        """Round trips, until nobody waits."""
        try:
            while self._begun or self._ended:
                begun, self._begun = _parted(self._begun)
                ended, self._ended = _parted(self._ended)
                found = await self._trip(begun, ended)
                if found is None:
                    # Who came meanwhile has waited as long: the partition answers them all.
                    begun, self._begun = begun + self._begun, []
                    found = [None] * len(begun)
                    self._ended = []
                for one, known in zip(begun, found, strict=True):
                    _tell(one.told, _reply(known))
                if not self._begun and all(one.reply is not None for one in self._ended):
                    break
        finally:
            self._trips = None
        if self._ended:
            self._go_later()

    async def _trip(self, begun: list[_Begun], ended: list[_Ended]) -> list[Any] | None:
        """What Redis knew of each that begins; None where it does not answer."""
        answered = [one for one in ended if one.reply is not None]
        keys = [one.name for one in begun] + [one.name for one in answered]
        keys += [one.name for one in ended if one.reply is None]
        args: list[Any] = [len(begun), len(answered)]
        for asking in begun:
            args += (asking.mark, REQUEST_RUNNING_MS_MAX)
        for one in answered:
            args += (one.reply, one.window_ms)
        try:
            found: list[Any] = await self._guard.call(
                lambda: self._script(keys=keys, args=args), deadline_s=REPLIES_SECONDS_MAX
            )
        except Unavailable:
            return None
        except Exception:
            # A fault of ours: the partition knows as well, and the callers must not wait for ever.
            log.exception("shared replies could not be asked for")
            return None
        return found

    async def close(self) -> None:
        """Waits a moment for what is on its way."""
        if self._ended:
            self._go()
        if self._trips is not None:
            await asyncio.wait([self._trips], timeout=ANSWERS_SECONDS_MAX)
        await self._client.aclose()


def _parted(waiting: list[T]) -> tuple[list[T], list[T]]:
    """What goes with one trip, and what waits for the next."""
    return waiting[:REPLIES_PER_TRIP_MAX], waiting[REPLIES_PER_TRIP_MAX:]


def _tell(told: Told, reply: Reply | None) -> None:
    try:
        told(reply)
    except Exception:
        # Its own fault: the others must still be told.
        log.exception("a caller failed on a shared reply")


def _reply(found: Any) -> Reply | None:
    try:
        return _decode(found) if isinstance(found, bytes) else None
    except msgspec.MsgspecError:
        return None
