"""A queue of independent hosts as gateways use it: sent to any host, stored in a lane, received from all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend_store.client.filters import PeekFilter
from backend_store.core.leases.receipts import partition_of_token
from backend_store.core.log.block import plain_blocks
from backend_store.core.log.chunk import KIND_JSON
from backend_store.core.partitions.slots import slot_of
from backend_store.model import InvalidRequest, Published, PushqError, QueueConfig, Verdict
from backend_store.node.node import Node
from backend_store.remote.definitions.adopted import Adopted
from backend_store.remote.line import host_doors
from backend_store.remote.line.line import Line
from backend_store.remote.queues.laned import LanedQueue
from tests.support.lanes import TENANT, Lanes, Taker, columns, make, places, publish, queue_at
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

MESSAGES = 30


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    async with Lanes() as world:
        yield world


async def settle(queue: LanedQueue, receipts: list[str]) -> list[Verdict] | PushqError:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.settle(receipts, done.set_result)
    return await done


async def stats(queue: LanedQueue) -> Any:
    """Looked up as a handler would."""
    while True:
        try:
            return queue.stats()
        except PushqError as looking:
            await looking.flight.landed()  # type: ignore[attr-defined]


async def test_messages_without_a_key_go_to_all_hosts_and_each_has_a_place_of_its_own(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert len(set(found)) == MESSAGES
    assert {lane for lane, _ in found} == {0, 1, 2}


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
async def test_bodies_alone_go_to_all_lanes_or_in_strict_order_to_one_whichever_host_is_asked(
    lanes: Lanes, ordering: str
) -> None:
    """The shortest way to a block says nothing of slots."""
    one = await make(await lanes.store("h0", "h1", "h2"), ordering=ordering)
    two = await queue_at(await lanes.store("h2", "h0", "h1"))
    found = []
    for queue in (one, two):
        await eventually(lambda queue=queue: all(line.is_open for line in queue.homes[0].cluster.doors.lines))
        for _ in range(6):
            done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
            queue.publish(plain_blocks(KIND_JSON, [b"1"]), done.set_result)
            found += places(await done)
    assert len({lane for lane, _ in found}) == (1 if ordering == "strict" else 3)
    assert len(set(found)) == len(found)


async def test_what_has_no_key_goes_to_hosts_in_the_gateways_zone_while_one_is_there(lanes: Lanes) -> None:
    near = await make(await lanes.store("h0", "h1", "h2", zone="west"))  # h1 alone is there
    await eventually(lambda: all(line.is_open for line in near.homes[0].cluster.doors.lines))
    assert {lane for lane, _ in places(*[await publish(near, b"1") for _ in range(6)])} == {1}
    keyed = [await publish(near, b"1", keys=[f"k{n}"]) for n in range(20)]
    assert {lane for lane, _ in places(*keyed)} == {0, 1, 2}, "a key is at home in one lane wherever that is"
    far = await queue_at(await lanes.store("h0", "h1", "h2", zone="north"))
    await eventually(lambda: all(line.is_open for line in far.homes[0].cluster.doors.lines))
    assert {lane for lane, _ in places(*[await publish(far, b"1") for _ in range(6)])} == {0, 1, 2}
    await lanes.hosts["h1"].server.close()
    lanes.own(1, "h3")
    found = places(*[await publish(near, b"2") for _ in range(6)])
    assert {0, 2} <= {lane for lane, _ in found}, "its zone has no host"


async def test_a_key_has_one_lane_whichever_host_is_asked(lanes: Lanes) -> None:
    one = await make(await lanes.store("h1"))
    other = await queue_at(await lanes.store("h3"))
    keys = [f"k{n}" for n in range(12)]
    for key in keys:
        home = slot_of(key) % 3
        found = places(await publish(one, b"1", keys=[key]), await publish(other, b"2", keys=[key]))
        assert [lane for lane, _ in found] == [home, home]


async def test_a_host_without_a_lane_passes_sends_on_and_answers_with_their_places(lanes: Lanes) -> None:
    queue = await make(await lanes.store("h3"))
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert len(set(found)) == MESSAGES
    assert {lane for lane, _ in found} == {0, 1, 2}
    assert lanes.hosts["h3"].door.passed_on == MESSAGES


async def test_each_message_of_a_call_goes_where_it_belongs(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    keys = ["k0", None, "k1", "k2", None, "k3"]
    bodies = [b"%d" % n for n in range(6)]
    order = queue.blocks(columns(bodies, keys), None).order
    assert order is not None
    found = dict(zip(order, places(await publish(queue, *bodies, keys=keys)), strict=True))
    assert len(set(found.values())) == 6
    for number, key in enumerate(keys):
        assert key is None or found[number][0] == slot_of(key) % 3
    assert found[1][0] == found[4][0]


async def test_an_id_sent_again_at_another_host_is_the_same_message(lanes: Lanes) -> None:
    one = await make(await lanes.store("h0"), dedupe="id")
    other = await queue_at(await lanes.store("h2"))
    for n in range(8):
        first = places(await publish(one, b"1", ids=[b"id%d" % n]))
        again = await publish(other, b"1", ids=[b"id%d" % n])
        assert isinstance(again, Published)
        [original] = (again.others or {}).values()
        assert (again.partition, original.offset) == first[0]  # type: ignore[union-attr]


async def test_messages_of_all_lanes_come_to_any_gateway_and_are_acked_at_another(lanes: Lanes) -> None:
    one = await make(await lanes.store())
    other = await queue_at(await lanes.store("h3"))
    sent = [b"%d" % n for n in range(MESSAGES)]
    for body in sent:
        await publish(one, body)
    taker = Taker(one, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    assert sorted(taker.bodies) == sorted(sent)
    verdicts = await settle(other, taker.receipts)
    assert isinstance(verdicts, list)
    assert all(one.ok for one in verdicts)
    assert (await stats(other)).ready == 0


async def test_a_consumer_of_one_message_gets_one_and_the_others_stay_ready(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    for n in range(MESSAGES):
        await publish(queue, b"%d" % n)
    taker = Taker(queue, 1)
    await eventually(lambda: bool(taker.bodies))
    # The other lanes granted one, too: what nobody takes goes back.
    end = time.monotonic() + 30
    while (found := await stats(queue)).in_flight != 1:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)
    assert len(taker.bodies) == 1
    assert found.ready == MESSAGES - 1


async def test_an_adopted_lane_takes_what_has_a_key_and_nothing_else(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == 1)
    lanes.alive.pop("h1")
    lanes.own(1, "h2")
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert {lane for lane, _ in found} == {0, 2}
    assert [lane for lane, _ in places(await publish(queue, b"1", keys=[key]))] == [1]
    lanes.alive["h1"] = 2
    lanes.own(1, "h1")
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert {lane for lane, _ in found} == {0, 1, 2}


async def test_a_lane_without_an_owner_refuses_its_keys_and_stops_nobody_else(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await make(await lanes.store())
    monkeypatch.setattr("backend_store.remote.queues.queue.SETTLE_MS_MAX", 200)
    monkeypatch.setattr("backend_store.remote.queues.laned.SETTLE_MS_MAX", 200)
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == 1)
    lanes.own(1, None)
    refused = await publish(queue, b"1", keys=[key])
    assert isinstance(refused, PushqError)
    assert refused.code == "unavailable"
    assert refused.retry_after_ms is not None
    monkeypatch.undo()
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert {lane for lane, _ in found} == {0, 2}


async def test_keys_of_a_lane_that_does_not_have_the_queue_yet_are_refused_at_their_time(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await lanes.store()

    async def never(definitions: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(store.homes[1].adopted, "tell", never)
    made = asyncio.ensure_future(make(store))
    await eventually(lambda: ("default", "q") in store.metadata.queues)
    queue = await queue_at(store)
    there, elsewhere = (next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == lane) for lane in (1, 2))
    refused: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    blocks = list(queue.blocks(columns([b"1"], keys=[there]), None).blocks)
    queue.publish(blocks, refused.set_result, until_ms=store.own_ms() + 20)
    answer = await asyncio.wait_for(refused, PATIENCE_S)
    assert isinstance(answer, PushqError) and answer.code == "unavailable" and "nothing was accepted" in answer.detail
    assert places(await publish(queue, b"2", keys=[elsewhere]))[0][0] == 2
    made.cancel()


async def test_receipts_of_a_lane_that_is_away_are_refused_and_the_others_count(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await make(await lanes.store())
    for n in range(MESSAGES):
        await publish(queue, b"%d" % n)
    taker = Taker(queue, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    lanes.own(1, None)
    await eventually(lambda: not queue.lanes[1].home.line.is_open)
    monkeypatch.setattr("backend_store.remote.queues.queue.SETTLE_MS_MAX", 200)
    verdicts = await settle(queue, taker.receipts)
    monkeypatch.undo()
    assert isinstance(verdicts, list)
    assert {one.error for one in verdicts} == {None, "unavailable"}
    lanes.own(1, "h0")
    verdicts = await settle(queue, taker.receipts)
    assert isinstance(verdicts, list)
    assert all(one.ok for one in verdicts)


async def test_numbers_a_peek_a_purge_and_a_cancel_are_of_all_lanes(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    for n in range(MESSAGES):
        await publish(queue, b"%d" % n)
    assert (await stats(queue)).ready == MESSAGES
    assert queue.layout is not None
    assert [(one.partition, one.slots) for one in queue.layout] == [(0, 86), (1, 85), (2, 85)]
    for limit in (1, 7, MESSAGES - 1, MESSAGES):  # a page may end just where a lane does
        seen, cursor = [], None
        while True:
            page = await queue.peek(PeekFilter(limit=limit, cursor=cursor))
            seen += [one.message["id"] for one in page.items]
            if (cursor := page.next) is None:
                break
        assert len(set(seen)) == len(seen) == MESSAGES
    last = max(seen)
    assert last.startswith("2-")
    assert await queue.cancel(last) == "cancelled"
    assert (await queue.purge("p")).total == MESSAGES - 1


async def test_dead_letters_of_all_lanes_are_in_one_companion(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await make(store, max_attempts=1)
    for n in range(MESSAGES):
        await publish(queue, b"%d" % n)
    taker = Taker(queue, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, None, done.set_result)
    assert all(one.ok for one in await done)
    assert (await stats(queue)).dead == MESSAGES
    dead = store.queue("default", "q.dead")
    assert isinstance(dead, LanedQueue)
    assert len((await dead.peek(PeekFilter())).items) == MESSAGES


async def test_a_changed_setting_is_changed_in_all_lanes(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await make(store)
    await store.update_queue("default", "q", QueueConfig(encrypted=False, max_attempts=3), 1)
    await eventually(lambda: all(_attempts(node) == 3 for node in lanes.nodes))
    assert [one.config.max_attempts for one in queue.lanes] == [3, 3, 3]
    with pytest.raises(InvalidRequest):
        await store.update_queue("default", "q", QueueConfig(encrypted=False, max_messages=2), 2)


def _attempts(node: Node) -> int:
    return node.metadata.find("default", "q").config.max_attempts


async def test_a_queue_made_while_a_lane_was_away_is_there_when_it_is_back(lanes: Lanes) -> None:
    store = await lanes.store()
    lanes.own(2, None)
    await eventually(lambda: not store.homes[2].line.is_open)
    queue = await make(store)
    lanes.own(2, "h2")
    await eventually(lambda: any(one.name == "q" for one in lanes.nodes[2].metadata.queues.values()))
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert 2 in {lane for lane, _ in found}


async def test_a_deleted_queue_goes_from_all_lanes(lanes: Lanes) -> None:
    store = await lanes.store()
    await make(store)
    await store.delete_queue("default", "q")
    await eventually(lambda: not any(node.metadata.queues for node in lanes.nodes))


async def test_a_gateway_goes_back_to_a_host_that_was_lost_and_came_back(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    await lanes.hosts["h0"].server.close()
    lanes.alive.pop("h0")
    lanes.own(0, "h1")
    found = places(*[await publish(queue, b"%d" % n) for n in range(MESSAGES)])
    assert 0 not in {lane for lane, _ in found}
    await lanes.hosts["h0"].open()
    lanes.alive["h0"] = 2
    lanes.own(0, "h0")
    end = time.monotonic() + 30
    while 0 not in {lane for lane, _ in places(await publish(queue, b"again"))}:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_host_that_spoke_another_version_is_not_gone_home_to_until_later(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line would be cut each time, and what waits for it with that."""
    looks, refused = [0], [True]

    def was_refused_at(line: Line, address: object) -> bool:
        looks[0] += 1
        return refused[0]

    monkeypatch.setattr(host_doors, "DOOR_HOME_SECONDS", 0.01)
    monkeypatch.setattr(Line, "was_refused_at", was_refused_at)
    queue = await make(await lanes.store("h0", "h1"))
    [line, _] = queue.homes[0].cluster.doors.lines
    await lanes.hosts["h0"].server.close()
    await eventually(lambda: line.is_open)
    await lanes.hosts["h0"].open()
    connections, looks[0] = line.connections, 0
    await eventually(lambda: looks[0] >= 5)
    assert line.connections == connections
    refused[0] = False
    await eventually(lambda: line.connections == connections + 1 and line.is_open)


