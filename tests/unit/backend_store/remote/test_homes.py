"""Queues that lie in another shard than their definitions, whatever became of the gateway that made them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple, cast

import msgspec
import pytest

from backend_store.client import Store
from backend_store.client.embedded import EmbeddedStore
from backend_store.client.queue import JOBS_REMEMBERED_MAX
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.metadata import relocation
from backend_store.metadata.relocation import Spot
from backend_store.model import Published, PushqError, QueueConfig, QueueDefinition, Unavailable
from backend_store.node.node import Node
from backend_store.remote.definitions import adopted
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.queues import grants
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.defining import DropQueues
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import Defined, Leases, Want
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.desk import GatewayDesk
from push.delivery.lookup_retry import LookingUp
from push.protocol import PublishMessage
from tests.support.asleep import Asleep
from tests.support.lanes import Taker
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

WAIT_S = PATIENCE_S
VISIBILITY_MS = 30_000
TENANT = "default"


class World(NamedTuple):
    """Two shards, each a node; the first has the definitions. And one gateway's store."""

    first: Node
    second: Node
    services: dict[int, StoreService]
    store: RemoteBackends

    async def defined(self, name: str) -> QueueDefinition:
        """A queue of the second shard, whose gateway died before it told that."""
        definition, _ = await self.first.metadata.create_queue(TENANT, name, QueueConfig(), 1)
        assert definition.shard == 1
        return definition

    async def known(self, name: str) -> RemoteQueue:
        """That queue, as soon as the other gateway has heard of it."""
        await eventually(lambda: (TENANT, name) in self.store.metadata.queues)
        return self.store.queue(TENANT, name)

    @property
    def taken_over(self) -> list[QueueDefinition]:
        return list(self.second.metadata.queues.values())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    nodes = [Node(MemoryEngine(), directory=None) for _ in range(2)]
    services = {}
    for shard, node in enumerate(nodes):
        await node.start()
        services[shard] = StoreService(EmbeddedStore(node), shards=len(nodes) if shard == 0 else 1)
    server = StoreServer(services)
    port = await server.listen("127.0.0.1", 0, None)
    store = RemoteBackends(FixedDirectory([("127.0.0.1", port)]), None, LookingUp)
    try:
        await store.open()
        yield World(*nodes, services, store)
    finally:
        await store.close()
        for service in services.values():
            service.close()
        await server.close()
        for node in nodes:
            await node.close()


def publish(queue: RemoteQueue, *bodies: bytes, until_ms: int = 0) -> asyncio.Future[Published | PushqError]:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    blocks = list(column_blocks(Columns(KIND_JSON, list(bodies))).blocks)
    queue.publish(blocks, done.set_result, until_ms=until_ms)
    return done


async def test_another_gateway_tells_the_shard(world: World) -> None:
    definition = await world.defined("new")
    await eventually(lambda: world.taken_over == [definition])


async def test_what_is_published_before_the_shard_knows_keeps_its_order(world: World) -> None:
    await world.defined("new")
    queue = await world.known("new")
    calls = [publish(queue, b"%d" % number) for number in range(20)]
    await asyncio.sleep(0)
    calls += [publish(queue, b"%d" % number) for number in range(20, 40)]
    placed = await asyncio.gather(*calls)
    offsets = [one.base for one in placed if isinstance(one, Published)]
    assert len(offsets) == 40, placed
    assert offsets == sorted(offsets)


async def test_what_is_published_before_the_shard_knows_is_refused_at_its_time_and_the_rest_keeps_its_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted, is_able = world.store.homes[1].adopted, asyncio.Event()
    tell = adopted.tell

    async def told_later(definitions: list[QueueDefinition]) -> None:
        await is_able.wait()
        await tell(definitions)

    monkeypatch.setattr(adopted, "tell", told_later)
    await world.defined("new")
    queue = await world.known("new")
    times = [0, 20, 60_000, 20, 0]
    calls = [publish(queue, b"%d" % n, until_ms=ms and world.store.own_ms() + ms) for n, ms in enumerate(times)]
    await eventually(lambda: all(calls[n].done() for n in (1, 3)))
    assert all(isinstance(calls[n].result(), Unavailable) for n in (1, 3))
    assert not any(calls[n].done() for n in (0, 2, 4))
    is_able.set()
    placed = [await asyncio.wait_for(calls[n], WAIT_S) for n in (0, 2, 4)]
    assert [one.base for one in placed if isinstance(one, Published)] == [0, 1, 2]


