"""Spans of publishes, deliveries, receives and settlements, in the whole application and its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from backend_store.client import Store
from backend_store.model import QueueConfig
from gateway.admission.rate_rules import RateRule
from gateway.app import Application, create_app
from gateway.config.settings import Settings, Throttling
from gateway.identity.authentication import Principal
from push.limits import SPAN_LINKS_MAX
from push.session.session import Session
from push.spans import Spans
from push.transports import sse
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
TURNS_MAX = 500


class Kept:
    """What an exporter got."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(provider)

    def take(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.take(name)
        assert len(found) == 1, [span.name for span in self.exporter.get_finished_spans()]
        return found[0]


class Wire:
    """A socket that takes everything."""

    is_writable = True
    outbox_bytes = 0

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def send_frame(self, payload: bytes, encoding: str) -> None:
        found = msgspec.json.decode(payload)
        self.frames += found if isinstance(found, list) else [found]

    def write(self, data: bytes) -> None:
        """A stream's frame, with its header."""

    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def close(self, code: int, reason: str) -> None: ...
    def blocked_seconds(self) -> float:
        return 0.0


class Client:
    """A session of the application, without its socket."""

    def __init__(self, app: Application, principal: Principal):
        self.wire = Wire()
        self.session = Session(app.gateway.hub, self.wire, "json", principal, "127.0.0.1")  # type: ignore[arg-type]
        app.gateway.hub.accepted(self.session)
        self.say(type="connect")

    def say(self, **frame: Any) -> None:
        self.session.receive(msgspec.json.encode(frame))

    async def heard(self, kind: str) -> dict[str, Any]:
        for _ in range(TURNS_MAX):
            found = [frame for frame in self.wire.frames if frame["type"] == kind]
            if found:
                self.wire.frames.remove(found[0])
                return found[0]
            await asyncio.sleep(0.005)
        raise AssertionError(f"no {kind}: {self.wire.frames}")


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def app(store: Store, clock: Clock, kept: Kept) -> AsyncIterator[Application]:
    rules = (
        RateRule("principal", quota=10_000),
        RateRule("few", per="queue", operations=("publish",), quota=60, window_s=600),
    )
    app = create_app(store, Settings(throttling=Throttling(rules=rules)), clock_ms=clock, spans=kept.spans)
    await store.create_queue("default", "q", QueueConfig())
    await store.create_queue("default", "other", QueueConfig(colocate_with="q"))
    await store.create_queue("default", "s", QueueConfig(kind="stream"))
    yield app
    await app.gateway.hub.close()


@pytest.fixture
async def token(app: Application) -> str:
    return (await app.gateway.keyring.create(name="k", tenant="default", scopes=("admin",))).token


@pytest.fixture
def principal(app: Application, token: str) -> Principal:
    return app.gateway.keyring.identify(token)


@pytest.fixture
async def http(app: Application, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test/v1/queues/", headers=headers) as client:
        yield client


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> str | None:
    if span.parent is None:
        return None
    return f"00-{format_trace_id(span.parent.trace_id)}-{format_span_id(span.parent.span_id)}-01"


def linked(span: ReadableSpan) -> list[str]:
    contexts = [link.context for link in span.links]
    return [f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-01" for context in contexts]


def duration_ns(span: ReadableSpan) -> int:
    assert span.start_time is not None and span.end_time is not None
    return span.end_time - span.start_time


def publish_of(count: int) -> dict[str, Any]:
    return {"messages": [{"body": "secret", "key": "hidden"} for _ in range(count)]}


async def test_publish_over_http_is_a_producer_span_below_the_callers_own(http: httpx2.AsyncClient, kept: Kept) -> None:
    traced = {"traceparent": PARENT, "tracestate": STATE}
    (await http.post("q/messages", json=publish_of(3), headers=traced)).raise_for_status()
    span = kept.one("send q")
    assert span.kind is SpanKind.PRODUCER and parent(span) == PARENT and span.status.status_code is StatusCode.UNSET
    assert span.parent is not None and span.parent.is_remote and span.parent.trace_state.to_header() == STATE
    assert of(span) == {
        "messaging.system": "pushq",
        "messaging.destination.name": "q",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 3,
        "pushq.tenant": "default",
    }
    assert duration_ns(span) > 0


async def test_publish_without_a_context_begins_a_trace(http: httpx2.AsyncClient, kept: Kept) -> None:
    await http.post("q/messages", json=publish_of(1))
    assert kept.one("send q").parent is None


async def test_refused_publish_is_an_error_with_its_code_and_nothing_of_its_content(
    http: httpx2.AsyncClient, kept: Kept
) -> None:
    await http.post(
        "q/messages", json={"messages": [{"body": "secret", "kee": "hidden"}]}, headers={"traceparent": "x"}
    )
    span = kept.one("send q")
    assert span.status.status_code is StatusCode.ERROR and of(span)["error.type"] == "invalid-request"
    assert parent(span) is None
    assert not [word for word in ("secret", "kee", "hidden") if word in span.to_json()]


async def test_unknown_queue_names_no_span(http: httpx2.AsyncClient, kept: Kept) -> None:
    await http.post("nothing/messages", json=publish_of(1))
    assert of(kept.one("send"))["error.type"] == "queue-not-found"


async def test_receive_links_to_the_publishes_and_leaves_their_contexts_alone(
    http: httpx2.AsyncClient, kept: Kept
) -> None:
    for traced in (PARENT, OTHER):
        await http.post("q/messages", json=publish_of(2), headers={"traceparent": traced})
    messages = (await http.post("q/receive", json={"max": 10})).json()["messages"]
    assert [message["traceparent"] for message in messages] == [PARENT, PARENT, OTHER, OTHER]
    span = kept.one("receive q")
    assert span.kind is SpanKind.CLIENT and linked(span) == [PARENT, OTHER]
    found = of(span)
    assert (found["messaging.batch.message_count"], found["pushq.link_count"]) == (4, 2)


async def test_receive_from_a_stream_links_only_what_it_hands_out(http: httpx2.AsyncClient, kept: Kept) -> None:
    for traced in (PARENT, OTHER):
        await http.post("s/messages", json=publish_of(2), headers={"traceparent": traced})
    found = await http.post("s/receive", json={"max": 2, "from": "earliest"})
    assert len(found.json()["messages"]) == 2
    assert linked(kept.one("receive s")) == [PARENT]


async def test_empty_receive_has_a_span_without_links(http: httpx2.AsyncClient, kept: Kept) -> None:
    await http.post("q/receive", json={})
    span = kept.one("receive q")
    assert of(span)["messaging.batch.message_count"] == 0 and not span.links


async def test_batch_of_many_contexts_links_a_bounded_number_and_tells_how_many_there_are(
    http: httpx2.AsyncClient, kept: Kept
) -> None:
    for number in range(1, SPAN_LINKS_MAX + 9):
        traced = {"traceparent": f"00-{number:032x}-00f067aa0ba902b7-01"}
        await http.post("q/messages", json=publish_of(1), headers=traced)
    await http.post("q/receive", json={"max": 100})
    span = kept.one("receive q")
    assert len(span.links) == SPAN_LINKS_MAX and of(span)["pushq.link_count"] == SPAN_LINKS_MAX + 8


async def test_acks_and_nacks_over_http_are_settlements_and_extends_have_no_span(
    http: httpx2.AsyncClient, kept: Kept
) -> None:
    await http.post("q/messages", json=publish_of(2))
    messages = (await http.post("q/receive", json={"max": 2})).json()["messages"]
    one, two = ([message["receipt"]] for message in messages)
    await http.post("q/extend", json={"receipts": two, "visibility_timeout_ms": 60_000})
    await http.post("q/ack", json={"receipts": one}, headers={"traceparent": PARENT})
    await http.post("q/nack", json={"receipts": two})
    ack, nack = kept.one("ack q"), kept.one("nack q")
    assert (ack.kind, parent(ack), of(ack)["messaging.operation.type"]) == (SpanKind.CLIENT, PARENT, "settle")
    assert of(nack)["messaging.batch.message_count"] == 1 and of(nack)["messaging.operation.name"] == "nack"
    assert not kept.take("extend q")


async def test_frames_over_a_websocket_have_the_same_spans(app: Application, principal: Principal, kept: Kept) -> None:
    client = Client(app, principal)
    client.say(type="subscribe", queue="q", credit=10)
    messages = [{"body": 1}, {"body": 2}]
    client.say(type="publish", id=1, queue="q", messages=messages, traceparent=PARENT, tracestate=STATE)
    client.say(type="publish", id=2, queue="q", messages=messages)
    receipts: list[str] = []
    while len(receipts) < 4:
        receipts += [message["receipt"] for message in (await client.heard("deliver"))["messages"]]
    assert sorted(parent(span) or "" for span in kept.take("send q")) == ["", PARENT]
    delivered = kept.take("deliver q")
    assert {span.kind for span in delivered} == {SpanKind.CONSUMER}
    assert sum(of(span)["messaging.batch.message_count"] for span in delivered) == 4
    assert {one for span in delivered for one in linked(span)} == {PARENT}
    assert of(delivered[0])["messaging.operation.type"] == "process"
    client.say(type="ack", id=3, queue="q", receipts=receipts[:2])
    client.say(type="ack", queue="q", receipts=receipts[2:3])
    client.say(type="nack", id=4, queue="q", receipts=receipts[3:])
    for _ in range(TURNS_MAX):
        if len(kept.take("ack q")) == 2 and kept.take("nack q"):
            break
        await asyncio.sleep(0.005)
    assert sorted(of(span)["messaging.batch.message_count"] for span in kept.take("ack q")) == [1, 2]
    assert kept.one("nack q").kind is SpanKind.CLIENT


async def test_stream_over_a_websocket_has_a_span_for_each_reader(
    app: Application, principal: Principal, kept: Kept
) -> None:
    clients = Client(app, principal), Client(app, principal)
    for client in clients:
        client.say(type="subscribe", id=1, queue="s")
        await client.heard("ok")
    clients[0].say(type="publish", id=2, queue="s", messages=[{"body": 1}], traceparent=PARENT)
    await clients[0].heard("ok")
    for _ in range(TURNS_MAX):
        if len(kept.take("deliver s")) == 2:
            break
        await asyncio.sleep(0.005)
    assert [linked(span) for span in kept.take("deliver s")] == [[PARENT], [PARENT]]


@pytest.mark.parametrize("name", ["q", "s"])
async def test_delivery_over_sse_has_a_span(app: Application, principal: Principal, kept: Kept, name: str) -> None:
    hub = app.gateway.hub
    queue = hub.desk.queue(principal, name, "consume")
    answer = sse.response(hub, principal, queue, credit=None, ack="manual", from_=None, last_event_id=None)
    events = aiter(answer.body_iterator)
    assert b"welcome" in await anext(events)  # type: ignore[operator]
    Client(app, principal).say(type="publish", id=1, queue=name, messages=[{"body": 1}], traceparent=PARENT)
    assert b"message" in await anext(events)  # type: ignore[operator]
    span = kept.one(f"deliver {name}")
    assert (span.kind, linked(span), of(span)["messaging.batch.message_count"]) == (SpanKind.CONSUMER, [PARENT], 1)


async def test_refused_frames_have_a_span_with_the_reason(app: Application, principal: Principal, kept: Kept) -> None:
    client = Client(app, principal)
    client.say(type="publish", id=1, queue="nothing", messages=[{"body": 1}])
    client.say(type="publish", id=2, queue="q", messages=[{"body": 1}], traceparent="no-trace-at-all")
    client.say(type="ack", id=3, queue="nothing", receipts=["x"])
    assert of(kept.one("send"))["error.type"] == "queue-not-found"
    assert of(kept.one("send q"))["error.type"] == "invalid-request" and kept.one("send q").parent is None
    assert of(kept.one("ack"))["error.type"] == "queue-not-found"


async def test_frame_above_the_rate_has_a_span_with_the_reason(
    app: Application, principal: Principal, kept: Kept
) -> None:
    client = Client(app, principal)
    messages = [{"body": 1}]
    client.say(type="subscribe", queue="other", credit=1)
    client.say(type="publish", queue="other", messages=messages)
    receipts = [message["receipt"] for message in (await client.heard("deliver"))["messages"]]
    for number in range(80):
        client.say(type="publish", id=number, queue="q", messages=messages, traceparent=PARENT)
    refused = [span for span in kept.take("send q") if span.status.status_code is StatusCode.ERROR]
    assert refused and {of(span)["error.type"] for span in refused} == {"rate-limited"}
    assert {parent(span) for span in refused} == {PARENT}
    client.say(type="ack", id=999, queue="other", receipts=receipts, publish=[{"queue": "q", "messages": messages}])
    assert of(kept.one("ack other"))["error.type"] == "rate-limited"


async def test_tracestate_that_the_library_would_complain_about_is_left_out(
    http: httpx2.AsyncClient, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in ("no member", "a=1,a=2", ",".join(f"m{n}=1" for n in range(40))):
        await http.post("q/messages", json=publish_of(1), headers={"traceparent": PARENT, "tracestate": wrong})
    assert [(parent(span), len(span.parent.trace_state)) for span in kept.take("send q") if span.parent] == [
        (PARENT, 0)
    ] * 3
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_application_that_was_not_told_to_makes_no_spans(store: Store, clock: Clock) -> None:
    app = create_app(store, Settings(), clock_ms=clock)
    assert app.gateway.hub.spans is None
    await app.gateway.hub.close()


def test_process_without_a_tracer_provider_knows_that_nobody_takes_its_spans() -> None:
    assert Kept().spans.are_kept
    assert not Spans().are_kept
