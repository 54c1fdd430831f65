"""What a backend says of leases, at a gateway with many queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from backend_store.client.pulses import Pulse
from backend_store.client.streams import Gap
from backend_store.core.leases.receipts import TokenFields, group_field, make_token
from backend_store.core.log.sublogs import MAIN, VIEW_DEAD, VIEW_MAIN
from backend_store.metadata.data_keys import DataKey
from backend_store.metadata.moved import MovedQueue
from backend_store.metadata.partition_maps import only_partition
from backend_store.metadata.recent import Rows
from backend_store.model import ApiKey, PushqError, QueueConfig, QueueDefinition, QueueNotFound, Unavailable
from backend_store.remote.home import Home
from backend_store.remote.limits import GAPS_KEPT
from backend_store.remote.line import pulses
from backend_store.remote.line.pulses import PulseBook
from backend_store.remote.queues import streams
from backend_store.remote.queues.leases import Stock, Unassigned
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.streams import RemoteGroup, RemoteStream
from backend_store.remote.store import RemoteBackends
from backend_store.service.definitions import Definitions
from backend_store.service.groups import Opened
from backend_store.service.pulses import AsOf, PulseNews, TakePulses
from backend_store.wire.store_frames import (
    Defined,
    Ended,
    Idle,
    Leases,
    Settles,
    from_backend,
    from_gateway,
    of_bits,
    pack,
    raw,
)
from tests.support.chunks import any_chunk, chunk_state
from tests.support.patience import eventually
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio

QUEUES = 20
TOKENS = 50


class Nowhere:
    def address(self, shard: int) -> None:
        """Nobody is known."""

    def failed(self, shard: int, address: Any, leader: str | None) -> None: ...


def looking_up(what: str, flight: Any) -> PushqError:
    return Unavailable(what)


@pytest.fixture
async def store() -> AsyncIterator[RemoteBackends]:
    store = RemoteBackends(Nowhere(), None, looking_up)
    config = QueueConfig()
    queues = [QueueDefinition(uid, "t", f"q{uid}", config, 0, 1) for uid in range(1, QUEUES + 1)]
    store.defined(Definitions(queues=queues), is_first=True)
    yield store
    await store.close()


def leased(queue: RemoteQueue, lease: int, *, view: int = VIEW_MAIN) -> tuple[str, Consumer]:
    """A lease of two messages that a consumer here holds."""
    fields = TokenFields(0, 0, queue.uid, 1, group_field(view, MAIN), 10 * lease, lease, 0, 1)
    token, consumer = make_token(b"s" * 32, fields), Consumer()
    state = chunk_state(10 * lease, [None, None])
    queue.stock.came(30_000, Unassigned(token, state, any_chunk(10 * lease, 2), 0b11, has_receipts=True))
    assert queue.take(2, consumer, 30_000) is not None
    return token, consumer


async def test_ended_leases_are_told_to_the_queues_that_they_are_of(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [store.here("t", f"q{uid}") for uid in range(1, QUEUES + 1)]
    dead = store.here("t", "q1.dead")
    held = [leased(queue, number) for number in range(TOKENS) for queue in queues[:1]]
    letter, its_holder = leased(dead, TOKENS, view=VIEW_DEAD)
    other, unharmed = leased(queues[1], 1)
    looks: list[str] = []
    void = Stock.void
    monkeypatch.setattr(Stock, "void", lambda stock, token, bits: (looks.append(token), void(stock, token, bits))[1])
    lost = [(token, of_bits(0b01)) for token, _ in held]
    store.homes[0].ended(Ended([*lost, (letter, of_bits(0b11)), ("no token", of_bits(1))], []))
    store.homes[0].ended(Ended([], [(held[0][0], of_bits(0b10))]))
    assert [consumer.released_total for _, consumer in held] == [2, *[1] * (TOKENS - 1)]
    assert all(consumer.lost_receipts == [token + "00"] for token, consumer in held)
    assert its_holder.lost_receipts == [letter + "00", letter + "01"]
    assert unharmed.released_total == 0 and queues[1].stock.parts(other)
    assert len(looks) <= 2 * (TOKENS + 2), "each is looked for where it may be: the queue and its companion"


async def test_news_of_one_queue_cost_no_look_at_all_queues(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lets leases of his own queue run out would have a gateway look at everybody's, again and again."""
    queue, dead = store.here("t", "q1"), store.here("t", "q1.dead")
    held = [leased(queue, 1), leased(dead, 2, view=VIEW_DEAD)]
    came: list[RemoteQueue] = []
    monkeypatch.setattr(RemoteQueue, "came_to_be", lambda queue: came.append(queue))
    monkeypatch.setattr(RemoteBackends, "queues", None)
    store.homes[0].ended(Ended([(token, of_bits(0b11)) for token, _ in held], []))
    assert [consumer.released_total for _, consumer in held] == [2, 2]
    store.homes[0].came_to_be(queue.definition)
    assert came == [queue, dead]
    monkeypatch.undo()


