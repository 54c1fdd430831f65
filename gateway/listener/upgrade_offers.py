"""Ignores a request's offer to upgrade to a protocol other than WebSocket, and reads its body.

Java's HttpClient and `curl --http2` offer HTTP/2 with every request (RFC 9110, section 7.8). The parser would take all
bytes after such a head for the other protocol: the request would be executed without its body, and the body parsed as
the next request, so that the author of a body could forge requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.listener.head_limits import announces_body, frames_body


class Declining(HttpToolsProtocol):
    """A connection that continues with HTTP/1.1 whatever else is offered. The subclass that checks each head calls
    `decline`."""

    _parser_of_body: Any = None
    """The parser for the body of the request whose head was just parsed; None if its own parser reads the body."""

    def decline(self) -> None:
        """Call for a head with an offer that is not taken, before its request begins: a body without a known end is
        then an error of this head."""
        if announces_body(self.headers):
            self._parser_of_body = parser_of_body(self, self.headers)

    def on_message_complete(self) -> None:
        if self._parser_of_body is None:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Called when the parser has finished the head and got no byte after it: switches to the body's parser."""
        if self._parser_of_body is not None:
            self.parser, self._parser_of_body = self._parser_of_body, None


def parser_of_body(protocol: Any, headers: list[tuple[bytes, bytes]]) -> Any:
    """A parser that begins with the body announced by this head, and continues with the next request. Raises
    `HttpParserError` for a body without a known end."""
    told = _FromBody(protocol)
    parser = httptools.HttpRequestParser(told)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
    lines = [b"%b: %b\r\n" % header for header in headers if frames_body(*header)]
    parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
    told.is_in_body = True
    return parser


class _FromBody:
    """Forwards a parser's callbacks, except those of its first head."""

    is_in_body = False

    def __init__(self, protocol: Any) -> None:
        for name in ("on_message_begin", "on_url", "on_header", "on_headers_complete"):
            setattr(self, name, partial(self._tell, getattr(protocol, name)))
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def _tell(self, callback: Callable[..., None], *values: bytes) -> None:
        if self.is_in_body:
            callback(*values)
