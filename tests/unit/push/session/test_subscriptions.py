"""What a consumer of a work queue holds: credit, what is not sent yet, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.client import Gap
from backend_store.core.leases.receipts import by_token
from backend_store.model import QueueNotFound
from push.delivery.feeder import Feeder
from push.protocol import Unsubscribe
from push.session.requests import unsubscribe
from push.session.subscriptions import LEASES_BEFORE_PRUNING, WorkSubscription
from push.transports import sse
from push.transports.sse import EventStream
from tests.support.world import VISIBILITY_MS, World, attempts_by_seq, queue_of, receipts_by_seq
from throttling.admission import Level


class Outlet:
    def __init__(self) -> None:
        self.writable = True
        self.flushes = 0
        self.lost: list[str] = []

    def flush_soon(self) -> None:
        self.flushes += 1

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        self.lost += receipts


class Setup:
    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.world = World()
        self.queue: Any = queue_of(self.world)
        self.feeder = Feeder(self.queue, loop)

    def subscribe(
        self, credit: int = 100, *, auto: bool = False, bytes_max: int = 1 << 18, tells_begun: bool = False
    ) -> WorkSubscription:
        sub = WorkSubscription(
            Outlet(),
            1,
            self.queue,
            self.feeder,
            credit=credit,
            auto=auto,
            visibility_ms=VISIBILITY_MS,
            pending_bytes_max=bytes_max,
            tells_begun=tells_begun,
        )
        self.queue.consumers += 1
        sub.grant(credit)
        self.turn()
        return sub

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def send(self, sub: WorkSubscription) -> list[int]:
        """The session's flush: what is pending leaves."""
        leases = sub.take_pending()
        seqs = [seq for lease in leases for seq in receipts_by_seq(lease)]
        sub.sent(leases)
        return seqs

    def receipts(self, sub: WorkSubscription) -> dict[int, str]:
        return {seq: text for lease in sub.held() for seq, text in receipts_by_seq(lease).items()}


@pytest.fixture
def setup() -> Iterator[Setup]:
    loop = asyncio.new_event_loop()
    yield Setup(loop)
    loop.close()


def test_no_more_is_outstanding_than_credit_allows(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 10)
    sub = setup.subscribe(credit=3)
    assert setup.send(sub) == [0, 1, 2] and sub.wants() == 0
    receipts = setup.receipts(sub)
    setup.world.ack(receipts[0])
    assert setup.send(sub) == [3]
    setup.world.nack(receipts[1])
    assert setup.send(sub) == [1]
    assert sub.outstanding == 3


def test_a_socket_that_takes_nothing_is_given_nothing(setup: Setup) -> None:
    sub = setup.subscribe()
    assert isinstance(sub.outlet, Outlet)
    sub.outlet.writable = False
    setup.world.stored(b"1")
    assert sub.pending == [] and setup.world.counts == (1, 0, 0)
    sub.outlet.writable = True
    sub.more()
    setup.turn()
    assert setup.send(sub) == [0]


def test_big_messages_wait_for_their_turn_and_then_go_on(setup: Setup) -> None:
    for _ in range(10):
        setup.world.stored(b" " * 1000)
    sub = setup.subscribe(bytes_max=2500)
    seen: list[int] = []
    for _ in range(10):
        seen += setup.send(sub)
        setup.turn()
    assert seen == list(range(10))


def test_automatic_acks_settle_when_the_bytes_have_left(setup: Setup) -> None:
    setup.world.stored(b"1", b"2")
    sub = setup.subscribe(auto=True)
    assert setup.world.counts == (0, 2, 0)
    setup.send(sub)
    setup.world.settle_down()
    assert setup.world.counts == (0, 0, 0) and setup.world.partition.state.acked_total == 2
    assert sub.held() == [] and sub.outstanding == 0


def test_what_was_not_sent_goes_back_uncounted_and_in_order(setup: Setup) -> None:
    for _ in range(3):
        setup.world.stored(b"1", b"2")
    sub = setup.subscribe()
    assert len(sub.pending) == 3
    sub.stop()
    assert setup.world.counts == (6, 0, 0) and setup.queue.consumers == 0
    leases = [setup.world.leased(10) for _ in range(3)]
    assert [attempts_by_seq(lease) for lease in leases] == [{0: 1, 1: 1}, {2: 1, 3: 1}, {4: 1, 5: 1}]


