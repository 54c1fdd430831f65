"""Generates `/asyncapi.json`, AsyncAPI 3.1, from the types of the WebSocket frames and server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args

import msgspec

from gateway.api.frames import EVENTS, SERVER_FRAMES
from gateway.api.http import Answer, json_answer
from gateway.api.openapi import QUERY
from gateway.api.schemas import Schema, ack_publishes, components, messages_to_publish, publish_message, reference
from gateway.context import Gateway
from gateway.version import VERSION
from push.protocol import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, Ack, ClientFrame, Publish
from push.session.close_codes import Close

CLIENT_FRAMES: Final[tuple[type[msgspec.Struct], ...]] = get_args(ClientFrame)
SOCKET_ADDRESS: Final = "/v1/ws"
EVENTS_ADDRESS: Final = "/v1/queues/{queue}/events"


def page() -> Callable[[Gateway, dict[str, str]], Awaitable[Answer]]:
    made: list[Answer] = []

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        if not made:
            made.append(json_answer(document()))
        return made[0]

    return show


def document() -> dict[str, Any]:
    """The complete document."""
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Pushq",
            "version": VERSION,
            "description": f"{_SOCKET}\n\n{_CLOSES}",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {"socket": _socket_channel(), "events": _events_channel()},
        "operations": _operations(),
        "components": {
            "messages": _messages(),
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


_SOCKET: Final = (
    f"A WebSocket speaks `{SUBPROTOCOL_JSON}` (text) or `{SUBPROTOCOL_MSGPACK}` (binary, the same fields, `body` as "
    "any MessagePack value or bytes). One frame holds one object or an array of them. The first frame is `connect`."
)
_CLOSES: Final = "Close codes: 4000–4499 reconnect, 4500–4999 stop. " + ", ".join(
    f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Close
)


def _socket_channel() -> dict[str, Any]:
    names = [_name(kind) for kind in (*CLIENT_FRAMES, *SERVER_FRAMES)]
    return {
        "address": SOCKET_ADDRESS,
        "title": "WebSocket",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _events_channel() -> dict[str, Any]:
    names = ("credit", "ack", "from", "last_event_id", "attempts", "ticket")
    return {
        "address": EVENTS_ADDRESS,
        "title": "Server-sent events",
        "description": "`id` of an event is an opaque cursor; `Last-Event-ID` resumes. A comment comes every 15 s.",
        "parameters": {"queue": {"description": "The queue's name."}},
        "messages": {_name(kind): {"$ref": f"#/components/messages/{_name(kind)}"} for kind in EVENTS},
        "x-query": {"type": "object", "properties": {name: QUERY[name] for name in names}},
    }


def _operations() -> dict[str, Any]:
    """The operations from the server's side: it receives what clients send."""
    return {
        "receiveFrames": _operation("receive", "socket", CLIENT_FRAMES, "Frames of clients."),
        "sendFrames": _operation("send", "socket", SERVER_FRAMES, "Frames of the server."),
        "sendEvents": _operation("send", "events", EVENTS, "Events of a queue."),
    }


def _operation(action: str, channel: str, kinds: tuple[type, ...], summary: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "security": [{"$ref": "#/components/securitySchemes/key"}],
        "messages": [{"$ref": f"#/channels/{channel}/messages/{_name(kind)}"} for kind in kinds],
    }


def _messages() -> dict[str, Any]:
    kinds = (*CLIENT_FRAMES, *SERVER_FRAMES, *EVENTS)
    return {
        _name(kind): {"name": _name(kind), "summary": _summary(kind), "payload": reference(kind.__name__)}
        for kind in kinds
    }


def _schemas() -> dict[str, Schema]:
    kinds = [kind for kind in (*CLIENT_FRAMES, *SERVER_FRAMES, *EVENTS) if kind not in (Publish, Ack)]
    schemas, _ = components(kinds)
    schemas["PublishMessage"] = publish_message()
    schemas["Publish"] = {
        "title": "Publish",
        "type": "object",
        "properties": {
            "type": {"const": "publish"},
            "queue": {"type": "string"},
            "messages": messages_to_publish(),
            "id": {"type": ["integer", "string", "null"]},
        },
        "required": ["type", "queue", "messages"],
        "additionalProperties": False,
    }
    schemas["Ack"] = {
        "title": "Ack",
        "type": "object",
        "properties": {
            "type": {"const": "ack"},
            "queue": {"type": "string"},
            "receipts": {"type": "array", "items": {"type": "string"}},
            "id": {"type": ["integer", "string", "null"]},
            "sub": {"type": ["integer", "null"]},
            "publish": ack_publishes(),
        },
        "required": ["type", "queue", "receipts"],
        "additionalProperties": False,
    }
    return schemas


def _name(kind: type) -> str:
    """`Connect` → `connect`, `PingFrame` → `pingFrame`: both sides send a `ping`, which are two message types."""
    return kind.__name__[0].lower() + kind.__name__[1:]


def _summary(kind: type) -> str:
    text = kind.__doc__ or ""
    return text.strip().partition("\n")[0] if not text.startswith(kind.__name__ + "(") else ""
