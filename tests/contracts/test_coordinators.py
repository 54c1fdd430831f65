"""One set of promises over every coordinator: the embedded one, and a real etcd behind its JSON gateway."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from backend_store.cluster.coordinator import Compacted, Coordinator, SessionLost, get
from backend_store.cluster.core.values import (
    Changes,
    Compare,
    Delete,
    Field,
    Get,
    Put,
    Record,
    Relation,
    Revision,
    SessionId,
    Transaction,
    absent,
    changed_at,
    created_at,
    has_value,
    present,
)
from backend_store.cluster.etcd import members
from backend_store.cluster.limits import (
    KEY_BYTES_MAX,
    OPERATIONS_PER_TRANSACTION_MAX,
    RECORDS_PER_PAGE_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from backend_store.model import InvalidRequest, Unavailable
from tests.support.coordinators import WITHIN_S, Coordinated, find, put
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------------- records


async def test_a_record_knows_when_it_was_made_and_changed_and_how_often(coordinator: Coordinator) -> None:
    first = await put(coordinator, b"k", b"one")
    second = await put(coordinator, b"k", b"two")
    assert first < second
    assert await find(coordinator, b"k") == Record(b"k", b"two", first, second, 2)
    gone = (await coordinator.transact(Transaction(then=(Delete(b"k"),)))).revision
    assert await get(coordinator, b"k") == (None, gone)
    again = await put(coordinator, b"k")
    assert second < gone < again and await find(coordinator, b"k") == Record(b"k", b"", again, again, 1)


async def test_any_bytes_are_a_key_and_a_value(coordinator: Coordinator) -> None:
    for key in (b"\x00", b"\xff\xff", b"a\x00b", bytes(KEY_BYTES_MAX)):
        await put(coordinator, key, bytes(range(256)))
        found = await find(coordinator, key)
        assert found is not None and (found.key, found.value) == (key, bytes(range(256)))
    assert [record.key for record in (await coordinator.read(b"\xff")).records] == [b"\xff\xff"]


async def test_a_transaction_does_one_branch_whole_at_one_revision(coordinator: Coordinator) -> None:
    await put(coordinator, b"old", b"o")
    moved = Transaction(
        compares=(present(b"old"), absent(b"new")),
        then=(Get(b"new"), Put(b"new", b"n"), Delete(b"old"), Get(b"new"), Get(b"old")),
        otherwise=(Get(b"old"), Get(b"new"), Put(b"refused", b"")),
    )
    done = await coordinator.transact(moved)
    new = Record(b"new", b"n", done.revision, done.revision, 1)
    assert done.succeeded and done.found == (None, new, None)
    refused = await coordinator.transact(moved)
    assert not refused.succeeded and refused.found == (None, new)
    made = await find(coordinator, b"refused")
    assert made is not None and made.created_at == refused.revision == done.revision + 1


async def test_what_changes_nothing_has_no_revision_of_its_own(coordinator: Coordinator) -> None:
    at = await put(coordinator, b"k")
    assert (await coordinator.transact(Transaction(then=(Delete(b"absent"), Get(b"k"))))).revision == at
    assert (await coordinator.transact(Transaction((absent(b"k"),), (Put(b"k", b"x"),)))).revision == at


_RELATED: dict[Relation, Callable[[object, object], bool]] = {
    Relation.EQUAL: operator.eq,
    Relation.NOT_EQUAL: operator.ne,
    Relation.GREATER: operator.gt,
    Relation.LESS: operator.lt,
}


async def test_each_field_is_compared_in_each_way(coordinator: Coordinator) -> None:
    await put(coordinator, b"k", b"l")
    await put(coordinator, b"k", b"m")
    record = await find(coordinator, b"k")
    assert record is not None
    for field in Field:
        actual = getattr(record, field.value)
        around = (b"l", b"m", b"mm") if field is Field.VALUE else (actual - 1, actual, actual + 1)
        for relation, holds in _RELATED.items():
            for expected in around:
                outcome = await coordinator.transact(Transaction((Compare(b"k", field, relation, expected),)))
                assert outcome.succeeded == holds(actual, expected), (field, relation, expected)
            if field is Field.VALUE:
                no_value = Compare(b"absent", field, relation, b"")
                assert not (await coordinator.transact(Transaction((no_value,)))).succeeded
            else:
                zero = Compare(b"absent", field, relation, 0)
                assert (await coordinator.transact(Transaction((zero,)))).succeeded == holds(0, 0)


async def test_of_many_writers_with_one_condition_one_wins(coordinated: Coordinated) -> None:
    start = await put(coordinated.coordinator, b"counter", b"0")

    async def count() -> None:
        async with coordinated.another() as coordinator:
            for _ in range(8):
                while True:
                    record = await find(coordinator, b"counter")
                    assert record is not None
                    more = Put(b"counter", b"%d" % (int(record.value) + 1))
                    done = await coordinator.transact(
                        Transaction((changed_at(b"counter", record.changed_at),), (more,))
                    )
                    if done.succeeded:
                        break

    await asyncio.gather(*(count() for _ in range(5)))
    record = await find(coordinated.coordinator, b"counter")
    assert record is not None and (record.value, record.version, record.created_at) == (b"40", 41, start)


# --------------------------------------------------------------------------------------------------------- reads


async def test_a_prefix_is_listed_in_pages_as_of_one_revision(coordinator: Coordinator) -> None:
    for number in (3, 1, 0, 2):
        await put(coordinator, b"p/%d" % number, b"before")
    await put(coordinator, b"q")
    first = await coordinator.read(b"p/", limit=2)
    assert [record.key for record in first.records] == [b"p/0", b"p/1"]
    assert (first.count, first.has_more) == (4, True)
    changed = (Put(b"p/2", b"after"), Delete(b"p/3"), Put(b"p/4", b"after"))
    await coordinator.transact(Transaction(then=changed))
    rest = await coordinator.read(b"p/", after=b"p/1", at=first.revision)
    assert [(record.key, record.value) for record in rest.records] == [(b"p/2", b"before"), (b"p/3", b"before")]
    assert (rest.revision, rest.count, rest.has_more) == (first.revision, 2, False)
    now = await coordinator.read(b"p/")
    assert [(record.key, record.version) for record in now.records] == [
        (b"p/0", 1), (b"p/1", 1), (b"p/2", 2), (b"p/4", 1),
    ]  # fmt: skip
    assert len((await coordinator.read(b"")).records) == 5


async def test_a_read_finds_what_changed_since(coordinator: Coordinator) -> None:
    await put(coordinator, b"p/0")
    since = await put(coordinator, b"p/1")
    await put(coordinator, b"p/0")
    await put(coordinator, b"p/2")
    page = await coordinator.read(b"p/", limit=1, changed_after=since)
    assert ([record.key for record in page.records], page.count, page.has_more) == ([b"p/0"], 3, True)


# --------------------------------------------------------------------------------------------------------- watch


async def _heard(watch: AsyncIterator[Changes], up_to: Revision) -> list[Changes]:
    """What changed, up to that revision."""
    heard: list[Changes] = []
    async with asyncio.timeout(WITHIN_S):
        async for changes in watch:
            if changes.events:
                heard.append(changes)
            if changes.revision >= up_to:
                break
    return heard


async def test_a_watch_tells_each_revision_once_whole_and_in_order(coordinator: Coordinator) -> None:
    start = await put(coordinator, b"w/before")
    async with aclosing(coordinator.watch(b"w/", after=start)) as watch:
        wanted: list[tuple[Revision, list[bytes]]] = []
        for number in range(50):
            keys = [b"w/%d" % number, b"w/%d" % (number + 1)]
            both = Transaction(then=(Put(keys[0], b"x"), Put(keys[1], b"y"), Put(b"elsewhere", b"")))
            wanted.append(((await coordinator.transact(both)).revision, keys))
        heard = await _heard(watch, wanted[-1][0])
    assert [(changes.revision, [event.key for event in changes.events]) for changes in heard] == wanted
    assert all(event.record is not None and event.record.changed_at == changes.revision
               for changes in heard for event in changes.events)  # fmt: skip


async def test_a_watch_begins_in_the_past_and_tells_what_was_deleted(coordinator: Coordinator) -> None:
    start = await put(coordinator, b"w/1", b"a")
    second = await put(coordinator, b"w/2", b"b")
    third = (await coordinator.transact(Transaction(then=(Delete(b"w/1"),)))).revision
    async with aclosing(coordinator.watch(b"w/", after=start)) as watch:
        heard = await _heard(watch, third)
    assert [changes.revision for changes in heard] == [second, third]
    assert [(event.key, event.record is None) for changes in heard for event in changes.events] == [
        (b"w/2", False),
        (b"w/1", True),
    ]


async def test_who_asks_for_history_that_is_gone_is_told_so(coordinated: Coordinated) -> None:
    coordinator = coordinated.coordinator
    start = await put(coordinator, b"w/1")
    gone = (await coordinator.transact(Transaction(then=(Delete(b"w/1"),)))).revision
    last = await put(coordinator, b"w/2")
    coordinated.compact(gone)
    with pytest.raises(Compacted):
        await coordinator.read(b"w/", at=start)
    # What happened at the compacted revision itself would be left out, so the watch must not begin before it.
    for after in (start, Revision(gone - 1)):
        async with aclosing(coordinator.watch(b"w/", after=after)) as watch:
            with pytest.raises(Compacted):
                async with asyncio.timeout(WITHIN_S):
                    await anext(watch)
    async with aclosing(coordinator.watch(b"w/", after=gone)) as watch:
        assert [changes.revision for changes in await _heard(watch, last)] == [last]
    assert [record.key for record in (await coordinator.read(b"w/", at=gone)).records] == []


async def test_a_slow_reader_of_a_watch_misses_nothing(coordinator: Coordinator) -> None:
    start = await put(coordinator, b"w/0", b"x")
    async with aclosing(coordinator.watch(b"w/", after=start)) as watch:
        await put(coordinator, b"w/0")
        await anext(watch)
        for number in range(200):
            many = tuple(Put(b"w/%d" % key, b"%d" % number) for key in range(20))
            last = (await coordinator.transact(Transaction(then=many))).revision
        waiting = [len(held) for held in _buffers(coordinator)]
        assert all(count <= 64 for count in waiting), f"{waiting} revisions wait in memory"
        heard = await _heard(watch, last)
    assert [changes.revision for changes in heard] == list(range(last - 199, last + 1))
    assert sum(len(changes.events) for changes in heard) == 4_000


def _buffers(coordinator: Coordinator) -> list[list[object]]:
    watches = getattr(coordinator, "_watches", ())
    return [] if isinstance(watches, int) else [list(watch._waiting._queue) for watch in watches]


# ------------------------------------------------------------------------------------------------------ sessions


async def test_records_of_a_session_go_with_it(coordinator: Coordinator) -> None:
    session = await coordinator.open_session(10)
    await put(coordinator, b"s/1", b"", session.id)
    await put(coordinator, b"s/2", b"", session.id)
    at = await put(coordinator, b"s/2")  # bound to none any more
    found = await find(coordinator, b"s/1")
    assert found is not None and found.session == session.id and session.is_held
    await session.close()
    assert session.is_lost and not session.is_held and await session.wait_lost() == "it was closed"
    assert [(record.key, record.changed_at) for record in (await coordinator.read(b"s/")).records] == [(b"s/2", at)]


async def test_nothing_is_bound_to_a_session_that_is_over(coordinator: Coordinator) -> None:
    session = await coordinator.open_session(10)
    await session.close()
    for strange in (session.id, SessionId(12345)):
        with pytest.raises(SessionLost):
            await coordinator.transact(Transaction(then=(Put(b"free", b""), Put(b"bound", b"", strange))))
    assert (await coordinator.read(b"")).records == ()


async def test_a_session_lives_while_it_is_kept_alive_and_its_holder_stops_first(coordinator: Coordinator) -> None:
    """The holder's own deadline comes before the coordinator's, and the coordinator's within bounds."""
    kept = await coordinator.open_session(2)
    alive = True
    paused = await coordinator.open_session(2, is_alive=lambda: alive)
    await put(coordinator, b"kept", b"", kept.id)
    at = await put(coordinator, b"paused", b"", paused.id)
    opened_at = paused.confirmed_at

    async def was_confirmed() -> bool:
        return paused.confirmed_at > opened_at

    await eventually(was_confirmed)
    alive = False
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with aclosing(coordinator.watch(b"paused", after=at)) as watch:
        heard = await _heard(watch, Revision(at + 1))
    assert heard[-1].events[0].record is None
    assert not paused.is_held, "its holder believed in it when its record was gone already"
    assert 1.0 <= loop.time() - began <= 8.0
    async with asyncio.timeout(WITHIN_S):
        assert await paused.wait_lost()
    assert kept.is_held and await find(coordinator, b"kept") is not None
    await kept.close()


