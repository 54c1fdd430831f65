"""A backend and a gateway's line to it, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.client.groups import put_group
from backend_store.client.streams import Gap
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import SUFFIXES
from backend_store.model import Overloaded, QueueNotFound
from backend_store.node.commit import committer
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.limits import ACK_WAIT_MS
from backend_store.remote.line.line import Call, Line
from backend_store.service import held_leases
from backend_store.service import visitor as visitors
from backend_store.service.defining import GoneQueues
from backend_store.service.held_leases import HeldLeases
from backend_store.service.limits import VISITOR_OUTBOX_BYTES_MAX
from backend_store.service.operations import Purge
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import (
    STORE_FRAME_BYTES_MAX,
    Answered,
    Place,
    Settle,
    Want,
    Wants,
    of_bits,
    to_bits,
)
from tests.support.gateways import Gateway
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

MESSAGES = 100
BODY = "x" * 1_000_000
WAIT_S = 60


async def test_a_backlog_of_big_messages_comes_in_frames_that_a_gateway_takes() -> None:
    """More than one frame may have was once leased in one turn: the line broke, and again with each new try."""
    assert MESSAGES * len(BODY) > STORE_FRAME_BYTES_MAX
    store = await opened()
    queue = await made(store, "big", max_message_bytes=1 << 20)
    for _ in range(MESSAGES):
        await published(queue, draft(BODY))
    async with visited(store) as (line, gateway):
        line.want(Want(Place("default", "big", queue.uid), 3_600_000, 2 * MESSAGES, 10))
        await eventually(lambda: gateway.messages >= MESSAGES, within_s=WAIT_S)
        assert (gateway.messages, line.connections) == (MESSAGES, 1)
        assert gateway.biggest_bytes < VISITOR_OUTBOX_BYTES_MAX


async def test_who_waits_at_an_empty_queue_hears_once_that_there_is_nothing() -> None:
    """Each frame that had left once brought the next word of it: a consumer that waited cost a core on both sides."""
    store = await opened()
    queue = await made(store, "empty")
    async with visited(store) as (line, gateway):
        line.want(Want(Place("default", "empty", queue.uid), 3_600_000, 10, 10))
        for _ in range(20):
            await line.ask(GoneQueues([]), may_repeat=True)
        assert gateway.idle == 1


async def test_what_cannot_be_said_to_a_gateway_ends_its_connection_and_not_all_that_comes_later() -> None:
    """It was tried again with whatever came, and kept all of that back for ever."""
    store = await opened()
    service = StoreService(store)
    async with visited(store, service) as (line, _):
        unsayable: Any = object()
        service.visitors["gateway"]._answer(Answered(1, unsayable))
        await eventually(lambda: line.connections == 2 and line.is_open)
        await line.ask(GoneQueues([]), may_repeat=True)


async def test_what_a_group_missed_is_told_again_where_the_connection_was_lost_just_then() -> None:
    store = await opened()
    stream = await made(store, "s", kind="stream", max_messages=2, overflow="drop_oldest")
    done: list[Any] = []
    put_group(stream, "g", "earliest", None, done.append)
    for body in "abcde":
        await published(stream, draft(body))
    async with visited(store) as (line, gateway):
        want = Want(Place("default", "s", stream.uid, "g"), 30_000, 1, 10)
        line.want(want)
        await eventually(lambda: len(gateway.gaps) == 1)
        line.cut()
        await eventually(lambda: line.connections == 2 and line.is_open)
        line.want(want)
        await eventually(lambda: len(gateway.gaps) == 2)
        assert gateway.gaps == [Gap(0, 2)] * 2


async def test_an_ack_whose_answer_nobody_waits_for_goes_with_the_next_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own it would be in the way of the next publish: a commit here is one on the disks of all replicas."""
    monkeypatch.setattr(committer, "SOON_SECONDS", WAIT_S)
    store = await opened()
    queue = await made(store, "acked")
    await published(queue, draft("1"))
    async with visited(store) as (line, gateway):
        place = Place("default", "acked", queue.uid)
        line.want(Want(place, 3_600_000, 2, 10))
        await eventually(lambda: gateway.messages == 1)
        [(token, bits)] = gateway.tokens.items()
        answers: list[Any] = []
        frame = Settle(line.next_number(), place, "ack", {token: bits}, ACK_WAIT_MS)
        line.call(Call(frame, answers.append, line.now_ms() + 60_000, may_repeat=True))
        await line.ask(GoneQueues([]), may_repeat=True)  # its answer comes after all that was said before
        cycles = store.node.committer.cycles
        assert (answers, queue.stats().in_flight) == ([], 1)
        await published(queue, draft("2"))
        await eventually(lambda: answers == [{token: bits}], "both are on the disk")
        assert store.node.committer.cycles == cycles + 1


