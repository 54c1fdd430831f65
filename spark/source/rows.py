"""Messages as rows. `body` is bytes; for a JSON body, the text as published, in UTF-8. `encoding` says which.

With a seal key, `body`, `headers` and the other columns that only consumers read are encrypted in `sealed`, and null.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.source.sealing import Sealer

SCHEMA: Final = StructType(
    [
        StructField("queue", StringType(), False),
        StructField("uid", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("id", StringType(), False),
        StructField("key", StringType()),
        StructField("priority", IntegerType(), False),
        StructField("published_at", TimestampType(), False),
        StructField("expires_at", TimestampType()),
        StructField("attempt", IntegerType(), False),
        StructField("encoding", StringType(), False),
        StructField("content_type", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("reply_to", StringType()),
        StructField("correlation_id", StringType()),
        StructField("traceparent", StringType()),
        StructField("dead_letter", StringType()),
        StructField("sealed", BinaryType()),
    ]
)
CLEAR: Final = 11
"""The number of columns before those that sealing hides."""
_SECRET: Final = ("content_type", "headers", "body", "reply_to", "correlation_id", "traceparent", "dead_letter")


SERVER_ID: Final = "^[0-9]{1,5}-[0-9a-f]{12,16}$"
"""An id assigned by the server because the producer gave none."""


def told_apart(message_id: str | None, queue: str | None, uid: str | None) -> str | None:
    """The id to publish a message under. Server-assigned ids are unique only within a queue, so they are prefixed with
    the queue's name and uid. A dead letter keeps the id of its original offset."""
    if message_id is None or queue is None or uid is None or re.match(SERVER_ID, message_id) is None:
        return message_id
    return f"{queue}:{uid}:{message_id}"


def row_of(queue: str, uid: str, message: Mapping[str, Any], sealer: Sealer | None = None) -> tuple[Any, ...]:
    """A row in the order of `SCHEMA`."""
    if "body_base64" in message:
        encoding, body = "bytes", b64decode(message["body_base64"])
    else:
        encoding, body = "json", message["body"].encode()
    dead = message.get("dead_letter")
    clear = (
        queue,
        uid,
        message["partition"],
        message["seq"],
        message["id"],
        message["key"],
        message["priority"],
        _time(message["published_at"]),
        _time(message.get("expires_at")),
        message["attempt"],
        encoding,
    )
    secret = (
        message["content_type"],
        message["headers"],
        body,
        message.get("reply_to"),
        message.get("correlation_id"),
        message.get("traceparent"),
        json.dumps(dead) if dead else None,
    )
    if sealer is None:
        return (*clear, *secret, None)
    sealed = sealer.seal(
        dict(zip(_SECRET, secret, strict=True)), bound_to(queue, uid, message["partition"], message["seq"])
    )
    return (*clear, *(None,) * len(secret), sealed)


def bound_to(queue: str, uid: str, partition: int, offset: int) -> bytes:
    """The associated data of a sealed row, so that it cannot be opened as another row."""
    return json.dumps([queue, uid, partition, offset]).encode()


def opened(row: Mapping[str, Any], sealer: Sealer) -> dict[str, Any]:
    """Decrypts the secret columns of a sealed row. Raises `WrongOption` if it was sealed with another key."""
    bound = bound_to(row["queue"], row["uid"], row["partition"], row["offset"])
    return {**row, **sealer.open(row["sealed"], bound), "sealed": None}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