async def test_a_queue_changed_at_the_definitions_alone_is_changed_in_its_shard(world: World) -> None:
    await world.defined("new")
    await eventually(lambda: bool(world.taken_over))
    changed = await world.first.metadata.update_queue(TENANT, "new", QueueConfig(max_attempts=3), 1)
    await eventually(lambda: world.taken_over == [changed])


async def test_a_queue_deleted_at_the_definitions_alone_goes_from_its_shard(world: World) -> None:
    await world.defined("old")
    queue = await world.known("old")
    assert isinstance(await publish(queue, b"1"), Published)
    await world.first.metadata.delete_elsewhere(TENANT, "old")
    await eventually(lambda: not world.taken_over)


async def test_a_change_of_one_queue_costs_no_look_at_the_others_of_its_shard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many queues a gateway once stood still at each change of one, for each shard."""
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.01)
    many = []
    for number in range(50):
        made, _ = await world.first.metadata.create_queue(TENANT, f"q{number}", QueueConfig(), 1)
        many.append(made)
    there = sorted(one.name for one in many if one.shard == 1)
    await eventually(lambda: sorted(one.name for one in world.taken_over) == there)
    await eventually(lambda: not world.store.homes[1].adopted._is_adopting)
    looks: list[str] = []
    lies_in = relocation.lies_in

    def looked_at(definition: QueueDefinition, spot: Spot) -> bool:
        looks.append(definition.name)
        return lies_in(definition, spot)

    monkeypatch.setattr(adopted, "lies_in", looked_at)
    changed = await world.first.metadata.update_queue(TENANT, there[0], QueueConfig(max_attempts=3), 1)
    await eventually(lambda: changed in world.taken_over)
    await world.first.metadata.delete_elsewhere(TENANT, there[1])
    await eventually(lambda: sorted(one.name for one in world.taken_over) == [there[0], *there[2:]])
    await eventually(lambda: not world.store.homes[1].adopted._is_dropping)
    assert set(looks) <= set(there[:2]) and len(looks) < 20


async def test_a_name_used_again_is_another_queue(world: World) -> None:
    await world.defined("name")
    before = await world.known("name")
    assert isinstance(await publish(before, b"1"), Published)
    await world.first.metadata.delete_elsewhere(TENANT, "name")
    again = await world.defined("name")
    await eventually(lambda: world.taken_over == [again])
    queue = await world.known("name")
    await eventually(lambda: world.store.queue(TENANT, "name").uid == again.uid)
    assert isinstance(await publish(world.store.queue(TENANT, "name"), b"2"), Published)
    found = EmbeddedStore(world.second).queue(TENANT, "name")
    assert found.stats().published_total == 1
    assert queue is not before


async def test_a_shard_that_is_away_hears_when_it_is_back(world: World) -> None:
    kept = await world.defined("kept")
    gone = await world.first.metadata.create_queue(TENANT, "first", QueueConfig(), 1)
    assert gone[0].shard == 0
    deleted = await world.defined("deleted")
    await eventually(lambda: sorted(one.uid for one in world.taken_over) == [kept.uid, deleted.uid])
    away = world.services.pop(1)
    away.close()
    await eventually(lambda: not world.store.homes[1].line.is_open)
    await world.first.metadata.delete_elsewhere(TENANT, "deleted")
    new = await world.defined("new")
    world.services[1] = StoreService(EmbeddedStore(world.second))
    await eventually(lambda: sorted(one.uid for one in world.taken_over) == [kept.uid, new.uid])


async def test_a_stale_word_of_a_queue_that_was_moved_or_made_again_changes_nothing(world: World) -> None:
    old = await world.defined("name")
    await eventually(lambda: bool(world.taken_over))
    await world.first.metadata.delete_elsewhere(TENANT, "name")
    new = await world.defined("name")
    await eventually(lambda: world.taken_over == [new])
    await world.store.homes[1].adopted.tell([old])
    assert world.taken_over == [new]


async def test_a_publish_that_knows_less_than_the_shard_is_answered(world: World) -> None:
    old = await world.defined("name")
    queue = await world.known("name")
    await eventually(lambda: bool(world.taken_over))
    await world.store.homes[1].adopted.tell([msgspec.structs.replace(old, uid=old.uid + 100)])
    await eventually(lambda: not world.store.homes[1].adopted.has(old))
    async with asyncio.timeout(WAIT_S):
        assert isinstance(await publish(queue, b"1"), PushqError)
    assert [one.uid for one in world.taken_over] == [old.uid + 100], "nothing brings the old one back"


async def test_queues_are_dropped_by_their_numbers(world: World) -> None:
    first, second = (
        await world.defined("a"),
        (await world.first.metadata.create_queue(TENANT, "x", QueueConfig(), 1))[0],
    )
    assert second.shard == 0
    second = await world.defined("b")
    await eventually(lambda: len(world.taken_over) == 2)
    home = world.store.homes[1]
    again = msgspec.structs.replace(second, uid=second.uid + 100)
    await asyncio.gather(home.ask(DropQueues([first.uid, second.uid])), home.adopted.tell([again]))
    assert world.taken_over == [again], "made anew while the earlier ones went"
    await home.adopted.tell([first])
    assert world.taken_over == [again], "a late word brings nothing back"


async def test_who_waits_for_messages_before_the_shard_knows_the_queue_gets_them(world: World) -> None:
    away = world.services.pop(1)
    away.close()
    await eventually(lambda: not world.store.homes[1].line.is_open)
    await world.defined("new")
    queue = await world.known("new")
    woken = asyncio.Event()
    queue.on_ready(woken.set, lambda: {30_000: 5})
    queue.wanted_changed()
    publishing = publish(queue, b"1")
    world.services[1] = StoreService(EmbeddedStore(world.second))
    async with asyncio.timeout(WAIT_S):
        while isinstance(await publishing, PushqError):
            publishing = publish(queue, b"1")
        while not queue.has_ready:
            woken.clear()
            await woken.wait()


async def test_who_waits_gets_more_where_the_first_came_in_one_breath_with_the_queue(world: World) -> None:
    """The shard served it already when what was granted before came: the gateway counted from then on, and not what
    had come."""
    away = world.services.pop(1)
    away.close()
    await eventually(lambda: not world.store.homes[1].line.is_open)
    definition = await world.defined("new")
    queue = await world.known("new")
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    heard = queue.home.defined

    def heard_at_once(frame: Defined, *, is_first: bool) -> None:
        """Whatever comes behind it is here before anything else happens."""
        if is_first:
            heard(frame, is_first=True)
        else:
            held.append(frame)

    held: list[Defined] = []
    queue.home.defined = heard_at_once  # type: ignore[method-assign]
    leased = queue.home.leased

    def leased_behind_it(frame: Leases) -> None:
        while held:
            heard(held.pop(0), is_first=False)
        leased(frame)

    queue.home.leased = leased_behind_it  # type: ignore[method-assign]
    there = EmbeddedStore(world.second)
    world.services[1] = StoreService(there)
    await eventually(lambda: held)
    queue.home.line.want(Want(queue.place_there, VISIBILITY_MS, 1, 10))
    here = there.queue(TENANT, "new")
    for body in (b"1", b"2"):
        blocks = list(column_blocks(Columns(KIND_JSON, [body])).blocks)
        here.publish(blocks, lambda result: None)
    await eventually(lambda: taker.bodies == [b"1"])
    assert definition.uid == queue.uid
    taker.credit = 1
    queue.wanted_changed()
    await eventually(lambda: taker.bodies == [b"1", b"2"])


@pytest.mark.parametrize(("credit", "granted"), [(1, [1, 2, 3, 4]), (100, [100, 125])])
async def test_credit_that_comes_back_message_by_message_is_granted_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch, credit: int, granted: list[int]
) -> None:
    """A frame for each message cost as much as the message. Where few are wanted the backend waits for none."""
    definition = await world.defined("new")
    queue = await world.known("new")
    await eventually(lambda: queue.home.adopted.has(definition), "nothing that is granted is forgotten again")
    wants: list[Want] = []
    monkeypatch.setattr(queue, "want", wants.append)
    queue.on_ready(lambda: None, lambda: {VISIBILITY_MS: credit})
    queue.wanted_changed()
    await eventually(lambda: len(wants) == 1)
    while len(wants) < len(granted):
        queue.came(VISIBILITY_MS, 1)
        queue.wanted_changed()
        await eventually(lambda: not queue._is_granting)
    assert [want.granted for want in wants] == granted
    queue.on_ready(lambda: None, dict)
    queue.wanted_changed()
    await eventually(lambda: wants[-1].granted == granted[-1] - credit, "what nobody wants any more is taken back")


async def test_who_waits_for_the_word_that_there_is_nothing_waits_on_when_another_one_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks with another visibility time was taken for answered: a receive that waits for nothing came back empty,
    though there were messages."""
    definition = await world.defined("new")
    queue = await world.known("new")
    await eventually(lambda: queue.home.adopted.has(definition), "nothing that is granted is forgotten again")
    wants: list[Want] = []
    monkeypatch.setattr(queue, "want", wants.append)
    wanted = {VISIBILITY_MS: 1, 2 * VISIBILITY_MS: 1}
    queue.on_ready(lambda: None, lambda: wanted)
    queue.wanted_changed()
    await eventually(lambda: len(wants) == 2)
    del wanted[2 * VISIBILITY_MS]
    queue.wanted_changed()
    await eventually(lambda: len(wants) == 3)
    assert queue.is_looking
    queue.idle(VISIBILITY_MS, 1)
    assert not queue.is_looking