async def test_an_ack_that_the_next_message_of_its_key_waits_for_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "SOON_SECONDS", 2 * WAIT_S)
    store = await opened()
    queue = await made(store, "strict", ordering="strict")
    for body in ("1", "2"):
        await published(queue, draft(body, key="one"))
    async with visited(store) as (line, gateway):
        place = Place("default", "strict", queue.uid)
        line.want(Want(place, 3_600_000, 2, 10))
        await eventually(lambda: gateway.messages == 1)
        frame = Settle(line.next_number(), place, "ack", dict(gateway.tokens), ACK_WAIT_MS)
        line.call(Call(frame, lambda done: None, line.now_ms() + 60_000, may_repeat=True))
        await eventually(lambda: gateway.messages == 2, "the next one of the key is here")


@pytest.mark.parametrize("lease_mode", ["memory", "replicated"])
async def test_what_was_leased_when_a_shard_goes_elsewhere_has_left_or_is_ready(lease_mode: str) -> None:
    """It would be written down as leased, and wait for its visibility time at the next leader."""
    store = await opened()
    queue = await made(store, "drained", lease_mode=lease_mode)
    await published(queue, draft("1"))
    service = StoreService(store)
    async with visited(store, service) as (_, gateway):
        place = Place("default", "drained", queue.uid)
        service.visitors["gateway"].heard(Wants([Want(place, 3_600_000, 1, 10)]))
        assert queue.stats().in_flight == 1, "it is leased in this very turn"
        service.close()
        if lease_mode == "memory":
            await eventually(lambda: gateway.messages == 1)
        stats = queue.stats()
        assert (stats.ready, stats.in_flight) == ((0, 1) if lease_mode == "memory" else (1, 0))


async def test_credit_of_messages_that_are_purged_before_they_leave_is_not_lost() -> None:
    """The gateway counts what came: it would wait for them for ever, and its consumers with it."""
    store = await opened()
    queue = await made(store, "purged", lease_mode="replicated")
    await published(queue, draft("1"), draft("2"))
    service = StoreService(store)
    async with visited(store, service) as (_, gateway):
        place = Place("default", "purged", queue.uid)
        service.visitors["gateway"].heard(Wants([Want(place, 3_600_000, 2, 10)]))
        assert queue.stats().in_flight == 2, "they are leased, and wait for the disk"
        await queue.purge("now")
        assert gateway.messages == 0
        await published(queue, draft("3"), draft("4"))
        await eventually(lambda: gateway.messages == 2)


@pytest.mark.parametrize("heard", [0b000, 0b010, 0b111], ids=["nothing", "one of three", "all"])
async def test_what_the_leader_before_leased_and_did_not_bring_is_free_when_its_gateway_is_back(heard: int) -> None:
    """It waited for the end of its time, though no consumer had it: a key in strict order, with all behind it."""
    place, token, engine = await left_leased()
    store = await opened(engine)
    gateway = Gateway([(place, token, of_bits(heard))] if heard else [])
    async with visited(store, gateway=gateway) as (line, _):
        assert gateway.unknown == []
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: gateway.messages == 3 - heard.bit_count())
        assert gateway.tries == [], "what nobody had was no attempt"
        stats = queue_of(store, place).stats()
        assert (stats.ready, stats.in_flight) == (0, 3)


