"""Messages of a queue: browsed and searched without leasing, and one of them in full."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from web_console.limits import MESSAGE_CHARS_SHOWN_MAX, ROWS_PER_PAGE
from web_console.tables import Column, Table
from web_console.visit import Problem, Visit, page_path, queue_path

STATES: Final = ("ready", "in_flight", "delayed", "dead")
FILTERS: Final = {"message": "id", "key": "key", "text": "contains", "since": "since", "until": "until"}
"""The form's field → the API's. A field called `id` or `contains` would hide the form's own property of that name."""
PREVIEW_CHARS: Final = 120
FORMS: Final = ("json", "text", "hex", "raw")


async def load(visit: Visit) -> dict[str, Any]:
    name, query = visit.params[0], visit.query
    state = query.get("state", "ready")
    wanted: dict[str, Any] = {name: query.get(field) for field, name in FILTERS.items()}
    if query.get("header"):
        header, _, value = query["header"].partition("=")
        wanted[f"header.{header.strip()}"] = value.strip()
    refused: Problem | None = None
    try:
        page = await visit.get(
            queue_path(name, "messages"), state=state, limit=ROWS_PER_PAGE, cursor=query.get("cursor"), **wanted
        )
    except Problem as problem:
        if problem.status != HTTPStatus.BAD_REQUEST or "format" in query:
            raise
        refused, page = problem, {"items": [], "next": None, "scanned": 0}
    is_filtered = any(query.get(field) for field in (*FILTERS, "header"))
    rows = [message_row(name, state, message) for message in page["items"]]
    table = Table(
        f"Messages of {name}, {state.replace('_', ' ')}",
        (
            Column("id", "Id", "code", link="href"),
            Column("published_at", "Published", "time"),
            Column("key", "Key", "code"),
            Column("attempt", "Attempts", "number"),
            Column("body", "Body", "code"),
        ),
        rows,
        "No messages match the filter." if is_filtered else f"No messages are {state.replace('_', ' ')} now.",
        path=visit.path,
        query=dict(query),
        total=len(rows),
        following=page["next"],
    )
    # The server has cut the pages already.
    more = {"is_narrowed": any(query.get(field) for field in ("key", "header", "since", "until"))}
    return {
        "title": f"Messages of {name}",
        "name": name,
        "table": table,
        "state": state,
        "scanned": page["scanned"],
        "refused": refused,
        "wrong": _wrong(refused),
        "status": HTTPStatus.OK if refused is None else HTTPStatus.BAD_REQUEST,
        **more,
    }


def _wrong(refused: Problem | None) -> set[str]:
    """The form's fields that were refused."""
    called = {given: field for field, given in FILTERS.items()}
    parameters = [finding.pointer.rpartition("/")[2] for finding in refused.findings] if refused else []
    return {"header" if one.startswith("header.") else called.get(one, one) for one in parameters}


def message_row(name: str, state: str, message: dict[str, Any]) -> dict[str, Any]:
    preview = "hidden: requires consume" if is_hidden(message) else as_text(message)[: PREVIEW_CHARS + 1]
    body = preview if len(preview) <= PREVIEW_CHARS else preview[:PREVIEW_CHARS] + "…"
    address = f"{page_path('queues', name, 'message')}?{_query(message['id'], state)}"
    return {**message, "body": body, "href": address}


def _query(message_id: str, state: str) -> str:
    return urlencode({"id": message_id, "state": state})


def is_hidden(message: dict[str, Any]) -> bool:
    return "body" not in message and "body_base64" not in message


def raw_bytes(message: dict[str, Any]) -> bytes:
    """The payload as it was published; a JSON value as its shortest text."""
    if "body_base64" in message:
        try:
            return base64.b64decode(message["body_base64"])
        except binascii.Error:
            return b""
    return msgspec.json.encode(message.get("body"))


def as_text(message: dict[str, Any]) -> str:
    return raw_bytes(message).decode("utf-8", "replace")