async def lanes_of_what_any_may_take(queue: LanedQueue, count: int = 12) -> set[int]:
    return {lane for lane, _ in places(*[await publish(queue, b"%d" % n) for n in range(count)])}


async def test_a_host_that_follows_a_lost_one_takes_messages_by_its_own_door_at_a_gateway_that_was_not_told_of_it(
    lanes: Lanes,
) -> None:
    lanes.tell()
    queue = await make(await lanes.store("h0", "h1", "h2"))
    doors, heir = queue.homes[0].cluster.doors, lanes.hosts["h3"]
    await lanes.lose("h0")
    lanes.own(0, "h1")
    lanes.tell()
    assert await lanes_of_what_any_may_take(queue) == {1, 2}
    lanes.homes[0] = "h3"
    lanes.own(0, "h3")
    lanes.tell()
    await eventually(lambda: len(doors.lines) == 3 and all(line.is_open for line in doors.lines))
    assert await lanes_of_what_any_may_take(queue) == {0, 1, 2}
    assert heir.door.passed_on == 0


async def test_what_has_no_key_does_not_go_to_a_host_without_a_lane_that_was_named(lanes: Lanes) -> None:
    lanes.tell()
    queue = await make(await lanes.store("h0", "h3"))
    assert await lanes_of_what_any_may_take(queue) == {0, 1, 2}
    assert lanes.hosts["h3"].door.passed_on == 0


