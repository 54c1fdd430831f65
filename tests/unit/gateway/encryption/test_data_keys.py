"""The vault and the store together: encrypted queues over restarts, moves, deletions, and without their master key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from backend_store.client import KIND_JSON, Draft, PeekFilter, blocks_of, open_group, put_group
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.model import Block, Published, PushqError, QueueConfig, Unavailable
from backend_store.storage.engine import Batch, Table
from gateway.encryption.cipher import QueueSeal
from gateway.encryption.data_keys import DAY_MS, Vault
from gateway.encryption.master_keys import MasterError
from gateway.encryption.rotation import Rotation, Rotations
from gateway.limits import DATA_KEY_BLOCKS_MAX, DATA_KEY_BLOCKS_RESERVED
from push.delivery.wait_times import WaitTimes
from push.encoding.deliveries import visible
from push.encoding.lease import rendered
from tests.support.patience import eventually
from tests.support.sealed import MASTER, FlakyMasters, Sealed, opened_sealed, sealed_again, sealed_blocks
from tests.support.stores import asked, drained, made, receipts
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio
MARK = b'"plain text"'
MESSAGE = Draft(KIND_JSON, MARK, {"id": "one", "headers": {"secret": "header"}})


@contextlib.asynccontextmanager
async def running(sealed: Sealed) -> AsyncIterator[Sealed]:
    """With the vault's own task beside it."""
    task = asyncio.get_running_loop().create_task(sealed.vault.run())
    yield sealed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def published(queue: EmbeddedQueue, *drafts: Draft) -> Published:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(sealed_blocks(queue, *drafts), done.set_result)
    found = await done
    assert isinstance(found, Published)
    return found


def on_disk(store: EmbeddedStore) -> bytes:
    engine = store.node.engine
    return b"".join(b"".join(row) for table in Table for row in engine.scan(table, b"", b"\xff" * 64, 10_000))


async def shown(queue: EmbeddedQueue, **wanted: object) -> list[dict[str, object]]:
    page = await queue.peek(PeekFilter(**wanted))  # type: ignore[arg-type]
    return [item.message for item in page.items]


async def test_messages_are_readable_in_memory_and_nowhere_on_the_disk() -> None:
    sealed = await opened_sealed()
    queue = await made(sealed.store, "q")
    await published(queue, MESSAGE)
    assert b"plain text" not in on_disk(sealed.store) and b"header" not in on_disk(sealed.store)
    assert b"one" in on_disk(sealed.store)
    again = await sealed_again(sealed)
    assert await drained(again.store.queue("default", "q")) == [MARK.decode()]
    await again.store.close()


async def test_a_queue_that_is_not_encrypted_is_stored_as_it_is() -> None:
    sealed = await opened_sealed()
    queue = await made(sealed.store, "q", encrypted=False)
    await published(queue, MESSAGE)
    assert b"plain text" in on_disk(sealed.store) and not sealed.vault.keys
    await sealed.store.close()


async def test_to_change_the_setting_is_to_change_what_comes() -> None:
    sealed = await opened_sealed()
    queue = await made(sealed.store, "q", encrypted=False)
    await published(queue, Draft(KIND_JSON, b'"first"', None))
    await sealed.store.update_queue("default", "q", QueueConfig(), 1)
    await published(queue, Draft(KIND_JSON, b'"second"', None))
    await sealed.store.update_queue("default", "q", QueueConfig(encrypted=False), 2)
    await published(queue, Draft(KIND_JSON, b'"third"', None))
    disk = on_disk(sealed.store)
    assert (b"first" in disk, b"second" in disk, b"third" in disk) == (True, False, True)
    assert await drained(queue) == ['"first"', '"second"', '"third"']
    await sealed.store.close()


async def die(queue: EmbeddedQueue) -> None:
    while (lease := queue.take(64, Consumer(), 30_000)) is not None:
        await asked(lambda reply, lease=lease: queue.give_back(receipts(lease), 0, reply))  # type: ignore[misc]


@pytest.mark.parametrize("target_is_encrypted", [True, False])
async def test_what_was_encrypted_stays_so_as_a_dead_letter_and_in_another_queue(target_is_encrypted: bool) -> None:
    async with running(await opened_sealed()) as sealed:
        store = sealed.store
        own = await made(store, "own", max_attempts=1)
        grave = await made(store, "grave", encrypted=target_is_encrypted)
        sends = await made(store, "sends", max_attempts=1, dead_letter_queue="grave")
        for queue in (own, sends):
            await published(queue, MESSAGE, Draft(KIND_JSON, b'"other plain text"', None))
            await die(queue)
        await eventually(lambda: grave.ready == 2)
        assert b"plain text" not in on_disk(store)
        dead = store.queue("default", "own.dead")
        assert await drained(grave) == await drained(dead) == [MARK.decode(), '"other plain text"']
        await store.close()


