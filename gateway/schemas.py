"""JSON schemas of our types, as both API documents show them: the types, with the bounds that checks add to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend_store.model import MESSAGES_PER_REQUEST_MAX, QueueConfig, Replication
from gateway.api.cloudevents import REQUIRED, SPEC_VERSION
from gateway.limits import TAGS_MAX
from gateway.publish import HEADERS_MAX, NAME_BYTES_MAX
from gateway.validate import FIXED_SETTINGS, ONLY, RANGES
from push.protocol import PublishMessage

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"

LATER_FIELDS = frozenset({"deliver_at", "ttl_ms", "producer", "producer_seq", "timestamp"})
"""Fields of a message that this version refuses."""


def components(kinds: Sequence[type[Any]]) -> tuple[dict[str, Schema], dict[type, Schema]]:
    """The schemas by name, and for each type the reference to its own."""
    found, schemas = msgspec.json.schema_components(kinds, ref_template=REF)
    bounded(schemas)
    return schemas, dict(zip(kinds, found, strict=True))


def reference(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


def bounded(schemas: dict[str, Schema]) -> None:
    """Adds to the settings of a queue what `validate` allows of their types."""
    for struct in (QueueConfig, Replication):
        if struct.__name__ not in schemas:
            continue
        fields = schemas[struct.__name__]["properties"]
        for name, schema in fields.items():
            if name in ONLY:
                schema["const"] = ONLY[name]
            if name in RANGES:
                schema["minimum"], schema["maximum"] = RANGES[name]
        if struct is QueueConfig:
            fields["tags"]["maxProperties"] = TAGS_MAX


def queue_changes(config: Schema) -> Schema:
    """The body of a PATCH: settings that may change, each of them optional."""
    may_change = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in config["properties"].items()
        if name not in FIXED_SETTINGS
    }
    return {"title": "QueueChanges", "type": "object", "properties": may_change, "additionalProperties": False}


def publish_message() -> Schema:
    """A message as a producer gives it. Its type holds the body raw, so this one is written by hand."""
    name = {"type": ["string", "null"], "minLength": 1, "maxLength": NAME_BYTES_MAX}
    given: dict[str, Schema] = {
        "body": {"description": "Any JSON value, null too."},
        "body_base64": {"type": ["string", "null"], "contentEncoding": "base64", "pattern": BASE64_PATTERN},
        "content_type": name,
        "id": name,
        "key": name,
        "headers": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "string"},
            "maxProperties": HEADERS_MAX,
        },
        "reply_to": name,
        "correlation_id": name,
        "priority": {"const": 0},
        "delay_ms": {"const": 0},
    }
    assert given.keys() | LATER_FIELDS == {field.encode_name for field in msgspec.structs.fields(PublishMessage)}
    return {
        "title": "PublishMessage",
        "type": "object",
        "properties": given,
        "additionalProperties": False,
        "oneOf": [
            {"required": ["body"], "properties": {"body_base64": {"type": "null"}}},
            {"required": ["body_base64"], "properties": {"body": False, "body_base64": {"type": "string"}}},
        ],
    }


def cloud_event() -> Schema:
    """A CloudEvent in structured mode: what this server needs to know of it."""
    text = {"type": "string", "minLength": 1}
    named = {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX}
    return {
        "title": "CloudEvent",
        "type": "object",
        "properties": {
            "specversion": {"const": SPEC_VERSION},
            "id": named,
            "source": text,
            "type": text,
            "partitionkey": {**named, "type": ["string", "null"]},
        },
        "required": ["specversion", *REQUIRED],
    }


BASE64_PATTERN = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def messages_to_publish() -> Schema:
    return {
        "type": "array",
        "items": reference("PublishMessage"),
        "minItems": 1,
        "maxItems": MESSAGES_PER_REQUEST_MAX,
    }


def publish_body() -> Schema:
    return {
        "title": "PublishBody",
        "type": "object",
        "properties": {"messages": messages_to_publish()},
        "required": ["messages"],
        "additionalProperties": False,
    }
