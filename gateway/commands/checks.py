"""The checks of `pushq doctor`, in the order in which a client meets them; each ends as one finding."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from gateway.commands.exits import EXIT_BY_CODE, Exit, Failure, translate
from gateway.commands.scratch import scratch_queue
from gateway.commands.target import OPEN_TIMEOUT_S, Target

if TYPE_CHECKING:
    from push.client import Admin, Problem, SessionEvent
    from push.client.model import TransportName

TCP_TIMEOUT_S = 3.0
ROUND_TRIP_TIMEOUT_S = 8.0
PUSH_S_MAX = 1.0
"""A slower message was held back: no proxy on the way may buffer pushed messages."""
CLOCK_S_MAX = 5.0
"""The Date header counts whole seconds; beyond this, times in messages and keys mislead."""
_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
"""Statuses of a server that is not ready, and of a proxy that does not reach it."""
_DATE_STEP_S = 1.0
"""Less than this a Date header, which has no parts of a second, cannot tell."""

BUSY_CODES = frozenset({"overloaded", "too-many-connections", "rate-limited", "draining"})
FIXES: dict[TransportName, str] = {
    "ws": "allow WebSockets through the proxy: HTTP/1.1, the headers Upgrade and Connection, and a long idle timeout",
    "sse": "disable buffering and compression in the proxy for /v1/queues/*/events (nginx: proxy_buffering off)",
    "poll": "raise the proxy's timeout above 60 s",
}
ADDRESS_FIX = "check that this is the server's address"
BUSY_FIX = "the network path is fine: retry later, or see `pushq top` for what the server is short of"
"""For refusals and delays of the server itself."""
NAMES: dict[TransportName, str] = {"ws": "websocket", "sse": "sse", "poll": "long-poll"}


class Finding(NamedTuple):
    """The result of one check; `fix` is set if it failed."""

    name: str
    is_ok: bool
    detail: str
    fix: str | None = None
    exit: Exit = Exit.FAILED
    """How the command ends if this is the first check that failed."""


async def examine(target: Target, *, with_queue: bool) -> list[Finding]:
    """The findings, up to the first after which further checks make no sense."""
    return [finding async for finding in _findings(target, with_queue)]


async def _findings(target: Target, with_queue: bool) -> AsyncIterator[Finding]:
    tcp = await _tcp(target.base_url)
    yield tcp
    if not tcp.is_ok:
        return
    from push.client.admin import Admin

    async with Admin(target.base_url, key=lambda: None, tls=target.tls()) as anyone:
        yield await _guarded("alive", lambda: _health(anyone, "alive", "/livez"), ADDRESS_FIX)
        yield await _guarded("ready", lambda: _health(anyone, "ready", "/readyz"), "check the server log")
        yield await _guarded("clock", lambda: _clock(anyone), "synchronize both clocks with NTP")
        yield await _guarded("version", lambda: _version(anyone), ADDRESS_FIX)
    key = await _guarded("key", lambda: _key(target), "create a key with `pushq key create`, or check PUSHQ_KEY")
    yield key
    if key.is_ok and with_queue:
        async for finding in _round_trips(target):
            yield finding


async def _guarded(name: str, check: Callable[[], Awaitable[Finding]], fix: str) -> Finding:
    """A check's finding, or its error as a finding."""
    from push.client.errors import NOT_PUSHQ

    try:
        return await check()
    except Exception as error:
        failure = error if isinstance(error, Failure) else translate(error)
        if failure is None:
            raise
        if failure.problem.get("code") == NOT_PUSHQ:
            fix = ADDRESS_FIX
        return _failed(name, failure, fix)


def _failed(name: str, failure: Failure, fix: str) -> Finding:
    detail = "; ".join([failure.message, *failure.lines])
    return Finding(name, False, detail, fix, Exit(failure.exit_code))


