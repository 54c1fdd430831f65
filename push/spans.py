"""Spans of what is done with messages, through the API of OpenTelemetry. Imported only where they are wanted.

A request's span begins with it and travels with what it asks of other processes; a delivered batch's is made when its
outcome is known, and says itself when it began. Names and attributes are those of the semantic conventions for
messaging. Bodies, keys and the sentences of problems are in none.
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

    def begun(self, operation: str, queue: str, tenant: str, *, parent: str | None = None) -> Begun | None:
        """The span of a request; None for one that has none. `parent` is the caller's own context."""
        known = _ASKED.get(operation)
        if known is None:
            return None
        name, kind_of_operation, kind = known
        attributes = _attributes(name, kind_of_operation, queue, tenant)
        return Begun(self._tracer.start_span(_named(name, queue), _below(parent), kind, attributes), name, queue)

    def asked(
        self,
        operation: str,
        queue: str,
        tenant: str,
        *,
        messages: int = 0,
        error: str | None = None,
        parent: str | None = None,
    ) -> None:
        """A request that was answered at once. `error` is a problem's code, `queue` empty where there is none of that
        name."""
        if (span := self.begun(operation, queue, tenant, parent=parent)) is not None:
            span.answered(queue, messages, error)

    def served(self, operation: str, parent: str, *, queue: str = "", tenant: str = "", shard: int = -1) -> Begun:
        """The span of something that another process asked for."""
        attributes: dict[str, str | int] = {"rpc.system.name": "pushq", "rpc.method": operation}
        if queue:
            attributes["messaging.system"] = "pushq"
            attributes["messaging.destination.name"] = queue
        if tenant:
            attributes["pushq.tenant"] = tenant
        if shard >= 0:
            attributes["pushq.shard"] = shard
        span = self._tracer.start_span(_named(operation, queue), _below(parent), SpanKind.SERVER, attributes)
        return Begun(span, operation, queue)

    def done(self, operation: str) -> Begun:
        """The span of work that nobody asked for."""
        return Begun(self._tracer.start_span(operation, Context(), SpanKind.INTERNAL), operation, "")

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
        if not messages:
            return
        attributes = _attributes("deliver", "process", queue.name, tenant)
        attributes["messaging.batch.message_count"] = messages
        if queue.group is not None:
            attributes["messaging.consumer.group.name"] = queue.group
        links: list[Link] = []
        if batch.contexts:
            links = batch.links
            attributes["pushq.link_count"] = batch.contexts
        name, kind = _named("deliver", queue.name), SpanKind.CONSUMER
        self._tracer.start_span(name, Context(), kind, attributes, links, start_time=batch.began_ns).end()


class Begun:
    """The span of something under way. It ends once."""

    __slots__ = ("_name", "_queue", "_span", "trace")

    def __init__(self, span: trace.Span, name: str, queue: str):
        self._span = span
        self._name = name
        self._queue = queue
        self.trace = _kept(span.get_span_context())
        """As it travels to other processes."""

    def answered(self, queue: str, messages: int, error: str | None, batch: Batch | None = None) -> None:
        """A request has its answer. `queue` is empty where there turned out to be none of that name."""
        if queue != self._queue:
            self._span.update_name(_named(self._name, queue))
            self._span.set_attribute("messaging.destination.name", queue)
        if error is None:
            self._span.set_attribute("messaging.batch.message_count", messages)
        if batch is not None and batch.contexts:
            self._span.set_attribute("pushq.link_count", batch.contexts)
            for link in batch.links:
                self._span.add_link(link.context)
        self.ended(error)

    def ended(self, error: str | None = None) -> None:
        """`error` is a problem's code."""
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


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


def _named(operation: str, queue: str) -> str:
    return f"{operation} {queue}" if queue else operation


def _below(parent: str | None) -> Context:
    """Empty without a parent: a span that happens to be current would become one."""
    known = None if parent is None else _span_context(parent)
    return Context() if known is None else trace.set_span_in_context(NonRecordingSpan(known), Context())


def _kept(context: SpanContext) -> str:
    """What `_span_context` reads."""
    told = f"00-{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    told += f"-{context.trace_flags:02x}"
    return f"{told} {context.trace_state.to_header()}" if context.trace_state else told


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
