"""Skips parsing of a request whose head equals that of the previous one on its connection.

A client that keeps its connection sends the same head again and again; for publishes only the length of the body
differs. Equal bytes have an equal meaning, so the parsed form of the first head is reused.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, NamedTuple, Self

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.limits import REMEMBERED_HEAD_BYTES_MAX
from gateway.listener.unread_body import Lingering

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?(\d+)\r\n", re.IGNORECASE)
_DIGITS_MAX: Final = 10
_NAME: Final = b"content-length"
_OTHERWISE: Final = frozenset({b"transfer-encoding", b"expect", b"connection", b"proxy-connection", b"upgrade"})
"""Headers of requests that are more than a head and a body of known length."""


class Head(NamedTuple):
    """A parsed head: its bytes before and after the value of `content-length`, and the scope made from it."""

    before: bytes
    behind: bytes
    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    length_at: int
    """Index of `content-length` in `headers`."""

    @classmethod
    def of(cls, data: bytes, scope: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> Self | None:
        """None for a head that is large, or that says more than its body's length about how the request continues."""
        names = [name for name, _ in headers]
        if len(data) > REMEMBERED_HEAD_BYTES_MAX:
            return None
        if names.count(_NAME) != 1 or not _OTHERWISE.isdisjoint(names) or scope["http_version"] != "1.1":
            return None
        found, at = _LENGTH.search(data), names.index(_NAME)
        if found is None or headers[at][1] != found[1]:
            return None
        return cls(data[: found.start(1)], data[found.end(1) :], scope.copy(), headers.copy(), at)

    def length_in(self, data: bytes) -> bytes | None:
        """The value of `content-length` in `data`, a complete head; None if it is a different head."""
        if not data.startswith(self.before) or not data.endswith(self.behind):
            return None
        length = data[len(self.before) : len(data) - len(self.behind)]
        return length if length.isdigit() and len(length) <= _DIGITS_MAX else None


class HeadCache(Lingering):
    """A connection that remembers the last head it parsed."""

    _head: Head | None = None

    def remember(self, data: bytes) -> None:
        """Call when `data`, exactly one head, has been parsed."""
        cycle: Any = self.cycle  # None before the first request
        scope: Any = self.scope
        is_request = cycle is not None and cycle.scope is scope
        self._head = Head.of(data, scope, self.headers) if is_request else None

    def begin_again(self, data: bytes, at: int, end: int) -> int:
        """Takes a request whose head is `data[at:end]`, followed by its body. Call it between two requests. Returns the
        offset where the request ends; 0 if it has to be parsed.
        """
        if self._head is None or (length := self._head.length_in(data[at:end])) is None:
            return 0
        body_end = end + int(length)
        if body_end > len(data):
            return 0
        self._unset_keepalive_if_required()
        self._begin(self._head, length, data[end:body_end])
        return body_end

    def _begin(self, head: Head, length: bytes, body: bytes) -> None:
        """Begins the request, doing what the parser's callbacks would do."""
        self.headers = head.headers.copy()
        self.headers[head.length_at] = (_NAME, length)
        scope: Any = {**head.scope, "headers": self.headers, "state": self.app_state.copy()}
        self.scope, self.expect_100_continue = scope, False
        self.cycle = cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = False
        cycle.message_event.set()
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self._start_asgi_task(cycle, self.app)