async def test_a_deleted_queues_messages_move_under_the_key_of_their_new_queue_and_its_own_are_gone() -> None:
    sealed = await opened_sealed()
    store = sealed.store
    queue, target = await made(store, "q"), await made(store, "target")
    await published(queue, MESSAGE)
    (key_id,) = store.metadata.data_keys.ids_of[queue.definition.uid]
    row = store.metadata.data_keys.by_id[key_id].wrapped
    assert row in on_disk(store)
    await store.move_queue("default", "q", "target")
    await eventually(lambda: target.ready == 1 and key_id not in store.metadata.data_keys.by_id)
    assert row not in on_disk(store) and b"plain text" not in on_disk(store)
    assert sealed.vault.keys == 1 and await drained(target) == [MARK.decode()]
    late: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    forward = store.target_of("default", "q")
    forward.publish(forward.sealed(sealed_plain(MESSAGE)), late.set_result)
    assert isinstance(await late, Published) and b"plain text" not in on_disk(store)
    assert await drained(target) == [MARK.decode()]
    await store.close()


def sealed_plain(draft: Draft) -> list[Block]:
    return blocks_of([draft]).blocks


async def test_a_discarded_queues_keys_go_with_it_from_disk_and_memory() -> None:
    sealed = await opened_sealed()
    store = sealed.store
    queue = await made(store, "q")
    await published(queue, MESSAGE)
    seal = sealed.vault.of(queue.definition)
    assert store.metadata.data_keys.by_id and seal.ciphers
    await store.delete_queue("default", "q")
    assert not store.metadata.data_keys.by_id and not seal.ciphers and not sealed.vault.keys
    assert b"data-key/" not in on_disk(store)
    again = await sealed_again(sealed)
    assert not again.vault.keys
    await made(again.store, "q")
    assert min(again.store.metadata.data_keys.by_id) > 1, "an id is given out once"
    await again.store.close()


async def test_partitions_may_come_and_go_under_one_key() -> None:
    sealed = await opened_sealed()
    queue = await made(sealed.store, "q", partitions=3)
    drafts = [Draft(KIND_JSON, b'"plain text %d"' % n, {"key": f"k{n % 7}"}) for n in range(40)]
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.publish(sealed_blocks(queue, *drafts), done.set_result)  # made without the table: it is cut by partitions
    assert isinstance(await done, Published)
    await sealed.store.update_queue("default", "q", QueueConfig(), 1)
    assert b"plain text" not in on_disk(sealed.store)
    assert sorted(await drained(queue)) == sorted(d.body.decode() for d in drafts)
    await eventually(lambda: len(queue._partitions.all) == 1)
    await sealed.store.close()


# ----------------------------------------------------------------------------------------- what does not open


async def broken(sealed: Sealed, *drafts: Draft, **settings: object) -> Sealed:
    """A store that lost the data key of its queue `q`, whose newer key is there."""
    queue = await made(sealed.store, "q", **settings)
    await published(queue, *drafts)
    batch = Batch()
    sealed.store.metadata.data_keys.stage_shredded(batch, queue.definition.uid)
    await sealed.store.node.committer.write(batch)
    return await sealed_again(sealed)


async def test_what_does_not_open_is_a_dead_letter_with_its_cause_and_never_in_anybodys_way() -> None:
    sealed = await broken(await opened_sealed(), MESSAGE, MESSAGE._replace(columns={"id": "two"}))
    queue = sealed.store.queue("default", "q")
    await published(queue, Draft(KIND_JSON, b'"readable"', None))
    consumer, got = Consumer(), []
    while (lease := queue.take(64, consumer, 30_000)) is not None:
        got += rendered(queue, lease, "json", WaitTimes())
    assert [msgspec.json.decode(message)["body"] for message in got] == ["readable"] and consumer.released_total == 2
    dead = sealed.store.queue("default", "q.dead")
    await eventually(lambda: dead.ready == 2)
    first, second = await shown(dead, state="dead")
    assert (first["id"], second["id"]) == ("one", "two")
    assert first["body_base64"] == "" and first["content_type"] == "application/vnd.pushq.unreadable"
    end = first["dead_letter"]
    assert isinstance(end, dict) and end["reason"] == "undeliverable"
    assert end["history"][-1]["reason"].startswith("cannot be decrypted: key 1 does not belong to this queue")
    lease = dead.take(64, Consumer(), 30_000)
    assert lease is not None and len(rendered(dead, lease, "json", WaitTimes())) == 2, (
        "who looks after dead letters sees them"
    )
    assert sealed.vault.counts.failed
    await sealed.store.close()


