"""Converts publishes without our envelope into messages: CloudEvents 1.0 in their three HTTP modes, and any other body
as one message.

Binary mode stores the event's data as the body and its attributes as headers `ce-…`. Structured and batch modes store
each event as a whole, as a JSON value. In all modes the event's id becomes the message's id, and its partition key the
key; a queue that deduplicates identifies an event by its source and id.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from backend_store.model import PushqError
from gateway.api.http import decode
from push.encoding.message_count import check_events
from push.operations.checks import field as invalid_field
from push.protocol import EventMessage, PublishMessage

SPEC_VERSION: Final = "1.0"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
FORM: Final = "application/x-www-form-urlencoded"
REQUIRED: Final = ("id", "source", "type")

_ATTRIBUTE = re.compile(rb"ce-([a-z0-9]{1,64})")
_JSON_TYPE = re.compile(r"application/json|[^;]+\+json|text/json")


def raw_message(headers: dict[bytes, bytes], body: bytes) -> PublishMessage:
    """One message whose body is the request's body, byte for byte."""
    content_type = _content_type(headers)
    return PublishMessage(body_base64=b64encode(body).decode(), content_type=content_type or None)


def check_form(content_type: str, body: bytes) -> None:
    """Raises the problem `unsupported-media-type` for JSON sent with the content type of a form, which `curl -d` sets
    by default.

    In a form braces and brackets are percent-encoded, so such a body is none: an envelope of messages would be stored
    as one message of bytes.
    """
    if content_type == FORM and body.lstrip()[:1] in (b"{", b"["):
        detail = (
            f"the body looks like JSON, but the content type is {FORM}, the default of `curl -d`: set Content-Type: "
            "application/json (`curl --json`), or the message's own type"
        )
        raise PushqError(detail, code="unsupported-media-type")


def messages(headers: dict[bytes, bytes], content_type: str, body: bytes) -> list[EventMessage]:
    """The messages of a CloudEvents request. Raises `InvalidRequest` for an invalid event, and the problem
    `unsupported-media-type`."""
    if b"ce-specversion" in headers:
        return [_binary(headers, body)]
    if content_type == STRUCTURED:
        return [_structured(decode(body, msgspec.Raw), "")]
    if content_type == BATCH:
        check_events(body)
        events: list[msgspec.Raw] = decode(body, list[msgspec.Raw])
        return [_structured(event, f"/{number}") for number, event in enumerate(events)]
    raise PushqError(
        f"unsupported CloudEvents format {content_type[:100]!r}: use {STRUCTURED} or {BATCH}",
        code="unsupported-media-type",
    )


# ------------------------------------------------------------------------------------------------- binary mode


def _binary(headers: dict[bytes, bytes], body: bytes) -> EventMessage:
    attributes = {
        match[1].decode(): unquote(value.decode("latin-1"))
        for name, value in headers.items()
        if (match := _ATTRIBUTE.fullmatch(name)) is not None
    }
    _check_attributes(attributes, "/headers/ce-")
    content_type = _content_type(headers)
    message = EventMessage(
        id=attributes["id"],
        source=attributes["source"],
        key=attributes.get("partitionkey"),
        headers={f"ce-{name}": value for name, value in attributes.items()},
        content_type=content_type or None,
    )
    if _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip().lower()) and _is_json(body):
        message.body = msgspec.Raw(body)
    else:
        message.body_base64 = b64encode(body).decode()
    return message


def _is_json(body: bytes) -> bool:
    try:
        body.decode()
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _content_type(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"content-type", b"").decode("latin-1").strip()


# --------------------------------------------------------------------------------------- structured and batch


def _structured(event: msgspec.Raw, at: str) -> EventMessage:
    attributes: Any = decode(bytes(event), dict)
    _check_attributes(attributes, f"{at}/")
    key = attributes.get("partitionkey")
    if key is not None and not isinstance(key, str):
        raise invalid_field(f"{at}/partitionkey", "the attribute partitionkey must be a string")
    id, source = attributes["id"], attributes["source"]
    return EventMessage(body=event, content_type=STRUCTURED, id=id, key=key, source=source)


def _check_attributes(attributes: dict[str, Any], prefix: str) -> None:
    version = attributes.get("specversion")
    if version != SPEC_VERSION:
        raise invalid_field(
            f"{prefix}specversion", f"unsupported specversion {version!r}; this server supports {SPEC_VERSION!r}"
        )
    for name in REQUIRED:
        value = attributes.get(name)
        if not isinstance(value, str) or not value:
            raise invalid_field(f"{prefix}{name}", f"the CloudEvent attribute {name!r} must be a non-empty string")