async def test_hosts_of_the_gateways_zone_that_it_was_not_told_of_come_first(lanes: Lanes) -> None:
    lanes.tell()
    queue = await make(await lanes.store("h0", "h2", zone="west"))
    doors = queue.homes[0].cluster.doors
    await eventually(lambda: len(doors.lines) == 3 and all(line.is_open for line in doors.lines))
    assert await lanes_of_what_any_may_take(queue) == {1}


async def test_while_no_host_is_at_home_in_its_lane_doors_stay_as_they_are(lanes: Lanes) -> None:
    lanes.tell()
    queue = await make(await lanes.store("h0", "h1"))
    doors = queue.homes[0].cluster.doors
    before = list(doors.lines)
    lanes.own(0, "h1")
    lanes.own(1, "h2")
    lanes.own(2, "h0")
    lanes.tell()
    keyed = [await publish(queue, b"1", keys=[f"k{n}"]) for n in range(6)]
    assert len(places(*keyed)) == 6
    assert doors.lines == before


async def test_a_key_keeps_its_line_when_hosts_come_and_what_waits_is_answered_before_a_line_ends(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_doors, "DOOR_HOME_SECONDS", 0.02)
    queue = await make(await lanes.store("h3"))
    doors = queue.homes[0].cluster.doors
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == 2)
    [line] = doors.lines
    lanes.own(2, None)
    waiting = [asyncio.create_task(publish(queue, b"%d" % n, keys=[key])) for n in range(3)]
    await eventually(lambda: line.is_waited_for)
    lanes.tell()
    await eventually(lambda: len(doors.lines) == 2)
    assert doors.line_of(2) is line
    waiting += [asyncio.create_task(publish(queue, b"%d" % n, keys=[key])) for n in range(3)]
    lanes.own(2, "h2")
    lanes.tell()
    found = places(*await asyncio.gather(*waiting))
    assert [lane for lane, _ in found] == [2] * 6 and found == sorted(found)
    await eventually(lambda: len(doors.lines) == 3 and all(one.is_open for one in doors.lines))


