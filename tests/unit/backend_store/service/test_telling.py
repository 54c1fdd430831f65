"""How a gateway comes to know the definitions: all of them bit by bit, or what has changed since it was here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.metadata import recent
from backend_store.metadata.documents import Document
from backend_store.model import QueueConfig
from backend_store.service import definitions, telling
from backend_store.service.definitions import Definitions
from backend_store.service.limits import VISITOR_OUTBOX_BYTES_MAX
from backend_store.service.serving import StoreService
from backend_store.service.telling import Telling
from backend_store.service.visitor import Visitor
from backend_store.wire.store_frames import (
    Answered,
    Defined,
    FromBackend,
    Known,
    Place,
    Turned,
    from_backend,
)
from tests.support.patience import eventually
from tests.support.stores import made, opened, reopened

pytestmark = pytest.mark.anyio

NOTHING = Known("", {})
QUEUES = 25
PER_FRAME = 10

_news = msgspec.msgpack.Decoder(Definitions).decode


class Heard:
    """A gateway's end of a link."""

    def __init__(self) -> None:
        self.frames: list[FromBackend] = []
        self.waiting_bytes = 0
        self.is_aborted = False

    def send(self, data: bytes) -> None:
        self.frames.append(from_backend(data))

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def told(self) -> list[Defined]:
        return [frame for frame in self.frames if isinstance(frame, Defined)]

    @property
    def names(self) -> list[str]:
        return [queue.name for frame in self.told for queue in _news(frame.data).queues]

    @property
    def known(self) -> Known:
        known = self.told[-1].known
        assert known is not None
        return known


@pytest.fixture
def few_per_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (definitions, telling):
        monkeypatch.setattr(module, "DEFINITIONS_PER_FRAME_MAX", PER_FRAME)


@pytest.fixture
async def store(few_per_frame: None) -> AsyncIterator[EmbeddedStore]:
    store = await filled()
    yield store
    await store.close()


async def filled() -> EmbeddedStore:
    store = await opened()
    for number in range(QUEUES):
        await made(store, f"q{number}")
    return store


def begun(store: EmbeddedStore, known: Known | None = NOTHING) -> tuple[Telling, Heard]:
    heard = Heard()
    one = Telling(store.node, heard, known, lambda: None)  # type: ignore[arg-type]
    one.definitions()
    return one, heard


async def complete(one: Telling) -> None:
    while one.is_midway:  # noqa: ASYNC110 - it goes on with each turn of the loop
        await asyncio.sleep(0)


async def test_everything_is_told_a_part_in_each_turn(store: EmbeddedStore) -> None:
    """A backend with many queues stood still for each gateway that came, and its frame could be too big to be sent."""
    one, heard = begun(store)
    while one.is_midway:
        before = len(heard.frames)
        await asyncio.sleep(0)
        assert len(heard.frames) - before <= 1
    assert all(_news(frame.data).size <= PER_FRAME for frame in heard.told)
    assert sorted(heard.names) == sorted(f"q{number}" for number in range(QUEUES))
    assert [frame.is_last for frame in heard.told] == [False] * (len(heard.told) - 1) + [True]


async def test_what_changes_while_everything_is_told_comes_with_the_last_of_it(store: EmbeddedStore) -> None:
    one, heard = begun(store)
    heard.waiting_bytes = VISITOR_OUTBOX_BYTES_MAX
    await made(store, "new")
    await store.delete_queue("default", "q3")
    await store.documents.write([Document("rule", "one", b"1")])
    one.definitions()
    one.documents()
    assert len(heard.frames) == 1
    heard.waiting_bytes = 0
    one.room()
    await complete(one)
    last = _news(heard.told[-1].data)
    assert [queue.name for queue in last.queues] == ["new"]
    assert last.queues_gone == [("default", "q3")]
    assert [row.name for row in last.documents] == ["one"]
    await made(store, "later")
    one.definitions()
    assert heard.names[-1] == "later"


async def test_a_gateway_of_an_earlier_version_hears_of_all_at_once(store: EmbeddedStore) -> None:
    """It takes the first for all that there is."""
    one, heard = begun(store, None)
    assert not one.is_midway and len(heard.frames) == 1 and len(heard.names) == QUEUES


async def test_who_comes_back_hears_of_what_has_changed(store: EmbeddedStore) -> None:
    one, heard = begun(store)
    await complete(one)
    await made(store, "new")
    await store.delete_queue("default", "q3")
    _, again = begun(store, heard.known)
    assert [(frame.goes_on, frame.is_last) for frame in again.told] == [(True, True)]
    news = _news(again.told[0].data)
    assert [queue.name for queue in news.queues] == ["new"] and news.queues_gone == [("default", "q3")]
    assert news.size == 2
    _, idle = begun(store, again.known)
    assert [_news(frame.data).size for frame in idle.told] == [0], "it hears that it may begin"