class Untouched(dict[Any, Any]):
    """Nobody looks at all that is in it."""

    def __iter__(self) -> Any:
        raise AssertionError("all rows were looked at")

    items = keys = values = __iter__


class UntouchedRows(Rows[Any, Any]):
    """As above."""

    def __iter__(self) -> Any:
        raise AssertionError("all rows were looked at")

    items = keys = values = __iter__


async def test_a_change_of_one_definition_costs_no_look_at_the_others(store: RemoteBackends) -> None:
    """With many queues a gateway once stood still for a moment with each queue that anybody made."""
    used = [store.here("t", f"q{uid}") for uid in range(1, QUEUES + 1)]
    deleted: list[RemoteQueue] = []
    store.on_deleted(deleted.append)
    store.metadata.queues, definitions = Untouched(store.metadata.queues), store.metadata.queues
    store._queues, queues = Untouched(store._queues), store._queues
    changed = msgspec.structs.replace(used[0].definition, version=2, config=QueueConfig(max_attempts=7))
    anew = msgspec.structs.replace(used[1].definition, uid=QUEUES + 1)
    news = Definitions(queues=[changed, anew], queues_gone=[("t", "q3"), ("t", "unknown")])
    store.defined(news, is_first=False)
    assert used[0].config.max_attempts == 7
    assert deleted == used[1:3], "one whose name another one has now, and one that is gone"
    assert store.here("t", "q2").uid == QUEUES + 1
    assert store.metadata.of_uid(1) == changed
    assert store.metadata.of_uid(QUEUES + 1) == anew
    assert store.metadata.of_uid(2) is store.metadata.of_uid(3) is None
    store.metadata.queues, store._queues = definitions, queues


async def test_the_first_word_of_a_backend_of_an_earlier_version_is_all_there_is(store: RemoteBackends) -> None:
    """It says neither that more follows nor that it goes on."""
    home, queues = store.first, [one for one in store.all_definitions() if one.uid in (1, 2)]
    heard = from_backend(pack(("defined", False, raw(Definitions(queues=queues)))))
    assert isinstance(heard, Defined)
    home.defined(heard, is_first=True)
    assert set(store.metadata.queues) == {("t", "q1"), ("t", "q2")}


async def test_a_tenants_queues_are_listed_without_a_look_at_those_of_others(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._looks, "check_tenant", lambda tenant, homes: None)
    few = [QueueDefinition(100 + number, "few", name, QueueConfig(), 0, 1) for number, name in enumerate("abc")]
    store.defined(Definitions(queues=few), is_first=False)
    anew = msgspec.structs.replace(few[2], uid=200)
    store.defined(Definitions(queues=[anew], queues_gone=[("few", "a"), ("t", "q1")]), is_first=False)
    store.metadata.queues, definitions = Untouched(store.metadata.queues), store.metadata.queues
    assert list(store.names("few")) == [("few", "b"), ("few", "c")]
    assert store.metadata.of_tenant("few") == [few[1], anew] and store.metadata.of_tenant("nobody") == []
    store.metadata.queues = definitions


