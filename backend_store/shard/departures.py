"""Copies that a backend need not keep any more: it lets go of them at the coordinator, and deletes them only then.

The order keeps a shard safe. First the coordinator's record says that this node is no replica, then that the node has
let go in this life. From then on the node is admitted again only in another life, so nothing that it said before can
make it count. Only then its folder is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Get, Transaction
from backend_store.core.replication.moving import letting_go
from backend_store.core.replication.record import Incarnation, NodeId
from backend_store.model import PushqError
from backend_store.node.node import wall_clock_ms
from backend_store.shard import entry_rows, quarantine
from backend_store.shard.folder import ShardFolder
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import plan_key, record_key
from backend_store.shard.limits import LET_GO_PAUSE_SECONDS
from backend_store.shard.placing import decode_plan
from backend_store.shard.registry import decode_record, submit
from backend_store.shard.view import ClusterView
from backend_store.storage.engine import Batch, StorageError
from backend_store.storage.env import open_engine
from backend_store.storage.folder import make_private, sync_folder

log = structlog.get_logger("pushq.backend")

ASIDE = "aside"
"""Folder of copies whose quarantine is not empty: see `recovery`."""
GONE = ".gone"
"""Suffix of a folder that is being deleted."""


def clear_gone(shards: Path) -> None:
    """Deletes what a kill has left. Raises `OSError`."""
    for folder in shards.glob(f"*{GONE}"):
        shutil.rmtree(folder)


class Departures:
    """The departures of one backend. `take` removes a shard from the host and returns it, without awaiting, to be
    closed here."""

    def __init__(
        self, coordinator: Coordinator, view: ClusterView, shards: Path, take: Callable[[ShardNumber], HostedShard]
    ) -> None:
        self._coordinator = coordinator
        self._view = view
        self._shards = shards
        self._take = take
        self._busy: set[ShardNumber] = set()
        self._deleting: set[asyncio.Task[None]] = set()
        self._left_in: dict[ShardNumber, int] = {}
        """The epoch of the shard when it was let go of."""
        self.left: set[ShardNumber] = set()
        """Shards that were let go of in this life."""

    def is_due(self, shard: HostedShard) -> bool:
        """Whether, by the local view, this node need not keep the copy; the coordinator has the last word."""
        view, number, me = self._view, shard.number, shard.replicated.replica.me
        is_known = number in view.records and number in view.plans
        return is_known and number not in self._busy and me.node not in view.keepers(number)

    async def leave(self, shard: HostedShard, inc: Callable[[], Incarnation]) -> None:
        """Lets go and deletes, or finds that the node may not, or not now. `inc` returns the node's current life."""
        self._busy.add(shard.number)
        try:
            with contextlib.suppress(PushqError):
                life = inc()
                if await self._may_delete(shard, life) and inc() == life:
                    self._delete(shard)
                    return
            await asyncio.sleep(LET_GO_PAUSE_SECONDS)
        finally:
            self._busy.discard(shard.number)

    async def _may_delete(self, shard: HostedShard, inc: Incarnation) -> bool:
        """Whether the coordinator's record says that this life has let go."""
        me, number = shard.replicated.replica.me, shard.number
        outcome = await self._coordinator.transact(Transaction(then=(Get(record_key(number)), Get(plan_key(number)))))
        found, plan = outcome.found
        if found is None or plan is None or me.inc != inc:
            return False
        record, wanted = decode_record(found.value), decode_plan(plan.value).replicas
        if record.epoch < shard.replicated.replica.log.last_epoch:
            return False  # the record is from a restored coordinator: this log may be the only one that is whole
        self._left_in[number] = record.epoch
        change = letting_go(record, me, wanted)
        if change is None:
            return me.node not in (*record.replicas, *wanted)  # it has let go already, and did not get the answer
        made = await submit(self._coordinator, number, change)
        return made is not None and made.is_made

    def _delete(self, shard: HostedShard) -> None:
        number = shard.number
        taken = self._take(number)
        self.left.add(number)
        task = asyncio.get_running_loop().create_task(self._remove(taken), name=f"deletes a copy of {number}")
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _remove(self, shard: HostedShard) -> None:
        try:
            await self._close_and_remove(shard)
        except Exception as error:
            # No task awaits this one before the backend closes: the error would be reported late or never.
            is_ours = not isinstance(error, OSError | StorageError)
            folder = str(self._folder(shard))
            log.error("a copy cannot be deleted", shard=shard.number, folder=folder, error=str(error), exc_info=is_ours)

    async def _close_and_remove(self, shard: HostedShard) -> None:
        replica, record = shard.replicated.replica, self._view.records.get(shard.number)
        # A copy that has an entry of the leader's own epoch has nothing below it that the leader lacks.
        lags = record is not None and record.mode == "async" and replica.log.last_epoch < self._left_in[shard.number]
        await shard.close()
        folder = self._folder(shard)
        kept = await asyncio.to_thread(_kept_in, folder, shard.number, has_tail=lags)
        await asyncio.to_thread(_put_aside if kept else _remove, folder, f"{folder.name}-{replica.me.disk}")
        if kept:
            log.warning("a copy was put aside: see pushq recover list", shard=shard.number, messages=kept)
        else:
            log.info("a copy was deleted", shard=shard.number)

    def _folder(self, shard: HostedShard) -> Path:
        return self._shards / f"{shard.number:05d}"

    async def finish(self) -> None:
        """Waits for folders that are being deleted."""
        while self._deleting:
            await asyncio.gather(*self._deleting, return_exceptions=True)

    def begin_life(self) -> None:
        self.left.clear()

    def needs_another_life(self, me: NodeId, inc: Incarnation) -> bool:
        """Whether a shard is planned here that this life has let go of."""
        wanted = [shard for shard, plan in self._view.plans.items() if me in plan.replicas]
        known = {shard: self._view.records[shard] for shard in wanted if shard in self._view.records}
        return any(
            me not in record.replicas and (shard in self.left or record.left.get(me) == inc)
            for shard, record in known.items()
        )


def _kept_in(folder: Path, number: int, *, has_tail: bool) -> int:
    """Number of messages that a closed copy keeps. `has_tail`: quarantines first what only this copy's log may have;
    these messages are in doubt, for the logs were not compared. Raises storage errors, `OSError`."""
    engine = open_engine(ShardFolder(folder).current)
    try:
        tally = engine.look(quarantine.tally_of)
        if has_tail:
            end = engine.look(entry_rows.stored_of).high_watermark
            unknown = quarantine.Base((), 0)
            batch = Batch()
            batch.before = partial(
                entry_rows.keep, end=end, keeping=entry_rows.Keeping(number, tally, wall_clock_ms(), unknown)
            )
            engine.commit(batch, lambda: None)
        return tally.messages
    finally:
        engine.close()


def _remove(folder: Path, name: str) -> None:
    gone = folder.with_name(f"{name}{GONE}")
    folder.rename(gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone)


def _put_aside(folder: Path, name: str) -> None:
    make_private(folder.parent / ASIDE)
    folder.rename(folder.parent / ASIDE / name)
    sync_folder(folder.parent)
