"""Fast path for requests and answers that are complete: reads and writes them without the messages of ASGI.

Most requests arrive in one piece, and most answers are one. For a small request, a timer for a body that has come, two
messages for its answer and a check of each header cost as much as the request itself. All others go through ASGI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.limits import JOINED_BYTES_MAX

if TYPE_CHECKING:
    from gateway.api.http import Answer, Header

_CONTROLS: Final = bytes([*range(9), *range(10, 32), 127])
"""Bytes not allowed in a header: they could end it (RFC 9110, section 5.5)."""


def body_at_hand(receive: Receive) -> bytes | None:
    """A request's body if all of it has arrived; None if the body, or the disconnect, has to be awaited."""
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.more_body or cycle.waiting_for_100_continue:
        return None
    if cycle.disconnected or cycle.response_complete:
        return None
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def write_at_once(send: Send, method: str, answer: Answer, extra: tuple[Header, ...]) -> bool:
    """Writes a successful answer (below 300). False if it must be sent by ASGI: then nothing was written."""
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or answer.content_type is None or answer.status >= 300:
        return False  # an error may have the header `Connection: close`; a success never has
    if cycle.more_body or cycle.disconnected or cycle.response_started or cycle.flow.write_paused or method == "HEAD":
        return False
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *answer.headers, *extra)]
    head = b"".join(lines)
    if len(head.translate(None, _CONTROLS)) != len(head) - 2 * len(lines):
        return False  # sending it by ASGI raises what is wrong
    end = b"content-length: %d\r\ncontent-type: %b\r\n%b\r\n" % (
        len(answer.body),
        answer.content_type,
        b"" if cycle.keep_alive else b"connection: close\r\n",
    )
    cycle.response_started = True
    start = STATUS_LINE[answer.status] + head + end
    if len(answer.body) > JOINED_BYTES_MAX:
        cycle.transport.write(start)
        cycle.transport.write(answer.body)
    else:
        cycle.transport.write(start + answer.body)
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
