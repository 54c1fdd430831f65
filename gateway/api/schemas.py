"""JSON schemas of our types for the OpenAPI and AsyncAPI documents, with the bounds that the checks enforce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend_store.model import (
    COMPANION,
    MESSAGES_PER_REQUEST_MAX,
    PRIORITIES_MAX,
    AutoExpand,
    QueueConfig,
    Quotas,
    Replication,
)
from gateway.api.cloudevents import REQUIRED, SPEC_VERSION
from gateway.api.shapes.clusters import MoveWanted
from gateway.limits import HORIZON_MS_MAX, NAME_CHARS_MAX, PRODUCER_SEQ_MAX, QUOTA_MAX, TAGS_MAX
from gateway.publishing.columns import HEADERS_MAX, NAME_BYTES_MAX
from gateway.queues.config import DEFAULTS
from gateway.queues.settings import AUTO_EXPAND, FIXED, PART_RANGES, RANGES, REPLICATION, REPLICATION_RANGES, SETTINGS
from push.limits import PUBLISHES_PER_ACK_MAX
from push.protocol import PublishMessage

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"


def components(kinds: Sequence[type[Any]]) -> tuple[dict[str, Schema], dict[type, Schema]]:
    """The schemas by name, and for each type the reference to its schema."""
    found, schemas = msgspec.json.schema_components(kinds, ref_template=REF)
    bounded(schemas)
    return schemas, dict(zip(kinds, found, strict=True))


def reference(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


def bounded(schemas: dict[str, Schema]) -> None:
    """Adds ranges and descriptions to the schemas of queue settings, and bounds to those of other types."""
    for struct, settings, ranges in (
        (QueueConfig, SETTINGS, RANGES),
        (Replication, REPLICATION, REPLICATION_RANGES),
        (AutoExpand, AUTO_EXPAND, PART_RANGES),
    ):
        for name, schema in schemas.get(struct.__name__, {}).get("properties", {}).items():
            if name in ranges:
                _bound(schema, *ranges[name])
            if name in settings:
                schema["description"] = settings[name].means
    if (wanted := schemas.get(MoveWanted.__name__)) is not None:
        wanted["oneOf"] = [_only("to", "over", "string"), _only("over", "to", "array")]
    for schema in schemas.get(Quotas.__name__, {}).get("properties", {}).values():
        _bound(schema, 1, QUOTA_MAX)
    if (config := schemas.get(QueueConfig.__name__)) is not None:
        config["description"] = (
            "A queue's settings. For combinations that are not allowed, see /docs/reference/queue-settings."
        )
        config["properties"]["tags"]["maxProperties"] = TAGS_MAX
        _name(config["properties"]["colocate_with"], NAME_CHARS_MAX)
        _name(config["properties"]["dead_letter_queue"], NAME_CHARS_MAX + len(COMPANION))
        for name in (*DEFAULTS, "dead_letter_queue"):
            schema = config["properties"][name]
            del schema["default"]
            schema["description"] += f" Default: {SETTINGS[name].default}."


def _only(given: str, other: str, kind: str) -> Schema:
    """Requires the field `given` and allows `other` as null only."""
    return {"required": [given], "properties": {given: {"type": kind}, other: {"type": "null"}}}


def _bound(schema: Schema, low: int, high: int) -> None:
    """Adds a number's bounds; for a nullable number they stand beside its joined types."""
    _join_types(schema)
    schema["minimum"], schema["maximum"] = low, high


def _name(schema: Schema, chars_max: int) -> None:
    _join_types(schema)
    schema["pattern"] = rf"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{chars_max - 1}}}$"


def _join_types(schema: Schema) -> None:
    if "anyOf" in schema:
        schema["type"] = [kind["type"] for kind in schema.pop("anyOf")]


def queue_changes(config: Schema) -> Schema:
    """The body of a PATCH: settings that may change, each of them optional."""
    may_change = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in config["properties"].items()
        if name not in FIXED
    }
    return {"title": "QueueChanges", "type": "object", "properties": may_change, "additionalProperties": False}


def publish_message() -> Schema:
    """A message as a producer sends it. Written by hand, because its type holds the body raw."""
    name = {"type": ["string", "null"], "minLength": 1, "maxLength": NAME_BYTES_MAX}
    time = {"type": ["string", "null"], "format": "date-time"}
    given: dict[str, Schema] = {
        "body": {"description": "Any JSON value, including null."},
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
        "priority": {"type": ["integer", "null"], "minimum": 0, "maximum": PRIORITIES_MAX - 1},
        "delay_ms": {"type": ["integer", "null"], "minimum": 0, "maximum": HORIZON_MS_MAX},
        "deliver_at": time,
        "ttl_ms": {"type": ["integer", "null"], "minimum": 1, "maximum": HORIZON_MS_MAX},
        "producer": name,
        "producer_seq": {"type": ["integer", "null"], "minimum": 1, "maximum": PRODUCER_SEQ_MAX},
        "timestamp": time,
    }
    assert given.keys() == {field.encode_name for field in msgspec.structs.fields(PublishMessage)}
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
    """A CloudEvent in structured mode: the attributes that this server reads."""
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


def ack_publishes() -> Schema:
    """What an ack may publish in the same commit."""
    return {
        "type": ["array", "null"],
        "maxItems": PUBLISHES_PER_ACK_MAX,
        "items": {
            "type": "object",
            "properties": {"queue": {"type": "string"}, "messages": messages_to_publish()},
            "required": ["queue", "messages"],
            "additionalProperties": False,
        },
    }
