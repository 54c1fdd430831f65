"""Data of every released format opens, and says what it said when it was written.

The folders under `tests/data` were written by the version that first had the format and stay as they are. Whatever is
changed later, these tests hold: who cannot read an old row any more loses somebody's messages.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend_store.client import PeekFilter, Queue, open_store
from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore, Forward
from backend_store.client.groups import list_groups
from backend_store.model import Original, QueueConfig, Stamp
from backend_store.node.node import Node
from backend_store.storage.engine import Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import parse_lane_key
from tests.support.environment import SMALL_FOLDER
from tests.support.old_data import HOUR_MS, OPENED_MS
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import drained, published
from tests.support.world import Consumer, attempts_by_seq

DATA = Path(__file__).parents[1] / "data"
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

pytestmark = pytest.mark.anyio


def copied(folder: str, to: Path) -> Path:
    """A copy of an old folder: opening it writes to it."""
    copy = to / folder
    copy.mkdir(mode=0o700)
    shutil.copy(DATA / folder / "data.mdb", copy)
    return copy


# ------------------------------------------------------------------------------------------------------ version 1


async def test_version_1_opens_with_its_queues_messages_attempts_and_keys(tmp_path: Path) -> None:
    store = await open_store(copied("format_v1", tmp_path), space=SMALL_FOLDER)
    try:
        work = store.queue("default", "work")
        assert (work.config.visibility_timeout_ms, work.config.tags) == (60_000, {"a": "b"})
        stats = work.stats()
        assert (stats.ready, stats.in_flight, stats.published_total, stats.acked_total) == (4, 0, 5, 1)
        shown = [item.message for item in (await work.peek(PeekFilter())).items]
        assert [(m["seq"], m["attempt"]) for m in shown] == [(1, 2), (2, 0), (3, 0), (4, 0)]
        assert bytes(shown[0]["body"]) == b'{"tried": "twice"}'
        assert (shown[1]["id"], shown[1]["body_base64"], shown[1]["content_type"]) == (
            "mine",
            "AGJ5dGVz/w==",
            "image/png",
        )
        assert (shown[2]["key"], shown[2]["headers"], shown[2]["reply_to"]) == ("k", {"a": "b"}, "answers")
        assert bytes(shown[3]["body"]).decode() == '"ünïcode"'
        assert store.metadata.keys["k1"].scopes == ("consume:*",)
        assert _stream(store.queue("default", "stream")) == (5, TRACE)
    finally:
        await store.close()


def _stream(queue: Queue) -> tuple[int, str]:
    [part] = queue.parts.all
    chunk = part.read(0)
    assert chunk is not None and chunk.messages.columns is not None
    return chunk.count, chunk.messages.columns["trace"][0]


# ------------------------------------------------------------------------------------------------------ version 2


class Opened:
    """The store of version 2, soon after it was made."""

    def __init__(self, node: Node):
        self.node = node
        self.store = EmbeddedStore(node)

    def __getitem__(self, name: str) -> EmbeddedQueue:
        return self.store.queue("default", name)

    def counts(self, name: str) -> tuple[int, int, int, int]:
        """(ready, in flight, delayed, dead)."""
        stats = self[name].stats()
        return stats.ready, stats.in_flight, stats.delayed, stats.dead

    async def shown(self, name: str, state: Any = "ready") -> list[dict[str, Any]]:
        return [item.message for item in (await self[name].peek(PeekFilter(state=state))).items]


class Clock:
    """Stands until it is told to move."""

    now_ms = OPENED_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def v2(tmp_path: Path, clock: Clock) -> AsyncIterator[Opened]:
    folder = copied("format_v2", tmp_path)
    node = Node(open_engine(folder), directory=folder, space=SMALL_FOLDER, clock_ms=clock)
    await node.start()
    yield Opened(node)
    await node.close()


async def pass_time(v2: Opened, clock: Clock, ms: int) -> None:
    clock.now_ms += ms
    for partition in list(v2.node.queues.partitions.values()):
        partition.tick(clock.now_ms)
    await v2.node.committer.drain()


def test_the_folder_of_version_2_has_every_kind_of_row(tmp_path: Path) -> None:
    engine = open_engine(copied("format_v2", tmp_path))
    try:
        rows = {table: engine.scan(table, b"", b"\xff" * 64, 10_000) for table in Table}
    finally:
        engine.close()
    later = [Table.USAGE, Table.REPLICATION]
    assert [table for table, found in rows.items() if not found] == later, "these came after version 2"
    named = {key.split(b"/")[0] for key, _ in rows[Table.META] if b"/" in key}
    assert named == {b"queue", b"key", b"tenant", b"state", b"slots", b"book", b"moved", b"garbage"}
    assert {b"next-uid", b"receipt-key", b"kept"} <= {key for key, _ in rows[Table.META]}
    assert {parse_lane_key(key)[1] for key, _ in rows[Table.LANES]} == {1, 2, 16, 32, 33, 34, 48}
    assert {key[4] for key, _ in rows[Table.IDS]} == {0, 1, 2}, "the list of runs, ids as they came, runs"
    assert {key[4] for key, _ in rows[Table.BY_ID]} == {0, 1}, "a chunk's times, and its names"
    assert {key[4] for key, _ in rows[Table.ORDER]} == {0, 1}, "before all others, and in turn"
    assert (DATA / "format_v2" / "data.mdb").stat().st_size < 200_000


async def test_version_2_has_its_keys_tenants_and_settings(v2: Opened) -> None:
    metadata = v2.store.metadata
    assert metadata.keys["k1"].scopes == ("consume:*",) and set(metadata.tenants) == {"default", "other"}
    assert (v2["plain"].config.priorities, v2["plain"].config.tags) == (3, {"a": "b"})
    assert v2["split"].config == QueueConfig(
        partitions=3, ordering="strict", dedupe="id", dedupe_window_ms=HOUR_MS, encrypted=False
    )


async def test_version_2_has_its_messages_by_priority_and_what_became_of_them(v2: Opened) -> None:
    assert v2.counts("plain") == (2, 2, 1, 0)
    stats = v2["plain"].stats()
    assert (stats.published_total, stats.acked_total) == (6, 1)
    full, text = await v2.shown("plain")
    assert (full["id"], full["key"], full["body_base64"], full["content_type"]) == (
        "mine",
        "k",
        "AGJ5dGVz/w==",
        "image/png",
    )
    assert (full["headers"], full["reply_to"], full["correlation_id"]) == ({"a": "b"}, "answers", "c")
    assert bytes(text["body"]).decode() == '"ünïcode"'
    (delayed,) = await v2.shown("plain", "delayed")
    assert (bytes(delayed["body"]), delayed["priority"], delayed["attempt"]) == (b"delayed", 2, 1)
    held = {bytes(m["body"]): (m["priority"], m["attempt"]) for m in await v2.shown("plain", "in_flight")}
    assert held == {b"held": (1, 1), b"tried": (0, 2)}


async def test_leases_and_sessions_of_a_clean_stop_of_version_2_go_on(v2: Opened) -> None:
    (session,), leases = v2.store.take_kept()
    assert (session.session, session.principal_id, [*session.held]) == ("session-1", "k1", ["default/plain"])
    (token,) = session.held["default/plain"]
    assert attempts_by_seq(leases[token]) == {1: 2}


async def test_what_version_2_scheduled_comes_in_its_time_and_expires_in_its_time(v2: Opened, clock: Clock) -> None:
    assert v2.counts("times") == (2, 0, 2, 0)
    assert await v2["times"].cancel("late") == "cancelled"
    await pass_time(v2, clock, HOUR_MS)
    assert sorted(await drained(v2["times"])) == ["lasting", "soon"]
    assert v2["times"].ended == {"expired": 1, "cancelled": 1}


async def test_dead_letters_of_version_2_are_at_home_or_on_their_way(v2: Opened) -> None:
    assert v2.counts("mortal") == (0, 0, 0, 1)
    (dead,) = await v2.shown("mortal.dead")
    end = dead["dead_letter"]
    assert (dead["id"], end["from"], end["reason"], end["attempts"]) == ("d1", "mortal", "max_attempts", 1)
    assert [row["outcome"] for row in end["history"]] == ["nacked"]
    assert v2.counts("exporting") == (0, 0, 0, 1)
    full = v2["full"]
    await v2.store.update_queue("default", "full", QueueConfig(), full.definition.version)
    await eventually(lambda: full.stats().ready == 3)
    assert sorted(await drained(full)) == ["in the way", "left", "on its way"], "one of a queue that was deleted"


async def test_sorting_queues_of_version_2_go_on_where_they_were(v2: Opened, clock: Clock) -> None:
    assert v2.counts("numbered") == (3, 0, 1, 0) and v2.counts("clocked") == (3, 0, 1, 0)
    assert await drained(v2["numbered"]) == ["1", "2", "5"]
    (shown,) = await v2.shown("numbered.late")
    assert (shown["producer"], shown["producer_seq"], shown["ordering"]["late"]) == ("p", 4, True)
    assert [m["producer_seq"] for m in await v2.shown("numbered", "delayed")] == [8]
    assert "producer" not in (await v2.shown("plain"))[0]
    assert await drained(v2["numbered.late"]) == ["4, late"]
    assert await drained(v2["clocked"]) == ["late", "a", "b"]
    again = await published(v2["numbered"], draft("2 again", stamp=_numbered(2)), draft("6", stamp=_numbered(6)))
    assert again.others is not None and isinstance(again.others[0], Original)
    assert await drained(v2["numbered"]) == ["6"]
    await pass_time(v2, clock, 600_000)
    assert await drained(v2["numbered"]) == ["8"] and await drained(v2["clocked"]) == ["waits"]


def _numbered(number: int) -> Stamp:
    return Stamp(0, "p", number)


async def test_ids_of_version_2_are_known_from_runs_and_as_they_came(v2: Opened) -> None:
    again = await published(v2["ids"], *(draft("again", id=f"id-{n}") for n in range(0, 200, 7)))
    assert again.others is not None and [*again.others] == [*range(29)]
    fresh = await published(v2["ids"], draft("new", id="id-200"))
    assert fresh.others is None and await drained(v2["ids"]) == ["new"]


async def test_a_stored_lease_of_version_2_locks_its_key_and_what_waits_on_the_disk_follows(
    v2: Opened, clock: Clock
) -> None:
    assert v2.counts("strict") == (4, 1, 0, 0)
    assert v2["strict"].take(10, Consumer(), HOUR_MS) is None, "the key is somebody's"
    await pass_time(v2, clock, HOUR_MS)
    assert await drained(v2["strict"]) == ["a1", "a2", "a3", "a4", "a5"]


async def test_a_stream_of_version_2_has_its_messages_and_its_groups_their_places(v2: Opened) -> None:
    stream = v2["stream"]
    assert stream.stats().ready == 12
    groups = {group.name: (group.mode, group.lag[0].position, group.lag[0].lag) for group in list_groups(stream)}
    assert groups == {"readers": ("offsets", 3, 9), "workers": ("leases", 2, 9)}


async def test_a_queue_of_version_2_has_its_partitions_its_slots_and_the_ids_that_stayed_behind(v2: Opened) -> None:
    split = v2["split"]
    assert [partition.index for partition in split._partitions.all] == [0, 1, 2]
    assert v2.counts("split")[0] == 32
    again = await published(split, *(draft("again", key=f"k{n}", id=f"s{n}") for n in range(32)))
    assert again.others is not None and len(again.others) == 32
    assert sorted(await drained(split), key=int) == [str(n) for n in range(32)]


async def test_publishes_to_a_queue_that_version_2_deleted_are_sent_on(v2: Opened) -> None:
    for name, target in (("gone", "plain"), ("left", "full")):
        found = v2.store.target_of("default", name)
        assert isinstance(found, Forward) and found._target is v2[target]


async def test_what_version_2_purged_and_put_aside_stays_away(v2: Opened) -> None:
    assert v2.counts("purged") == v2.counts("damaged") == (1, 0, 0, 0)
    assert await drained(v2["purged"]) == ["stays"] and await drained(v2["damaged"]) == ["whole"]
    await eventually(lambda: not v2.node.engine.scan(Table.META, b"garbage/", b"garbage0", 10))


async def test_version_2_opens_whatever_time_it_is(tmp_path: Path) -> None:
    """Years later, or before it was made."""
    for number, now_ms in enumerate((OPENED_MS - 1_000 * HOUR_MS, OPENED_MS + 100_000 * HOUR_MS)):
        (tmp_path / str(number)).mkdir()
        folder = copied("format_v2", tmp_path / str(number))
        node = Node(open_engine(folder), directory=folder, space=SMALL_FOLDER, clock_ms=lambda now_ms=now_ms: now_ms)  # type: ignore[misc]
        await node.start()
        store = EmbeddedStore(node)
        for _, name in [*store.names()]:
            queue = store.queue("default", name)
            if queue.config.kind == "work":
                await drained(queue)
        await store.close()
