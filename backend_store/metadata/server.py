"""The server of a metadata service: one WebSocket for each gateway, with concurrent requests and a watch.

Each connection shows the secret of the data folder, and with TLS a certificate; pages about the process itself need
neither. A request whose time budget has run out is not begun; a write that has begun is finished even if the caller is
gone.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from backend_store.metadata.changes import Moment
from backend_store.metadata.limits import HELLO_SECONDS_MAX, REQUESTS_IN_PROGRESS_MAX
from backend_store.metadata.operations import (
    ROLE,
    ListKeys,
    ListPlacements,
    ListQueues,
    ListTenants,
    decode_operation,
    perform,
)
from backend_store.metadata.service import MetadataService
from backend_store.metadata.traffic import Traffic, name_of
from backend_store.model import InvalidRequest, PushqError, Unavailable
from backend_store.tracing import TRACE, Tracer
from backend_store.wire.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    SUBPROTOCOL,
    WIRE_VERSION,
    Answer,
    Ask,
    Hello,
    Refused,
    Told,
    Watch,
    from_client,
    pack,
    raw,
    refused,
)
from backend_store.wire.versions import OtherVersion, check_version

log = structlog.get_logger("pushq.metadata")

Pages = Mapping[str, Callable[[str], tuple[HTTPStatus, str, bytes]]]
"""Path → function from an `Accept` value to status, content type, body."""

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 1024

_moment = msgspec.msgpack.Decoder(Moment | None).decode
_LISTS = (ListQueues, ListKeys, ListTenants, ListPlacements)


async def serve_metadata(
    service: MetadataService,
    secret: str,
    host: str,
    port: int,
    *,
    own: MetadataService | None = None,
    traffic: Traffic | None = None,
    tracer: Tracer | None = None,
    pages: Pages | None = None,
    zone: str = "",
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Listens; the caller closes. `own` answers what other hosts forward. `zone`: sent to each gateway. With `tls` each
    peer must show a certificate that the context trusts. Raises `OSError`.
    """
    wanted = f"Bearer {secret}".encode()
    counts = Traffic() if traffic is None else traffic

    def authorized(connection: ServerConnection, request: Request) -> Response | None:
        if pages is not None and (page := pages.get(request.path.partition("?")[0])) is not None:
            return _page(*page(request.headers.get("Accept", "")))
        if tls is not None and not connection.transport.get_extra_info("peercert"):
            return turned_away("certificate", connection)
        shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(shown, wanted):
            return None
        return turned_away("secret", connection)

    def turned_away(what: str, connection: ServerConnection) -> Response:
        counts.strangers += 1
        log.warning(f"refused a connection without the {what}", peer=str(connection.remote_address))
        return connection.respond(HTTPStatus.UNAUTHORIZED, f"the {what} of the metadata service is missing or wrong\n")

    return await serve(
        lambda connection: _Peer(service, own, connection, counts, tracer, zone).run(),
        host,
        port,
        ssl=tls,
        process_request=authorized,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        max_size=FRAME_BYTES_MAX,
        server_header=None,
    )


def _page(status: HTTPStatus, kind: str, body: bytes) -> Response:
    headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)


