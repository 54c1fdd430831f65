"""Leases that go from one gateway to another with a client's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.node.node import Node
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.line.line import Call, Line
from backend_store.service import serving
from backend_store.service.defining import GoneQueues
from backend_store.service.serving import StoreServer, StoreService
from backend_store.service.visitor import Visitor
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import (
    Ended,
    Place,
    Results,
    Settle,
    Settles,
    Want,
    from_backend,
    of_bits,
    to_bits,
)
from tests.support.gateways import Gateway
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
MESSAGES = 4


class World(NamedTuple):
    """A queue with messages that are all leased to the first of two gateways, with one token."""

    store: EmbeddedStore
    service: StoreService
    queue: EmbeddedQueue
    first: Line
    second: Line
    gateways: tuple[Gateway, Gateway]
    place: Place
    token: str

    async def settle(self, line: Line, verb: str, bits: int, milliseconds: int | None = None) -> int:
        """The bits that the answer has."""
        answers: list[Any] = []
        frame = Settle(line.next_number(), self.place, verb, {self.token: of_bits(bits)}, milliseconds)
        line.call(Call(frame, answers.append, line.now_ms() + 60_000, may_repeat=True))
        await eventually(lambda: bool(answers))
        return to_bits(answers[0].get(self.token, b""))

    async def tell(self, line: Line, verb: str, bits: int, milliseconds: int | None = None) -> None:
        """Returns when the backend has heard it."""
        line.tell(Settle(0, self.place, verb, {self.token: of_bits(bits)}, milliseconds))
        await line.ask(GoneQueues([]), may_repeat=True)

    @property
    def in_flight(self) -> int:
        return self.queue.stats().in_flight


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with leased() as world:
        yield world


@asynccontextmanager
async def leased(how: str = "", *, is_stored: bool = False) -> AsyncIterator[World]:
    """`how` the store ends, if the caller ends it: "crash" (its leases are stored then) or "stop"."""
    store = await opened()
    queue = await made(store, "q", lease_mode="replicated" if is_stored or how == "crash" else "memory")
    await published(queue, *(draft(str(n)) for n in range(MESSAGES)))
    service = StoreService(store)
    server = StoreServer({0: service})
    directory = FixedDirectory([("127.0.0.1", await server.listen("127.0.0.1", 0, None))])
    gateways = Gateway(), Gateway()
    lines = [Line(0, directory, gateway, f"gateway-{n}", None) for n, gateway in enumerate(gateways)]
    try:
        for line in lines:
            assert await line.opened(WAIT_S)
        place = Place("default", "q", queue.uid)
        lines[0].want(Want(place, 3_600_000, MESSAGES, MESSAGES))
        await eventually(lambda: gateways[0].messages == MESSAGES)
        [token] = gateways[0].tokens
        yield World(store, service, queue, *lines, gateways, place, token)
    finally:
        for line in lines:
            await line.close()
        service.close()
        await server.close()
        if not how:
            await store.close()


async def test_a_part_of_a_lease_goes_over_and_its_gateway_hears_of_it(world: World) -> None:
    assert await world.settle(world.second, "take", 0b0011) == 0b0011
    await eventually(lambda: world.gateways[0].gone == {world.token: 0b0011})
    assert world.in_flight == MESSAGES
    assert await world.settle(world.second, "ack", 0b0001) == 0b0001
    assert await world.settle(world.first, "ack", 0b1000) == 0b1000
    assert world.in_flight == 2


async def test_to_ask_twice_does_no_harm(world: World) -> None:
    for _ in range(2):
        assert await world.settle(world.second, "take", 0b0011) == 0b0011
    assert await world.settle(world.second, "take", 0b0110) == 0b0110
    assert await world.settle(world.first, "take", 0b1100) == 0b1100, "and back"


async def test_an_answer_that_is_lost_returns_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gateway does not say that it holds was never delivered; these messages were, to the session's client."""
    judge = Visitor._judge

    def lose(visitor: Visitor, number: int, done: Mapping[str, int]) -> None:
        monkeypatch.setattr(Visitor, "_judge", judge)
        world.second.cut()

    monkeypatch.setattr(Visitor, "_judge", lose)
    assert await world.settle(world.second, "take", 0b0011) == 0b0011
    assert world.second.connections == 2
    assert (world.in_flight, world.queue.stats().ready) == (MESSAGES, 0)


async def test_what_ends_before_it_is_stored_is_not_answered() -> None:
    """The gateway was told already, and would hold it for ever."""
    async with leased(is_stored=True) as world:
        first, second = (world.service.visitors[f"gateway-{n}"].leases for n in range(2))
        answers: list[dict[str, int]] = []
        second.take(world.place, {world.token: 0b0011}, [first], answers.append)
        assert not answers
        second.ended({world.token: 0b0001})
        await eventually(lambda: answers == [{world.token: 0b0010}])