async def test_visibility_times_that_were_asked_with_once_stay_nowhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers choose them, and each was kept by gateway and backend for as long as these were connected."""
    monkeypatch.setattr(grants, "GRANT_IDLE_SECONDS", -1.0)
    monkeypatch.setattr(grants, "GRANTS_KEPT", 3)
    await world.defined("new")
    queue = await world.known("new")
    taken: list[Lease] = []
    taker = Taker(queue, 0)  # type: ignore[arg-type]
    wanted: dict[int, int] = {}

    def take() -> None:
        for visibility_ms in list(wanted):
            if (lease := queue.take(1, taker, visibility_ms)) is not None:
                taken.append(lease)
                del wanted[visibility_ms]

    queue.on_ready(take, lambda: wanted)
    for number in range(30):
        wanted[VISIBILITY_MS + number] = 1
        queue.wanted_changed()
        await publish(queue, b"%d" % number)
        await eventually(lambda sent=number: len(taken) > sent)
    visitor = next(iter(world.services[1].visitors.values()))
    await eventually(lambda: len(visitor._grants) <= 4)
    assert len(queue._grants) <= 4 and queue.stock.times == []
    assert world.second.queues.of(queue.definition).all[0].main.core.in_flight == 30


async def test_so_many_purges_are_remembered(world: World) -> None:
    await world.defined("new")
    queue = await world.known("new")
    for number in range(2 * JOBS_REMEMBERED_MAX):
        last = await queue.purge(f"p{number}")
    assert len(queue.purges) == JOBS_REMEMBERED_MAX and queue.purges[last.id] is last


async def test_in_strict_order_only_the_rest_of_a_lease_that_is_cut_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases have different keys. All that had come beside the first one was given back, and leased anew, each time."""
    definition, _ = await world.first.metadata.create_queue(TENANT, "strict", QueueConfig(ordering="strict"), 1)
    queue = await world.known("strict")
    for number in range(4):  # each has a key of its own, with three messages
        columns = Columns(KIND_JSON, [b"%d-%d" % (number, n) for n in range(3)], {"key": [f"k{number}"] * 3})
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        queue.publish(list(column_blocks(columns).blocks), done.set_result)
        assert isinstance(await done, Published)
    given_back: list[int] = []
    tell = queue._tell

    def told(verb: str, token: str, bits: int, why: str | None) -> None:
        given_back.append(bits.bit_count())
        tell(verb, token, bits, why)

    monkeypatch.setattr(queue, "_tell", told)
    taker, wanted = Taker(queue, 0), {VISIBILITY_MS: 12}  # type: ignore[arg-type]
    queue.on_ready(lambda: None, lambda: wanted)
    queue.wanted_changed()
    await eventually(lambda: queue.stock.waiting == 12)
    found = [queue.take(limit, taker, VISIBILITY_MS) for limit in (3, 2, 3, 3)]
    assert [lease.bits.bit_count() for lease in found if lease is not None] == [3, 2, 3, 3]
    assert given_back == [1], "of the second one"
    bodies = [lease.chunk.messages.bodies[0] for lease in found if lease is not None and lease.chunk is not None]
    assert bodies == [b"0-0", b"1-0", b"2-0", b"3-0"]
    assert queue.take(3, taker, VISIBILITY_MS) is None, "what went back waits for those before it"
    assert queue.uid == definition.uid


