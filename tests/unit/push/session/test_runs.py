"""Frames of one turn are handled together, and nobody can tell: answers, order, counts and limits are those of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.model import Overloaded, QueueConfig, Quotas
from gateway.admission.throttle import Throttle
from gateway.desk import GatewayDesk
from gateway.identity.authentication import NEVER_MS, Keyring, Principal
from gateway.identity.authorization import compile_scopes
from gateway.identity.tickets import TicketOffice
from gateway.usage.meter import Meter
from push.delivery.hub import Hub
from push.intake import Intake
from push.protocol import REQUEST_ID_CHARS_MAX, REQUESTS_IN_PROGRESS_MAX
from push.session import runs
from push.session.session import Session
from tests.support.sealed import opened_sealed
from throttling.census import Census, Who
from throttling.limiter import MemoryLimiter
from throttling.rules import Rule

pytestmark = pytest.mark.anyio

ANN = Principal("ann", "default", "ann", compile_scopes(["publish:*", "consume:*"]), NEVER_MS, b"")
QUEUES = {
    "q": QueueConfig(),
    "other": QueueConfig(),
    "clear": QueueConfig(encrypted=False),
    "stream": QueueConfig(kind="stream"),
    "relaxed": QueueConfig(durability="relaxed"),
    "short": QueueConfig(max_messages=3),
    "named": QueueConfig(dedupe="content"),
    "late": QueueConfig(delay_ms=60_000),
    "small": QueueConfig(max_message_bytes=20),
}
Frame = dict[str, Any]


class Wire:
    """What a session wrote, frame by frame, and whether it wants more."""

    is_writable = True
    waiting_bytes = outbox_bytes = 0

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.frames: list[Frame] = []
        self.is_paused = False
        self.closed = 0

    def send_frame(self, payload: bytes, encoding: str) -> None:
        found = self._codec.decode(payload)
        self.frames += found if isinstance(found, list) else [found]

    def write(self, data: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def pause(self) -> None:
        self.is_paused = True

    def unpause(self) -> None:
        self.is_paused = False


class World:
    """A session of a whole gateway without a socket, on a store in memory whose queues are encrypted."""

    def __init__(self, hub: Hub, meter: Meter, limiter: MemoryLimiter, encoding: Any) -> None:
        self.hub, self.meter, self.limiter = hub, meter, limiter
        self.codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
        self.wire = Wire(self.codec)
        self.session = Session(hub, self.wire, encoding, ANN, "")  # type: ignore[arg-type]
        self.session.opened, self.session.who = True, Who(ANN.tenant, ANN.id, "")
        hub.throttle.enter("connections", self.session.who)

    def hear(self, frames: Sequence[Frame | bytes]) -> None:
        for frame in frames:
            self.session.receive(frame if isinstance(frame, bytes) else self.codec.encode(frame))

    async def answered(self) -> None:
        async with asyncio.timeout(10):
            while self.session.in_progress or self.session._dirty:  # noqa: ASYNC110 - the store calls back
                await asyncio.sleep(0)

    def counted(self) -> Counter[tuple[str, ...]]:
        """Requests, messages and bytes by queue, operation and outcome."""
        found: Counter[tuple[str, ...]] = Counter()
        for row in self.meter.take(unfinished=True):
            who = (row.queue, row.operation, row.outcome)
            found.update({(*who, "requests"): row.requests, (*who, "messages"): row.messages})
            found.update({(*who, "bytes"): row.bytes_in, (*who, "latencies"): sum(row.latency_counts)})
        return found

    def seen(self) -> list[Frame]:
        return [without_times(frame) for frame in self.wire.frames]


def without_times(value: Any) -> Any:
    """The same without what differs from one time to the next."""
    if isinstance(value, dict):
        moving = ("retry_after_ms", "published_at", "receipt", "cursor")
        return {name: without_times(one) for name, one in value.items() if name not in moving}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@asynccontextmanager
async def world(*rules: Rule, encoding: str = "json") -> AsyncIterator[World]:
    store = (await opened_sealed()).store
    for name, config in QUEUES.items():
        await store.create_queue("default", name, config)
    desk = GatewayDesk(store, Keyring(store, lambda: 1), TicketOffice(lambda: 1), allowed_origins=(), dev=False)
    limiter, meter = MemoryLimiter(clock_ns=lambda: 10**12), Meter("node", lambda: 1)
    throttle = Throttle(limiter, rules, Census(), quotas_of=lambda tenant: Quotas(), has_queue=lambda *_: True)
    intake = Intake(unconfirmed_bytes_max=1_000_000)
    hub = Hub(store, desk, clock_ms=store.steady_ms, meter=meter, throttle=throttle, intake=intake)
    try:
        yield World(hub, meter, limiter, encoding)
    finally:
        await hub.close()
        await store.close()


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each run had that was handled as one."""
    found: list[int] = []

    def watched(handle: runs.Handle) -> runs.Handle:
        def call(session: Session, frames: Sequence[Any]) -> bool:
            done = handle(session, frames)
            if done:
                found.append(len(frames))
            return done

        return call

    monkeypatch.setattr(runs, "publish", watched(runs.publish))
    monkeypatch.setattr(runs, "ack", watched(runs.ack))
    return found


