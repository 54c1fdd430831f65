"""One shard as the layer above uses it: opens a node when this process leads the shard, closes it when it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog

from backend_store.core.replication.record import NodeId
from backend_store.model import Epoch, PushqError
from backend_store.node.node import Node, end_process
from backend_store.shard.interface import ShardLeader, ShardNumber
from backend_store.shard.leading import Deposed, LeaderEngine, LeaderWriter
from backend_store.shard.limits import HOLD_SECONDS
from backend_store.shard.replicated import Replicated

log = structlog.get_logger("pushq.shard")


class Around(Protocol):
    """The callbacks of a shard to its host."""

    def serving(self, shard: HostedShard, node: Node) -> None: ...

    def stopped(self, shard: HostedShard) -> None: ...

    async def leaving(self, shard: HostedShard, target: NodeId) -> None:
        """Returns when what was begun with its node is answered, or takes too long."""

    def leader_of(self, shard: ShardNumber) -> ShardLeader | None: ...


class HostedShard:
    """Implements `interface.Shard`."""

    def __init__(self, replicated: Replicated, directory: Path, around: Around) -> None:
        self.replicated = replicated
        self._directory = directory
        self._around = around
        self._node: Node | None = None
        self._writer: LeaderWriter | None = None
        self._opening: asyncio.Task[None] | None = None
        self._abandoning: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._why_not_durable = ""
        """The reason that the node was given last."""
        self._has_said_so = False
        """A caller asked since and got the answer that nothing is durable: consumers that were refused messages for it
        wait."""
        self._followed = asyncio.Event()

    @property
    def number(self) -> ShardNumber:
        return self.replicated.number

    @property
    def epoch(self) -> Epoch:
        record = self.replicated.replica.record
        return Epoch(0) if record is None else record.epoch

    @property
    def node(self) -> Node | None:
        return self._node if self._node is not None and self.replicated.may_serve else None

    @property
    def leader(self) -> ShardLeader | None:
        return self._around.leader_of(self.number)

    @property
    def is_coming(self) -> bool:
        return self._node is None and self.replicated.is_leading and not self._is_leaving

    @property
    def is_serving(self) -> bool:
        return self.node is not None

    def look(self) -> None:
        """Called periodically: opens a node, gives up one whose leadership is not confirmed any more, retries a held
        batch."""
        may_serve = self.replicated.may_serve and not self._is_leaving
        if self._writer is not None:
            self._writer.retry()
        if self._node is not None:
            self._tell_whether_durable(self._node)
        if may_serve and self._writer is None and self.replicated.is_all_confirmed:
            self._open()
        elif not may_serve and self._node is not None and not self._is_leaving:
            self.give_up()

    def _tell_whether_durable(self, node: Node) -> None:
        """Publishes are refused and nothing is leased while too few replicas are in sync: no ack could be kept."""
        before, reason = self._why_not_durable, self.replicated.why_not_durable()
        self._why_not_durable = reason
        if reason and not before:
            log.warning("a shard takes nothing", shard=self.number, reason=reason)
            node.refuse_waiting(reason)
        elif not reason and (before or self._has_said_so):
            if before:
                log.info("a shard takes publishes again", shard=self.number)
            self._has_said_so = False
            node.on_durable()

    def _asked_whether_durable(self) -> str:
        reason = self.replicated.why_not_durable()
        if reason:
            self._has_said_so = True
        return reason

    def _open(self) -> None:
        self._why_not_durable, self._has_said_so = "", False
        writer = self._writer = LeaderWriter(self.replicated.append)
        self._opening = asyncio.get_running_loop().create_task(self._start(writer), name=f"node of {self.number}")

    async def _start(self, writer: LeaderWriter) -> None:
        node: Node | None = None
        try:
            engine = LeaderEngine(self.replicated.store.engine)
            node = Node(
                engine,
                directory=self._directory,
                on_fatal=_unless_deposed,
                writer=writer,
                epoch=self.replicated.epoch_of_logs,
                is_keyless=True,
            )
            node.not_durable = self._asked_whether_durable
            node.copies = self.replicated.copies
            await node.start()
        except asyncio.CancelledError:
            if node is not None:
                await node.abandon(self._deposed())
            raise
        except PushqError as error:
            log.info("a node was given up while it opened", shard=self.number, error=error.detail)
            if node is not None:
                await node.abandon(error)
            self._writer = None if self._writer is writer else self._writer
            return
        except Exception as error:
            log.exception("the node of a shard does not open", shard=self.number)
            end_process(error)
            return
        if self._writer is not writer or not self.replicated.may_serve:
            writer.depose(self._deposed())
            self._writer = None if self._writer is writer else self._writer
            await node.abandon(self._deposed())
            return
        self._node = node
        log.info("serves a shard", shard=self.number, epoch=self.epoch)
        try:
            self._around.serving(self, node)
        except Exception as error:
            # The shard would be announced as served by this process, and serve no caller.
            log.exception("a shard cannot be served", shard=self.number)
            end_process(error)

    def followed(self) -> None:
        """The replica does not lead any more."""
        self._followed.set()
        self.give_up()

    def give_up(self) -> None:
        """Drops the node, if there is one, and all that it had in memory."""
        node, self._node = self._node, None
        writer, self._writer = self._writer, None
        error = self._deposed()
        if node is not None:
            node.committer.abandon(error)  # before the writer refuses: batches not begun are known not to be stored
        if writer is not None:
            writer.depose(error)
        if node is None:
            return
        log.info("serves a shard no more", shard=self.number)
        self._around.stopped(self)
        task = asyncio.get_running_loop().create_task(node.abandon(error), name=f"ends the node of {self.number}")
        self._abandoning.add(task)
        task.add_done_callback(self._abandoning.discard)

    def _deposed(self) -> Deposed:
        return Deposed(f"shard {self.number} is not led here any more")

    async def hand_over(self, target: NodeId) -> bool:
        """Stops serving, writes down the leases of connected consumers, and lets `target` lead.

        Returns whether `target` leads; if not, this process serves the shard again.
        """
        node, writer = self._node, self._writer
        if node is None or writer is None or self._is_leaving:
            return False
        self._is_leaving = True
        log.info("hands a shard over", shard=self.number, to=target)
        await self._around.leaving(self, target)
        if self._node is not node:
            self._is_leaving = False
            return False  # the node was given up meanwhile
        self._node = None
        self._around.stopped(self)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await node.close()
        except (TimeoutError, PushqError) as error:
            log.info("a node did not close in time", shard=self.number, error=str(error))
            writer.depose(self._deposed())
            await node.abandon(self._deposed())
        self._writer = None
        self._followed.clear()
        self.replicated.hand_over(target)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await self._followed.wait()
        except TimeoutError:
            return False
        finally:
            self._is_leaving = False
        return True

    async def close(self) -> None:
        self.give_up()
        if self._opening is not None:
            self._opening.cancel()
        tasks = [task for task in (self._opening, *self._abandoning) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.replicated.close()


def _unless_deposed(error: BaseException) -> None:
    if not isinstance(error, Deposed):
        end_process(error)