async def test_what_a_new_connection_does_not_tell_of_has_gone(store: RemoteBackends) -> None:
    used = [store.here("t", f"q{uid}") for uid in (1, 2, 3)]
    deleted: list[RemoteQueue] = []
    store.on_deleted(deleted.append)
    anew = msgspec.structs.replace(used[1].definition, uid=QUEUES + 1)
    store.defined(Definitions(queues=[used[0].definition, anew]), is_first=True)
    assert deleted == used[1:]
    assert set(store.metadata.queues) == {("t", "q1"), ("t", "q2")}


async def test_a_deleted_queue_sends_on_and_a_map_counts_while_everything_is_told_anew(store: RemoteBackends) -> None:
    """Each part lets others have their turn: who publishes meanwhile must not be told that there is no such queue."""
    home, definition = store.first, store.metadata.queues["t", "q1"]
    gone, kept = (QueueDefinition(uid, "t", f"gone{uid}", QueueConfig(), 0, 1) for uid in (101, 102))
    moved = [MovedQueue(one, "q1", 1 << 60) for one in (gone, kept)]
    maps = [only_partition(1), only_partition(2)]

    def told(news: Definitions, *, is_first: bool, is_last: bool) -> None:
        home.defined(Defined(False, raw(news), is_last=is_last), is_first=is_first)

    told(Definitions(moved=moved, maps=maps), is_first=False, is_last=True)
    told(Definitions(queues=[definition]), is_first=True, is_last=False)
    assert store.target_of("t", kept.name).uid == kept.uid and store.here("t", "q1").slot_table is not None
    told(Definitions(moved=moved[1:]), is_first=True, is_last=False)
    told(Definitions(maps=maps[1:]), is_first=True, is_last=True)
    assert list(home.moved) == [kept.uid] and list(home.maps) == [2], "what it does not tell of has gone"
    assert store.target_of("t", kept.name).uid == kept.uid
    with pytest.raises(QueueNotFound):
        store.target_of("t", gone.name)


async def test_a_queues_data_keys_are_found_without_a_look_at_all(store: RemoteBackends) -> None:
    """The first publish to each encrypted queue asks for them."""
    keys = [DataKey(number, "t", uid, "master", b"wrapped", 0, 0) for number, uid in enumerate((1, 2, 1), 1)]
    rows = store.metadata.data_keys
    store.defined(Definitions(data_keys=keys), is_first=False)
    rows.by_id, by_id = Untouched(rows.by_id), rows.by_id
    assert rows.ids_of(1) == [1, 3] and rows.ids_of(3) == []
    given_anew = msgspec.structs.replace(keys[1], uid=3)
    store.defined(Definitions(data_keys=[given_anew], data_keys_gone=[1, 9]), is_first=False)
    assert (rows.ids_of(1), rows.ids_of(2), rows.ids_of(3)) == ([3], [], [2])
    rows.by_id = by_id


async def test_deleted_queues_that_go_to_one_are_found_without_a_look_at_those_of_other_tenants(
    store: RemoteBackends,
) -> None:
    """A gateway made a dictionary of all of them for each queue that somebody wanted to delete."""
    home, moved = store.first, store.metadata.moved
    for uid in range(100, 100 + QUEUES):
        home.moved.put(MovedQueue(QueueDefinition(uid, "others", f"gone{uid}", QueueConfig(), 0, 1), "q1", 1 << 60))
    ours = MovedQueue(QueueDefinition(1, "t", "gone", QueueConfig(), 0, 1), "q1", 1 << 60)
    home.moved.put(ours)
    home.moved._by_uid = UntouchedRows(home.moved._by_uid)
    assert list(store.metadata.moved.going_to("t", "q1")) == [ours] and moved is store.metadata.moved
    assert not list(moved.going_to("t", "q2")) and not list(moved.going_to("nobody", "q1"))
    assert moved[1] is ours and 99 not in moved
    home.moved.forget(1)
    assert not list(moved.going_to("t", "q1")) and home.moved.of_tenant("t") == 0


