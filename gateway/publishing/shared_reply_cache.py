"""Shares replies to idempotent publishes between gateways in Redis, with many reads and writes per round trip.

A question that Redis does not answer in time counts as a miss. A reply waits briefly for others before it is written;
during a round trip, new questions and replies wait for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from backend_store.model import Claim, Unavailable
from gateway.admission.dependency_guard import GuardSettings
from gateway.admission.setup import NoRedisLibrary
from gateway.limits import (
    ANSWERS_SECONDS_MAX,
    REPLIES_LINGER_SECONDS,
    REPLIES_PER_TRIP_MAX,
    REPLIES_SECONDS_MAX,
    REPLIES_WAITING_MAX,
)
from gateway.publishing.reply_cache import Reply
from throttling.breaker import BreakerRule

if TYPE_CHECKING:
    from gateway.admission.dependency_guard import Guard, Guards

log = structlog.get_logger("pushq.replies")

T = TypeVar("T")

_FINISHED: Final = Struct(">IId")
"""The sizes of the name and of the reply that follow, and the TTL in milliseconds."""

Told = Callable[[Reply | None], None]

_SCRIPT: Final = files("gateway.publishing").joinpath("reply_cache.lua").read_text()
_BREAKER: Final = BreakerRule(calls_min=5)
"""Round trips are few, and correctness does not depend on them."""
_PREFIX: Final = b"pushq:reply:"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Reply).decode


class _Asked(NamedTuple):
    """A call that waits for its reply from Redis."""

    name: bytes
    told: Told
    is_wanted: Callable[[], bool]


class RedisReplies:
    """The reply cache in Redis. Used from one event loop; `Once` owns it."""

    def __init__(self, url: str, guards: Guards, *, identity: bytes) -> None:
        """`identity`: of the data that the replies are about; a restored copy must not be told of the original's.

        Raises `NoRedisLibrary`.
        """
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError as error:
            raise NoRedisLibrary(f"redis.url requires {error.name}: pip install 'pushq[redis]'") from None

        # One attempt: the guard decides about retries.
        self._client: Any = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=REPLIES_SECONDS_MAX,
            socket_connect_timeout=REPLIES_SECONDS_MAX,
        )
        self._script = self._client.register_script(_SCRIPT)
        settings = GuardSettings(breaker=_BREAKER, failures=(OSError, RedisError))
        self._guard: Guard = guards.guard("redis_replies", settings)
        self._prefix = _PREFIX + identity + b":"
        self._asked: list[_Asked] = []
        self._finished: list[bytes] = []
        self._trips: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, claim: Claim, told: Told, is_wanted: Callable[[], bool]) -> None:
        """Asks for the reply to a call, while that `is_wanted`. `told` gets None on a miss or without an answer."""
        if len(self._asked) >= REPLIES_WAITING_MAX:
            told(None)
            return
        self._asked.append(_Asked(self._prefix + claim.key, told, is_wanted))
        self._go()

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        """Stores a reply. If too many wait to be written, the reply is dropped: the partition still knows it."""
        if len(self._finished) < REPLIES_WAITING_MAX:
            name, encoded = self._prefix + claim.key, _encode(reply)
            self._finished.append(_FINISHED.pack(len(name), len(encoded), window_ms) + name + encoded)
            self._go_later()

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
        """Makes round trips until no call waits."""
        try:
            while self._asked or self._finished:
                asked, self._asked = _parted([one for one in self._asked if one.is_wanted()])
                finished, self._finished = _parted(self._finished)
                if not asked and not finished:
                    break
                found = await self._trip(asked, finished)
                for place, one in enumerate(asked):
                    _tell(one.told, _reply(found[place]) if found is not None else None)
                if not self._asked and len(self._finished) < REPLIES_PER_TRIP_MAX:
                    break
        finally:
            self._trips = None
        if self._finished:
            self._go_later()

    async def _trip(self, asked: list[_Asked], finished: list[bytes]) -> list[Any] | None:
        """The replies to what is asked, in order; None if Redis does not answer."""
        keys = [one.name for one in asked]
        args: list[Any] = [len(asked), b"".join(finished)]
        try:
            found: list[Any] = await self._guard.call(
                lambda: self._script(keys=keys, args=args), deadline_s=REPLIES_SECONDS_MAX
            )
        except Unavailable:
            return None
        except Exception:
            # A bug must not matter: the partition is asked anyway.
            log.exception("cannot read shared replies")
            return None
        return found

    async def close(self) -> None:
        """Waits up to `ANSWERS_SECONDS_MAX` for the trip under way and one more; the partition knows the rest."""
        del self._finished[REPLIES_PER_TRIP_MAX:]
        if self._finished:
            self._go()
        if self._trips is not None:
            await asyncio.wait([self._trips], timeout=ANSWERS_SECONDS_MAX)
        await self._client.aclose()


def _parted(waiting: list[T]) -> tuple[list[T], list[T]]:
    """Splits into what goes with one trip, and what waits for the next."""
    return waiting[:REPLIES_PER_TRIP_MAX], waiting[REPLIES_PER_TRIP_MAX:]


def _tell(told: Told, reply: Reply | None) -> None:
    try:
        told(reply)
    except Exception:
        # A bug of one caller must not keep the others from their answers.
        log.exception("a caller failed on a shared reply")


def _reply(found: Any) -> Reply | None:
    try:
        return _decode(found) if isinstance(found, bytes) else None
    except msgspec.MsgspecError:
        return None
