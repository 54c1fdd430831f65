"""Generates `/openapi.json`, OpenAPI 3.1, from the table of operations and the types that decode requests."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, cast, get_args

import msgspec

from backend_store.model import VISIBILITY_MS_MAX
from gateway.api.http import Answer, json_answer
from gateway.api.offsets import RANGE
from gateway.api.peek import SEQ_MAX
from gateway.api.schemas import cloud_event, components, publish_body, publish_message, queue_changes, reference
from gateway.api.series import POINTS_DEFAULT
from gateway.api.shapes import bodies
from gateway.api.table import OPERATIONS, Operation
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, RANGE_MESSAGES_MAX
from gateway.series.book import RANGES
from gateway.series.core.columns import QUEUE_COLUMNS
from gateway.series.limits import SPARK_NAMES_MAX, SPARK_POINTS_MAX
from gateway.version import VERSION
from push.limits import CREDIT_MAX, PUBLISH_MS_MAX
from push.problems import KINDS

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"

_CODES: Final = {
    status: [code for code, kind in KINDS.items() if kind.status == status]
    for status in sorted({kind.status for kind in KINDS.values()})
}


def page() -> Callable[[Gateway, dict[str, str]], Awaitable[Answer]]:
    made: list[Answer] = []

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        if not made:
            made.append(json_answer(document()))
        return made[0]

    return show


def document() -> dict[str, Any]:
    """The complete document."""
    found = {kind for o in OPERATIONS for given in (o.request, *o.answers.values()) for kind in _parts(given)}
    types = {kind for kind in found if _is_struct(kind)}
    types -= {bodies.PublishBody}
    schemas, refs = components([*sorted(types, key=lambda kind: kind.__name__), bodies.ProblemView])
    schemas |= {
        "PublishMessage": publish_message(),
        "PublishBody": publish_body(),
        "CloudEvent": cloud_event(),
        "QueueChanges": queue_changes(schemas["QueueConfig"]),
    }
    refs[bodies.PublishBody] = reference("PublishBody")
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pushq",
            "version": VERSION,
            "description": "Publish, receive and administer over HTTP. See /docs for guides and /asyncapi.json for "
            "WebSocket and SSE.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": name} for name in dict.fromkeys(_tag(o) for o in OPERATIONS)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {str(status): _problem(status) for status in _CODES},
            "headers": {name: {"description": says, "schema": {"type": "string"}} for name, says in HEADERS.items()},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key (pushq_<id>_<secret>), or a JWT from a configured issuer.",
                }
            },
        },
    }


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types of a union; any other value alone."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _tag(operation: Operation) -> str:
    return operation.path.split("/")[2]


def _operation(operation: Operation, refs: dict[type, dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "description": f"Scope: {operation.scope}."
        + (_CLOUD_EVENTS if operation.request is bodies.PublishBody else ""),
        "tags": [_tag(operation)],
        "parameters": _parameters(operation),
        "responses": _responses(operation, refs),
    }
    if operation.request is not None:
        schema = reference("QueueChanges") if operation.method == "PATCH" else refs[operation.request]
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if operation.request is bodies.PublishBody:
            content |= _OTHER_BODIES
        out["requestBody"] = {"required": not _has_defaults(operation.request), "content": content}
    if operation.takes_ticket:
        out["security"] = [{"key": []}, {}]
    return out


_CLOUD_EVENTS: Final = (
    " With `ce-specversion`, `ce-id`, `ce-source`, `ce-type` and further `ce-…` headers the body is the data of a"
    " CloudEvent in binary mode, of any content type."
)
_OTHER_BODIES: Final = {
    "text/plain": {"schema": {"type": "string", "description": "Any other type: one message with this body."}},
    "application/cloudevents+json": {"schema": reference("CloudEvent")},
    "application/cloudevents-batch+json": {
        "schema": {"type": "array", "items": reference("CloudEvent"), "minItems": 1}
    },
}


def _has_defaults(kind: type[msgspec.Struct]) -> bool:
    return all(not field.required for field in msgspec.structs.fields(kind))


def _operation_id(operation: Operation) -> str:
    """`POST /v1/queues/{queue}/ack` → `post_queues_queue_ack`."""
    steps = re.findall(r"\w+", operation.path.removeprefix("/v1/"))
    return "_".join([operation.method.lower(), *steps])


def _responses(operation: Operation, refs: dict[type, dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        response["headers"] = {name: _header(name) for name in _headers_of(operation, status)}
        if isinstance(kind, str):
            # A YAML document has the type of its content; other text is a string.
            response["content"] = {kind: {"schema": {"type": "object" if kind == "application/yaml" else "string"}}}
        elif kind is not None:
            parts = [refs[cast(type, part)] for part in _parts(kind)]
            schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
            response["content"] = {"application/json": {"schema": schema}}
        responses[str(status)] = response
    unknown = {504} if operation.takes_timeout else set()
    for status in sorted({*operation.refusals, 405, 429, 500, 503, *unknown}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _problem(status: int) -> dict[str, Any]:
    codes = ", ".join(f"`{code}`" for code in _CODES[status])
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
    names = (*_EVERY_ANSWER, *_OF_REFUSALS.get(status, ()))
    headers = {name: _header(name) for name in names}
    return {"description": f"{KINDS[_CODES[status][0]].title}: {codes}", "headers": headers, "content": content}


# ------------------------------------------------------------------------------------------------ answers' headers

_EVERY_ANSWER: Final = ("RateLimit", "RateLimit-Policy")
_OF_REFUSALS: Final = {
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: ("Retry-After",),
    503: ("Retry-After",),
    507: ("Retry-After",),
}
HEADERS: Final = {
    "RateLimit": "Remaining quota of the tightest rate limit, and when it resets.",
    "RateLimit-Policy": "The rate limits that apply to the request.",
    "WWW-Authenticate": "`Bearer`.",
    "Allow": "The allowed methods.",
    "Retry-After": "Seconds to wait before retrying; `retry_after_ms` is more precise.",
    "ETag": "Version of the config, tenant, rule, receiver or silence, for `If-Match`.",
    "Location": "URL to check the job's progress or cancel it.",
    "Link": 'The next page, with `rel="next"`.',
}
"""Header of an answer → its description."""


def _header(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}


def _headers_of(operation: Operation, status: int) -> list[str]:
    """The headers of a successful answer."""
    found = list(_EVERY_ANSWER)
    if operation.has_etag:
        found.append("ETag")
    if status == HTTPStatus.ACCEPTED:
        found.append("Location")
    if "cursor" in operation.query:
        found.append("Link")
    return found


# -------------------------------------------------------------------------------------------------- parameters

QUERY: Final[dict[str, dict[str, Any]]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": PAGE_ITEMS_DEFAULT},
    "cursor": {"type": "string", "description": "`next` from the previous page."},
    "confirm": {"type": "string", "description": "The queue's name, as confirmation."},
    "discard": {"const": "true", "description": "Discard the messages."},
    "move_to": {"type": "string", "description": "Instead of `discard`: move the messages to this queue."},
    "to": {"type": "string", "description": "Inclusive."},
    "group": {"type": "string", "description": "For a stream: receive as this consumer group."},
    "state": {"enum": ["ready", "in_flight", "delayed", "dead"], "default": "ready"},
    "partition": {"type": "integer", "minimum": 0, "maximum": (1 << 16) - 1},
    "contains": {"type": "string", "description": "Text in the stored body."},
    "since": {"type": "string", "format": "date-time", "description": "Published at or after."},
    "until": {"type": "string", "format": "date-time", "description": "Published before."},
    "from_seq": {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
    "id": {"type": "string"},
    "key": {"type": "string"},
    "credit": {"type": "integer", "minimum": 1, "maximum": CREDIT_MAX},
    "ack": {"enum": ["manual", "auto"], "default": "manual"},
    "from": {"type": "string", "description": "For a stream: earliest, latest, seq:42, time:… or cursor:…"},
    "last_event_id": {"type": "string"},
    "attempts": {"enum": ["delivered", "begun"]},
    "visibility_timeout_ms": {"type": "integer", "minimum": 0, "maximum": VISIBILITY_MS_MAX},
    "rule": {"type": "string", "description": "Only this rule."},
    "queue": {"type": "string", "description": "Only this queue."},
    "tenant": {"type": "string", "description": "Another tenant; requires the scope operator."},
    "range": {"enum": list(RANGES), "default": "15m"},
    "metric": {"enum": list(QUEUE_COLUMNS), "default": "ready"},
    "points": {"type": "integer", "minimum": 1, "maximum": SPARK_POINTS_MAX, "default": POINTS_DEFAULT},
    "names": {
        "type": "string",
        "description": f"Only these queues, comma-separated, at most {SPARK_NAMES_MAX}; unknown ones are skipped.",
    },
    "cluster": {"type": "string", "description": "The cluster's name in the settings; default: the home cluster."},
    "ticket": {"type": "string", "description": "Instead of the Authorization header."},
}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": QUERY[name] if name == "partition" else _NAME}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    query = [
        {"name": name, "in": "query", "required": name in operation.required, "schema": _schema(operation, name)}
        for name in operation.query
        if name in QUERY or name in OFFSETS
    ]
    headers: list[dict[str, Any]] = []
    if operation.method == "PATCH":
        headers.append({"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}})
    if operation.takes_conditions:
        headers += [{"name": name, "in": "header", "required": False, "schema": says} for name, says in _CONDITIONS]
    if operation.takes_key:
        headers.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": _KEY})
    if operation.takes_timeout:
        headers.append({"name": "Pushq-Timeout-Ms", "in": "header", "required": False, "schema": _TIMEOUT})
    if "last_event_id" in operation.query:
        headers.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": _LAST_EVENT})
    return [*path, *query, *headers]


def _schema(operation: Operation, name: str) -> dict[str, Any]:
    if operation.path == "/v1/alerts" and name == "state":
        return ALERT_STATES
    if operation.query == RANGE:
        return OFFSETS[name]
    return DAYS if operation.path == "/v1/usage" and name in ("from", "to") else QUERY[name]


_CONDITIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (
        "If-Match",
        {"type": "string", "description": "The `ETag` of the version to change, or `*`; 412 if it does not match."},
    ),
    ("If-None-Match", {"type": "string", "description": "412 if this matches the current `ETag`, or always for `*`."}),
)
_NAME: Final = {"type": "string", "pattern": NAME_PATTERN}
_OFFSET: Final = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
OFFSETS: Final[dict[str, dict[str, Any]]] = {
    "from": _OFFSET | {"default": 0, "description": "The first offset."},
    "until": _OFFSET | {"description": "The first offset after the range."},
    "limit": {"type": "integer", "minimum": 1, "maximum": RANGE_MESSAGES_MAX, "default": RANGE_MESSAGES_MAX},
    "uid": {"type": "string", "description": "The expected queue uid; a queue recreated under its name is refused."},
}
"""Parameters of reads by offset, where `from` and the others mean something else than in lists."""
ALERT_STATES: Final = {"enum": ["pending", "firing", "resolved"]}
DAYS: Final = {"type": "string", "format": "date", "description": "A day in UTC."}
_TIMEOUT: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": PUBLISH_MS_MAX,
    "description": "How long to wait for the disk. A message not stored by then is dropped (503); one being written "
    "may still be stored (504).",
}
_LAST_EVENT: Final = {
    "type": "string",
    "description": "The `id` of the last event received; the stream resumes after it.",
}
_KEY: Final = {
    "type": "string",
    "pattern": r'^([!#-~]([ -~]{0,253}[!-~])?|"([ !#-\[\]-~]|\\["\\]){1,255}")$',
    "description": "A repeat with the same key gets the same response and stores nothing. Quotes are optional.",
}