async def _tcp(url: str) -> Finding:
    from push.client.discover import reason

    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    where = f"{parts.hostname}:{port}"
    began = time.monotonic()
    try:
        async with asyncio.timeout(TCP_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        is_late = isinstance(error, TimeoutError) and error.errno is None
        why = f"no answer within {TCP_TIMEOUT_S:g} s" if is_late else reason(error)
        fix = "start the server with `pushq serve`, or fix the address or firewall"
        return Finding("tcp", False, f"{where}: {why}", fix, Exit.UNAVAILABLE)
    writer.close()
    return Finding("tcp", True, f"{where} in {_ms(began)}")


async def _health(admin: Admin, name: str, path: str) -> Finding:
    began = time.monotonic()
    answer = await admin.raw("GET", path)
    if answer.status_code == 200:
        return Finding(name, True, f"{path} in {_ms(began)}")
    detail = f"{path} returned {answer.status_code}: {answer.text[:200]}"
    exit = Exit.UNAVAILABLE if answer.status_code in _UNAVAILABLE_STATUSES else Exit.FAILED
    return Finding(name, False, detail, "check the server log", exit)


async def _clock(admin: Admin) -> Finding:
    """Compares the server's Date header with the local clock. The header is cut to whole seconds, so half a second is
    added; half of the round trip is subtracted."""
    began = datetime.now(UTC)
    answer = await admin.raw("GET", "/livez")
    middle = began + (datetime.now(UTC) - began) / 2
    if (text := answer.headers.get("date")) is None:
        return Finding("clock", False, "the response has no Date header", "configure the proxy to pass it through")
    ahead_s = (parsedate_to_datetime(text) - middle).total_seconds() + 0.5
    if abs(ahead_s) <= _DATE_STEP_S:
        return Finding("clock", True, "within one second of the server's clock")
    detail = f"the server's clock is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) <= CLOCK_S_MAX:
        return Finding("clock", True, detail)
    return Finding("clock", False, detail, "synchronize both clocks with NTP")


async def _version(admin: Admin) -> Finding:
    from gateway.version import VERSION

    match await admin.ask("GET", "/openapi.json"):
        case {"info": {"version": str(version)}}:
            pass
        case _:
            return Finding("version", False, "/openapi.json is not a Pushq API description", ADDRESS_FIX)
    if version == VERSION:
        return Finding("version", True, f"{version}, same as this CLI")
    return Finding("version", True, f"{version}; this CLI is {VERSION}")


async def _key(target: Target) -> Finding:
    async with target.admin() as admin:
        await admin.list_queues(limit=1)
    return Finding("key", True, "accepted")


async def _round_trips(target: Target) -> AsyncIterator[Finding]:
    """Sends a message over each transport, through a temporary queue."""
    fix = "use a key with the scope admin, or skip the round trips with --no-queue"
    try:
        async with scratch_queue(target, "doctor") as queue:
            for transport in NAMES:
                yield await _round_trip(target, transport, queue)
    except Exception as error:
        if (failure := translate(error)) is None:
            raise
        yield _failed("queue", failure, fix)


async def _round_trip(target: Target, transport: TransportName, queue: str) -> Finding:
    from gateway.commands.session_events import said

    name, fix = NAMES[transport], FIXES[transport]
    limit = asyncio.timeout(ROUND_TRIP_TIMEOUT_S)
    refusals = _Refusals(limit)
    try:
        async with limit:
            took = await _publish_and_receive(target, transport, queue, refusals)
    except TimeoutError:
        if (problem := refusals.last) is not None:
            return Finding(name, False, said(problem), BUSY_FIX, EXIT_BY_CODE.get(problem.code, Exit.FAILED))
        return Finding(name, False, f"no message received within {ROUND_TRIP_TIMEOUT_S:g} s", fix)
    except Exception as error:
        if (failure := translate(error)) is None:
            raise
        if failure.problem.get("code") in BUSY_CODES:
            return _failed(name, failure, BUSY_FIX)
        return Finding(name, False, failure.message, fix, Exit(failure.exit_code))
    if took.stored_s > PUSH_S_MAX:
        return Finding(name, False, f"storing a message took {took.stored_s:.1f} s", BUSY_FIX)
    if took.pushed_s > PUSH_S_MAX:
        return Finding(name, False, f"delivery was delayed by {took.pushed_s:.1f} s", fix)
    well = f"published, pushed and acked; pushed in {took.pushed_s * 1000:.1f} ms, {took.all_s:.2f} s in total"
    return Finding(name, True, well)


class _Refusals:
    """Ends a round trip when the server postpones a connection or a subscription, and remembers its problem."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.last: Problem | None = None
        self._limit = limit

    def __call__(self, event: SessionEvent) -> None:
        if self.last is None and (problem := getattr(event, "problem", None)) is not None:
            self.last = problem
            self._limit.reschedule(asyncio.get_running_loop().time())


class Took(NamedTuple):
    """Seconds from the publish to its confirmation, from the publish to the arrival, and of the whole round trip."""

    stored_s: float
    pushed_s: float
    all_s: float


async def _publish_and_receive(target: Target, transport: TransportName, queue: str, refusals: _Refusals) -> Took:
    from push.client import Limits

    limits = Limits(open_timeout_s=OPEN_TIMEOUT_S)
    began = time.monotonic()
    async with (
        target.connect(transport=transport, limits=limits, on_event=refusals) as pushq,
        pushq.subscribe(queue, credit=1) as subscription,
    ):
        body = secrets.token_hex(8)
        published = time.monotonic()
        await pushq.publish(queue, body)
        stored = time.monotonic()
        message = await subscription.get()
        came = time.monotonic()
        await message.ack()
        if message.body != body:
            raise Failure(f"sent {body!r}, received {message.body!r}")
    return Took(stored - published, came - published, time.monotonic() - began)


def _ms(began: float) -> str:
    return f"{(time.monotonic() - began) * 1000:.1f} ms"