@pytest.mark.parametrize("held", [0b000, 0b100], ids=["all of it", "some of it"])
async def test_what_consumers_gave_back_while_nobody_led_was_an_attempt(held: int) -> None:
    """It was taken for what had never come: a consumer that dies of its message had one attempt more each time."""
    place, token, engine = await left_leased()
    gateway = Gateway([(place, token, of_bits(held))] if held else [])
    async with served(await opened(engine)) as directory:
        line = Line(0, directory, gateway, "gateway", None)
        line.tell(Settle(0, place, "return", {token: of_bits(0b111 & ~held)}))
        assert await line.opened(WAIT_S)
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: gateway.messages == 3 - held.bit_count())
        assert gateway.tries == [2] * gateway.messages
        await line.close()


async def test_what_another_gateway_was_given_before_waits_for_that_one() -> None:
    place, _, engine = await left_leased()
    store = await opened(engine)
    async with visited(store, name="another") as (line, gateway):
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: gateway.idle == 1)
        assert queue_of(store, place).stats().in_flight == 3
        await line.ask(GoneQueues([]), may_repeat=True)
        assert gateway.messages == 0


async def test_a_lease_of_before_is_its_gateways_own_again() -> None:
    """It hears of what others settle of it, and keeps it over one more leader: nobody else is given it meanwhile."""
    place, token, engine = await left_leased()
    store = await opened(engine)
    held = Gateway([(place, token, of_bits(0b111))])
    async with visited(store, gateway=held):
        done: list[Any] = []
        queue_of(store, place).settle([token + "00"], done.append)
        await eventually(lambda: held.gone == {token: 0b001})
        assert done[0][0].ok
    assert isinstance(store.node.engine, MemoryEngine)
    store = await opened(store.node.engine.crash())
    held = Gateway([(place, token, of_bits(0b111))])
    async with visited(store, gateway=held) as (line, _):
        await eventually(lambda: held.gone == {token: 0b001}, "what it does not know to be settled is told")
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: held.idle == 1)
        assert (held.unknown, held.messages) == ([], 0)


@pytest.mark.parametrize("lease_mode", ["memory", "replicated"])
async def test_a_count_that_a_gateway_ends_begins_anew(lease_mode: str) -> None:
    """Its consumers choose visibility times, and each that was ever asked with would stay for the connection's life."""
    store = await opened()
    queue = await made(store, "q", lease_mode=lease_mode)
    await published(queue, *map(draft, "12345"))
    place, service = Place("default", "q", queue.uid), StoreService(store)
    async with visited(store, service) as (line, gateway):
        for number in range(1, 5):
            line.want(Want(place, 1_000_000 + number, 1, 10))
            await eventually(lambda sent=number: gateway.messages == sent)
            line.want(Want(place, 1_000_000 + number, 0, 0))
        line.want(Want(place, 1_000_001, 1, 10))
        await eventually(lambda: gateway.messages == 5)
        assert [visibility_ms for _, visibility_ms in service.visitors["gateway"]._grants] == [1_000_001]
        line.want(Want(place, 1_000_001, 0, 0))
        line.want(Want(place, 1_000_001, 2, 10))  # in the same frame
        await published(queue, draft("6"), draft("7"), draft("8"))
        await eventually(lambda: gateway.messages == 7)
        assert queue.stats().in_flight == 7, "nothing that it holds has ended with its count"


async def test_what_waits_for_the_disk_when_its_count_ends_is_free() -> None:
    store = await opened()
    queue = await made(store, "q", lease_mode="replicated")
    await published(queue, draft("1"))
    place, service = Place("default", "q", queue.uid), StoreService(store)
    async with visited(store, service) as (line, gateway):
        visitor = service.visitors["gateway"]
        visitor.heard(Wants([Want(place, 1_000_000, 1, 10)]))
        assert queue.stats().in_flight == 1
        visitor.heard(Wants([Want(place, 1_000_000, 0, 0)]))
        assert (queue.stats().in_flight, visitor.pending_bytes, gateway.messages) == (0, 0, 0)
        line.want(Want(place, 2_000_000, 1, 10))
        await eventually(lambda: gateway.messages == 1)


