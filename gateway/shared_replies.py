"""Replies that gateways share in Redis, asked for and written many at a time.

What Redis does not answer in time is as good as not known. While one round trip is under way, what comes meanwhile
waits for the next: so there are few of them under load, and no question waits for others to join it. What nobody waits
for goes with the next question, or a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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

if TYPE_CHECKING:
    from gateway.guard import Guard, Guards

log = structlog.get_logger("pushq.replies")

Told = Callable[[Reply | None], None]

_PREFIX: Final = b"pushq:reply:"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Reply).decode


class _Command(NamedTuple):
    """What goes into a pipeline, and who waits for what it finds."""

    add: Callable[[Any], Any]
    told: Told | None


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
        self._guard: Guard = guards.guard("redis_replies", GuardSettings(failures=(OSError, RedisError)))
        self._prefix = _PREFIX + identity + b":"
        self._waiting: list[_Command] = []
        self._trips: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, claim: Claim, told: Told) -> None:
        """As of `MemoryReplies`; `told` gets None as well when Redis does not say."""
        name, mark = self._prefix + claim.key, _encode(Reply(claim.payload))
        self._send(_Command(lambda pipe: pipe.set(name, mark, nx=True, get=True, px=REQUEST_RUNNING_MS_MAX), told))

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        name, value = self._prefix + claim.key, _encode(reply)
        self._send(_Command(lambda pipe: pipe.set(name, value, px=window_ms), None))

    def drop(self, claim: Claim) -> None:
        """The call came to nothing that may be said again. If Redis does not hear it, its mark goes by itself."""
        name = self._prefix + claim.key
        self._send(_Command(lambda pipe: pipe.delete(name), None))

    def _send(self, command: _Command) -> None:
        self._waiting.append(command)
        if command.told is not None or len(self._waiting) >= REPLIES_PER_TRIP_MAX:
            self._go()
        else:
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
        """Round trips, until nobody waits."""
        try:
            while self._waiting:
                batch = self._waiting[:REPLIES_PER_TRIP_MAX]
                del self._waiting[: len(batch)]
                found = await self._trip(batch)
                if found is None:
                    # Who came meanwhile has waited as long: the partition answers them all.
                    batch, self._waiting = batch + self._waiting, []
                for number, command in enumerate(batch):
                    if command.told is not None:
                        _tell(command.told, _reply(found[number]) if found is not None else None)
                if all(command.told is None for command in self._waiting):
                    break
        finally:
            self._trips = None
        if self._waiting:
            self._go_later()

    async def _trip(self, batch: list[_Command]) -> list[Any] | None:
        """What each command found; None where Redis does not answer."""
        pipe = self._client.pipeline(transaction=False)
        for command in batch:
            command.add(pipe)
        try:
            found: list[Any] = await self._guard.call(
                lambda: pipe.execute(raise_on_error=False), deadline_s=REPLIES_SECONDS_MAX
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
        if self._waiting:
            self._go()
        if self._trips is not None:
            await asyncio.wait([self._trips], timeout=ANSWERS_SECONDS_MAX)
        await self._client.aclose()


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