def test_what_was_sent_stays_until_it_is_given_back(setup: Setup) -> None:
    setup.world.stored(b"1", b"2")
    sub = setup.subscribe()
    setup.send(sub)
    setup.world.ack(setup.receipts(sub)[0])
    sub.stop()
    assert setup.world.counts == (0, 1, 0)
    sub.give_back()
    setup.world.commit()
    assert setup.world.counts == (1, 0, 0)
    assert attempts_by_seq(setup.world.leased()) == {1: 2}


def test_of_what_a_consumer_leaves_only_what_it_began_with_was_an_attempt(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 4)
    sub = setup.subscribe(tells_begun=True)
    setup.send(sub)
    receipts = setup.receipts(sub)
    sub.begun(by_token([receipts[1]]))
    setup.world.ack(receipts[0])
    sub.stop()
    sub.give_back()
    setup.world.settle_down()
    assert attempts_of_next(setup) == {1: 2, 2: 1, 3: 1}


def test_of_a_consumer_that_was_cut_what_it_got_first_counts_as_begun(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 4)
    sub = setup.subscribe(tells_begun=True)
    setup.send(sub)
    setup.world.ack(setup.receipts(sub)[0])
    sub.doubt_oldest()
    sub.stop()
    sub.give_back()
    setup.world.settle_down()
    assert attempts_of_next(setup) == {1: 2, 2: 1, 3: 1}


def test_a_part_that_was_extended_alone_keeps_its_mark(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 3)
    sub = setup.subscribe(tells_begun=True)
    setup.send(sub)
    receipts = setup.receipts(sub)
    setup.world.view.extend(by_token([receipts[1]]), VISIBILITY_MS * 2, setup.world.now_ms)
    sub.begun(by_token([receipts[1]]))
    sub.stop()
    sub.give_back()
    setup.world.settle_down()
    assert attempts_of_next(setup) == {0: 1, 1: 2, 2: 1}


def attempts_of_next(setup: Setup) -> dict[int, int]:
    """Of all that the next consumer gets, by seq."""
    other = setup.subscribe()
    setup.turn()
    return {seq: n for lease in other.take_pending() for seq, n in attempts_by_seq(lease).items()}


def test_leases_of_a_session_that_comes_back_go_on_under_the_new_subscription(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 4)
    old = setup.subscribe(credit=4)
    setup.send(old)
    receipts = setup.receipts(old)
    setup.world.extend(receipts[1])
    old.stop()
    new = setup.subscribe(credit=4)
    new.adopt(old.held())
    assert new.outstanding == 4 and new.wants() == 0
    setup.world.ack(receipts[0], receipts[1])
    assert new.outstanding == 2 and new.wants() == 2


def test_a_consumer_hears_of_leases_that_ran_out(setup: Setup) -> None:
    setup.world.stored(b"1", b"2")
    sub = setup.subscribe(credit=2)
    setup.send(sub)
    held = setup.receipts(sub)
    setup.world.ack(held[0])
    setup.world.pass_time(VISIBILITY_MS)
    assert isinstance(sub.outlet, Outlet)
    assert sub.outlet.lost == [held[1]] and sub.outstanding == 0


def test_who_does_not_read_keeps_the_first_message_and_the_others_go_on_untried(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 5)
    sub = setup.subscribe(credit=4)
    leases = sub.take_pending()
    sub.sent_since(leases, heard=1)
    sub.sent(leases)
    receipts = setup.receipts(sub)
    sub.withhold()
    setup.world.settle_down()
    assert isinstance(sub.outlet, Outlet)
    assert sub.outlet.lost == [receipts[1], receipts[2], receipts[3]]
    setup.turn()
    assert sub.wants() == 0 and list(setup.receipts(sub)) == [0]
    assert attempts_of_next(setup) == {1: 1, 2: 1, 3: 1, 4: 1}
    sub.restore()
    assert sub.wants() == 3


def test_what_was_sent_before_the_client_was_heard_stays_with_it(setup: Setup) -> None:
    sub = setup.subscribe(credit=4)
    for heard in (1, 2):
        setup.world.stored(b"1", b"2")
        setup.turn()
        leases = sub.take_pending()
        sub.sent_since(leases, heard=heard)
        sub.sent(leases)
    sub.withhold()
    setup.world.settle_down()
    assert list(setup.receipts(sub)) == [0, 1]