@pytest.mark.parametrize("ends", [False, True])
async def test_a_lease_that_is_back_before_its_gateway_heard_that_it_went_is_held(
    world: World, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent while definitions are. `ends`: it has run out by then."""
    first, second = (world.service.visitors[f"gateway-{n}"] for n in range(2))
    said: list[bytes] = []
    assert first.link is not None
    monkeypatch.setattr(first.link, "send", said.append)
    take = Settle(1, world.place, "take", {world.token: of_bits(0b0011)})
    second.heard(Settles([take]))
    first.heard(Settles([take]))
    if ends:
        first.leases.ended({world.token: 0b0001})
    first.flush()
    frames = [from_backend(data) for data in said]
    before, results, *after = frames
    assert isinstance(before, Ended) and before.gone == [(world.token, of_bits(0b0011))]
    assert isinstance(results, Results) and results.judged == [(1, {world.token: of_bits(0b0011)}, None)]
    assert after == ([Ended([(world.token, of_bits(0b0001))], [])] if ends else [])


async def test_what_is_settled_or_unknown_does_not_go_over(world: World) -> None:
    await world.settle(world.first, "ack", 0b0001)
    assert await world.settle(world.second, "take", 0b0011) == 0b0010
    other = world._replace(token="nonsense.")
    assert await other.settle(world.second, "take", 0b0001) == 0


async def test_a_late_return_by_the_former_gateway_is_void(world: World) -> None:
    await world.settle(world.second, "take", 0b0011)
    await world.tell(world.first, "return", 0b0111)
    await eventually(lambda: (world.in_flight, world.queue.stats().ready) == (3, 1))


async def test_the_former_gateway_comes_back_and_takes_nothing_back(world: World) -> None:
    """What a gateway does not say that it holds was never delivered, and is ready again; this was."""
    await world.settle(world.second, "take", 0b0011)
    world.first.cut()
    await eventually(lambda: world.first.connections == 2 and world.first.is_open)
    await world.first.ask(GoneQueues([]), may_repeat=True)
    assert (world.in_flight, world.queue.stats().ready) == (2, 2)


@pytest.mark.parametrize("goes", ["first", "second"])
async def test_each_gateways_end_returns_its_own(world: World, goes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
    await world.settle(world.second, "take", 0b0001)
    await (world.first if goes == "first" else world.second).close()
    left = 1 if goes == "first" else 3
    await eventually(lambda: (world.in_flight, world.queue.stats().ready) == (left, MESSAGES - left))


async def test_a_gateway_that_stopped_leaves_its_leases_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.0)
    await world.tell(world.first, "keep", 0, 60_000)
    await world.first.close()
    await eventually(lambda: world.service.visitors["gateway-0"].link is None)
    assert await world.settle(world.second, "take", 0b1111) == 0b1111
    assert world.in_flight == MESSAGES


@pytest.mark.parametrize("how", ["detach", "extend"])
async def test_what_needs_its_gateway_no_more_stays_leased_when_that_ends(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a receive, and what a client extended by another gateway."""
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
    if how == "detach":
        await world.tell(world.first, "detach", 0b0011)
    else:
        assert await world.settle(world.second, "extend", 0b0011, 500) == 0b0011
    await world.first.close()
    await eventually(lambda: (world.in_flight, world.queue.stats().ready) == (2, 2))
    assert await world.settle(world.second, "ack", 0b0001) == 0b0001
    if how == "extend":
        await eventually(lambda: (world.in_flight, world.queue.stats().ready) == (0, 3))


async def test_the_new_gateway_is_told_of_a_lease_that_ends_elsewhere(world: World) -> None:
    await world.settle(world.second, "take", 0b0011)
    await world.settle(world.first, "ack", 0b0001)
    await eventually(lambda: world.gateways[1].gone == {world.token: 0b0001})
    assert world.gateways[0].gone == {world.token: 0b0011}


@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_leases_are_with_their_present_gateways_at_the_next_leader(how: str) -> None:
    """A crash leaves stored leases, a clean stop all."""
    async with leased(how) as world:
        await world.settle(world.second, "take", 0b0011)
        await published(world.queue, draft("later"))  # its commit has the rows, too
    async with (
        next_leader(world, how) as (store, directory),
        line_of(world, directory, 0, 0b1100) as (_, gateway),
        line_of(world, directory, 1, 0b0011) as (second, other),
    ):
        assert counts(store) == (MESSAGES, 1)
        assert (gateway.unknown, other.unknown) == ([], [])
        await world.tell(second, "return", 0b0011)
        await eventually(lambda: counts(store) == (2, 3))


@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_leases_of_a_gateway_that_the_next_leader_has_not_met_go_over(how: str) -> None:
    async with leased(how) as world:
        await published(world.queue, draft("later"))
    async with next_leader(world, how) as (store, directory), line_of(world, directory, 1, 0) as (second, _):
        for _ in range(2):
            assert await world.settle(second, "take", 0b0011) == 0b0011
        async with line_of(world, directory, 0, 0b1111) as (first, gateway):
            await eventually(lambda: gateway.gone == {world.token: 0b0011})
            assert gateway.unknown == []
            await world.tell(first, "return", 0b0110)
            await world.tell(second, "return", 0b0001)
            await eventually(lambda: counts(store) == (2, 3))


async def test_what_a_clean_stop_kept_goes_with_its_gateway_unless_it_was_detached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leased("stop") as world:
        await world.tell(world.first, "detach", 0b0011)
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
    async with next_leader(world, "stop") as (store, directory):
        async with line_of(world, directory, 0, 0b0111):
            assert counts(store) == (3, 1), "the fourth had not reached the gateway"
        await eventually(lambda: counts(store) == (2, 2))


@pytest.mark.parametrize(("bits", "is_cut"), [(0b0011, False), (0b0011, True), (0b1111, False), (0b1111, True)])
async def test_what_was_detached_stays_leased_though_a_crash_follows(
    bits: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_cut`: its parts have deadlines of their own."""
    async with leased("crash") as world:
        if is_cut:
            assert await world.settle(world.first, "extend", 0b0110, 3_000_000) == 0b0110
        await world.tell(world.first, "detach", bits)
        await published(world.queue, draft("later"))  # its commit has the rows, too
    async with next_leader(world, "crash") as (store, directory):
        monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
        async with line_of(world, directory, 0, 0b1111) as (_, gateway):
            assert counts(store) == (MESSAGES, 1)
            await eventually(lambda: gateway.unknown or gateway.gone == {world.token: bits}, "it need not hold these")
        stay = bits.bit_count()
        await eventually(lambda: counts(store) == (stay, MESSAGES + 1 - stay))


async def test_after_a_crash_what_a_gateway_had_returns_if_it_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ended at once. What was detached stays."""
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
    async with leased("crash") as world:
        await world.tell(world.first, "detach", 0b0001)
        await published(world.queue, draft("later"))
    async with next_leader(world, "crash") as (store, _):
        await eventually(lambda: counts(store) == (1, MESSAGES))


async def test_after_a_clean_stop_it_stays_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients go on with their receipts at the gateways that start anew."""
    async with leased("stop") as world:
        pass
    monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.0)
    async with next_leader(world, "stop") as (store, _):
        await store.node.committer.drain()
        await asyncio.sleep(0)
        assert counts(store) == (MESSAGES, 0)


async def test_what_is_extended_elsewhere_before_its_gateway_is_back_is_not_that_ones_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leased("crash") as world:
        await published(world.queue, draft("later"))
    async with next_leader(world, "crash") as (store, directory), line_of(world, directory, 1, 0) as (second, _):
        monkeypatch.setattr(serving, "VISITOR_RESUME_SECONDS", 0.01)
        assert await world.settle(second, "extend", 0b0011, 60_000) == 0b0011
        async with line_of(world, directory, 0, 0b1111) as (_, gateway):
            await eventually(lambda: gateway.gone == {world.token: 0b0011})
        await eventually(lambda: counts(store) == (2, 3))


def counts(store: EmbeddedStore) -> tuple[int, int]:
    """Messages in flight, and ready ones."""
    stats = store.here("default", "q").stats()
    return stats.in_flight, stats.ready


@asynccontextmanager
async def next_leader(world: World, how: str) -> AsyncIterator[tuple[EmbeddedStore, FixedDirectory]]:
    engine = world.store.node.engine
    assert isinstance(engine, MemoryEngine)
    if how == "stop":
        await world.store.close()
    node = Node(engine.crash(), directory=None)
    await node.start()
    store = EmbeddedStore(node)
    service = StoreService(store)
    server = StoreServer({0: service})
    try:
        yield store, FixedDirectory([("127.0.0.1", await server.listen("127.0.0.1", 0, None))])
    finally:
        service.close()
        await server.close()
        await store.close()


@asynccontextmanager
async def line_of(
    world: World, directory: FixedDirectory, number: int, holds: int
) -> AsyncIterator[tuple[Line, Gateway]]:
    """An open line of a gateway that was there before. `holds`: its messages, as bits."""
    gateway = Gateway([(world.place, world.token, of_bits(holds))] if holds else [])
    line = Line(0, directory, gateway, f"gateway-{number}", None)
    try:
        assert await line.opened(WAIT_S)
        yield line, gateway
    finally:
        await line.close()
