"""What a backend says of itself over HTTP: `/lbz` and `/health` for balancers and people, `/metrics` for Prometheus.

/lbz      200 this process serves or can, 404 it drains, 503 it does not get on, or is not registered
/health   the same as JSON, with every shard
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
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
METRICS = "text/plain; version=0.0.4; charset=utf-8"
Answer = tuple[HTTPStatus, str, bytes]
Pages = Mapping[bytes, Callable[[], Answer]]
"""By path."""


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
    """Confirmed messages that were cut off its log and are kept."""
    is_ahead: bool
    """Its log is younger than the coordinator's record: that was put back from a copy."""
    wanted: tuple[NodeId, ...]
    """Who shall keep the shard."""
    min_in_sync: int
    """With fewer in sync nothing is confirmed."""
    lag: int | None
    """Entries that the replica which is furthest behind lacks; None where it does not lead, and until one has asked."""
    damaged: int
    """Rows that are not what was written, since the copy was taken anew."""
    repairs: int
    """How often it was taken anew because of such."""


class Health(msgspec.Struct, frozen=True):
    node: NodeId
    inc: int
    zone: str
    status: str
    """"ok", "draining", "unregistered" or "stalled"."""
    is_manager: bool
    peers: int
    """Lines to others that are open."""
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
    """None where nobody follows, too: whoever keeps a shard alone has nobody to wait for."""
    return max((entries for entries in (lag_of(shard) or {}).values() if entries is not None), default=None)


def _lbz(host: BackendHost) -> Answer:
    status = _status(host)
    code = {"ok": HTTPStatus.OK, "draining": HTTPStatus.NOT_FOUND}.get(status, HTTPStatus.SERVICE_UNAVAILABLE)
    return code, TEXT, f"{status}\n".encode()


def _health(host: BackendHost) -> Answer:
    found = health_of(host)
    code = HTTPStatus.OK if found.status in ("ok", "draining") else HTTPStatus.SERVICE_UNAVAILABLE
    return code, JSON, msgspec.json.encode(found)


def _metrics(host: BackendHost) -> Answer:
    lines: list[str] = []
    shards = [_shard(host, number) for number in sorted(host.shards)]

    def series(name: str, kind: str, text: str, values: dict[str, float]) -> None:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels} {value:g}" for labels, value in values.items())

    def of_shards(name: str, text: str, value: Callable[[ShardHealth], float | None]) -> None:
        known = {f'{{shard="{shard.shard}"}}': value(shard) for shard in shards}
        series(name, "gauge", text, {labels: number for labels, number in known.items() if number is not None})

    of_shards("pushq_shard_serving", "Whether this backend serves the shard.", lambda shard: shard.is_serving)
    of_shards("pushq_shard_epoch", "Number of the leadership of the shard.", lambda shard: shard.epoch)
    of_shards("pushq_shard_in_sync", "Replicas that are in sync.", lambda shard: len(shard.in_sync))
    of_shards("pushq_shard_wanted_replicas", "Replicas that shall keep the shard.", lambda shard: len(shard.wanted))
    of_shards(
        "pushq_shard_min_in_sync_replicas",
        "With fewer replicas in sync nothing is confirmed.",
        lambda shard: shard.min_in_sync,
    )
    of_shards(
        "pushq_shard_lag_entries",
        "Entries of the log that the replica which is furthest behind lacks, told by the leader.",
        lambda shard: shard.lag,
    )
    of_shards("pushq_shard_log_entries", "Entries of the log that are kept.", lambda shard: shard.end - shard.start)
    of_shards(
        "pushq_shard_unconfirmed_entries",
        "Entries that are not known to be on all replicas in sync.",
        lambda shard: shard.end - shard.high_watermark,
    )
    of_shards(
        "pushq_shard_quarantined_messages",
        "Confirmed messages that were cut off the log and wait for pushq recover.",
        lambda shard: shard.quarantined,
    )
    of_shards(
        "pushq_shard_damaged_rows",
        "Rows on this disk that are not what was written, until the copy is taken anew.",
        lambda shard: shard.damaged,
    )
    of_shards(
        "pushq_shard_ahead_of_record",
        "Whether the log is younger than the coordinator's record, which was put back from a copy.",
        lambda shard: shard.is_ahead,
    )
    series("pushq_backend_peers", "gauge", "Lines to other backends that are open.", {"": host.lines.connected})
    series(
        "pushq_backend_dropped_messages_total",
        "counter",
        "Messages to other backends without a line, or with a full one.",
        {"": host.lines.dropped},
    )
    series("pushq_backend_manager", "gauge", "Whether this one manages the cluster.", {"": host.manager.is_manager})
    series(
        "pushq_backend_elections_total",
        "counter",
        "Elections that this one made as manager.",
        {"": host.manager.elections},
    )
    series(
        "pushq_backend_moves_total",
        "counter",
        "Copies of shards that this one as manager had made elsewhere.",
        {"": host.manager.moves},
    )
    series(
        "pushq_backend_copied_bytes_total",
        "counter",
        "Bytes that this one has read for copies of shards that are made elsewhere.",
        {"": host.pace.taken},
    )
    series(
        "pushq_backend_repairs_total",
        "counter",
        "Copies of shards that this one took anew because of damaged rows.",
        {"": sum(shard.replicated.repairs for shard in host.shards.values())},
    )
    series(
        "pushq_backend_scrubbed_bytes_total",
        "counter",
        "Bytes that this one has read to see whether they are still what was written.",
        {"": host.scrub.read_bytes},
    )
    series(
        "pushq_backend_scrubs_total",
        "counter",
        "How often this one has read all its copies so.",
        {"": host.scrub.passes},
    )
    series(
        "pushq_backend_manager_failures_total",
        "counter",
        "Faults of ours that this one met as manager; its log has more.",
        {"": host.manager.failures},
    )
    return HTTPStatus.OK, METRICS, ("\n".join(lines) + "\n").encode() + host.more_metrics()


_PAGES: dict[bytes, Callable[[BackendHost], Answer]] = {b"/lbz": _lbz, b"/health": _health, b"/metrics": _metrics}


async def serve_health(host: BackendHost, address: str, port: int) -> asyncio.Server:
    """Listens; the caller closes. Raises `OSError`."""
    return await serve_pages({path: partial(page, host) for path, page in _PAGES.items()}, address, port)


async def serve_pages(pages: Pages, address: str, port: int) -> asyncio.Server:
    """The same for other pages, by their paths."""

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


def _answered(pages: Pages, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    page = pages.get(rest.split(b" ", 1)[0].split(b"?", 1)[0])
    if method not in (b"GET", b"HEAD"):
        status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"only GET and HEAD\n"
    elif page is None:
        status, kind, body = HTTPStatus.NOT_FOUND, TEXT, f"there are {b', '.join(pages).decode()}\n".encode()
    else:
        status, kind, body = page()
    said = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return said.encode() + b"connection: close\r\n\r\n" + (b"" if method == b"HEAD" else body)