def test_who_lets_all_leases_run_out_gets_one_message_until_it_settles_one(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 5)
    sub = setup.subscribe(credit=3)
    assert setup.send(sub) == [0, 1, 2]
    setup.world.pass_time(VISIBILITY_MS)
    setup.world.settle_down()
    setup.turn()
    assert setup.send(sub) == [0] and sub.wants() == 0
    setup.world.ack(setup.receipts(sub)[0])
    setup.turn()
    assert sub.outstanding == 3


def test_who_settles_some_keeps_its_credit_when_others_run_out(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 4)
    sub = setup.subscribe(credit=3)
    setup.send(sub)
    setup.world.ack(setup.receipts(sub)[0])
    setup.world.pass_time(VISIBILITY_MS)
    assert sub.wants() == 3 - sub.outstanding


def test_settled_leases_are_let_go(setup: Setup) -> None:
    sub = setup.subscribe(credit=10)
    for _ in range(3 * LEASES_BEFORE_PRUNING):
        setup.world.stored(b"1")
        setup.send(sub)
        setup.world.ack(*setup.receipts(sub).values())
    assert len(sub.leases) <= LEASES_BEFORE_PRUNING + 1


def test_a_purge_gives_credit_back_and_says_that_the_leases_are_lost(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 5)
    sub = setup.subscribe(credit=5)
    setup.send(sub)
    receipts = [*setup.receipts(sub).values()]
    setup.world.purge()
    setup.world.commit()
    assert isinstance(sub.outlet, Outlet)
    assert sub.outstanding == 0 and sub.outlet.lost == receipts
    sub.stop()
    sub.give_back()
    setup.world.stored(b"after")
    assert setup.world.counts == (1, 0, 0)


@pytest.mark.parametrize(("credit", "under_load"), [(10, 5), (3, 1), (1, 1)])
def test_under_load_credit_counts_half_and_never_nothing(setup: Setup, credit: int, under_load: int) -> None:
    sub = setup.subscribe(credit=credit)
    assert sub.wants() == credit
    setup.feeder.intake.set_level(Level.NO_NEW_SOCKETS, "the event loop is late")
    assert sub.wants() == under_load
    setup.feeder.intake.set_level(Level.NORMAL, "")
    assert sub.wants() == credit


def test_nothing_newer_is_taken_while_it_is_in_doubt_what_came_before_a_cut(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 5)
    before = setup.subscribe(credit=3)
    setup.send(before)
    before.stop()
    again = setup.subscribe(credit=0)
    again.adopt(before.held())
    again.doubt(before.held(), within_ms=500)
    receipts = setup.receipts(again)
    again.grant(100)
    setup.turn()
    assert setup.send(again) == []
    setup.world.ack(receipts[0])
    again.vouched(by_token([receipts[1]]))
    setup.turn()
    assert setup.send(again) == [], "the third may not have come"
    setup.world.pass_time(500)
    setup.world.settle_down()
    setup.turn()
    assert setup.send(again) == [1, 2, 3, 4], "nobody extended them"


class Session:
    """As much of one as ends subscriptions."""

    def __init__(self, sub: WorkSubscription):
        self.subs = {sub.number: sub}
        self.said: list[object] = []
        self.in_progress = 0

    def drop(self, sub: WorkSubscription) -> None:
        del self.subs[sub.number]
        sub.stop()
        sub.give_back()

    def began(self) -> None:
        self.in_progress += 1

    def ended(self) -> None:
        self.in_progress -= 1

    def ok(self, request_id: object) -> None:
        self.said.append(request_id)


class SlowQueue:
    """A queue whose commits are made by hand."""

    def __init__(self, queue: Any):
        self._queue = queue
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def give_back(self, receipts: list[str], delay_ms: int | None, reply: Any, *, tried: bool) -> None:
        assert not tried
        self.asked.append((receipts, reply))


@pytest.mark.parametrize("outcome", [[], QueueNotFound("deleted")], ids=["back", "its queue is gone"])
def test_a_subscription_ends_with_an_answer_when_what_it_held_is_back(setup: Setup, outcome: Any) -> None:
    setup.world.stored(b"1", b"2")
    sub = setup.subscribe()
    setup.send(sub)
    receipts = setup.receipts(sub)
    sub.queue = queue = cast(Any, SlowQueue(setup.queue))
    session: Any = Session(sub)
    unsubscribe(session, Unsubscribe(sub=1, id=7))
    ((asked, reply),) = queue.asked
    assert (asked, session.said, session.in_progress) == ([receipts[0]], [], 1)
    reply(outcome)
    assert (session.said, session.in_progress) == ([7], 0)