async def test_much_that_has_changed_is_told_a_part_in_each_turn_too(store: EmbeddedStore) -> None:
    one, heard = begun(store)
    await complete(one)
    for number in range(QUEUES):
        await store.delete_queue("default", f"q{number}")
        await made(store, f"new{number}")
    again, changes = begun(store, heard.known)
    assert again.is_midway
    await complete(again)
    told = [_news(frame.data) for frame in changes.told]
    assert all(news.size <= PER_FRAME for news in told) and all(frame.goes_on for frame in changes.told[:-1])
    assert [frame.is_last for frame in changes.told] == [False] * (len(told) - 1) + [True]
    assert sorted(changes.names) == sorted(f"new{number}" for number in range(QUEUES))
    gone = [name for news in told for _, name in news.queues_gone]
    assert sorted(gone) == sorted(f"q{number}" for number in range(QUEUES))


async def test_who_was_away_for_too_long_hears_of_everything(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, heard = begun(store)
    await complete(one)
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    for number in range(5):
        await made(store, f"new{number}")
    again, everything = begun(store, heard.known)
    await complete(again)
    assert not any(frame.goes_on for frame in everything.told) and len(everything.names) == QUEUES + 5


async def test_another_leader_tells_everything(few_per_frame: None) -> None:
    """What its predecessor told of which version it does not know."""
    before = await filled()
    one, heard = begun(before)
    await complete(one)
    after = await reopened(before)
    again, everything = begun(after, heard.known)
    await complete(again)
    assert not any(frame.goes_on for frame in everything.told) and len(everything.names) == QUEUES
    await after.close()


async def test_who_falls_behind_while_it_is_here_connects_anew(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, heard = begun(store)
    await complete(one)
    before = len(heard.frames)
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    for number in range(5):
        await made(store, f"new{number}")
    one.definitions()
    assert heard.is_aborted and len(heard.frames) == before


async def test_more_is_told_when_what_was_told_has_left(store: EmbeddedStore) -> None:
    one, heard = begun(store)
    heard.waiting_bytes = VISITOR_OUTBOX_BYTES_MAX
    for _ in range(10):
        await asyncio.sleep(0)
    assert one.is_midway and len(heard.frames) == 1
    heard.waiting_bytes = 0
    one.room()
    await complete(one)
    assert len(heard.names) == QUEUES


async def test_much_that_changes_while_everything_is_told_comes_behind_it(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ended for it, and everything was told from the beginning, for as long as so much changed."""
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)
    one, heard = begun(store)
    heard.waiting_bytes = VISITOR_OUTBOX_BYTES_MAX
    for number in range(PER_FRAME + 5):
        if number in (5, 10):
            heard.waiting_bytes = 0
            one.room()
            heard.waiting_bytes = VISITOR_OUTBOX_BYTES_MAX  # one part has left
        await made(store, f"new{number}")
        one.definitions()
        await store.documents.write([Document("rule", f"{number}", b"1")])
        one.documents()
    for number in range(5):
        await store.delete_queue("default", f"q{number}")
        one.definitions()
    heard.waiting_bytes = 0
    one.room()
    await complete(one)
    assert not heard.is_aborted
    told = [_news(frame.data) for frame in heard.told]
    assert all(news.size <= PER_FRAME for news in told)
    assert [frame.is_last for frame in heard.told] == [False] * (len(told) - 1) + [True]
    gone = [name for news in told for _, name in news.queues_gone]
    there = {name for name in heard.names if name not in gone}
    assert there == {f"q{number}" for number in range(5, QUEUES)} | {f"new{number}" for number in range(PER_FRAME + 5)}
    documents = {row.name for news in told for row in news.documents}
    assert documents == {f"{number}" for number in range(PER_FRAME + 5)}
    _, again = begun(store, heard.known)
    assert [_news(frame.data).size for frame in again.told] == [0], "it knows all that there is"


class Here(Heard):
    """With what a visitor asks of its link beside that."""

    def when_room(self, on_room: Any) -> None: ...
    def leave(self) -> None: ...


async def test_nothing_else_is_said_before_everything_is(store: EmbeddedStore) -> None:
    """A gateway that has heard of a part of the queues would take the others for gone."""
    service, link = StoreService(store), Here()
    visitor = Visitor(service, "gateway")
    visitor.arrive(link, [], NOTHING)  # type: ignore[arg-type]
    visitor.tell_definitions()
    visitor._answer(Answered(1))
    visitor.group_gone(Place("default", "q1", 1, "g"))
    await eventually(lambda: any(isinstance(frame, Answered) for frame in link.frames))
    kinds = [type(frame) for frame in link.frames]
    assert kinds.index(Answered) > max(at for at, kind in enumerate(kinds) if kind is Defined)
    assert link.told[-1].is_last and len(link.names) == QUEUES


async def test_who_is_sent_on_midway_hears_the_rest_from_the_next_leader(store: EmbeddedStore) -> None:
    """With what is told of a change it would take the part that it has for all."""
    service, link = StoreService(store), Here()
    visitor = Visitor(service, "gateway")
    visitor.arrive(link, [], NOTHING)  # type: ignore[arg-type]
    visitor.tell_definitions()
    visitor.send_on("elsewhere")
    await store.create_queue("default", "new", QueueConfig())
    visitor.tell_definitions()
    for _ in range(10):
        await asyncio.sleep(0)
    assert isinstance(link.frames[-1], Turned) and not any(frame.is_last for frame in link.told)
