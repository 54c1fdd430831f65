"""What the front end's duties cost: a server with them and one without, in turns, 100 messages per frame."""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jwt
import msgspec

from gateway.dev_ca import create, issue
from tests.bench.clients import Publisher
from tests.bench.codec import CODECS, Codec, client_frame
from tests.bench.rows import Row
from tests.bench.scale import CONSUMERS, PER_FRAME, WINDOW_WIDE
from tests.bench.scenario_publish import QUEUE
from tests.bench.scenario_work import Bench
from tests.bench.sides import PublishSide
from tests.bench.turns import Side, compare
from tests.bench.world import ROOT, Server, World, client_args, connect
from tests.support.redis_server import RedisServer

ISSUER = "https://issuer.bench"
SECRET = "a secret of thirty-two bytes or more"
TOKEN_SECONDS = 3600
_BINARY = 2
_KEY_DIGITS = 12
_encode = msgspec.msgpack.Encoder().encode

RULES: list[dict[str, Any]] = [
    {"name": "principal", "quota": 50_000},
    {"name": "of-tenant", "quota": 100_000, "per": ["tenant"]},
    {"name": "queue-messages", "quota": 100_000_000, "per": ["queue"], "unit": "messages", "operations": ["publish"]},
    {"name": "bytes", "quota": 1_000_000_000, "per": ["tenant"], "unit": "bytes", "operations": ["publish"]},
]
"""So high that nothing is refused, but everything is counted."""


@dataclass(frozen=True, kw_only=True)
class Duties:
    """The duties of one side's server."""

    is_encrypted: bool = False
    is_limited: bool = False
    """Four rules, counted in Redis."""
    has_keys: bool = False
    """Each publish has an idempotency key."""
    is_by_token: bool = False
    """Clients authenticate with a JWT instead of an API key."""
    is_tls: bool = False


NONE = Duties()
FRONT = Duties(is_encrypted=True, is_limited=True, is_by_token=True)
"""Duties that apply to every publish."""
ALL = replace(FRONT, has_keys=True, is_tls=True)

Open = Callable[[Server, Duties], Awaitable[Side]]


class DutyPublisher(Publisher):
    """Its frames differ in their keys, so each is built when it is sent."""

    def __init__(self, codec: Codec, port: int, token: str, *, queue: str, duties: Duties) -> None:
        super().__init__(codec, port, token, queue=queue)
        self._number = 0
        mark = "#" * _KEY_DIGITS
        frame: dict[str, Any] = {"type": "publish", "id": 1, "queue": queue}
        if duties.has_keys:
            frame["idempotency_key"] = mark
        head = _encode({**frame, "messages": []})[:-1] + b"\xdc"
        self._frame_head = head.replace(b"%", b"%%").replace(mark.encode(), b"%%0%dd" % _KEY_DIGITS)
        self._has_keys = duties.has_keys
        self._one = _encode({"body": b"x" * 256})

    def send(self, count: int) -> None:
        self.sent += count
        while count > 0:
            size = min(count, PER_FRAME)
            self._number += 1
            head = self._frame_head % self._number if self._has_keys else self._frame_head
            self.transport.write(client_frame(head + size.to_bytes(2, "big") + self._one * size, _BINARY))
            count -= size


async def publish(server: Server, duties: Duties) -> WideSide:
    """A producer with enough messages unconfirmed that the processor sets the rate, not the round trip of a frame."""
    return WideSide(server, await _publisher(server, duties))


async def publish_narrow(server: Server, duties: Duties) -> PublishSide:
    """A producer with the window of `publish`, the benchmark that the duties' budget is a share of."""
    return PublishSide(server, await _publisher(server, duties))


async def _publisher(server: Server, duties: Duties) -> DutyPublisher:
    server.create(QUEUE, encrypted=duties.is_encrypted)
    common = client_args(CODECS["msgpack"], server)
    [publisher] = await connect(lambda: DutyPublisher(*common, queue=QUEUE, duties=duties), tls=server.process.tls)
    return publisher


class WideSide(PublishSide):
    """Keeps so much in flight that rates are limited by the CPU, not by the round trip of a frame."""

    def begin(self, window: int = WINDOW_WIDE) -> None:
        super().begin(window)


async def work(server: Server, duties: Duties) -> Bench:
    server.create(QUEUE, encrypted=duties.is_encrypted)
    common = client_args(CODECS["msgpack"], server)
    bench = Bench(server, encoding="msgpack", make=lambda: DutyPublisher(*common, queue=QUEUE, duties=duties))
    await bench.open(CONSUMERS)
    return bench


async def duty(world: World, open_side: Open, duties: Duties) -> Row:
    """How much of the rate without duties remains with these: of this server's rate, or another checkout's."""
    with (
        RedisServer() as redis,
        tempfile.TemporaryDirectory(dir=world.folder, prefix="pushq-bench-") as folder,
        world.server(world.against or ROOT) as one,
        _with(world, duties, redis, Path(folder)) as two,
    ):
        first, second = await open_side(one, NONE), await open_side(two, duties)
        return await compare(world, first, second)


@contextmanager
def serving(
    duties: Duties, world: World, tree: Path, *, env: Mapping[str, str], below: Sequence[str]
) -> Iterator[Server]:
    """A server with these duties and, if it counts limits, its own Redis."""
    with (
        RedisServer() as redis,
        tempfile.TemporaryDirectory(dir=world.folder, prefix="pushq-bench-") as folder,
        _with(world, duties, redis, Path(folder), tree=tree, env=env, below=below) as server,
    ):
        yield server


@contextmanager
def _with(
    world: World,
    duties: Duties,
    redis: RedisServer,
    folder: Path,
    *,
    tree: Path = ROOT,
    env: Mapping[str, str] = MappingProxyType({}),
    below: Sequence[str] = (),
) -> Iterator[Server]:
    env = dict(env)
    tls = None
    if duties.is_limited:
        rules = folder / "pushq.toml"
        rules.write_text("".join(map(_table, RULES)))
        env |= {"PUSHQ_THROTTLING__STORE": "redis", "PUSHQ_REDIS__URL": redis.url}
    if duties.is_by_token:
        issuers = [{"issuer": ISSUER, "tenants": ["*"], "secret": SECRET}]
        env["PUSHQ_AUTH__JWT__ISSUERS"] = json.dumps(issuers)
    if duties.is_tls:
        authority = create(folder / "ca")
        pair = issue(folder / "ca", ["localhost", "127.0.0.1"])
        env |= {"PUSHQ_HTTP__TLS_CERT": str(pair.certificate), "PUSHQ_HTTP__TLS_KEY": str(pair.key)}
        tls = ssl.create_default_context(cafile=str(authority.certificate))
    extra = ("--config", str(folder / "pushq.toml")) if duties.is_limited else ()
    with world.server(tree, extra=extra, env=env, tls=tls, below=below) as server:
        if duties.is_by_token:
            server.key = _token()
        yield server


def _table(rule: dict[str, Any]) -> str:
    return "[[throttling.rules]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rule.items())


def _token() -> str:
    claims = {
        "iss": ISSUER,
        "sub": "bench",
        "aud": "pushq",
        "tenant": "default",
        "scope": "admin",
        "exp": int(time.time()) + TOKEN_SECONDS,
    }
    return jwt.encode(claims, SECRET, algorithm="HS256")