async def test_the_line_of_a_host_without_a_lane_ends_when_nothing_waits_for_it(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_doors, "DOOR_HOME_SECONDS", 0.02)
    queue = await make(await lanes.store())
    lanes.own(2, None)
    doors = queue.homes[0].cluster.doors
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == 2)
    waiting = asyncio.create_task(publish(queue, b"1", keys=[key]))
    await eventually(lambda: doors.line_of(2).is_waited_for)
    line = doors.line_of(2)
    lanes.tell()
    assert line in doors.lines
    lanes.own(2, "h3")  # adopted, so h2 is not at home
    assert [lane for lane, _ in places(await waiting)] == [2]
    await eventually(lambda: len(doors.lines) == 2 and line not in doors.lines)
    assert doors.line_of(2) in doors.lines


async def test_at_most_once_nothing_comes_again_also_when_a_lane_changes_its_owner(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await make(store, delivery="at_most_once")
    for number in range(MESSAGES):
        await publish(queue, b"%d" % number)
    taker = Taker(queue, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    lanes.own(1, "h3")
    await eventually(lambda: queue.homes[1].line.is_open)
    found = await stats(queue)
    assert (found.ready, found.in_flight) == (0, 0)
    again = Taker(await queue_at(await lanes.store("h2")), MESSAGES)
    await publish(queue, b"last")
    await eventually(lambda: b"last" in taker.bodies + again.bodies)
    assert sorted(taker.bodies + again.bodies) == sorted([*(b"%d" % n for n in range(MESSAGES)), b"last"])


async def test_of_each_lane_a_message_with_a_higher_priority_comes_first(lanes: Lanes) -> None:
    queue = await make(await lanes.store(), priorities=3)
    for number in range(MESSAGES):
        await publish(queue, b"%d" % (number % 3), priorities=[number % 3], keys=[f"k{number // 3}"])
    taker = Taker(queue, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    came: dict[int | None, list[int]] = {}
    for receipt, body in zip(taker.receipts, taker.bodies, strict=True):
        came.setdefault(partition_of_token(receipt), []).append(int(body))
    assert len(came) == 3
    for lane in came.values():
        assert lane == sorted(lane, reverse=True)


async def test_dead_letters_go_to_another_queue_of_the_same_hosts(lanes: Lanes) -> None:
    store = await lanes.store()
    graveyard = await make(store, "graveyard")
    queue = await make(store, dead_letter_queue="graveyard", max_attempts=1)
    for number in range(MESSAGES):
        await publish(queue, b"%d" % number, keys=[f"k{number}"])
    taker = Taker(queue, MESSAGES)
    await eventually(lambda: len(taker.bodies) == MESSAGES)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    await done
    dead = Taker(graveyard, MESSAGES)
    await eventually(lambda: sorted(dead.bodies) == sorted(taker.bodies))
    for receipt in dead.receipts:
        graveyard.settle_quietly([receipt])


async def test_a_lane_that_is_told_of_a_queue_is_told_of_the_one_for_its_dead_letters_as_well(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def later(self: Adopted) -> None:
        """The others come when there is time."""

    monkeypatch.setattr(Adopted, "_adopt_all", later)
    store = await lanes.store()
    lanes.own(1, None)
    await eventually(lambda: not store.homes[1].line.is_open)
    graveyard = await make(store, "graveyard")
    queue = await make(store, dead_letter_queue="graveyard", max_attempts=1)
    lanes.own(1, "h1")
    await eventually(lambda: store.homes[1].line.is_open)
    key = next(f"k{number}" for number in range(100) if slot_of(f"k{number}") % 3 == 1)
    await publish(queue, b"1", keys=[key])
    taker = Taker(queue, 1)
    await eventually(lambda: taker.bodies == [b"1"])
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    await done
    companion = store.queue(TENANT, "q.dead")
    assert isinstance(companion, LanedQueue)
    found = [Taker(graveyard, 1), Taker(companion, 1)]
    await eventually(lambda: any(one.bodies for one in found))
    assert [one.bodies for one in found] == [[b"1"], []]


class Acker(Taker):
    """Acks what it takes, message by message, for credit that comes back so."""

    def _deal(self) -> None:
        super()._deal()
        receipts, self.leases = self.receipts, []
        for receipt in receipts:
            self.queue.settle_quietly([receipt])

    def released(self, count: int) -> None:
        self.credit += count
        self.queue.wanted_changed()


async def test_credit_that_comes_back_in_parts_starves_no_lane_that_goes_and_comes(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    acker = Acker(queue, 12)
    sent: list[bytes] = []

    async def send(count: int) -> None:
        first, keys = len(sent), [f"k{number}" for number in range(count)]
        sent.extend(b"%d" % number for number in range(first, first + count))
        answer = await publish(queue, *sent[first:], keys=keys)
        assert isinstance(answer, Published), answer
        await eventually(lambda: sorted(acker.bodies) == sorted(sent), lambda: f"{len(acker.bodies)} of {len(sent)}")
        await eventually(lambda: acker.credit == 12)

    line = queue.lanes[0].home.line
    await send(40)
    for host in ("h1", "h0"):
        lanes.own(0, None)
        await eventually(lambda: not line.is_open)
        lanes.own(0, host)
        await eventually(lambda: line.is_open)
        await send(40)
