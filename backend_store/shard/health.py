"""A backend's health over HTTP, for balancers and people. The caller of `serve_health` adds `/metrics`.

/lbz      200 this process serves or can, 404 it drains, 503 it makes no progress, or is not registered
/health   the same as JSON, with every shard
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec

from backend_store.core.replication.record import NodeId
from backend_store.shard.host import BackendHost
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.limits import HTTP_HEAD_BYTES_MAX, HTTP_SECONDS_MAX
from backend_store.shard.reporting import lag_of

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
Answer = tuple[HTTPStatus, str, bytes]
Pages = Mapping[bytes, Callable[[str], Answer]]
"""Path → function from an `Accept` value to status, content type, body."""


class ShardHealth(msgspec.Struct, frozen=True):
    """One replica."""

    shard: ShardNumber
    epoch: int
    leader: NodeId | None
    is_serving: bool
    in_sync: tuple[NodeId, ...]
    start: int
    high_watermark: int
    end: int
    quarantined: int
    """Confirmed messages that were truncated from its log and are kept."""
    is_ahead: bool
    """Its log is newer than the coordinator's record: the coordinator was restored from a backup."""
    wanted: tuple[NodeId, ...]
    """The nodes that are planned to keep the shard."""
    min_in_sync: int
    """With fewer replicas in sync nothing is confirmed."""
    lag: int | None
    """Entries that the replica which is furthest behind lacks; None where this replica does not lead, and until a
    follower has fetched."""
    damaged: int
    """Rows that the last pass of the scrub found to differ from what was written; 0 once the copy is renewed."""
    repairs: int
    """How often the copy was renewed because of damaged rows."""


class Health(msgspec.Struct, frozen=True):
    node: NodeId
    inc: int
    zone: str
    status: str
    """"ok", "draining", "unregistered" or "stalled"."""
    is_manager: bool
    peers: int
    """Open connections to other backends."""
    shards: tuple[ShardHealth, ...]


def health_of(host: BackendHost) -> Health:
    return Health(
        host.config.name,
        host.inc,
        host.config.zone,
        _status(host),
        host.manager.is_manager,
        host.lines.connected,
        tuple(_shard(host, number) for number in sorted(host.shards)),
    )


def _status(host: BackendHost) -> str:
    if not host.is_well():
        return "stalled"
    if host.session is None or not host.session.is_held:
        return "unregistered"
    return "draining" if host.is_draining else "ok"


def _shard(host: BackendHost, number: ShardNumber) -> ShardHealth:
    shard = host.shards[number]
    replica = shard.replicated.replica
    record, log, plan = replica.record, replica.log, host.view.plans.get(number)
    return ShardHealth(
        number,
        shard.epoch,
        None if record is None else record.leader,
        shard.is_serving,
        () if record is None else record.isr,
        log.start,
        log.high_watermark,
        log.end,
        shard.replicated.quarantined.messages,
        replica.is_ahead,
        () if plan is None else plan.replicas,
        0 if record is None else record.min_in_sync,
        _lag(shard),
        shard.replicated.damaged,
        shard.replicated.repairs,
    )


def _lag(shard: HostedShard) -> int | None:
    """None where there are no followers, too."""
    return max((entries for entries in (lag_of(shard) or {}).values() if entries is not None), default=None)


def _lbz(host: BackendHost) -> Answer:
    status = _status(host)
    code = {"ok": HTTPStatus.OK, "draining": HTTPStatus.NOT_FOUND}.get(status, HTTPStatus.SERVICE_UNAVAILABLE)
    return code, TEXT, f"{status}\n".encode()


def _health(host: BackendHost) -> Answer:
    found = health_of(host)
    code = HTTPStatus.OK if found.status in ("ok", "draining") else HTTPStatus.SERVICE_UNAVAILABLE
    return code, JSON, msgspec.json.encode(found)


async def serve_health(host: BackendHost, address: str, port: int, more: Pages | None = None) -> asyncio.Server:
    """Listens, with `more` pages; the caller closes. Raises `OSError`."""
    pages: Pages = {b"/lbz": lambda accept: _lbz(host), b"/health": lambda accept: _health(host), **(more or {})}
    return await serve_pages(pages, address, port)


async def serve_pages(pages: Pages, address: str, port: int) -> asyncio.Server:
    """As `serve_health`, for any pages, by their paths."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(HTTP_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answered(pages, head))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await asyncio.start_server(answer, address, port, limit=HTTP_HEAD_BYTES_MAX)


def _accept(head: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"accept":
            return value.strip().decode("latin-1")
    return ""


def _answered(pages: Pages, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    page = pages.get(rest.split(b" ", 1)[0].split(b"?", 1)[0])
    if method not in (b"GET", b"HEAD"):
        status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"only GET and HEAD\n"
    elif page is None:
        status, kind, body = HTTPStatus.NOT_FOUND, TEXT, f"there are {b', '.join(pages).decode()}\n".encode()
    else:
        status, kind, body = page(_accept(head))
    said = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return said.encode() + b"connection: close\r\n\r\n" + (b"" if method == b"HEAD" else body)