def as_hex(data: bytes) -> str:
    """Sixteen bytes a line: position, bytes, and those that are printable ASCII."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)


def payload(message: dict[str, Any], form: str) -> str:
    """The payload in `form`, cut to what a page holds."""
    data = raw_bytes(message)
    match form:
        case "hex":
            text = as_hex(data[: MESSAGE_CHARS_SHOWN_MAX // 4])
        case "raw":
            text = repr(data[:MESSAGE_CHARS_SHOWN_MAX])[2:-1]
        case "json":
            try:
                text = msgspec.json.format(data, indent=2).decode()
            except (msgspec.MsgspecError, UnicodeDecodeError):
                text = data.decode("utf-8", "replace")
        case _:
            text = data.decode("utf-8", "replace")
    return text if len(text) <= MESSAGE_CHARS_SHOWN_MAX else text[:MESSAGE_CHARS_SHOWN_MAX] + "\n… cut"


async def load_one(visit: Visit) -> dict[str, Any]:
    name, message_id = visit.params[0], visit.query.get("id", "")
    message = await _find(visit, name, message_id)
    state = message["state"]
    form = visit.query.get("form", "json")
    form = form if form in FORMS else "json"
    facts = [(key, str(value)) for key, value in message.items() if key not in _ELSEWHERE and value is not None]
    dead = message.get("dead_letter")
    return {
        "title": f"Message of {name}",
        "cli": f"pushq queue peek {name} --id {message_id} --json",
        "name": name,
        "facts": facts,
        "headers": sorted(message["headers"].items()),
        "hidden": is_hidden(message),
        "payload": "" if is_hidden(message) else payload(message, form),
        "forms": [(each, f"{visit.path}?{_query(message_id, state)}&form={each}", each == form) for each in FORMS],
        "dead": dead,
        "state": state,
        "lease": message.get("lease"),
        "attempts": attempts(message),
    }


async def _find(visit: Visit, name: str, message_id: str) -> dict[str, Any]:
    """The message in whatever state it is by now; looks first in the state in which it was seen."""
    seen = visit.query.get("state", "ready")
    for state in sorted(STATES, key=lambda one: one != seen) if message_id else ():
        found = await visit.get(queue_path(name, "messages"), state=state, id=message_id, limit=1)
        if found["items"]:
            return {**found["items"][0], "state": state}
    detail = f"queue {name!r} no longer has this message: it was acknowledged, expired, purged or moved"
    raise Problem(404, "Not found", "not-found", detail)


def attempts(message: dict[str, Any]) -> Table:
    """The message's attempts, the latest first: those that ended without an ack, and the one in progress."""
    ended = (message.get("dead_letter") or message).get("history") or []
    rows = [{**one, "outcome": one["outcome"].replace("_", " ")} for one in reversed(ended)]
    if message["state"] == "in_flight":
        lease = message.get("lease") or {"consumer": None, "expires_at": None}
        row = {"attempt": message["attempt"], "outcome": "in flight", "at": None, "reason": None}
        rows.insert(0, {**row, "consumer": _consumer(lease["consumer"]), "until": lease["expires_at"]})
    columns = (
        Column("attempt", "Attempt", "number"),
        Column("outcome", "Outcome", "state"),
        Column("at", "Ended", "time"),
        Column("consumer", "Consumer"),
        Column("until", "Lease until", "time"),
        Column("reason", "Reason"),
    )
    return Table("Attempts", columns, rows, "No attempts have ended yet.")


def _consumer(consumer: dict[str, Any] | None) -> str:
    if consumer is None:
        return "not known here"
    over = {"ws": "WebSocket", "sse": "SSE", "poll": "a receive"}[consumer["transport"]]
    connection = f", connection {consumer['connection']}" if consumer["connection"] else ""
    address = f" from {consumer['address']}" if consumer["address"] else ""
    return f"{consumer['name']} over {over}{address}{connection}"


_ELSEWHERE: Final = frozenset({"body", "body_base64", "headers", "dead_letter", "history", "lease"})