def publish(queue: str, *bodies: Any, **more: Any) -> Frame:
    return {"type": "publish", "queue": queue, "messages": [{"body": body} for body in bodies], **more}


async def compared(
    frames: Sequence[Frame | bytes],
    *rules: Rule,
    encoding: str = "json",
    before: Callable[[World], None] = lambda world: None,
) -> World:
    """Plays frames in one turn and one by one; whatever anybody may see of it has to be the same."""
    async with world(*rules, encoding=encoding) as alone:
        before(alone)
        for frame in frames:
            alone.hear([frame])
            alone.session.turn_ended()
        await alone.answered()
        async with world(*rules, encoding=encoding) as together:
            before(together)
            together.hear(frames)
            together.session.turn_ended()
            await together.answered()
            assert together.seen() == alone.seen()
            assert together.counted() == alone.counted()
            assert (together.wire.closed, together.wire.is_paused) == (alone.wire.closed, alone.wire.is_paused)
            assert together.hub.intake.refused == alone.hub.intake.refused
            assert together.hub.intake.room.used == alone.hub.intake.room.used == 0
            for rule in rules:
                assert together.limiter._tables.get(rule.name) == alone.limiter._tables.get(rule.name)
            assert await stored(together) == await stored(alone)
            return together


async def stored(world: World) -> dict[str, list[tuple[str, Any]]]:
    """Ids and bodies by queue, as a consumer gets them."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name in QUEUES:
        reader = World(world.hub, world.meter, world.limiter, "json")
        queue: Any = world.hub.desk.queue(ANN, name, "consume")
        while not queue._partitions.first.is_idle:  # noqa: ASYNC110 - a relaxed queue answers before it commits
            await asyncio.sleep(0)
        ready = queue.ready
        begin = {"group": "g", "from": "earliest"} if name == "stream" else {}
        reader.hear([{"type": "subscribe", "queue": name, "credit": 1000, **begin}])
        async with asyncio.timeout(10):
            while len(of_sub(reader, 1)) < ready:  # noqa: ASYNC110 - the feeder goes on by itself
                await asyncio.sleep(0)
        found[name] = [(one["id"], one.get("body", one.get("body_base64"))) for one in of_sub(reader, 1)]
    return found


def of_sub(reader: World, number: int) -> list[Frame]:
    return [m for f in reader.wire.frames if f["type"] == "deliver" and f["sub"] == number for m in f["messages"]]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize("queue", ["q", "clear", "stream", "relaxed"])
async def test_publishes_are_answered_each_by_its_id_in_their_order(
    queue: str, encoding: str, handled: list[int]
) -> None:
    body: Any = (lambda n: n) if encoding == "json" else (lambda n: b"%d" % n)
    frames = [publish(queue, body(n), id=n if n % 3 else f"n%{n}") for n in range(100)]
    frames += [
        publish(queue, body(1), body(2), body(3), id=200),
        publish(queue, body(4)),
        publish(queue, body(5), id=5),
    ]
    together = await compared(frames, encoding=encoding)
    answers = [f for f in together.seen() if f["type"] == "ok"]
    assert len(answers) == 102 and handled == [103]


@pytest.mark.parametrize("queue", ["short", "named", "late"])
async def test_a_queue_that_looks_at_each_call_gets_each(queue: str, handled: list[int]) -> None:
    await compared([publish(queue, n % 3, id=n) for n in range(9)])
    assert not handled


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (publish("q", id=7), "invalid-request"),
        (publish("q", "x", id="x" * (REQUEST_ID_CHARS_MAX + 1)), "invalid-request"),
        (publish("small", "x" * 40, id=7), "message-too-large"),
        (publish("nowhere", 1, id=7), "queue-not-found"),
        (publish("q", 1, id=7, timeout_ms=0), "invalid-request"),
        (publish("q", 1, id=7, idempotency_key=""), "invalid-request"),
        (b'{"type":"publish","queue":"q","id":7,"messages":[{"body":1e999}]}', "invalid-request"),
        (b'{"type":"publish","queue":"q","id":7,"messages":3}', "invalid-request"),
    ],
)
async def test_one_that_is_refused_takes_no_other_with_it(wrong: Frame | bytes, code: str) -> None:
    queue = wrong["queue"] if isinstance(wrong, dict) else "q"
    frames: list[Frame | bytes] = [publish(queue, n, id=n) for n in range(4)]
    together = await compared([*frames, wrong, *frames])
    assert code in [f["problem"]["code"] for f in together.seen() if f["type"] == "error"]


async def test_other_frames_between_them_keep_their_place(handled: list[int]) -> None:
    frames: list[Frame] = [publish("q", n, id=n) for n in range(3)]
    frames += [{"type": "ping", "id": 50}, publish("q", 3, id=3), publish("q", 4, id=4)]
    frames += [publish("other", 5, id=5), publish("other", 6, id=6), publish("q", "k", id=7, idempotency_key="k")]
    frames += [{**publish("q", 8, id=8), "messages": [{"body": 8, "key": "k"}]}, publish("q", 9, id=9)]
    frames += [publish("q", *range(65), id=10), {"type": "unsubscribe", "sub": 9, "id": 11}]
    await compared(frames)
    assert handled == [3, 2, 2]


async def test_a_list_of_frames_is_not_a_run_and_ends_one(handled: list[int]) -> None:
    several = msgspec.json.encode([publish("q", n, id=n) for n in range(3)])
    await compared([publish("q", 8, id=8), several, publish("q", 9, id=9)])
    assert not handled


@pytest.mark.parametrize(
    "rule",
    [
        Rule("requests", 5, operations=frozenset({"publish"})),
        Rule("messages", 5, unit="messages", operations=frozenset({"publish"})),
        Rule("bytes", 260, unit="bytes", operations=frozenset({"publish"})),
        Rule("queue", 5, per=("tenant", "queue"), operations=frozenset({"publish"})),
    ],
    ids=lambda rule: rule.name,
)
async def test_a_rule_that_some_of_them_go_beyond_refuses_those_alone(rule: Rule, handled: list[int]) -> None:
    together = await compared([publish("q", 1, id=n) for n in range(9)], rule)
    kinds = Counter(frame["type"] for frame in together.seen())
    assert kinds == {"ok": 5, "error": 4} and not handled


@pytest.mark.parametrize(
    "rule",
    [
        Rule("requests", 1000, window_s=10),
        Rule("messages", 1000, window_s=10, unit="messages"),
        Rule("bytes", 100_000, window_s=10, unit="bytes"),
    ],
    ids=lambda rule: rule.name,
)
async def test_within_a_rule_they_cost_what_each_costs(rule: Rule, handled: list[int]) -> None:
    await compared([publish("q", "body", id=n) for n in range(70)], rule)
    assert handled == [70]


async def test_without_room_for_all_some_are_taken(handled: list[int]) -> None:
    def fill(world: World) -> None:
        assert world.hub.intake.room.take("neighbour", 1_000_000 - 300)

    async with world() as one:
        fill(one)
        one.hear([publish("q", n, id=n) for n in range(9)])
        one.session.turn_ended()
        await one.answered()
        kinds = Counter(frame["type"] for frame in one.seen())
    assert kinds["ok"] >= 1 and kinds["error"] >= 1 and kinds.total() == 9 and not handled


async def test_at_the_end_of_the_line_those_are_taken_that_fit(handled: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr("backend_store.node.commit.inbox.INBOX_MESSAGES_MAX", 5)

    def tight(world: World) -> None:
        world.hub.intake.met_end()

    for before in (lambda world: None, tight):
        async with world() as one:
            before(one)
            one.hear([publish("q", n, id=n) for n in range(9)])
            one.session.turn_ended()
            await one.answered()
            answers = [(frame["type"], frame["id"]) for frame in one.seen()]
        assert sorted(i for kind, i in answers if kind == "ok") == [0, 1, 2, 3, 4]
        assert sorted(i for kind, i in answers if kind == "error") == [5, 6, 7, 8]
    assert sum(handled) <= 5


async def test_under_load_they_are_refused_one_by_one(handled: list[int]) -> None:
    def loaded(world: World) -> None:
        world.hub.intake.publishes = 1

    together = await compared([publish(q, n, id=n) for n in range(4) for q in ("relaxed",)], before=loaded)
    assert {f["problem"]["code"] for f in together.seen()} == {"overloaded"} and not handled


async def test_no_more_are_in_progress_than_may_be(handled: list[int]) -> None:
    async with world() as one:
        one.session.began(REQUESTS_IN_PROGRESS_MAX - 3)
        one.hear([publish("q", 1, id=1), publish("q", 2, id=2)])
        assert not one.wire.is_paused
        one.hear([publish("q", 3, id=3)])
        assert one.wire.is_paused and one.session.in_progress == REQUESTS_IN_PROGRESS_MAX
        one.session.ended(REQUESTS_IN_PROGRESS_MAX - 3)
        await one.answered()
        assert not one.wire.is_paused and handled == [3]


@pytest.mark.parametrize("is_list", [False, True])
async def test_the_time_of_a_publish_that_is_held_behind_another_frame_counts_from_when_it_came(is_list: bool) -> None:
    async with world() as one:
        may_go = asyncio.Event()

        async def later() -> None:
            await may_go.wait()

        one.session.gate.enter(later(), lambda: None, lambda error: None)
        frames = [publish("q", 1, id="hasty", timeout_ms=10), publish("q", 2, id="patient", timeout_ms=60_000)]
        one.hear([one.codec.encode(frames)] if is_list else frames)
        await asyncio.sleep(0.02)
        may_go.set()
        async with asyncio.timeout(10):
            while len(one.wire.frames) < 2:  # noqa: ASYNC110 - the gate opens by itself
                await asyncio.sleep(0)
        said = {frame["id"]: frame.get("problem", frame).get("code", "ok") for frame in one.wire.frames}
        assert said == {"hasty": "overloaded", "patient": "ok"}
        assert one.hub.desk.publish_to(ANN, "q").stats().published_total == 1


async def test_those_behind_a_frame_that_waits_for_its_limits_wait_too() -> None:
    async with world() as one:
        ready = asyncio.Event()

        async def later() -> None:
            await ready.wait()

        one.session.gate.enter(later(), lambda: one.session.send({"type": "first"}), lambda error: None)
        one.hear([publish("q", n, id=n) for n in range(3)])
        one.session.turn_ended()
        await asyncio.sleep(0)
        assert not one.wire.frames and not one.session.in_progress
        ready.set()
        while len(one.wire.frames) < 4:  # noqa: ASYNC110 - the store calls back
            await asyncio.sleep(0)
        assert [frame.get("id") for frame in one.wire.frames] == [None, 0, 1, 2]


async def test_of_a_session_that_closed_nothing_more_is_done() -> None:
    async with world() as one:
        one.hear([publish("q", 1, id=1), publish("q", 2, id=2)])
        one.session.gone(clean=True, code=1000)
        one.session.turn_ended()
        assert not one.session.in_progress and not one.counted()


async def test_answers_of_a_session_that_closed_meanwhile_give_back_what_was_held(handled: list[int]) -> None:
    async with world() as one:
        one.hear([publish("q", 1, id=1), publish("q", 2, id=2)])
        one.session.turn_ended()
        assert handled == [2] and one.hub.intake.room.used
        one.session.gone(clean=True, code=1000)
        await one.answered()
        assert not one.hub.intake.room.used and not one.wire.frames
        assert one.counted()["q", "publish", "ok", "messages"] == 2


async def test_with_spans_every_frame_is_one_of_its_own(handled: list[int]) -> None:
    async with world() as one:
        told: list[str] = []
        one.hub.spans = SimpleNamespace(  # type: ignore[assignment]
            begun=lambda operation, *_, **__: told.append(operation), parent_of=lambda frame: None
        )
        one.hear([publish("q", n, id=n) for n in range(3)])
        one.session.turn_ended()
        await one.answered()
        assert told == ["publish"] * 3 and not handled


async def test_a_limit_that_came_meanwhile_refuses_some_and_says_so_to_those(handled: list[int]) -> None:
    async with world() as one:
        one.hear([publish("q", n, n, id=n) for n in range(4)])
        one.session.turn_ended()
        queue: Any = one.hub.desk.queue(ANN, "q", "consume")
        queue._partitions.first.configure(msgspec.structs.replace(queue.config, max_messages=5))
        await one.answered()
        kinds = {frame["id"]: frame["type"] for frame in one.seen()}
        assert handled == [4] and kinds == {0: "ok", 1: "ok", 2: "ok", 3: "error"}
        (third,) = [frame for frame in one.seen() if frame["id"] == 2]
        assert ["error" in row for row in third["messages"]] == [False, True]
        counted = one.counted()
        assert counted["q", "publish", "ok", "requests"] == 3 and counted["q", "publish", "queue-full", "requests"] == 1
        assert not one.hub.intake.room.used and not one.session.in_progress


async def test_a_refusal_of_all_goes_to_each(monkeypatch: pytest.MonkeyPatch, handled: list[int]) -> None:
    async with world() as one:
        queue: Any = one.hub.desk.queue(ANN, "q", "consume")
        one.hear([publish("q", n, id=n) for n in range(3)])
        full = Overloaded("it waits no longer")
        monkeypatch.setattr(type(queue), "publish", lambda self, blocks, reply, claim=None, *, until_ms=0: reply(full))
        one.session.turn_ended()
        assert [(f["id"], f["problem"]["code"]) for f in one.seen()] == [(n, "overloaded") for n in range(3)]
        assert handled == [3] and one.hub.intake.is_tight and not one.session.in_progress
        assert one.counted()["q", "publish", "overloaded", "requests"] == 3


async def test_of_a_run_refused_at_an_end_that_nobody_foresaw_the_next_frames_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch, handled: list[int]
) -> None:
    """As in the line of a backend elsewhere, which has room for two messages here."""
    async with world() as one:
        kind: Any = type(one.hub.desk.queue(ANN, "q", "consume"))
        store, waiting = kind.publish, [0]

        def publish_to(self: Any, blocks: Any, reply: Any, claim: Any = None, *, until_ms: int = 0) -> None:
            count = sum(block.count for block in blocks)
            if waiting[0] + count > 2:
                reply(Overloaded("the line is full"))
                return
            waiting[0] += count
            store(self, blocks, reply, claim, until_ms=until_ms)

        monkeypatch.setattr(kind, "publish", publish_to)
        monkeypatch.setattr(kind, "why_full", lambda *_: None)

        async def kinds(queue: str = "q") -> list[str]:
            one.wire.frames.clear()
            handled.clear()
            waiting[0] = 0
            one.hear([publish(queue, n, id=n) for n in range(3)])
            one.session.turn_ended()
            await one.answered()
            return [frame["type"] for frame in sorted(one.seen(), key=lambda frame: frame["id"])]

        assert await kinds() == ["error"] * 3 and handled == [3]
        assert await kinds() == ["ok", "ok", "error"] and not handled
        assert await kinds("other") == ["error"] * 3 and handled == [3], "of each queue by itself"
        assert await kinds() == ["ok", "ok", "error"] and not handled
        one.hub.intake.look()
        assert await kinds() == ["ok", "ok", "error"] and not handled, "some were refused a moment ago"
        one.hub.intake.look()
        one.hub.intake.look()
        assert await kinds() == ["error"] * 3 and handled == [3], "nobody was refused for a while: it may have room"


# ----------------------------------------------------------------------------------------------------------- acks


async def consumed(one: World, count: int) -> list[str]:
    one.hear([publish("q", *range(count)), {"type": "subscribe", "queue": "q", "credit": count, "id": "sub"}])
    async with asyncio.timeout(10):
        while len(of_sub(one, 1)) < count:  # noqa: ASYNC110 - the feeder goes on by itself
            await asyncio.sleep(0)
    one.counted()
    return [message["receipt"] for message in of_sub(one, 1)]


def ack(*receipts: str, **more: Any) -> Frame:
    return {"type": "ack", "queue": "q", "receipts": list(receipts), **more}


async def test_acks_without_an_answer_are_settled_together_and_counted_each(handled: list[int]) -> None:
    async with world() as one:
        receipts = await consumed(one, 8)
        handled.clear()
        one.hear([ack(receipt) for receipt in receipts[:5]])
        one.hear([ack(receipts[5], id=1), ack("forged"), ack(receipts[6]), ack()])
        one.session.turn_ended()
        await one.answered()
        queue: Any = one.hub.desk.queue(ANN, "q", "consume")
        while queue.stats().in_flight > 1:  # noqa: ASYNC110 - the store commits by itself
            await asyncio.sleep(0)
        assert handled == [5, 3] and one.counted()["q", "ack", "ok", "requests"] == 9
        (answer,) = [frame for frame in one.seen() if frame.get("id") == 1]
        assert answer["results"][0]["ok"]


async def test_an_ack_that_is_refused_is_refused_by_itself(handled: list[int]) -> None:
    frames = [{**ack("x"), "queue": "nowhere"}, {**ack("y"), "queue": "nowhere"}, ack("z"), ack("z")]
    together = await compared(frames)
    assert handled == [2]
    assert [frame["problem"]["code"] for frame in together.seen()] == ["queue-not-found"] * 2