# ---------------------------------------------------------------------------------------------- clocks that differ


async def led_by_another(world: World, *, clock_ahead_ms: int) -> None:
    """The first shard's leader is lost, and the one that follows has a clock of its own."""
    home, steady_ms = world.store.homes[0], world.first.steady_ms
    world.services.pop(0).close()
    await eventually(lambda: not home.line.is_open)
    world.first.steady_ms = lambda: steady_ms() + clock_ahead_ms
    world.services[0] = StoreService(EmbeddedStore(world.first), shards=2)
    await eventually(lambda: home.line.is_open)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_another_leaders_clock_changes_nobodys_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    adopted, is_able = world.store.homes[1].adopted, asyncio.Event()
    tell = adopted.tell

    async def told_later(definitions: list[QueueDefinition]) -> None:
        await is_able.wait()
        await tell(definitions)

    monkeypatch.setattr(adopted, "tell", told_later)
    await world.defined("new")
    queue = await world.known("new")
    before_ms = world.store.own_ms()
    call = publish(queue, b"1", until_ms=before_ms + 60_000)
    await led_by_another(world, clock_ahead_ms=hours * 3_600_000)
    assert 0 <= world.store.own_ms() - before_ms < 60_000
    is_able.set()
    assert isinstance(await asyncio.wait_for(call, WAIT_S), Published)
    assert abs(world.store.steady_ms() - world.first.steady_ms()) < 1_000, "ages are by the leader's"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_another_leaders_clock_neither_ends_sessions_nor_keeps_them(world: World, hours: int) -> None:
    """By the leader's everybody had been silent for an hour, or was not pinged for one."""
    hub = create_app(cast(Store, world.store), Settings()).gateway.hub
    before_ms = hub.clock_ms()
    await led_by_another(world, clock_ahead_ms=hours * 3_600_000)
    assert 0 <= hub.clock_ms() - before_ms < 60_000
    await hub.close()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_delay_counts_by_the_clock_of_the_shard_that_keeps_it(world: World, hours: int) -> None:
    """By that of the first shard it was over at once, or an hour late; and lives ended before they began."""
    steady_ms = world.second.steady_ms
    world.services.pop(1).close()
    await eventually(lambda: not world.store.homes[1].line.is_open)
    world.second.steady_ms = lambda: steady_ms() + hours * 3_600_000
    world.services[1] = StoreService(EmbeddedStore(world.second))
    await eventually(lambda: world.store.homes[1].line.is_open)
    await world.defined("new")
    queue = await world.known("new")
    app = create_app(cast(Store, world.store), Settings())
    desk = cast(GatewayDesk, app.gateway.hub.desk)
    [block] = desk.prepare(queue, [PublishMessage(body=1, delay_ms=60_000)], "json").blocks
    assert abs(block.due_ms - world.second.steady_ms() - 60_000) < 1_000
    await app.gateway.hub.close()


async def test_a_machine_that_sleeps_with_all_of_its_processes_delays_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections outlive that, and nobody hears what the time is by the storage's clock."""
    machine = Asleep(monkeypatch)
    assert abs(world.store.steady_ms() - world.first.steady_ms()) < 1_000
    machine.sleep_s(600)
    assert abs(world.store.steady_ms() - world.first.steady_ms()) < 1_000
