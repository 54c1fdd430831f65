"""The client of a metadata service in another process: one WebSocket, reconnected until it is closed.

A request that cannot be sent fails at once, and one that is not answered fails at its deadline: no caller waits for a
service that is stuck. A write that was sent and not answered may have been made.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Generator
from typing import Any

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from backend_store.metadata.asking import Asking
from backend_store.metadata.changes import Moment, News
from backend_store.metadata.limits import (
    CONNECT_SECONDS_MAX,
    NEWS_WAITING_MAX,
    READ_MS_MAX,
    RECONNECT_SECONDS_MAX,
    REQUESTS_WAITING_MAX,
    SILENCE_SECONDS_MAX,
    WRITE_MS_MAX,
)
from backend_store.metadata.operations import ANSWERS, ROLE, HandedOn, Operation, Writing
from backend_store.model import OutcomeUnknown, Overloaded, PushqError, Unavailable
from backend_store.tracing import TRACE
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
    error_of,
    from_server,
    pack,
    raw,
)
from backend_store.wire.versions import OtherVersion, Strangers, check_version

log = structlog.get_logger("pushq.metadata")

_news = msgspec.msgpack.Decoder(News).decode


class RemoteMetadata(Asking):
    """Implements `MetadataService`. Made by its constructor inside a running loop; `close` ends it."""

    def __init__(self, url: str, secret: str, tls: ssl.SSLContext | None = None):
        """`tls`: for a `wss` address."""
        self.zone = ""
        """The zone of the service, once it has said so."""
        self._url = url
        self._secret = secret
        self._tls = tls if url.startswith("wss:") else None
        self._loop = asyncio.get_running_loop()
        self._connection: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._number = 0
        self._news: asyncio.Queue[News | None] | None = None
        self._problem = "is not connected yet"
        self._strangers = Strangers(self._warn)
        self._keeper = self._loop.create_task(self._keep_connected(), name="metadata connection")

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def connected(self, seconds_max: float) -> bool:
        """Whether there is a connection now, or within that time."""
        try:
            await asyncio.wait_for(self._connected.wait(), seconds_max)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------ connection

    async def _keep_connected(self) -> None:
        options: dict[str, Any] = {
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "additional_headers": {"Authorization": f"Bearer {self._secret}"},
            "compression": None,
            "proxy": None,
            "ssl": self._tls,
            "open_timeout": CONNECT_SECONDS_MAX,
            "close_timeout": 1,
            "ping_interval": SILENCE_SECONDS_MAX,
            "ping_timeout": SILENCE_SECONDS_MAX,
            "max_size": FRAME_BYTES_MAX,
            "reconnect_delays": _delays,
            "process_exception": self._failed_to_connect,
        }
        pauses = _delays()
        async for connection in connect(self._url, **options):
            try:
                await self._greet(connection)
                pauses = _delays()
                await self._read(connection)
            except OtherVersion as error:
                self._problem = f"has another version: {error.detail}"
                self._strangers.refuse(error)
            except (ConnectionClosed, TimeoutError, msgspec.MsgspecError, PushqError) as error:
                self._problem = f"was lost: {error}" if str(error) else "does not respond"
                log.warning("connection to the metadata service lost", url=self._url, error=self._problem)
            finally:
                self._lose(connection)
            await _sleep(next(pauses))  # the library reconnects at once after a connection

    def _warn(self, why: OtherVersion) -> None:
        log.warning("the metadata service has another version", url=self._url, reason=why.detail)

    def _failed_to_connect(self, error: Exception) -> None:
        """Every failure is retried: even a wrong secret may be corrected at the other end."""
        self._problem = f"cannot be reached: {error or type(error).__name__}"

    async def _greet(self, connection: ClientConnection) -> None:
        await connection.send(pack(Hello(WIRE_VERSION, ROLE)))
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            data = await connection.recv(decode=False)
        check_version(data, WIRE_VERSION, me="this server", protocol=PROTOCOL, them=f"the service at {self._url}")
        hello = from_server(data)
        if not isinstance(hello, Hello) or hello.role != ROLE:
            raise Unavailable(f"{self._url} is not a metadata service: it sent {hello!r}")
        self._strangers.let_in(f"the service at {self._url}")
        self._connection, self.zone = connection, hello.zone
        self._connected.set()
        log.info("connected to the metadata service", url=self._url)

    async def _read(self, connection: ClientConnection) -> None:
        async for data in connection:
            match from_server(data):
                case Answer(number, value):
                    if (waiting := self._asked.get(number)) is not None and not waiting.done():
                        waiting.set_result(value)
                case Refused() as refused:
                    if (waiting := self._asked.get(refused.number)) is not None and not waiting.done():
                        waiting.set_exception(error_of(refused))
                case Told(news):
                    self._tell(_news(news))
                case Hello():
                    raise Unavailable(f"{self._url} says hello twice")

    def _tell(self, news: News) -> None:
        if self._news is None:
            return
        if self._news.full():
            raise Unavailable(f"{NEWS_WAITING_MAX} pieces of news were not taken in time")
        self._news.put_nowait(news)

    def _lose(self, connection: ClientConnection) -> None:
        """Fails all calls that wait for this connection. The socket is aborted, not closed: it may be stuck."""
        connection.transport.abort()
        self._connection = None
        self._connected.clear()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(self._unavailable())
        if self._news is not None:
            self._end_watch(self._news)

    def _end_watch(self, news: asyncio.Queue[News | None]) -> None:
        self._news = None
        while news.full():
            news.get_nowait()
        news.put_nowait(None)

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the metadata service {self._problem}", retry_after_ms=1000)

    # -------------------------------------------------------------------------------------------------- requests

    async def _ask(self, operation: Operation) -> Any:
        asked = operation.what if isinstance(operation, HandedOn) else operation
        writes = isinstance(asked, Writing)
        connection = self._connection
        if connection is None:
            raise self._unavailable()
        if len(self._asked) >= REQUESTS_WAITING_MAX:
            raise Overloaded(
                f"{REQUESTS_WAITING_MAX} requests are already waiting for the metadata service", retry_after_ms=1000
            )
        self._number = number = self._number + 1
        waiting: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._asked[number] = waiting
        budget_ms = WRITE_MS_MAX if writes else READ_MS_MAX
        try:
            async with asyncio.timeout(budget_ms / 1000):
                await connection.send(pack(Ask(number, budget_ms, raw(operation), TRACE.get())))
                answer = await waiting
        except TimeoutError:
            raise self._unanswered(f"did not respond within {budget_ms} ms", writes=writes) from None
        except ConnectionClosed:
            raise self._unanswered("was lost", writes=writes) from None
        except Unavailable as error:
            raise OutcomeUnknown(error.detail) if writes else error
        finally:
            del self._asked[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # retrieved, so that asyncio does not report it as lost
        return ANSWERS[type(asked)].decode(answer)

    def _unanswered(self, what: str, *, writes: bool) -> PushqError:
        if writes:
            return OutcomeUnknown(f"the metadata service {what}; the change may have been made")
        return Unavailable(f"the metadata service {what}", retry_after_ms=1000)

    # ----------------------------------------------------------------------------------------------------- watch

    async def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """One watch at a time. Raises `Unavailable` when nothing is heard for `SILENCE_SECONDS_MAX`."""
        assert self._news is None, "somebody watches already"
        connection = self._connection
        if connection is None:
            raise self._unavailable()
        heard: asyncio.Queue[News | None] = asyncio.Queue(NEWS_WAITING_MAX)
        self._news = heard
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                await connection.send(pack(Watch(raw(after))))
            while True:
                news = await asyncio.wait_for(heard.get(), SILENCE_SECONDS_MAX)
                if news is None:
                    raise self._unavailable()
                yield news
        except ConnectionClosed:
            raise self._unavailable() from None
        except TimeoutError:
            self._problem = f"sent nothing for {SILENCE_SECONDS_MAX:.0f} s"
            raise self._unavailable() from None
        finally:
            if self._news is heard:
                self._news = None
            connection.transport.abort()  # a connection has one watch: the next watch needs a new one


_sleep = asyncio.sleep


def _delays() -> Generator[float]:
    """Full jitter, so that gateways do not reconnect together."""
    longest = 0.05
    while True:
        yield random.uniform(0, longest)
        longest = min(RECONNECT_SECONDS_MAX, longest * 2)