async def test_a_dead_letter_that_did_not_open_opens_again_with_its_key() -> None:
    sealed = await opened_sealed()
    whole = sealed.store.metadata.data_keys.by_id
    sealed = await broken(sealed, MESSAGE)
    queue = sealed.store.queue("default", "q")
    lease = queue.take(64, Consumer(), 30_000)
    assert lease is not None and not rendered(queue, lease, "json", WaitTimes())
    dead = sealed.store.queue("default", "q.dead")
    await eventually(lambda: dead.ready == 1)
    batch = Batch()
    sealed.store.metadata.data_keys.stage(batch, [whole[1]])
    await sealed.store.node.committer.write(batch)
    again = await sealed_again(sealed)
    assert await drained(again.store.queue("default", "q.dead")) == [MARK.decode()]
    await again.store.close()


async def test_what_does_not_open_stays_a_dead_letter_where_another_queue_is_named() -> None:
    sealed = await opened_sealed()
    await made(sealed.store, "grave", encrypted=False)
    sealed = await broken(sealed, MESSAGE, dead_letter_queue="grave")
    queue, dead = sealed.store.queue("default", "q"), sealed.store.queue("default", "q.dead")
    lease = queue.take(64, Consumer(), 30_000)
    assert lease is not None and not rendered(queue, lease, "json", WaitTimes())
    await eventually(lambda: dead.ready == 1)
    assert sealed.store.queue("default", "grave").ready == 0
    await sealed.store.close()


async def test_what_does_not_open_is_kept_by_a_queue_without_dead_letters_too() -> None:
    sealed = await broken(await opened_sealed(), MESSAGE, dead_letter_queue=None)
    queue, dead = sealed.store.queue("default", "q"), sealed.store.queue("default", "q.dead")
    lease = queue.take(64, Consumer(), 30_000)
    assert lease is not None and not rendered(queue, lease, "json", WaitTimes())
    await eventually(lambda: dead.ready == 1)
    await sealed.store.close()


async def test_what_does_not_open_does_not_keep_a_queue_from_leaving() -> None:
    sealed = await broken(await opened_sealed(), MESSAGE)
    target = await made(sealed.store, "target")
    await published(sealed.store.queue("default", "q"), Draft(KIND_JSON, b'"readable"', None))
    await sealed.store.move_queue("default", "q", "target")
    await eventually(lambda: target.ready == 1 and all(m.is_empty for m in sealed.store.metadata.moved.values()))
    assert await drained(target) == ['"readable"']
    await sealed.store.close()


@pytest.mark.parametrize("mode", ["leases", "offsets"])
async def test_a_groups_unreadable_message_is_a_dead_letter_and_readers_of_the_stream_pass_over_it(mode: str) -> None:
    sealed = await broken(await opened_sealed(), MESSAGE, kind="stream")
    stream = sealed.store.queue("default", "q")
    await published(stream, Draft(KIND_JSON, b'"readable"', None))
    await asked(lambda reply: put_group(stream, "readers", "earliest", mode, reply))  # type: ignore[arg-type]
    group = await asked(lambda reply: open_group(stream, "readers", None, reply))
    got = []
    while (lease := group.take(64, Consumer(), 30_000)) is not None:
        got += rendered(group, lease, "json", WaitTimes())
        await asked(lambda reply, lease=lease: group.settle(receipts(lease), reply))  # type: ignore[misc]
    assert [msgspec.json.decode(message)["body"] for message in got] == ["readable"]
    dead = sealed.store.queue("default", "q.dead")
    await eventually(lambda: dead.ready == 1)
    shown_by_partition = [partition.read(0) for partition in stream._partitions.all]
    assert [list(visible(chunk, 0, chunk.count)) for chunk in shown_by_partition if chunk] == [[]]
    await sealed.store.close()


