"""GCRA in Redis, through the storage of `limits`: its connection, prefix and script registration, with our own
script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from limits.aio.storage import RedisStorage
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from throttling.config import STORE_SECONDS_MAX
from throttling.rules import Rule

US_PER_S = 1_000_000
_SCRIPT = files("throttling").joinpath("gcra.lua").read_text()


class Take(NamedTuple):
    """A request for one subject's quota: at least `least`, or the hit is refused; up to `most` if there is room. A
    negative `most` gives back what was taken and not used."""

    rule: Rule
    subject: str
    least: int
    most: int


class Taken(NamedTuple):
    took: int
    remaining: int
    wait_us: int
    """Time until `least` fits; 0: it does; -1: never."""


class GcraRedisStorage(RedisStorage):
    """Decides several takes as one. Time is that of Redis, so that gateways with different clocks agree."""

    STORAGE_SCHEME = ["async+pushq+redis", "async+pushq+rediss"]  # noqa: RUF012 (the library reads it off the class)
    PREFIX = "pushq:rate"

    def __init__(self, url: str, *, key_prefix: str = PREFIX, seconds_max: float = STORE_SECONDS_MAX) -> None:
        # One try: a late server counts as away, and the limiter's probe says when to come back.
        options: dict[str, Any] = {
            "socket_timeout": seconds_max,
            "socket_connect_timeout": seconds_max,
            "retry": Retry(NoBackoff(), 0),
        }
        super().__init__(f"async+{url}", implementation="redispy", key_prefix=key_prefix, **options)
        self._client: Any = self.bridge.get_connection()  # type: ignore[attr-defined]
        self._gcra = self._client.register_script(_SCRIPT)

    async def take(self, hits: Sequence[Sequence[Take]]) -> list[tuple[bool, list[Taken]]]:
        """Decides each hit's takes together, and the hits one after another, in one round trip. Raises `RedisError`."""
        async with self._client.pipeline(transaction=False) as pipe:
            for takes in hits:
                keys = [self.bridge.prefixed_key(f"{take.rule.name}:{take.subject}") for take in takes]
                await self._gcra(keys, [n for take in takes for n in _numbers(take)], client=pipe)
            return [_answer(out) for out in await pipe.execute()]

    async def ping(self) -> None:
        """Raises `RedisError` or `OSError`."""
        await self._client.ping()

    async def disconnect(self) -> None:
        """Drops all connections: an answer to a call that was given up must not be read as that to the next one."""
        await self._client.connection_pool.disconnect()

    async def close(self) -> None:
        await self._client.aclose()


def _numbers(take: Take) -> tuple[int, int, int, int]:
    return take.rule.quota, take.rule.window_s * US_PER_S, take.least, take.most


def _answer(out: list[int]) -> tuple[bool, list[Taken]]:
    return bool(out[0]), [Taken(*out[at : at + 3]) for at in range(1, len(out), 3)]
