"""The changeable settings of one queue, as a form made from the API's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from web_console.tables import Column, Table
from web_console.visit import Visit, queue_path

Kind = Literal["choice", "number", "text", "json"]
ALLOW_DELETE: Final = "queues.allow_delete_over_http"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: how it is typed, and its present value."""

    name: str
    kind: Kind
    text: str
    about: str
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    is_optional: bool = False
    """An empty text stands for null."""


async def load(visit: Visit) -> dict[str, Any]:
    name = visit.params[0]
    reply = await visit.ask("GET", queue_path(name))
    queue = reply.json()
    config = queue["config"]
    rows = [{"setting": key, "value": msgspec.json.encode(value).decode()} for key, value in sorted(config.items())]
    return {
        "title": f"Settings of {name}",
        "queue": queue,
        "etag": reply.headers.get("etag", ""),
        "owner": owner_of(name),
        "fields": fields(visit.server.queue_changes(), config),
        "may_delete": visit.may_do("delete queue"),
        "takes_deletes": dict(visit.server.settings()).get(ALLOW_DELETE) == "true",
        "table": Table(
            f"Settings of {name}",
            (Column("setting", "Setting", "code"), Column("value", "Value", "code")),
            rows,
            "",
            path=visit.path,
            query=dict(visit.query),
        ),
    }


def owner_of(name: str) -> str | None:
    """The queue that a companion belongs to; a companion has no settings of its own."""
    owner, dot, word = name.rpartition(".")
    return owner if dot and word in ("dead", "late") else None


def fields(schema: dict[str, Any], config: dict[str, Any]) -> list[Field]:
    return [_field(name, one, config[name]) for name, one in schema["properties"].items() if name in config]


def _field(name: str, schema: dict[str, Any], value: Any) -> Field:
    kinds = _kinds(schema)
    about, is_optional = schema.get("description", ""), "null" in kinds
    if "enum" in schema:
        return Field(name, "choice", str(value), about, tuple(schema["enum"]))
    if "boolean" in kinds:
        return Field(name, "choice", msgspec.json.encode(value).decode(), about, ("true", "false"))
    if "integer" in kinds:
        text = "" if value is None else str(value)
        return Field(name, "number", text, about, (), schema.get("minimum"), schema.get("maximum"), is_optional)
    if "string" in kinds:
        return Field(name, "text", value or "", about, is_optional=is_optional)
    return Field(name, "json", msgspec.json.encode(value).decode(), about)


def _kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)
