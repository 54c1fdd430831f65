"""OpenTelemetry spans of operations on messages. Imported only if spans are wanted.

A request's span begins with it and travels with its calls to other processes. A delivered batch's span is made when its
outcome is known, with the start time that was noted. Names and attributes are those of the semantic conventions for
messaging. Spans contain no bodies, keys or problem details.
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
"""A caller's operation → the span's operation name, its type, the span's kind. Other requests have no span."""

_MEMBER = re.compile(r"[a-z][a-z0-9_*/-]{0,255}=[\x21-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
"""A member of a `tracestate` that the library certainly accepts. It would log any other, and any client can send
those."""
_MEMBERS_MAX: Final = 32


class Spans:
    """Makes the spans of a process. One call a request, a frame or a batch."""

    def __init__(self, provider: trace.TracerProvider | None = None):
        """Without `provider`, uses the one that the process was started with."""
        self._tracer = trace.get_tracer("pushq", tracer_provider=provider)
        self.are_kept = not isinstance(
            provider or trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
        )
        """Whether a provider records the spans."""

    def begun(self, operation: str, queue: str, tenant: str, *, parent: str | None = None) -> Begun | None:
        """Starts the span of a request; None for an operation that has none. `parent` is the caller's own context."""
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
        """Records a request that was answered at once. `error` is a problem's code; `queue` is empty if there is none
        of that name."""
        if (span := self.begun(operation, queue, tenant, parent=parent)) is not None:
            span.answered(queue, messages, error)

    def served(self, operation: str, parent: str, *, queue: str = "", tenant: str = "", shard: int = -1) -> Begun:
        """Starts the span of an operation that another process asked for."""
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
        """Starts the span of work that no request asked for."""
        return Begun(self._tracer.start_span(operation, Context(), SpanKind.INTERNAL), operation, "")

    def refused(self, operation: str, frame: Any, tenant: str, error: str) -> None:
        """Records a frame that was answered with a problem before the store was asked."""
        if operation in _ASKED:
            queue = "" if error == "queue-not-found" else frame.queue
            self.asked(operation, queue, tenant, error=error, parent=self.parent_of(frame))

    @staticmethod
    def parent_of(frame: Any) -> str | None:
        """The trace context of a frame, as it is stored with messages; frames of bodies alone have none."""
        traceparent: str | None = getattr(frame, "traceparent", None)
        if traceparent is None or frame.tracestate is None:
            return traceparent
        return f"{traceparent} {frame.tracestate}"

    def of_leases(self, leases: Iterable[Lease]) -> Batch:
        """The batch of leases that are about to be rendered; must be made before, as a lease lets go of its messages
        then."""
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
    """The span of an operation under way. It ends once."""

    __slots__ = ("_name", "_queue", "_span", "trace")

    def __init__(self, span: trace.Span, name: str, queue: str):
        self._span = span
        self._name = name
        self._queue = queue
        self.trace = _kept(span.get_span_context())
        """The context as it travels to other processes."""

    def answered(self, queue: str, messages: int, error: str | None, batch: Batch | None = None) -> None:
        """Ends the span of a request that has its answer. `queue` is empty if no queue has that name."""
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
        """Ends the span. `error` is a problem's code."""
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Batch:
    """Messages that are delivered together, with the traces they belong to."""

    __slots__ = ("began_ns", "contexts", "links", "spans")

    def __init__(self, spans: Spans, parts: Iterable[tuple[Chunk, Iterable[int]]]):
        self.spans = spans
        self.began_ns = time_ns()
        kept = _kept_traces(parts)
        self.contexts = len(kept)
        """How many contexts the messages have. Only the first ones are linked."""
        found = [_span_context(one) for one in kept[:SPAN_LINKS_MAX]]
        self.links = [Link(context) for context in found if context is not None]

    def delivered(self, queue: Queue, tenant: str, messages: int) -> None:
        """Records that the messages were handed to one consumer."""
        self.spans.delivered(queue, tenant, messages, self)


def _named(operation: str, queue: str) -> str:
    return f"{operation} {queue}" if queue else operation


def _below(parent: str | None) -> Context:
    """A context below `parent`; empty without one, or the span that happens to be current would become the parent."""
    known = None if parent is None else _span_context(parent)
    return Context() if known is None else trace.set_span_in_context(NonRecordingSpan(known), Context())


def _kept(context: SpanContext) -> str:
    """A context as `_span_context` reads it."""
    told = f"00-{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    told += f"-{context.trace_flags:02x}"
    return f"{told} {context.trace_state.to_header()}" if context.trace_state else told


def _kept_traces(parts: Iterable[tuple[Chunk, Iterable[int]]]) -> list[str]:
    """The distinct contexts of messages, in order."""
    found: dict[str | None, None] = {}
    for chunk, numbers in parts:
        try:
            columns = chunk.messages.columns
        except CorruptEntry:
            continue  # the rendering of the chunk reports it
        kept = None if columns is None else columns.get("trace")
        if kept is not None:
            found.update(dict.fromkeys([kept[n] for n in numbers]))
    return [one for one in found if one]


def _span_context(kept: str) -> SpanContext | None:
    """Parses a stored context. None if it is not valid: a frame that is refused for its context may contain
    anything."""
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
    """Parses a `tracestate`. None if the library would complain about it: the `traceparent` is enough."""
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