async def test_at_most_once_passes_over_what_does_not_open_and_gives_the_credit_back() -> None:
    sealed = await broken(await opened_sealed(), MESSAGE, delivery="at_most_once")
    queue = sealed.store.queue("default", "q")
    await published(queue, Draft(KIND_JSON, b'"readable"', None))
    consumer, got = Consumer(), []
    await eventually(lambda: queue.has_ready)
    while (lease := queue.take(64, consumer, 30_000)) is not None:
        got += rendered(queue, lease, "json", WaitTimes())
    assert [msgspec.json.decode(message)["body"] for message in got] == ["readable"] and consumer.released_total == 1
    await sealed.store.close()


# --------------------------------------------------------------------------------------- the master key is away


async def test_while_the_master_key_is_away_queues_go_on_and_new_ones_wait() -> None:
    masters = FlakyMasters()
    async with running(await opened_sealed(masters=masters)) as sealed:
        old = await made(sealed.store, "old")
        masters.is_away = True
        new = await made(sealed.store, "new")
        await published(old, MESSAGE)
        with pytest.raises(Unavailable) as refused:
            sealed_blocks(new, MESSAGE)
        assert refused.value.retry_after_ms == 1_000 and sealed.vault.master_failures
        masters.is_away = False
        await eventually(lambda: sealed.vault.of(new.definition).current is not None)
        await published(new, MESSAGE)
        assert await drained(old) == await drained(new) == [MARK.decode()]
        await sealed.store.close()


async def test_a_message_waits_for_a_queue_whose_key_cannot_be_made_yet() -> None:
    masters = FlakyMasters()
    async with running(await opened_sealed(masters=masters)) as sealed:
        sends = await made(sealed.store, "sends", max_attempts=1, dead_letter_queue=None)
        masters.is_away = True
        grave = await made(sealed.store, "grave")
        await sealed.store.update_queue("default", "sends", QueueConfig(max_attempts=1, dead_letter_queue="grave"), 1)
        await published(sends, MESSAGE)
        await die(sends)
        await eventually(lambda: sends.stats().dead == 1)
        await asyncio.sleep(0.05)
        assert grave.ready == 0 and sends.stats().dead == 1, "it is neither lost nor given up"
        masters.is_away = False
        await eventually(lambda: grave.ready == 1)
        assert await drained(grave) == [MARK.decode()]
        await sealed.store.close()


async def test_a_start_without_the_right_master_key_is_no_start() -> None:
    sealed = await opened_sealed()
    await made(sealed.store, "q")
    await sealed.store.close()
    with pytest.raises(MasterError, match="restore the right one, or add it on another line"):
        await opened_sealed(sealed.engine.crash(), FlakyMasters(b"x" * 32))
    away = FlakyMasters()
    away.is_away = True
    with pytest.raises(Unavailable):
        await opened_sealed(sealed.engine.crash(), away)


# ------------------------------------------------------------------------------------------------ new data keys


async def test_a_key_that_is_old_or_has_sealed_enough_is_replaced_and_stays_for_what_it_sealed() -> None:
    async with running(await opened_sealed()) as sealed:
        queue = await made(sealed.store, "q")
        seal = sealed.vault.of(queue.definition)
        await published(queue, Draft(KIND_JSON, b"1", None))
        assert seal.current is not None
        seal.current.blocks = DATA_KEY_BLOCKS_MAX
        await published(queue, Draft(KIND_JSON, b"2", None))
        await eventually(lambda: len(seal.ciphers) == 2)
        seal.current.created_at_ms -= 31 * DAY_MS
        sealed.vault._want(seal)
        await eventually(lambda: len(seal.ciphers) == 3)
        await published(queue, Draft(KIND_JSON, b"3", None))
        assert [seal.current.key_id, *sorted(seal.ciphers)] == [3, 1, 2, 3]
        assert await drained(queue) == ["1", "2", "3"]
        await sealed.store.close()


async def test_a_key_that_was_made_by_a_clock_years_ahead_is_replaced() -> None:
    async with running(await opened_sealed()) as sealed:
        queue = await made(sealed.store, "q")
        seal = sealed.vault.of(queue.definition)
        assert seal.current is not None
        seal.current.created_at_ms += 365 * DAY_MS
        sealed.vault._want(seal)
        await eventually(lambda: len(seal.ciphers) == 2)
        assert abs(seal.current.created_at_ms - sealed.vault._clock_ms()) < DAY_MS
        await sealed.store.close()


