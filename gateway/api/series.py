"""HTTP handlers for time series: of a queue, of a tenant's queues summed up, of this process, and sparklines."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from backend_store.client import timestamp
from backend_store.model import Forbidden, NotFound
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.series import QueueSeriesView, SeriesView, SparkPage, SparkView
from gateway.api.usage import visible_tenant
from gateway.context import Gateway
from gateway.identity.authorization import owner_of
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from gateway.series.book import RANGES, Book
from gateway.series.core.columns import NODE_COLUMNS, QUEUE_COLUMNS, QUEUE_LEVELS
from gateway.series.core.ring import TIERS, Series
from gateway.series.limits import SPARK_NAMES_MAX, SPARK_POINTS_MAX
from push.operations.checks import field as invalid_field

RANGE_DEFAULT: Final = "15m"
POINTS_DEFAULT: Final = 30
_DIGITS: Final = 3


class Span(NamedTuple):
    """The slots of a tier that cover a range; the last one is the current slot."""

    name: str
    tier: int
    start: int
    end: int

    @property
    def step_ms(self) -> int:
        return TIERS[self.tier].step_ms


async def of_queue(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "view")
    span = _span(gateway, call.query("range"))
    if queue.is_companion:
        owner = owner_of(queue.name)
        raise NotFound(f"{queue.name!r} has no series of its own: see `dead` in the series of {owner!r}")
    book = gateway.sampler.book
    watched = book.of_queue(call.principal.tenant, queue.name)
    series = book.series_of(watched) if watched is not None else None
    columns = _columns(gateway, series, QUEUE_COLUMNS, span)
    return json_answer(QueueSeriesView(*_head(span), columns, queue.name))


async def of_tenant(gateway: Gateway, call: Call) -> Answer:
    query = call.query("range", "tenant")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    span = _span(gateway, query)
    series = gateway.sampler.book.series_of_tenant(tenant)
    return json_answer(SeriesView(*_head(span), _columns(gateway, series, QUEUE_COLUMNS, span)))


async def of_node(gateway: Gateway, call: Call) -> Answer:
    if not call.principal.access.is_operator:
        raise Forbidden(f"process series need the scope operator, which the key {call.principal.name!r} lacks")
    span = _span(gateway, call.query("range"))
    book = gateway.sampler.book
    return json_answer(SeriesView(*_head(span), _columns(gateway, book.node, NODE_COLUMNS, span)))


async def of_queues(gateway: Gateway, call: Call) -> Answer:
    query = call.query("metric", "range", "points", "names", "limit", "cursor")
    metric = query.get("metric", "ready")
    if metric not in QUEUE_COLUMNS:
        raise invalid_field("/query/metric", f"metric must be one of {', '.join(QUEUE_COLUMNS)}, not {metric[:50]!r}")
    points = integer(query, "points", POINTS_DEFAULT, low=1, high=SPARK_POINTS_MAX)
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert points is not None and limit is not None
    span = _span(gateway, query)
    width = -(-(span.end - span.start) // points)
    after, tenant, access = decode_cursor(query.get("cursor")), call.principal.tenant, call.principal.access
    book = gateway.sampler.book
    there = _named(book, tenant, query["names"]) if "names" in query else _all(book, tenant)
    names = heapq.nsmallest(limit + 1, (name for name in there if name > after and access.may("view", name)))
    column, is_level = QUEUE_COLUMNS.index(metric), metric in QUEUE_LEVELS
    covered = book.covered(span.tier, span.start, span.end)
    items = []
    for name in names[:limit]:
        watched = book.of_queue(tenant, name)
        assert watched is not None
        values = _values(book.series_of(watched), column, span, covered)
        items.append(SparkView(name, _thinned(values, width, is_level=is_level)))
    following = encode_cursor(names[limit - 1]) if len(names) > limit else None
    page = SparkPage(items, following, metric, span.step_ms * width, span.start * span.step_ms)
    kept = {name: query[name] for name in ("metric", "range", "points", "names") if name in query}
    return json_answer(page, headers=link_to_next("/v1/series/queues", limit, following, **kept))


def _named(book: Book, tenant: str, names: str) -> Iterator[str]:
    """Those of the named queues that exist. Raises `InvalidRequest` for too many names."""
    if (count := names.count(",") + 1) > SPARK_NAMES_MAX:
        raise invalid_field("/query/names", f"a request takes at most {SPARK_NAMES_MAX} names, not {count}; split it")
    return (name for name in set(names.split(",")) if (tenant, name) in book.names)


def _all(book: Book, tenant: str) -> Iterator[str]:
    return (name for _, name in book.order.of(tenant))


def _span(gateway: Gateway, query: dict[str, str]) -> Span:
    name = query.get("range", RANGE_DEFAULT)
    if name not in RANGES:
        raise invalid_field("/query/range", f"range must be one of {', '.join(RANGES)}, not {name[:50]!r}")
    tier, count = RANGES[name]
    end = gateway.clock_ms() // TIERS[tier].step_ms + 1
    return Span(name, tier, end - count, end)


def _head(span: Span) -> tuple[str, int, str, int]:
    start_ms = span.start * span.step_ms
    return span.name, span.step_ms, timestamp(start_ms), start_ms


def _columns(
    gateway: Gateway, series: Series | None, names: Sequence[str], span: Span
) -> dict[str, list[float | None]]:
    covered = gateway.sampler.book.covered(span.tier, span.start, span.end)
    return {name: _values(series, column, span, covered) for column, name in enumerate(names)}


def _values(series: Series | None, column: int, span: Span, covered: list[bool]) -> list[float | None]:
    """A column's values: 0 where the process sampled and the queue has no value, because nothing had happened to it."""
    if series is None:
        return [0.0 if was_looked_at else None for was_looked_at in covered]
    found = series.column(span.tier, column, span.start, span.end)
    return [
        round(value, _DIGITS) if value == value else (0.0 if was_looked_at else None)
        for value, was_looked_at in zip(found, covered, strict=True)
    ]


def _thinned(values: list[float | None], width: int, *, is_level: bool) -> list[float | None]:
    """Merges `width` points into one: the maximum of levels, the mean of rates."""
    if width == 1:
        return values
    found: list[float | None] = []
    for start in range(0, len(values), width):
        there = [value for value in values[start : start + width] if value is not None]
        if not there:
            found.append(None)
        else:
            found.append(max(there) if is_level else round(sum(there) / len(there), _DIGITS))
    return found
