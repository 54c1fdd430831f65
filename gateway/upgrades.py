"""A request that offers another protocol than WebSocket, and has a body: the offer is ignored, and the body is read.

Java's HttpClient and `curl --http2` offer HTTP/2 with whatever they ask (RFC 9110, section 7.8). The parser takes all
behind such a head for the other protocol: the request would be carried out without its body, and the body be taken for
the next request, which whoever wrote the body could make up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.heads import announces_body, frames_body


class Declining(HttpToolsProtocol):
    """A connection that goes on with HTTP/1.1 whatever else is offered. Who looks at each head tells it of an offer."""

    _parser_of_body: Any = None
    """For the request whose head is parsed, where its own parser leaves the body out."""

    def decline(self) -> None:
        """To be called before the request of a head that offers what is not taken begins: where nobody knows how its
        body ends, the error is this head's."""
        if announces_body(self.headers):
            self._parser_of_body = parser_of_body(self, self.headers)

    def on_message_complete(self) -> None:
        if self._parser_of_body is None:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser is through with the head, and was given nothing of what follows it."""
        if self._parser_of_body is not None:
            self.parser, self._parser_of_body = self._parser_of_body, None


def parser_of_body(protocol: Any, headers: list[tuple[bytes, bytes]]) -> Any:
    """One that begins with the body that this head announces, and goes on with the next request. Raises
    `HttpParserError` for a body whose end nobody knows."""
    told = _FromBody(protocol)
    parser = httptools.HttpRequestParser(told)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
    lines = [b"%b: %b\r\n" % header for header in headers if frames_body(*header)]
    parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
    told.is_in_body = True
    return parser


class _FromBody:
    """Passes on what a parser says, but for its first head."""

    is_in_body = False

    def __init__(self, protocol: Any) -> None:
        for name in ("on_message_begin", "on_url", "on_header", "on_headers_complete"):
            setattr(self, name, partial(self._tell, getattr(protocol, name)))
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def _tell(self, callback: Callable[..., None], *values: bytes) -> None:
        if self.is_in_body:
            callback(*values)
