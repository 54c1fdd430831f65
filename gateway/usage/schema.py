"""The row types of usage files; the files, the reference page and the pipeline's types derive from them.

Each file has rows of one kind, one JSON object per line. Every row carries the version of its shape. Fields are only
ever added, at the end.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

SCHEMA_VERSION: Final = 1
FileKind = Literal["ledger", "minutes", "audit"]

LATENCY_SECONDS_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of `latency_counts`; its last number counts slower requests."""

OTHER: Final = "other"
"""Replaces names when a minute has too many different ones."""


class Doc(NamedTuple):
    """The text of a field in the reference page."""

    text: str


Time = Annotated[str, Doc("RFC 3339, UTC, milliseconds")]


class LedgerRow(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """The end or state of messages in a range of one partition's log. Rows with equal keys are equal."""

    version: int
    node: Annotated[str, Doc("the copy of the data whose log it is; a restored one has a name of its own")]
    tenant: str
    queue: str
    queue_uid: Annotated[int, Doc("tells apart queues that had one name, one after the other")]
    partition: int
    epoch: int
    kind: Annotated[str, Doc("what became of them: see below")]
    from_: Annotated[int, Doc("the range's first offset")]
    to: Annotated[int, Doc("the offset behind the range; the next row of the partition begins there")]
    count: Annotated[int, Doc("messages; of `held`, those that are there at `to`")]
    bytes: Annotated[int | None, Doc("as stored: of `published`, `moved_in` and `held`, null for the others")]
    at: Annotated[Time, Doc("when the range was closed")]


class MinuteRow(msgspec.Struct, frozen=True):
    """What one principal did in one minute, as a gateway counted it. The last minute before a crash is lost."""

    version: int
    node: str
    minute: Annotated[Time, Doc("its beginning")]
    tenant: Annotated[str, Doc("`other` beyond the most rows a minute may have")]
    principal: str
    queue: Annotated[str, Doc("empty where the operation has none")]
    operation: Annotated[
        str, Doc("`publish`, `deliver`, `ack`, `queues.patch`, …; `start` in the first row of a process")
    ]
    transport: Annotated[str, Doc("`http`, `ws` or `sse`")]
    outcome: Annotated[str, Doc("`ok`, or the code of the problem")]
    requests: Annotated[int, Doc("requests, or frames")]
    messages: int
    bytes_in: Annotated[
        int, Doc("of request bodies; over a WebSocket, of a frame's messages as they are stored by themselves")
    ]
    bytes_out: Annotated[int, Doc("of answers and delivered frames")]
    seconds: Annotated[float, Doc("the sum of what they took")]
    latency_counts: Annotated[
        list[int], Doc("requests up to 1, 5, 25, 100, 500 ms, 2.5 s, 10 s, and beyond; each counts once")
    ]
    lossy: Annotated[bool, Doc("of `start`: the process before ended without its last minute")]


class Change(msgspec.Struct, frozen=True):
    """One setting that an act changed; both values as JSON."""

    field: str
    before: str | None
    after: str | None


class AuditRow(msgspec.Struct, frozen=True):
    """One administrative act. It is stored before it is done, and its outcome before it is answered."""

    version: int
    node: str
    seq: Annotated[int, Doc("rises by one an act")]
    at: Time
    tenant: str
    principal: Annotated[str, Doc("the key's id")]
    name: Annotated[str, Doc("the key's name")]
    action: Annotated[str, Doc("`queues.patch`, `keys.rotate`, `tenants.put`, …")]
    target: Annotated[str, Doc("the path it was asked for; for a backend with `?cluster=NAME`, where it named one")]
    outcome: Annotated[str, Doc("`ok`, the code of the problem, or `unknown`: the process ended in the middle of it")]
    status: int | None
    trace_id: str | None
    address: Annotated[str | None, Doc("where it came from; null over the admin socket")]
    changes: list[Change]


ROWS: Final[dict[FileKind, type[msgspec.Struct]]] = {"ledger": LedgerRow, "minutes": MinuteRow, "audit": AuditRow}

KEYS: Final[dict[FileKind, tuple[str, ...]]] = {
    "ledger": ("node", "queue_uid", "partition", "kind", "from", "to"),
    "minutes": ("node", "minute", "tenant", "principal", "queue", "operation", "transport", "outcome"),
    "audit": ("node", "seq"),
}
"""The fields that identify a row. After a crash a file may repeat one; of `minutes`, equal keys are added up."""


class Column(NamedTuple):
    name: str
    type: str
    nullable: bool
    text: str


_TYPES: Final[dict[Any, str]] = {str: "string", int: "long", float: "double", bool: "boolean"}


def columns(kind: type[msgspec.Struct]) -> list[Column]:
    """A row's fields with language-neutral types: string, long, double, boolean, timestamp, array<…>, struct<…>."""
    names = kind.__struct_encode_fields__
    hints = get_type_hints(kind, include_extras=True)
    return [_column(name, hints[field]) for name, field in zip(names, kind.__struct_fields__, strict=True)]


def _column(name: str, hint: Any) -> Column:
    text, is_time = "", False
    while get_origin(hint) is Annotated:
        inner, *docs = get_args(hint)
        for doc in docs:
            is_time = is_time or doc == get_args(Time)[1]
            text = text or (doc.text if doc != get_args(Time)[1] else "")
        hint = inner
    nullable = type(None) in get_args(hint)
    if nullable:
        hint = next(part for part in get_args(hint) if part is not type(None))
    return Column(name, "timestamp" if is_time else _type(hint), nullable, text)


def _type(hint: Any) -> str:
    if get_origin(hint) is list:
        return f"array<{_type(get_args(hint)[0])}>"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "struct<" + ",".join(f"{c.name}:{c.type}" for c in columns(hint)) + ">"
    return _TYPES[hint]