async def test_what_others_settled_while_a_gateway_was_away_is_told_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumers' credit stayed taken, for as long as they were connected."""
    monkeypatch.setattr(held_leases, "LOOK_SECONDS", 0.0)
    store = await opened()
    queue = await made(store, "q")
    await published(queue, *map(draft, "123"))
    place, service = Place("default", "q", queue.uid), StoreService(store)
    async with served(store, service) as directory:
        gateway = Gateway()
        line = Line(0, directory, gateway, "gateway", None)
        assert await line.opened(WAIT_S)
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: gateway.messages == 3)
        [token] = gateway.tokens
        await line.close()
        visitor = service.visitors["gateway"]
        await eventually(lambda: visitor.link is None)
        done: list[Any] = []
        queue.settle([token + "00"], done.append)
        await eventually(lambda: done and visitor.leases._look is None, "it was noticed, and could not be told")
        gateway = Gateway([(place, token, of_bits(0b111))])
        line = Line(0, directory, gateway, "gateway", None)
        await eventually(lambda: gateway.gone == {token: 0b001})
        assert gateway.unknown == []
        await line.close()


async def test_who_was_to_connect_anew_and_had_no_connection_needs_only_one() -> None:
    """The next one had all that it was wanted for, and was ended as soon as it was quiet."""
    async with served(await opened()) as directory:
        line = Line(0, directory, Gateway(), "gateway", None)
        line.leave_when_quiet()
        for _ in range(3):
            await line.ask(GoneQueues([]), may_repeat=True)
        assert line.connections == 1
        await line.close()


async def left_leased() -> tuple[Place, str, MemoryEngine]:
    """A queue's place, the one lease of its three messages, and the disk that has both."""
    store = await opened()
    queue = await made(store, "q", lease_mode="replicated")
    await published(queue, *map(draft, "123"))
    place = Place("default", "q", queue.uid)
    async with visited(store) as (line, gateway):
        line.want(Want(place, 3_600_000, 3, 10))
        await eventually(lambda: gateway.messages == 3)
    assert isinstance(store.node.engine, MemoryEngine)
    [token] = gateway.tokens
    return place, token, store.node.engine.crash()


def queue_of(store: EmbeddedStore, place: Place) -> EmbeddedQueue:
    return store.queue(place.tenant, place.name)


async def test_what_comes_just_when_nothing_can_be_kept_is_not_forgotten() -> None:
    """The word that it can be kept again is for whoever came meanwhile, too."""
    store = await opened()
    queue = await made(store, "short")
    await published(queue, draft("1"))
    async with visited(store) as (line, gateway):
        store.node.not_durable = lambda: "too few"
        line.want(Want(Place("default", "short", queue.uid), 3_600_000, 1, 10))
        await line.ask(GoneQueues([]), may_repeat=True)  # its answer comes after all that was said before
        assert gateway.messages == 0
        store.node.not_durable = lambda: ""
        store.node.on_durable()
        await eventually(lambda: gateway.messages == 1)


async def test_slow_requests_of_one_tenant_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenant's purges made those of all others, and what the gateway asks of its own, fail."""
    monkeypatch.setattr(visitors, "VISITOR_ASKS_MAX", 8)
    end = asyncio.Event()
    perform = visitors.perform

    async def slowly(store: EmbeddedStore, asked: Any) -> Any:
        if asked.whose == "slow":
            await end.wait()
        return await perform(store, asked)

    monkeypatch.setattr(visitors, "perform", slowly)
    async with visited(await opened()) as (line, _):
        slow = [asyncio.create_task(line.ask(Purge(Place("slow", "q", 1), "p"), may_repeat=True)) for _ in range(6)]
        await eventually(lambda: sum(task.done() for task in slow) == 2)
        refused = next(task.exception() for task in slow if task.done())
        assert isinstance(refused, Overloaded)
        assert "4 requests of tenant 'slow' are under way for this gateway" in refused.detail
        with pytest.raises(QueueNotFound):
            await line.ask(Purge(Place("quiet", "q", 1), "p"), may_repeat=True)
        await line.ask(GoneQueues([]), may_repeat=True)
        end.set()
        answers = await asyncio.gather(*slow, return_exceptions=True)
        assert sum(isinstance(answer, QueueNotFound) for answer in answers) == 4
        with pytest.raises(QueueNotFound):
            await line.ask(Purge(Place("slow", "q", 1), "p"), may_repeat=True)