def test_a_subscription_that_holds_nothing_ends_at_once(setup: Setup) -> None:
    session: Any = Session(setup.subscribe())
    unsubscribe(session, Unsubscribe(sub=1, id=7))
    assert (session.said, session.in_progress) == ([7], 0)


def test_a_stream_of_events_that_held_nothing_leaves_nothing_behind(setup: Setup) -> None:
    """What it held waits for acks by POST, for up to an hour as the settings say; who comes and goes holds nothing."""
    later: list[object] = []
    hub: Any = SimpleNamespace(
        stream_closed=lambda stream: None,
        throttle=SimpleNamespace(leave=lambda kind, who: None),
        open=SimpleNamespace(remove=lambda stream: None),
        loop=SimpleNamespace(call_later=lambda seconds, call, sub: later.append(sub)),
        resume_ms=3_600_000,
    )
    principal: Any = SimpleNamespace(tenant="t", id="k")
    setup.world.stored(b"1")
    holds, idle = setup.subscribe(), setup.subscribe()
    assert setup.send(holds) == [0]
    for sub in (holds, idle):
        stream = EventStream(hub, principal, setup.queue)
        stream.sub = sub
        stream._closed()
    assert later == [holds] and setup.queue.consumers == 0


def test_who_settles_nothing_and_misses_more_and_more_keeps_one_gap_a_partition(setup: Setup) -> None:
    """A full stream drops something with each commit: there was a gap more each time, for as long as it stays."""
    hub: Any = SimpleNamespace()
    principal: Any = SimpleNamespace(tenant="t", id="k")
    sub = setup.subscribe()
    stream = EventStream(hub, principal, setup.queue)
    stream.sub = sub
    for seq in range(0, 100, 2):
        stream.tell_gap(0, Gap(seq, seq + 1, seq % 4))
    assert sub.gaps == [Gap(0, 97, 0), Gap(2, 99, 2)]
    sub.missed([Gap(100, 101)], 1)
    assert sub.gaps == [Gap(100, 101)], "it was heard since"


def test_a_client_that_does_not_read_its_events_is_told_one_late_gap_for_many(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "OUTBOX_BYTES_SOFT_MAX", 1_000)
    hub: Any = SimpleNamespace()
    principal: Any = SimpleNamespace(tenant="t", id="k")
    stream = EventStream(hub, principal, setup.queue)
    stream.sub = setup.subscribe()
    for seq in range(500):
        stream.tell_gap(0, Gap(seq, seq))
    assert stream.outbox_bytes < 1_100

    async def said() -> bytes:
        return b"".join([data async for data in stream._batches()])

    gaps = [json.loads(line[6:]) for line in asyncio.run(said()).splitlines() if line.startswith(b"data: ")]
    assert [gap["from"] for gap in gaps] == list(range(len(gaps))) and gaps[-1]["to"] == 499
    assert stream.outbox_bytes == 0 and stream.sub.gaps == [Gap(0, 499)]


@pytest.mark.anyio
async def test_a_quiet_stream_of_events_has_a_comment_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a proxy would take it for dead."""
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    said: list[bytes] = []
    principal: Any = SimpleNamespace(tenant="t", id="k")
    hub: Any = SimpleNamespace(
        feeder=lambda queue: Feeder(queue, loop),
        loop=loop,
        open=SimpleNamespace(add=lambda kind, stream: None, remove=lambda stream: None),
        resume_ms=0,
        stream_closed=lambda stream: None,
        stream_opened=lambda stream: None,
        throttle=SimpleNamespace(enter=lambda kind, who: None, leave=lambda kind, who: None),
    )

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message.get("body", b"").split(b"\n")[0].strip())
        if said.count(b": keep-alive") == 2:
            gone.set()

    answer = sse.response(hub, principal, queue_of(World()), credit=1, ack="manual", from_=None, last_event_id=None)
    async with asyncio.timeout(10):
        await answer({"type": "http", "method": "GET"}, receive, send)
    assert b": welcome" in said and said.count(b": keep-alive") >= 2
