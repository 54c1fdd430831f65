"""What many calls ask of another place of their queue goes together: how many requests that makes, and who is told
what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.model import (
    Block,
    Claim,
    OnTheMove,
    Original,
    Overloaded,
    Published,
    PushqError,
    QueueNotFound,
    Unavailable,
)
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.limits import RECALL_ASKS_MAX
from backend_store.remote.line import recalls
from backend_store.remote.line.recalls import Recalls
from backend_store.service.recalling import FindKnown
from backend_store.wire.store_frames import Placed, Wrong, pack, wrong
from tests.support.lanes import Lanes
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, World
from tests.unit.backend_store.remote.test_moves import begin, in_cluster, moved, publish
from tests.unit.backend_store.remote.test_split import keys_of, spread

pytestmark = pytest.mark.anyio

Answer = tuple[Placed | None, Wrong | None]
Said = list[Published | PushqError]
UNKNOWN: Answer = None, wrong(OnTheMove("not known here"))


class Home:
    """A shard that answers when a test says so."""

    def __init__(self) -> None:
        self.recalling = asyncio.Semaphore(RECALL_ASKS_MAX)
        self.line = SimpleNamespace(unavailable=lambda: Unavailable("gone"))
        self.asked: list[FindKnown] = []
        self.adopted = self
        self.told: list[int] = []
        self._answers: asyncio.Queue[list[Answer] | PushqError] = asyncio.Queue()

    def knows(self, definition: Any) -> bool:
        return definition.version in self.told

    async def tell(self, definitions: list[Any]) -> None:
        self.told += [one.version for one in definitions]

    async def ask(self, asked: FindKnown, *, may_repeat: bool) -> msgspec.Raw:
        assert may_repeat
        self.asked.append(asked)
        answer = await self._answers.get()
        if isinstance(answer, PushqError):
            raise answer
        return msgspec.Raw(pack(answer))

    async def answer(self, answer: list[Answer] | PushqError | None = None) -> None:
        """By default that nothing is known of any call."""
        await turns()
        self._answers.put_nowait([UNKNOWN] * len(self.asked[-1].calls) if answer is None else answer)
        await turns()


class Queue:
    tenant, name, uid = TENANT, "q", 7

    def __init__(self, home: Home) -> None:
        self.home = home
        self.definition = SimpleNamespace(version=3)
        self.tasks: list[asyncio.Task[None]] = []

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)


@pytest.fixture
async def home() -> Home:
    return Home()


@pytest.fixture
async def queue(home: Home) -> Queue:
    return Queue(home)


@pytest.fixture
async def asking(queue: Queue) -> Recalls:
    return Recalls(queue)  # type: ignore[arg-type]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def blocks(messages: int = 1) -> list[Block]:
    bodies = [b"%d" % number for number in range(messages)]
    return list(column_blocks(Columns(KIND_JSON, bodies, {}, hashes=[b"i" * 16] * messages), None).blocks)


def recall(asking: Recalls, messages: int = 1, claim: Claim | None = None) -> Said:
    said: Said = []
    asking.add(blocks(messages), claim, said.append)
    return said


async def test_what_comes_while_a_request_is_under_way_goes_with_the_next_one(home: Home, asking: Recalls) -> None:
    first = [recall(asking) for _ in range(3)]
    await turns()
    later = [recall(asking) for _ in range(5)]
    await turns()
    assert [len(one.calls) for one in home.asked] == [3]
    await home.answer()
    assert [len(one) for one in first] == [1] * 3 and [len(one) for one in later] == [0] * 5
    await home.answer()
    assert [len(one.calls) for one in home.asked] == [3, 5]
    assert [type(one[0]) for one in (*first, *later)] == [OnTheMove] * 8
    last = recall(asking)
    await home.answer()
    assert len(last) == 1 and home.told == [3]


async def test_each_call_has_its_own_answer(home: Home, asking: Recalls) -> None:
    said = [recall(asking, 2), recall(asking), recall(asking, claim=Claim(b"k" * 16, b"p" * 16))]
    is_known = Placed(0, -1, 2, True, 1, (-1,), None, {1: (5, 2)}, {0: wrong(OnTheMove("new"))}, None, False)
    await home.answer([(is_known, None), UNKNOWN, (None, wrong(Unavailable("unreadable")))])
    [[known], [unknown], [failed]] = said
    assert isinstance(known, Published) and known.others is not None
    assert known.others[1] == Original(5, 2) and isinstance(known.others[0], OnTheMove)
    assert isinstance(unknown, OnTheMove) and isinstance(failed, Unavailable)


async def test_bodies_are_not_sent(home: Home, asking: Recalls) -> None:
    claim = Claim(b"k" * 16, b"p" * 16)
    said = recall(asking, 3, claim)
    await home.answer()
    [call] = home.asked[0].calls
    assert [block.data for block in call.blocks] == [b""] and [block.messages for block in call.blocks] == [3]
    assert call.blocks[0].traits == blocks(3)[0].traits and call.claim == claim
    assert (home.asked[0].name, home.asked[0].uid, home.asked[0].version) == ("q", 7, 3) and len(said) == 1


async def test_a_request_has_so_many_calls_and_messages(
    home: Home, asking: Recalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalls, "RECALL_CALLS_MAX", 4)
    monkeypatch.setattr(recalls, "RECALL_MESSAGES_SOFT_MAX", 10)
    said = [recall(asking, messages) for messages in (1, 1, 1, 1, 6, 6, 20, 1)]
    for _ in range(4):
        await home.answer()
    assert [len(one.calls) for one in home.asked] == [4, 2, 1, 1]
    assert [len(one) for one in said] == [1] * 8


@pytest.mark.parametrize("error", [Unavailable("not there"), QueueNotFound("not here")], ids=lambda one: one.code)
async def test_an_error_of_the_request_is_the_answer_to_its_calls_and_to_no_later_ones(
    home: Home, asking: Recalls, error: PushqError
) -> None:
    first = [recall(asking) for _ in range(2)]
    await turns()
    later = recall(asking)
    await home.answer(error)
    assert first == [[error], [error]] and later == []
    await home.answer()
    assert isinstance(later[0], OnTheMove)


async def test_beyond_so_many_that_wait_one_is_refused(
    home: Home, asking: Recalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalls, "LINE_CALLS_MAX", 2)
    recall(asking)
    await turns()
    waiting = [recall(asking) for _ in range(3)]
    assert waiting == [[], [], []], "none is told while it still asks"
    await turns()
    assert isinstance(waiting[2][0], Overloaded) and waiting[:2] == [[], []]


async def test_an_answer_that_somebody_cannot_take_keeps_nobody_from_theirs(home: Home, asking: Recalls) -> None:
    def fails(result: object) -> None:
        raise AssertionError("a mistake")

    asking.add(blocks(), None, fails)
    said = recall(asking)
    await home.answer()
    assert len(said) == 1


async def test_requests_of_many_queues_leave_room_for_others(home: Home) -> None:
    asking = [Recalls(Queue(home)) for _ in range(RECALL_ASKS_MAX + 5)]  # type: ignore[arg-type]
    said = [recall(one) for one in asking]
    await turns()
    assert len(home.asked) == RECALL_ASKS_MAX
    for _ in asking:
        await home.answer()
    assert len(home.asked) == len(asking) and [len(one) for one in said] == [1] * len(asking)


async def test_what_waits_when_its_store_closes_is_told_so(home: Home, queue: Queue, asking: Recalls) -> None:
    asked = recall(asking)
    await turns()
    waiting = recall(asking)
    queue.tasks[0].cancel()
    await turns()
    assert isinstance(asked[0], Unavailable) and isinstance(waiting[0], Unavailable)


# ----------------------------------------------------------------------------------------------------- with clusters


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        made = World(opened)
        await made.open()
        yield made


@pytest.mark.parametrize("is_split", [True, False], ids=["split", "whole"])
async def test_many_publishes_with_ids_at_once(world: World, is_split: bool) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", dedupe="id")
    await publish(queue, b"w", key="w", ids=[b"w"])
    if is_split:
        await spread(store, queue.name, "main", "eu")
        key = keys_of(queue, "eu")[0]
    else:
        await moved(store, queue.name, "eu")
        key = "k"
    await _all_are_taken(queue, key)


async def test_many_publishes_with_ids_at_once_to_a_queue_that_was_at_hosts(world: World) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        store = await world.gateway(others=[ClusterAt("hosts", FixedDirectory(addresses), addresses)])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        queue = await in_cluster(store, "hosts", dedupe="id")
        await publish(queue, b"w", key="w", ids=[b"w"])
        await spread(store, queue.name, "hosts", "main")
        await _all_are_taken(queue, keys_of(queue, "")[0])
        await store.close()


async def _all_are_taken(queue: Any, key: str) -> None:
    async def all_of() -> list[Published | PushqError]:
        calls = [begin(queue, b"%d" % number, key=key, ids=[b"i%d" % number]) for number in range(400)]
        return await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S)

    answers = await all_of()
    assert [one for one in answers if not isinstance(one, Published) or one.others] == []
    again = await all_of()
    assert all(isinstance(one, Published) and isinstance((one.others or {}).get(0), Original) for one in again)