# ---------------------------------------------------------------------------------------------------- what is taken


def _puts(count: int) -> tuple[Put, ...]:
    return tuple(Put(b"k%d" % number, b"") for number in range(count))


@pytest.mark.parametrize(
    ("transaction", "said"),
    [
        (Transaction(then=(Put(b"", b"v"),)), r"then\[0\]\.key has 0 bytes"),
        (Transaction(otherwise=(Get(bytes(KEY_BYTES_MAX + 1)),)), r"otherwise\[0\]\.key has 257 bytes"),
        (Transaction(then=(Put(b"k", bytes(VALUE_BYTES_MAX + 1)),)), r"then\[0\]\.value has 524289 bytes"),
        (Transaction(then=(Put(b"k", b""), Delete(b"k"))), r"then\[1\]\.key b'k' is written twice"),
        (Transaction(then=_puts(OPERATIONS_PER_TRANSACTION_MAX + 1)), "then has 129 entries"),
        (Transaction([absent(b"k")] * (OPERATIONS_PER_TRANSACTION_MAX + 1)), "compares has 129 entries"),
        (Transaction(then=[Put(b"%d" % n, bytes(VALUE_BYTES_MAX)) for n in range(3)]), "the transaction has"),
        (Transaction((Compare(b"k", Field.VALUE, Relation.EQUAL, 5),)), r"compares\[0\]\.expected must be bytes"),
        (Transaction((Compare(b"k", Field.VERSION, Relation.EQUAL, -1),)), r"compares\[0\]\.expected must be a number"),
        (Transaction((created_at(b"k", Revision(2**63)),)), r"compares\[0\]\.expected must be a number"),
        (Transaction((has_value(b"k", bytes(VALUE_BYTES_MAX + 1)),)), r"compares\[0\]\.expected has"),
        (Transaction(then=(Put(b"k", b"", SessionId(-1)),)), r"then\[0\]\.session -1 is no session"),
    ],
)
async def test_what_is_malformed_or_too_big_is_refused_by_name(
    coordinator: Coordinator, transaction: Transaction, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await coordinator.transact(transaction)
    assert (await coordinator.read(b"")).records == ()


async def test_reads_and_sessions_are_refused_by_name_too(coordinator: Coordinator) -> None:
    with pytest.raises(InvalidRequest, match="limit 0"):
        await coordinator.read(b"", limit=0)
    with pytest.raises(InvalidRequest, match="limit 1001"):
        await coordinator.read(b"", limit=RECORDS_PER_PAGE_MAX + 1)
    with pytest.raises(InvalidRequest, match="prefix has 257 bytes"):
        await coordinator.read(bytes(KEY_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest, match="is no key of the prefix"):
        await coordinator.read(b"p/", after=b"q")
    with pytest.raises(InvalidRequest):
        await coordinator.read(b"p/", at=Revision(2**40))
    for ttl_s in (1, 3_601):
        with pytest.raises(InvalidRequest, match="ttl_s"):
            await coordinator.open_session(ttl_s)


async def test_what_just_fits_is_taken(coordinator: Coordinator) -> None:
    await coordinator.transact(Transaction(then=_puts(OPERATIONS_PER_TRANSACTION_MAX)))
    assert len((await coordinator.read(b"k", limit=RECORDS_PER_PAGE_MAX)).records) == OPERATIONS_PER_TRANSACTION_MAX
    half = TRANSACTION_BYTES_MAX // 2
    assert half == VALUE_BYTES_MAX
    await coordinator.transact(Transaction(then=(Put(b"a", bytes(half)), Put(b"b", bytes(half - 2)))))
    record = await find(coordinator, b"a")
    assert record is not None and len(record.value) == half


async def test_a_list_that_no_answer_could_hold_comes_in_shorter_pages(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ETCD_ANSWER_BYTES_MAX", 100_000)
    for number in range(26):
        await put(coordinator, b"p/%02d" % number, bytes(10_000))
    keys: list[bytes] = []
    has_more = True
    while has_more:
        page = await coordinator.read(b"p/", after=keys[-1] if keys else b"")
        keys += [record.key for record in page.records]
        has_more = page.has_more
    assert keys == [b"p/%02d" % number for number in range(26)]


async def test_a_closed_coordinator_is_unavailable_and_ends_what_was_open(coordinated: Coordinated) -> None:
    coordinator = coordinated.coordinator
    session = await coordinator.open_session(10)
    at = await put(coordinator, b"k")
    async with aclosing(coordinator.watch(b"k", after=at)) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await coordinator.close()
        assert session.is_lost
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiting, WITHIN_S)
    with pytest.raises(Unavailable):
        await put(coordinator, b"k")
    with pytest.raises(Unavailable):
        await coordinator.read(b"k")