async def test_queues_that_were_deleted_leave_nothing_with_those_who_waited_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway may be connected for months, and its queues be gone after a minute."""
    monkeypatch.setattr(visitors, "GRANTS_LOOKED_AT_MIN", 4)
    store = await opened()
    service = StoreService(store)
    async with visited(store, service) as (line, _):
        kept = await made(store, "kept")
        line.want(Want(Place("default", "kept", kept.uid), 3_600_000, 1, 10))
        for number in range(40):
            kind = "stream" if number % 2 else "work"
            queue = await made(store, f"q{number}", kind=kind)
            line.want(Want(Place("default", queue.name, queue.uid), 3_600_000, 1, 10))
            await line.ask(GoneQueues([]), may_repeat=True)
            await store.delete_queue("default", queue.name)
        visitor = service.visitors["gateway"]
        assert len(visitor._grants) <= 9 and len(visitor._reads) <= 9
        assert any(place.name == "kept" for place, _ in visitor._grants)


async def test_what_others_settled_of_very_many_leases_is_looked_for_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acks come to any gateway: each look at 100,000 leases held everybody up for a tenth of a second, and one followed
    the other."""
    monkeypatch.setattr(held_leases, "LEASES_PER_LOOK_MAX", 5)
    looks: list[int] = []
    look, live_bits = HeldLeases._look_at_leases, held_leases.live_bits

    def counted(held: HeldLeases) -> None:
        looks.append(0)
        look(held)

    def looked(lease: Lease) -> int:
        if looks:
            looks[-1] += 1
        return live_bits(lease)

    store = await opened()
    queue = await made(store, "settled elsewhere")
    for number in range(22):
        await published(queue, draft(str(number)))
    async with visited(store) as (line, gateway):
        line.want(Want(Place("default", queue.name, queue.uid), 3_600_000, 22, 1))
        await eventually(lambda: len(gateway.tokens) == 22)
        monkeypatch.setattr(HeldLeases, "_look_at_leases", counted)
        monkeypatch.setattr(held_leases, "live_bits", looked)
        queue.settle_quietly(
            [token + SUFFIXES[to_bits(bits).bit_length() - 1] for token, bits in gateway.tokens.items()]
        )
        await eventually(lambda: gateway.gone.keys() == gateway.tokens.keys())
        assert len(looks) >= 5 and max(looks) <= 5


@asynccontextmanager
async def visited(
    store: EmbeddedStore, service: StoreService | None = None, *, gateway: Gateway | None = None, name: str = "gateway"
) -> AsyncIterator[tuple[Line, Gateway]]:
    """A gateway at the store, connected; all is closed afterwards."""
    gateway = gateway or Gateway()
    async with served(store, service) as directory:
        line = Line(0, directory, gateway, name, None)
        try:
            assert await line.opened(WAIT_S)
            yield line, gateway
        finally:
            await line.close()


@asynccontextmanager
async def served(store: EmbeddedStore, service: StoreService | None = None) -> AsyncIterator[FixedDirectory]:
    """Where gateways find the store; it is closed afterwards."""
    service = service or StoreService(store)
    server = StoreServer({0: service})
    try:
        yield FixedDirectory([("127.0.0.1", await server.listen("127.0.0.1", 0, None))])
    finally:
        service.close()
        await server.close()
        await store.close()