class _Peer:
    """One connection."""

    def __init__(
        self,
        service: MetadataService,
        own: MetadataService | None,
        connection: ServerConnection,
        traffic: Traffic,
        tracer: Tracer | None,
        zone: str,
    ):
        self._service = service
        self._own = own
        self._connection = connection
        self._traffic = traffic
        self._tracer = tracer
        self._zone = zone
        self._loop = asyncio.get_running_loop()
        self._in_progress = asyncio.Semaphore(REQUESTS_IN_PROGRESS_MAX)
        self._watching: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._traffic.connections += 1
        try:
            await self._greet()
            async with asyncio.TaskGroup() as tasks:
                await self._read(tasks)
        except* (ConnectionClosed, TimeoutError):
            pass  # the gateway reconnects and asks again
        except* OtherVersion as strangers:
            for why in strangers.exceptions:
                if isinstance(why, OtherVersion):
                    self._traffic.other_versions.refuse(why)
        except* Unavailable as lost:
            log.info("watch ended", reason=str(lost.exceptions[0]))
        except* (msgspec.MsgspecError, InvalidRequest) as wrong:
            log.warning("a connection speaks another protocol", error=str(wrong.exceptions[0]))
        finally:
            self._traffic.connections -= 1

    async def _greet(self) -> None:
        async with asyncio.timeout(HELLO_SECONDS_MAX):
            data = await self._connection.recv(decode=False)
        await self._connection.send(pack(Hello(WIRE_VERSION, ROLE, self._zone)))
        host, *_ = self._connection.remote_address
        them = f"the server at {host}"
        check_version(data, WIRE_VERSION, me="this metadata service", protocol=PROTOCOL, them=them)
        hello = from_client(data)
        if not isinstance(hello, Hello):
            raise InvalidRequest(f"the first frame is {hello!r}, not a hello")
        self._traffic.other_versions.let_in(them)

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        try:
            async for data in self._connection:
                match from_client(data):
                    case Ask() as ask:
                        until = self._loop.time() + ask.budget_ms / 1000
                        await self._in_progress.acquire()
                        tasks.create_task(self._answer(ask, until), name="metadata request")
                    case Watch() as watch if self._watching is None:
                        self._watching = tasks.create_task(self._tell(_moment(watch.after)), name="metadata watch")
                    case frame:
                        raise InvalidRequest(f"{type(frame).__name__} does not belong here")
        finally:
            if self._watching is not None:
                self._watching.cancel()

    async def _answer(self, ask: Ask, until: float) -> None:
        self._traffic.in_progress += 1
        try:
            if self._loop.time() < until:
                await self._connection.send(pack(await self._performed(ask)))
            else:  # the caller does not wait any more
                self._traffic.expired += 1
        except ConnectionClosed:
            pass
        finally:
            self._traffic.in_progress -= 1
            self._in_progress.release()

    async def _performed(self, ask: Ask) -> Answer | Refused:
        began, asked, outcome, span = self._loop.time(), None, "ok", None
        try:
            asked = decode_operation(ask.what)
            if self._tracer is not None and ask.trace is not None:
                span = self._tracer.served(name_of(asked), ask.trace)
                TRACE.set(span.trace)  # of this task: a request forwarded to another host belongs to it
            return Answer(ask.number, await self._within_a_frame(asked))
        except msgspec.MsgspecError as parsing:
            outcome = InvalidRequest.code
            return refused(ask.number, InvalidRequest(f"cannot parse the request: {parsing}"))
        except PushqError as error:
            outcome = error.code
            return refused(ask.number, error)
        except Exception:
            outcome = PushqError.code
            log.exception("request failed", number=ask.number)
            return refused(ask.number, PushqError("internal error of the metadata service; see its log"))
        finally:
            self._traffic.answered(asked, outcome, self._loop.time() - began)
            if span is not None:
                span.ended(None if outcome == "ok" else outcome)

    async def _within_a_frame(self, asked: Any) -> msgspec.Raw:
        """Shortens a page until it fits in a frame: a page may have fewer items than asked for."""
        while True:
            value = raw(await perform(self._service, asked, own=self._own))
            if len(value) <= ANSWER_BYTES_MAX or not isinstance(asked, _LISTS) or asked.limit == 1:
                return value
            asked = msgspec.structs.replace(asked, limit=asked.limit // 2)

    async def _tell(self, after: Moment | None) -> None:
        self._traffic.watches += 1
        try:
            async for news in self._service.watch(after):
                await self._connection.send(pack(Told(raw(news))))
                self._traffic.changes_told += len(news.changes)
        except ConnectionClosed:
            pass
        finally:
            self._traffic.watches -= 1