async def test_when_a_key_was_used_is_forgotten_with_the_key(store: RemoteBackends) -> None:
    keys = [ApiKey(name, name, "t", (), b"", 0) for name in ("one", "other", "third")]
    store.defined(Definitions(keys=keys, keys_used={"one": 1, "other": 2, "third": 3}), is_first=False)
    store.defined(Definitions(keys_gone=["other"]), is_first=False)
    assert store.metadata.keys_used == {"one": 1, "third": 3}
    store.defined(Definitions(keys_used={"one": 4}), is_first=True, is_last=False)
    store.defined(Definitions(keys=keys[:1]), is_first=False, is_last=True)
    assert store.metadata.keys_used == {"one": 4}


async def test_pulses_of_many_queues_are_taken_over_bit_by_bit(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with series once stood still for a moment every other second."""
    monkeypatch.setattr(pulses, "PULSES_PER_ASK_MAX", 10)
    book, pulse = PulseBook(store), Pulse(1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    answers = [dict.fromkeys(range(1, 101), pulse), {uid: pulse._replace(ready=uid) for uid in range(1, 101)}]

    async def answered(home: Home, operation: TakePulses, **_: Any) -> msgspec.Raw:
        if operation.since is not None:
            return raw(PulseNews(AsOf("era", 1), is_reset=True))
        return raw([(uid, pulse) for uid, pulse in answers[0].items() if uid > operation.after][:10])

    monkeypatch.setattr(Home, "ask", answered)
    monkeypatch.setattr(store.first.adopted, "is_ours", True)
    turns, is_over = 0, False

    async def count() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await book._ask()
    assert turns > 10
    before = dict(book._pulses)
    answers.pop(0)
    await book._ask()
    is_over = True
    await counting
    assert [one.ready for one in book._pulses.values()] == list(range(1, 101))
    assert book._pulses[1] is before[1], "what is the same stays the same"


@pytest.mark.parametrize("suffix", [".dead", ".late"])
async def test_who_uses_a_companion_alone_hears_that_its_queue_is_gone(store: RemoteBackends, suffix: str) -> None:
    companion = store.here("t", "q1" + suffix)
    deleted: list[RemoteQueue] = []
    store.on_deleted(deleted.append)
    store.defined(Definitions(queues_gone=[("t", "q1")]), is_first=False)
    assert companion in deleted


async def test_what_nobody_had_taken_of_a_lease_is_given_back_to_whoever_leads_next(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that did not lease it does not know that it has left, and had it wait for its visibility timeout."""
    queue, line = store.here("t", "q1"), store.homes[0].line
    token, _ = leased(queue, 1)
    queue.stock.came(
        30_000, Unassigned(token, chunk_state(10, [None] * 4), any_chunk(10, 4), 0b1100, has_receipts=True)
    )
    sent: list[bytes] = []
    monkeypatch.setattr(line, "_post", sent.append)
    line._opened()
    line._lose()
    assert not queue.stock.waiting
    line._opened()
    await asyncio.sleep(0)
    frames = [frame for frame in map(from_gateway, sent) if isinstance(frame, Settles)]
    told = [(call.verb, call.grouped, call.milliseconds, call.tried) for frame in frames for call in frame.calls]
    assert told == [("nack", {token: of_bits(0b1100)}, 0, False)]


async def test_a_fault_with_leases_that_waited_for_a_key_stops_no_deliveries(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had come behind them waited for ever, and so did all that came from then on."""
    home, queue = store.homes[0], store.here("t", "q1")
    new, cuts = [True], []

    async def learnt(ids: object) -> bool:
        new.clear()
        await asyncio.sleep(0)
        raise AssertionError("a fault of ours")

    monkeypatch.setattr(store, "has_new_key", lambda ids: bool(new))
    monkeypatch.setattr(store, "learnt", learnt)
    monkeypatch.setattr(home.line, "cut", lambda: cuts.append(True))
    idle = Leases([], [Idle(queue.place_there, 30_000, 1)])
    home.leased(idle)
    home.leased(idle)
    await eventually(lambda: bool(cuts))
    told: list[int] = []
    monkeypatch.setattr(queue, "idle", lambda visibility_ms, granted: told.append(granted))
    home.leased(idle)
    assert told == [1]


async def test_who_asked_a_backend_that_answers_what_nobody_understands_is_told(
    store: RemoteBackends, stream: RemoteStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever, and its connection with it."""

    async def ask(*args: Any, **kwargs: Any) -> bytes:
        return b"\xc1"

    monkeypatch.setattr(store.homes[0], "ask", ask)
    monkeypatch.setattr(stream, "ask", ask)
    told: list[Any] = []
    store.here("t", "q1").settle_and_publish([], [], told.append)
    stream.open_group("g", None, told.append)
    await eventually(lambda: len(told) == 2)
    assert sorted(error.code for error in told) == ["internal", "outcome-unknown"]


async def test_reports_of_the_storage_go_on_after_one_that_was_not_understood(
    store: RemoteBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.remote.store.REPORT_SECONDS", 0.001)
    asked: list[object] = []

    async def ask(operation: object, **_: Any) -> bytes:
        asked.append(operation)
        return b"\xc1"

    monkeypatch.setattr(store, "ask", ask)
    following = asyncio.create_task(store._follow_reports())
    await asyncio.wait(
        {following, asyncio.create_task(eventually(lambda: len(asked) > 1))}, return_when="FIRST_COMPLETED"
    )
    assert not following.done() and len(asked) > 1
    following.cancel()


async def opened(stream: RemoteStream, name: str) -> RemoteGroup:
    done: asyncio.Future[RemoteGroup] = asyncio.get_running_loop().create_future()
    stream.open_group(name, None, done.set_result)
    return await done


@pytest.fixture
async def stream(store: RemoteBackends, monkeypatch: pytest.MonkeyPatch) -> RemoteStream:
    async def ask(*args: Any, **kwargs: Any) -> bytes:
        return msgspec.msgpack.encode(Opened("offsets", []))

    monkeypatch.setattr(RemoteStream, "ask", ask)
    definition = QueueDefinition(QUEUES + 1, "t", "stream", QueueConfig(kind="stream"), 0, 1)
    store.defined(Definitions(queues=[definition]), is_first=False)
    found = store.here("t", "stream")
    assert isinstance(found, RemoteStream)
    return found


async def test_groups_that_nobody_uses_here_are_forgotten(
    stream: RemoteStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been deleted at another gateway, which nobody says: each stayed for as long as its stream."""
    monkeypatch.setattr(RemoteStream, "_look_at", 5)
    monkeypatch.setattr(streams, "GROUPS_PER_STREAM_MAX", 5)
    used = await opened(stream, "used")
    used.consumers = 1
    granted = await opened(stream, "granted")
    granted._grants.renew({30_000: 1}, lambda visibility_ms: 0, 0)
    for number in range(50):
        (await opened(stream, f"g{number}")).asked_at = -1_000_000.0
    for one in (used, granted):
        one.asked_at = -1_000_000.0
    assert len(stream.groups) <= 7
    assert stream.groups["used"] is used and stream.groups["granted"] is granted
    late = [await opened(stream, f"late {number}") for number in range(20)]
    assert all(stream.groups[one.group or ""] is one for one in late), "somebody is about to use them"


async def test_so_many_gaps_wait_for_a_consumer_of_a_group(stream: RemoteStream) -> None:
    """One for each commit that drops something: where nobody consumes here they added up for ever."""
    group = await opened(stream, "g")
    for number in range(2 * GAPS_KEPT):
        group.missed([Gap(2 * number, 2 * number + 1)], told=True)
    gaps = group.take_gaps()
    assert len(gaps) == GAPS_KEPT and gaps[-1].last == 4 * GAPS_KEPT - 1 and group.take_gaps() == []
