"""Converts rows to messages to publish: the JSON text of each, or an error for a row that cannot be one."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.types import BinaryType, DataType, IntegralType, MapType, StringType, StructType, TimestampType

from spark.source.errors import WrongOption, WrongRow
from spark.source.rows import SCHEMA

_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (StringType, BinaryType),
    "encoding": (StringType,),
    "id": (StringType,),
    "key": (StringType,),
    "content_type": (StringType,),
    "headers": (MapType,),
    "priority": (IntegralType,),
    "reply_to": (StringType,),
    "correlation_id": (StringType,),
    "delay_ms": (IntegralType,),
    "ttl_ms": (IntegralType,),
    "deliver_at": (TimestampType,),
    "sealed": (BinaryType,),
}
_PLAIN: Final = ("key", "priority", "reply_to", "correlation_id", "delay_ms", "ttl_ms")
_WORDS: Final[dict[type[DataType], str]] = {
    StringType: "string",
    BinaryType: "binary",
    MapType: "map<string,string>",
    IntegralType: "int or bigint",
    TimestampType: "timestamp",
}
_MEANT: Final = ("json", "bytes")


def check_columns(schema: StructType, id_column: str | None) -> None:
    """Raises `WrongOption` or `WrongRow` for columns that cannot be written. Accepts all columns of a reader."""
    if "body" not in schema.names:
        have = ", ".join(schema.names)
        raise WrongRow(f'there is no column "body" ({have}): select(to_json(struct("*")).alias("body"))')
    for field in schema.fields:
        types = _TYPES.get(field.name)
        if types is not None and not isinstance(field.dataType, types):
            words = " or ".join(_WORDS[one] for one in types)
            fix = ": to_json(…) makes JSON of it" if field.name == "body" else f': cast("{words.split(" ")[0]}")'
            raise WrongRow(f'column "{field.name}" is {field.dataType.simpleString()}, not {words}{fix}')
        if types is None and field.name not in SCHEMA.names and field.name != id_column:
            raise WrongRow(f'column "{field.name}" is not a field of a message: drop it, or put it into body')
    if id_column is not None and id_column not in schema.names:
        raise WrongOption("idColumn", f"there is no column {id_column!r}, only {', '.join(schema.names)}")


def content_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that make up its message."""
    return {name: row[name] for name in _TYPES if row.get(name) is not None and name != "sealed"}


def message_json(content: Mapping[str, Any], message_id: str | None) -> str:
    """The message as JSON. Raises `WrongRow`. JSON bodies are validated and sent unchanged."""
    fields: dict[str, Any] = {name: content[name] for name in _PLAIN if name in content}
    encoding = content.get("encoding", "json" if isinstance(content.get("body", ""), str) else "bytes")
    if encoding not in _MEANT:
        raise WrongRow(f'column "encoding" is {encoding[:50]!r}, not one of {", ".join(_MEANT)}')
    if "content_type" in content and not (encoding == "json" and content["content_type"] == "application/json"):
        fields["content_type"] = content["content_type"]
    if content.get("headers"):
        fields["headers"] = content["headers"]
    if message_id is not None:
        fields["id"] = message_id
    if "deliver_at" in content:
        fields["deliver_at"] = _time(content["deliver_at"])
    rest = f",{json.dumps(fields)[1:-1]}" if fields else ""
    return f"{{{_body(content.get('body'), encoding)}{rest}}}"


def _body(body: str | bytes | bytearray | None, encoding: str) -> str:
    if body is None:
        raise WrongRow('column "body" is null: filter such rows out, or write the JSON text null')
    if encoding == "bytes":
        data = body.encode() if isinstance(body, str) else bytes(body)
        return f'"body_base64":"{b64encode(data).decode()}"'
    try:
        text = body if isinstance(body, str) else bytes(body).decode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WrongRow(
            f'column "body" is not JSON ({error}): to_json(…) makes it, or cast("binary") sends bytes as they are'
        ) from None
    return f'"body":{text}'


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _time(value: datetime) -> str:
    """RFC 3339 in UTC; Spark gives times in the zone of the Python process."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