async def test_what_many_queues_want_at_once_takes_a_step_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were made in one day each was looked for among all others: of 100,000 that held the loop up."""
    sealed = await opened_sealed()
    for number in range(30):
        seal = sealed.vault.of((await made(sealed.store, f"q{number}")).definition)
        assert seal.current is not None
        seal.current.created_at_ms -= 31 * DAY_MS
        sealed.vault._want(seal)
    compared: list[object] = []
    monkeypatch.setattr(QueueSeal, "__eq__", lambda seal, other: bool(compared.append(other)) or seal is other)
    await sealed.vault._make_wanted()
    assert sealed.vault.keys == 60 and len(compared) <= 30
    await sealed.store.close()


async def test_queues_that_come_and_go_leave_nothing_of_their_keys_until_those_would_have_been_old() -> None:
    sealed = await opened_sealed()
    kept = await made(sealed.store, "kept")
    for number in range(200):
        queue = await made(sealed.store, f"q{number}")
        sealed.vault.shredded(queue.definition.uid)
    assert sealed.vault.keys == 1
    assert len(sealed.vault._ages) < 100 and kept.definition.uid in {uid for _, uid in sealed.vault._ages}
    await sealed.store.close()


async def test_a_start_counts_as_many_blocks_as_a_key_may_have_sealed_before() -> None:
    sealed = await opened_sealed()
    await made(sealed.store, "q")
    again = await sealed_again(sealed)
    async with running(again):
        queue = again.store.queue("default", "q")
        seal = again.vault.of(queue.definition)
        assert seal.current is not None and seal.current.blocks == DATA_KEY_BLOCKS_RESERVED
        await published(queue, MESSAGE)
        rows = again.store.metadata.data_keys.by_id
        await eventually(lambda: rows[1].blocks > 2 * DATA_KEY_BLOCKS_RESERVED)
        assert len(seal.ciphers) == 1 and seal.current.reserved == rows[1].blocks
        await again.store.close()


# ---------------------------------------------------------------------------------------------------- rotations


async def ended(job: Rotation) -> Rotation:
    await asyncio.wait_for(job.ended.wait(), 10)
    return job


def rotations(vault: Vault) -> Rotations:
    return Rotations(vault, lambda: 1 << 50)


async def test_another_master_key_in_front_is_taken_up_by_the_next_start() -> None:
    sealed = await opened_sealed()
    queues = [await made(sealed.store, f"q{n}") for n in range(3)]
    await published(queues[0], MESSAGE)
    again = await sealed_again(sealed, FlakyMasters(b"n" * 32, MASTER))
    jobs = rotations(again.vault)
    await jobs.resume()
    (job,) = jobs._jobs.values()
    assert ((await ended(job)).state, job.done, job.total) == ("done", 3, 3)
    last = await sealed_again(again, FlakyMasters(b"n" * 32))
    assert await drained(last.store.queue("default", "q0")) == [MARK.decode()]
    await last.store.close()


async def test_a_rotation_that_was_cut_off_goes_on_with_the_next_start_where_it_was() -> None:
    masters = FlakyMasters()
    sealed = await opened_sealed(masters=masters)
    for n in range(3):
        await made(sealed.store, f"q{n}")
    masters.is_away = True
    begun = rotations(sealed.vault)
    job = await begun.start(master_file=None, queues=None, all_queues=True)
    await asyncio.sleep(0)
    await begun.end()
    assert job.state == "cancelled" and len(sealed.store.metadata.data_keys.by_id) == 3
    again = await sealed_again(sealed)
    jobs = rotations(again.vault)
    await jobs.resume()
    resumed = jobs.get(job.id)
    assert resumed is not None
    assert (await ended(resumed)).state == "done" and len(again.store.metadata.data_keys.by_id) == 6
    assert again.store.metadata.data_keys.rotation is None
    await again.store.close()


async def test_a_rotation_waits_for_the_master_key_and_can_be_cancelled_meanwhile() -> None:
    masters = FlakyMasters()
    sealed = await opened_sealed(masters=masters)
    queue = await made(sealed.store, "q")
    masters.is_away = True
    jobs = rotations(sealed.vault)
    job = await jobs.start(master_file=None, queues=[queue.definition.uid], all_queues=False)
    await eventually(lambda: masters.asked > 2)
    await job.cancel()
    assert (job.state, job.done) == ("cancelled", 0) and sealed.store.metadata.data_keys.rotation is None
    await sealed.store.close()
