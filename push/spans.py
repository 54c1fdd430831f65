"""Spans of what is done with messages, through the API of OpenTelemetry. Imported only where they are wanted.

A span is made when its outcome is known, and says itself when it began: nothing is carried along meanwhile. Names and
attributes are those of the semantic conventions for messaging. Bodies, keys and the sentences of problems are in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from time import time_ns
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from backend_store.client import Chunk, CorruptEntry, Lease, Queue, indexes
from push.limits import SPAN_LINKS_MAX

_ASKED: Final[Mapping[str, tuple[str, str, SpanKind]]] = {
    "publish": ("send", "send", SpanKind.PRODUCER),
    "receive": ("receive", "receive", SpanKind.CLIENT),
    "ack": ("ack", "settle", SpanKind.CLIENT),
    "nack": ("nack", "settle", SpanKind.CLIENT),
}
"""What callers ask for → the operation's name, its type, the span's kind. Other requests have no span."""

_MEMBER = re.compile(r"[a-z][a-z0-9_*/-]{0,255}=[\x21-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
"""Of a `tracestate`: what the library takes for certain. It would log the others, and anybody can send those."""
_MEMBERS_MAX: Final = 32


class Spans:
    """Makes the spans of a process. One call a request, a frame or a batch."""

    def __init__(self, provider: trace.TracerProvider | None = None):
        """Without `provider` it is the one that the process was started with."""
        self._tracer = trace.get_tracer("pushq", tracer_provider=provider)
        self.are_kept = not isinstance(
            provider or trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
        )
        """Whether somebody takes them."""

    def asked(
        self,
        operation: str,
        queue: str,
        tenant: str,
        *,
        seconds: float = 0.0,
        messages: int = 0,
        error: str | None = None,
        parent: str | None = None,
        batch: Batch | None = None,
    ) -> None:
        """A request has its answer. `error` is a problem's code, `parent` the caller's own context, `queue` empty where
        there is none of that name."""
        known = _ASKED.get(operation)
        if known is None:
            return
        name, kind_of_operation, kind = known
        attributes = _attributes(name, kind_of_operation, queue, tenant)
        if error is None:
            attributes["messaging.batch.message_count"] = messages
        else:
            attributes["error.type"] = error
        self._made(name, queue, kind, attributes, time_ns() - int(seconds * 1e9), parent, batch, is_error=bool(error))

    def refused(self, operation: str, frame: Any, tenant: str, error: str) -> None:
        """A frame was answered with a problem before the store was asked."""
        if operation in _ASKED:
            queue = "" if error == "queue-not-found" else frame.queue
            self.asked(operation, queue, tenant, error=error, parent=self.parent_of(frame))

    @staticmethod
    def parent_of(frame: Any) -> str | None:
        """The context of a frame as it is kept with messages; frames of bodies alone have no room for one."""
        traceparent: str | None = getattr(frame, "traceparent", None)
        if traceparent is None or frame.tracestate is None:
            return traceparent
        return f"{traceparent} {frame.tracestate}"

    def of_leases(self, leases: Iterable[Lease]) -> Batch:
        """A batch that is about to be rendered; a lease lets go of its messages then."""
        kept = [(lease.chunk, indexes(lease.bits)) for lease in leases if lease.bits and lease.chunk is not None]
        return Batch(self, kept)

    def of_chunks(self, chunks: Sequence[Chunk]) -> Batch:
        return Batch(self, [(chunk, range(chunk.count)) for chunk in chunks])

    def of_parts(self, parts: Sequence[tuple[Chunk, range]]) -> Batch:
        """Some messages of each chunk, by their numbers."""
        return Batch(self, parts)

    def delivered(self, queue: Queue, tenant: str, messages: int, batch: Batch) -> None:
        if messages:
            attributes = _attributes("deliver", "process", queue.name, tenant)
            attributes["messaging.batch.message_count"] = messages
            if queue.group is not None:
                attributes["messaging.consumer.group.name"] = queue.group
            self._made("deliver", queue.name, SpanKind.CONSUMER, attributes, batch.began_ns, None, batch)

    def _made(
        self,
        name: str,
        queue: str,
        kind: SpanKind,
        attributes: dict[str, str | int],
        began_ns: int,
        parent: str | None,
        batch: Batch | None,
        *,
        is_error: bool = False,
    ) -> None:
        links: list[Link] = []
        if batch is not None and batch.contexts:
            links = batch.links
            attributes["pushq.link_count"] = batch.contexts
        # An empty context, or a span that happens to be current would become the parent.
        context = Context()
        if parent is not None and (known := _span_context(parent)) is not None:
            context = trace.set_span_in_context(NonRecordingSpan(known), context)
        span = self._tracer.start_span(
            f"{name} {queue}" if queue else name,
            context,
            kind,
            attributes,
            links,
            start_time=began_ns,
        )
        if is_error:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


class Batch:
    """Messages that go out together: which traces they belong to."""

    __slots__ = ("began_ns", "contexts", "links", "spans")

    def __init__(self, spans: Spans, parts: Iterable[tuple[Chunk, Iterable[int]]]):
        self.spans = spans
        self.began_ns = time_ns()
        kept = _kept_traces(parts)
        self.contexts = len(kept)
        """How many contexts its messages have. Only the first ones are linked."""
        found = [_span_context(one) for one in kept[:SPAN_LINKS_MAX]]
        self.links = [Link(context) for context in found if context is not None]

    def delivered(self, queue: Queue, tenant: str, messages: int) -> None:
        """The messages are on their way to one consumer."""
        self.spans.delivered(queue, tenant, messages, self)


def _kept_traces(parts: Iterable[tuple[Chunk, Iterable[int]]]) -> list[str]:
    """The contexts of messages, each once, in their order."""
    found: dict[str | None, None] = {}
    for chunk, numbers in parts:
        try:
            columns = chunk.messages.columns
        except CorruptEntry:
            continue  # whoever renders it says so
        kept = None if columns is None else columns.get("trace")
        if kept is not None:
            found.update(dict.fromkeys([kept[n] for n in numbers]))
    return [one for one in found if one]


def _span_context(kept: str) -> SpanContext | None:
    """None for what is no context: a frame that is refused for its own may say anything."""
    traceparent, _, tracestate = kept.partition(" ")
    try:
        _, trace_id, span_id, flags = traceparent.split("-")
        context = SpanContext(
            int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), _trace_state(tracestate)
        )
    except ValueError:
        return None
    return context if context.is_valid else None


def _trace_state(text: str) -> TraceState | None:
    """None for what the library would complain about: the `traceparent` is enough."""
    members = [member.strip() for member in text.split(",")] if text else []
    if not all(map(_MEMBER.fullmatch, members)):
        return None
    pairs = dict(member.split("=", 1) for member in members)
    return TraceState(list(pairs.items())) if 0 < len(pairs) == len(members) <= _MEMBERS_MAX else None


def _attributes(name: str, kind: str, queue: str, tenant: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "pushq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "pushq.tenant": tenant,
    }
    if queue:
        attributes["messaging.destination.name"] = queue
    return attributes
