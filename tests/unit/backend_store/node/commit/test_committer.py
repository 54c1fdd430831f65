"""Group commit: one transaction for everybody who waits, one batch on its way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from backend_store.model import OutcomeUnknown, PushqError, Unavailable
from backend_store.node.commit import committer as node_committer
from backend_store.node.commit.committer import Committer
from backend_store.storage.engine import Batch, StorageBroken, StorageFailed, Table
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import Done, Writer
from tests.support.patience import eventually
from tests.support.stores import opened

pytestmark = pytest.mark.anyio


class Member:
    """Writes a row of its own in every cycle, and remembers what happened."""

    def __init__(self, name: str):
        self.name = name
        self.burden = 0
        self.waited_ms = 0
        self.story: list[str] = []
        self.landed = asyncio.Event()

    def join(self) -> None:
        """It decides alone."""

    def prepare(self, batch: Batch) -> None:
        batch.put(Table.META, self.name.encode(), b"%d" % len(self.story))
        self.story.append("prepared")

    def committed(self) -> None:
        self.story.append("committed")
        self.landed.set()

    def failed(self, error: PushqError) -> None:
        self.story.append(error.code)
        self.landed.set()


class Setup:
    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.fatal: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.writer = Writer(self.engine, loop, on_fatal=self.fatal.append)
        self.committer = Committer(self.writer, loop, self.fatal.append)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    await setup.writer.close()


async def landed(*members: Member) -> None:
    async with asyncio.timeout(5):
        for member in members:
            await member.landed.wait()


async def test_everybody_who_waits_shares_a_commit(setup: Setup) -> None:
    members = [Member(f"m{n}") for n in range(20)]
    for member in members:
        setup.committer.request(member)
        setup.committer.request(member)
    await landed(*members)
    assert setup.engine.commits == 1
    assert all(member.story == ["prepared", "committed"] for member in members)


async def test_what_arrives_during_a_commit_waits_for_the_next(setup: Setup) -> None:
    first, second = Member("a"), Member("b")
    setup.committer.request(first)
    await asyncio.sleep(0)
    assert setup.writer.busy
    setup.committer.request(second)
    setup.committer.request(first)
    assert second.story == []
    await landed(first, second)
    await setup.committer.drain()
    assert setup.engine.commits == 2
    assert first.story == ["prepared", "committed"] * 2


async def test_who_has_little_to_tell_is_told_first(setup: Setup) -> None:
    told: list[str] = []
    members = [Member(name) for name in "abc"]
    for member, member.burden in zip(members, (100, 1, 10), strict=True):
        member.landed.set = lambda member=member: told.append(member.name)  # type: ignore[method-assign,misc]
        setup.committer.request(member)
    await setup.committer.drain()
    assert told == ["b", "c", "a"]


async def test_riders_start_no_commit_and_share_the_next(setup: Setup) -> None:
    rider, other = Member("rider"), Member("other")
    setup.committer.ride_along(rider)
    await asyncio.sleep(0.02)
    assert (rider.story, setup.engine.commits) == ([], 0)
    setup.committer.request(other)
    await landed(rider, other)
    assert setup.engine.commits == 1


async def test_what_nobody_waits_for_is_written_after_a_moment(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_committer, "SOON_SECONDS", 0.01)
    member = Member("m")
    setup.committer.request_soon(member)
    setup.committer.request_soon(member)
    await asyncio.sleep(0)
    assert member.story == []
    await landed(member)
    assert setup.engine.commits == 1


async def test_rows_of_a_caller_are_durable_when_it_goes_on(setup: Setup) -> None:
    member = Member("m")
    setup.committer.request(member)
    rows = Batch()
    rows.put(Table.META, b"mine", b"1")
    await setup.committer.write(rows)
    assert setup.engine.get(Table.META, b"mine") == b"1"
    assert setup.engine.commits == 1


async def test_drain_returns_when_everything_is_written_riders_too(setup: Setup) -> None:
    rider, member = Member("rider"), Member("member")
    setup.committer.ride_along(rider)
    setup.committer.request_soon(member)
    await setup.committer.drain()
    assert (rider.story, member.story) == (["prepared", "committed"], ["prepared", "committed"])
    await setup.committer.drain()
    assert setup.engine.commits == 1


async def test_what_nobody_waits_for_begins_no_commit_after_the_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_committer, "SOON_SECONDS", 0.01)
    before, after = Member("before"), Member("after")
    setup.committer.request_soon(before)
    setup.committer.end()
    setup.committer.request_soon(after)
    await asyncio.sleep(0.05)
    assert before.story == after.story == []


async def test_who_writes_after_the_end_is_told_so(setup: Setup) -> None:
    setup.committer.end()
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable):
            await setup.committer.write(Batch())
    setup.committer.abandon(OutcomeUnknown("too late to matter"))
    with pytest.raises(Unavailable):
        await setup.committer.write(Batch())


async def test_who_writes_when_the_store_was_given_up_is_told_why(setup: Setup) -> None:
    before = asyncio.ensure_future(setup.committer.write(Batch()))
    await asyncio.sleep(0)
    setup.committer.abandon(PushqError("another leads", code="not-leader"))
    async with asyncio.timeout(5):
        for waiting in (before, setup.committer.write(Batch())):
            with pytest.raises(PushqError, match="another leads"):
                await waiting


async def test_a_failed_commit_is_told_to_all_and_ends_the_process(setup: Setup) -> None:
    setup.engine.fail_next_commit()
    members = [Member("a"), Member("b")]
    for member in members:
        setup.committer.request(member)
    with pytest.raises(OutcomeUnknown):
        await setup.committer.write(Batch())
    await landed(*members)
    assert all(member.story == ["prepared", "outcome-unknown"] for member in members)
    assert setup.fatal


async def test_a_batch_that_did_not_fit_ends_the_process_too(setup: Setup) -> None:
    """What was decided in memory is not on the disk: only a new start can tell what is."""
    setup.engine.full = True
    member = Member("a")
    setup.committer.request(member)
    await landed(member)
    assert member.story == ["prepared", "outcome-unknown"] and setup.fatal


async def test_a_batch_that_the_writer_refuses_ends_the_process_and_leaves_nobody_waiting(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batch: Batch, done: Done) -> None:
        raise StorageFailed("a commit of 300 MiB is too much")

    monkeypatch.setattr(setup.writer, "submit", refuse)
    members = [Member("a"), Member("b")]
    for member in members:
        setup.committer.request(member)
    async with asyncio.timeout(5):
        with pytest.raises(OutcomeUnknown, match="300 MiB"):
            await setup.committer.write(Batch())
        await landed(*members)
    assert all(member.story == ["prepared", "outcome-unknown"] for member in members)
    assert [type(error) for error in setup.fatal] == [StorageFailed]


async def test_a_commit_after_a_broken_page_was_met_ends_the_process_in_no_other_way(setup: Setup) -> None:
    """A read met the page. Until the process has told everybody so and ends, somebody publishes."""
    setup.engine.on_broken(StorageBroken("a page of the file is no page"))
    await eventually(lambda: setup.fatal, "the writer hears of it")
    with pytest.raises(OutcomeUnknown):
        await setup.committer.write(Batch())
    assert {type(error) for error in setup.fatal} == {StorageBroken}
    assert {error.facts for error in setup.fatal if isinstance(error, StorageBroken)} == {
        "a page of the file is no page"
    }


async def test_who_had_no_room_in_a_commit_is_the_first_of_the_next(setup: Setup) -> None:
    prepared: list[str] = []

    class Crowded(Member):
        def prepare(self, batch: Batch) -> None:
            super().prepare(batch)
            prepared.append(self.name)
            if len(prepared) <= 3 and self.name == "a":
                setup.committer.request(self)
            elif len(prepared) <= 3:
                setup.committer.wait_for_room(self)

    for name in "abc":
        setup.committer.request(Crowded(name))
    await setup.committer.drain()
    assert "".join(prepared) == "abcbca"


async def test_a_decision_that_fails_ends_the_process_and_leaves_nobody_waiting(setup: Setup) -> None:
    class Broken(Member):
        def prepare(self, batch: Batch) -> None:
            raise OSError("cannot read")

    members = [Member("a"), Broken("b"), Member("c")]
    for member in members:
        setup.committer.request(member)
    with pytest.raises(OutcomeUnknown):
        await setup.committer.write(Batch())
    assert [member.story for member in members] == [
        ["prepared", "outcome-unknown"],
        ["outcome-unknown"],
        ["outcome-unknown"],
    ]
    assert setup.fatal and setup.engine.commits == 0, "what was half decided never reaches the disk"


async def test_a_commit_that_a_member_cannot_take_in_ends_the_process(setup: Setup) -> None:
    """Its next decision would be about a state that the disk has left behind."""

    class Broken(Member):
        def committed(self) -> None:
            raise AssertionError("state and commit do not fit")

    setup.committer.request(Broken("a"))
    async with asyncio.timeout(5):
        while not setup.fatal:  # noqa: ASYNC110 - the failure shows nowhere else
            await asyncio.sleep(0.001)


async def test_who_writes_while_the_store_closes_is_told() -> None:
    store = await opened()
    committer, submit = store.node.committer, store.node.writer.submit
    late: list[asyncio.Task[None]] = []

    def submitted(batch: Batch, done: Done) -> None:
        submit(batch, done)
        if not late:
            late.append(asyncio.create_task(committer.write(Batch())))

    store.node.writer.submit = submitted  # type: ignore[method-assign]
    await store.close()
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable, match="nothing was started"):
            await late[0]
