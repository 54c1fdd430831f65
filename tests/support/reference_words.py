"""The sentences of the reference tables that the code does not carry itself."""

import re
from collections.abc import Sequence
from typing import Literal, get_args, get_origin, get_type_hints

from backend_store.model import AutoExpand, QueueConfig

RETRY = {
    "invalid-request": "no: mend it",
    "unauthenticated": "with another key",
    "forbidden": "with another key",
    "queue-not-found": "no",
    "not-found": "no",
    "method-not-allowed": "no",
    "conflict": "no",
    "stale-receipt": "no: wait for the redelivery",
    "request-in-progress": "not in this version",
    "precondition-failed": "after reading again",
    "message-too-large": "no: make it smaller",
    "unsupported-media-type": "no",
    "idempotency-mismatch": "not in this version",
    "precondition-required": "with `If-Match`",
    "rate-limited": "after `Retry-After`",
    "too-many-connections": "not in this version",
    "internal": "perhaps",
    "not-leader": "not in this version",
    "unavailable": "after `Retry-After`",
    "overloaded": "after `Retry-After`",
    "draining": "after `Retry-After`",
    "not-durable": "not in this version",
    "outcome-unknown": "yes, with the same `id`",
    "queue-full": "when there is room",
    "storage-full": "when there is room",
    "dedupe-full": "when ids have left the window",
}

CLOSES = {
    "DRAIN": "The server shuts down. A `bye` frame with `retry_ms` came before.",
    "SLOW_CONSUMER": "The client did not read for 10 s.",
    "TIMED_OUT": "No `connect` within 5 s, or nothing was heard for 35 s.",
    "KICKED": "Not sent in this version.",
    "RATE_LIMITED": "Not sent in this version.",
    "TOKEN_EXPIRED": "The key was revoked, rotated away or has expired. Come back with a new one.",
    "PROTOCOL_ERROR": "A frame that is none: it does not parse, is empty, or has an unknown `type`.",
    "UNAUTHENTICATED": "No credential, one that is not known, or another first frame than `connect`.",
    "FORBIDDEN": "Not sent in this version: a missing scope is an `error` and the socket stays open.",
    "NO_SUCH_QUEUE": "Not sent in this version: a missing queue is an `error` and the socket stays open.",
    "REPLACED": "A newer connection went on with this session.",
    "TOO_LARGE": "A frame of more than 4 MiB.",
}

SETTINGS = {
    "data": "The data folder.",
    "dev": "For development: any localhost origin may connect, the demo is at `/demo`. Needs a loopback address.",
    "gateways": "Gateway processes. Only 1 in this version.",
    "resume_ms": "How long the leases of a cut session wait for it, 0 to 3,600,000.",
    "http.listen": "`HOST:PORT` or `[IPV6]:PORT`.",
    "http.allowed_origins": "Origins of pages, besides the server's own, that may use the API; `*` is any.",
    "queues.allow_delete_over_http": "Whether an admin key may delete queues over HTTP.",
    "queues.auto_create": "Queues that a publish makes: a list of `{pattern, config}`; the first pattern that fits "
    "counts. As a variable it is JSON.",
    "limits.connections_max": "WebSockets and SSE streams of the process, 1 to 1,000,000.",
    "limits.request_bytes_max": "The body of one HTTP request, 1,024 to 1,073,741,824.",
}

QUEUE_VALUES = {
    "auto_expand": "[an object](#growing-by-itself), `null`",
    "dead_letter_queue": "a queue's name, `null`",
    "colocate_with": "a queue's name, `null`",
    "replication": "an object",
    "tags": "string → string",
}

FRAMES = {
    "connect": "Opens the session, or goes on with one that was cut. The first frame.",
    "subscribe": "Have a queue's messages pushed.",
    "unsubscribe": "No more; what is held returns at once.",
    "credit": "`n` more messages may be outstanding.",
    "publish": "Store messages.",
    "ack": "Settle messages.",
    "nack": "Give messages back; the attempt counts, unless nobody `tried`.",
    "extend": "Hold messages for longer.",
    "refresh": "Go on with another key of the same tenant.",
    "ping": "Say `pong`.",
    "pong": "A sign of life.",
}


def paragraph(docstring: str) -> str:
    """A docstring as one line."""
    return " ".join(docstring.split())


_KINDS = [kind for struct in (QueueConfig, AutoExpand) for kind in get_type_hints(struct).values()]
_CHOICES = sorted({str(choice) for kind in _KINDS if get_origin(kind) is Literal for choice in get_args(kind)})
_NAMES = sorted((*QueueConfig.__struct_fields__, *AutoExpand.__struct_fields__), key=len, reverse=True)
_CODE = re.compile(
    rf"""\b(?:{"|".join(_NAMES)}):[ ](?:\d+|null|{"|".join(_CHOICES)})\b"""  # dedupe: none
    rf"""|"(?P<quoted>\w+)"|<queue>\.\w+|\bnull\b|\b\w+-full\b"""
    rf"""|\b(?:{"|".join(name for name in [*_NAMES, *_CHOICES] if "_" in name)})\b"""
)


def marked(text: str, choices: Sequence[str] = ()) -> str:
    """Plain words with the names of settings and values as code, and those of `choices` before a colon too."""
    text = _CODE.sub(lambda found: f"`{found['quoted'] or found[0]}`", text)
    for choice in choices:
        text = re.sub(rf"(?<![\w`]){choice}(?=:)", f"`{choice}`", text)
    return text
