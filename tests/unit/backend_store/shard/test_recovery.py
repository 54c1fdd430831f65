"""What a backend that let go of a copy keeps of it, until it is published or dropped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from backend_store.core.replication.log import StoredLog
from backend_store.model import Offset
from backend_store.shard import entry_rows
from backend_store.shard.departures import ASIDE, _kept_in, _put_aside
from backend_store.shard.folder import ShardFolder
from backend_store.shard.quarantine import Place
from backend_store.shard.recovery import Recovery
from backend_store.storage.env import open_engine
from tests.unit.backend_store.shard.test_entry_rows import commit
from tests.unit.backend_store.shard.test_quarantine import SHARD, Log

pytestmark = pytest.mark.anyio


def copy_of(shards: Path, *, high_watermark: int) -> Path:
    """A copy of a shard with three messages, as it is closed."""
    folder = shards / f"{SHARD:05d}"
    engine = open_engine(ShardFolder(folder).current)
    log = Log(engine)
    for _ in range(3):
        log.add()
    stored = StoredLog(end=Offset(3), high_watermark=Offset(high_watermark))
    commit(engine, partial(entry_rows.put_stored, stored=stored))
    engine.close()
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    made = tmp_path / "shards"
    made.mkdir(mode=0o700)
    return made


async def test_what_a_copy_may_have_alone_is_kept_in_doubt_when_it_is_let_go_of(shards: Path) -> None:
    folder = copy_of(shards, high_watermark=1)
    assert _kept_in(folder, SHARD, has_tail=True) == 2
    assert _kept_in(folder, SHARD, has_tail=True) == 2, "a kill may have it done twice"
    _put_aside(folder, f"{folder.name}-disk")
    recovery = Recovery({}, shards)
    assert await recovery.messages() == {SHARD: 2}
    [piece] = await recovery.pieces()
    assert (piece.shard, piece.epoch, piece.messages, piece.in_doubt, piece.begun) == (SHARD, 1, 2, 2, 0)

    first = await recovery.some(SHARD, 1, piece.uid, None, 1)
    assert [place for place, _ in first] == [Place(1, 1, 0)]
    [(second, _)] = await recovery.some(SHARD, 1, piece.uid, first[-1][0], 1 << 20)
    assert await recovery.some(SHARD, 1, piece.uid, second, 1 << 20) == []
    await recovery.begin(SHARD, [second], is_begun=True)
    assert [piece.begun for piece in await recovery.pieces()] == [1]
    await recovery.forget(SHARD, [Place(1, 1, 0)])
    assert [piece.messages for piece in await recovery.pieces()] == [1]
    await recovery.forget(SHARD, [second])
    assert await recovery.messages() == {} and await recovery.pieces() == []
    assert list((shards / ASIDE).iterdir()) == []


async def test_a_copy_whose_log_is_the_leaders_keeps_nothing(shards: Path) -> None:
    assert _kept_in(copy_of(shards, high_watermark=1), SHARD, has_tail=False) == 0


async def test_what_is_no_copy_and_a_damaged_one_are_in_nobodys_way(shards: Path) -> None:
    folder = copy_of(shards, high_watermark=1)
    assert _kept_in(folder, SHARD, has_tail=True) == 2
    _put_aside(folder, f"{folder.name}-disk")
    for name in ("lost+found", "old"):
        (shards / ASIDE / name).mkdir()
    (shards / ASIDE / "00003-copy.tar").write_bytes(b"?")
    (shards / ASIDE / "00004-damaged").mkdir()
    assert await Recovery({}, shards).messages() == {SHARD: 2}
