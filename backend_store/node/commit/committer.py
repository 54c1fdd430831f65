"""Group commit: while one batch is being written, everything that arrives waits for the next.

A cycle has each partition with work decide it, hands the rows of all partitions to the writer as one transaction, and
tells the partitions when it is durable. One cycle is in flight at a time, so a decision always reads committed state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from backend_store.model import OutcomeUnknown, PushqError, Unavailable
from backend_store.node.commit.cycle_budget import CycleBudget
from backend_store.node.touched import Touched
from backend_store.storage.engine import Batch
from backend_store.storage.writer import CommitWriter

log = structlog.get_logger("pushq.committer")

SOON_SECONDS = 0.002


class Member(Protocol):
    """A partition, as the committer sees it."""

    @property
    def burden(self) -> int:
        """Roughly how much work `committed` will be: messages and answers of the prepared batch."""

    @property
    def waited_ms(self) -> int:
        """How long the oldest waiting publish has waited for a cycle; 0 if none waits."""

    def join(self) -> None:
        """Decides transactions, which span members; those it calls upon take part in the same commit."""

    def prepare(self, batch: Batch) -> None:
        """Decides what waits and stages its rows in `batch`."""

    def committed(self) -> None:
        """The prepared batch is durable."""

    def failed(self, error: PushqError) -> None:
        """The prepared batch is lost; the process is about to end."""


def _burden(member: Member) -> int:
    return member.burden


class Committer:
    """The commit cycles of one node, which owns it. At most one batch is in flight."""

    def __init__(
        self,
        writer: CommitWriter,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[BaseException], None],
    ):
        self._on_fatal = on_fatal
        self._writer = writer
        self._loop = loop
        self._waiting: dict[Member, None] = {}
        self._riders: dict[Member, None] = {}
        self._crowded_out: dict[Member, None] = {}
        self._rows: list[tuple[Batch, asyncio.Future[None]]] = []
        self._scheduled = False
        self._soon: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: PushqError | None = None
        """Why no new cycle begins."""
        self.cycles = 0
        self.room = CycleBudget()
        self.is_shared = False
        """Several members are in the cycle: none may fill it alone, or the others would wait for its messages."""
        self.touched: Touched[Member] = Touched(self._wanting)
        """Members with something committed or waiting to be."""
        self.on_waited: Callable[[int], None] = lambda waited_ms: None
        """Called in each cycle with the time its oldest publish has waited, and with 0 once the disk is idle."""

    def request(self, member: Member) -> None:
        """Asks for a cycle with this member, as soon as the writer is free."""
        self._waiting[member] = None
        self._kick()

    def wait_for_room(self, member: Member) -> None:
        """Asks for a place ahead of others in the next cycle: this cycle had no room for the member."""
        self._crowded_out[member] = None
        self.request(member)

    def ride_along(self, member: Member) -> None:
        """The member has rows that are written with the next commit of any member."""
        self._riders[member] = None

    def request_soon(self, member: Member) -> None:
        """Asks for a cycle that no caller waits for: with another member's, or alone after `SOON_SECONDS`.

        Acks without an answer use this. A commit of their own would delay the next publish.
        """
        self._riders[member] = None
        if self._soon is None:
            self._soon = self._loop.call_later(SOON_SECONDS, self._soon_is_now)

    def _soon_is_now(self) -> None:
        self._soon = None
        if self._riders:
            self._waiting |= self._riders
            self._kick()

    async def write(self, rows: Batch) -> None:
        """Commits the caller's own rows; returns when they are durable. Raises why they are not, or may not be."""
        if self._ended is not None:
            raise self._ended
        done: asyncio.Future[None] = self._loop.create_future()
        self._rows.append((rows, done))
        self._kick()
        await done

    def _kick(self) -> None:
        if not self._scheduled and not self._writer.busy:
            self._scheduled = True
            self._loop.call_soon(self._cycle)

    def _cycle(self) -> None:
        self._scheduled = False
        if self._ended is not None or self._writer.busy or not (self._waiting or self._rows):
            return
        self._idle.clear()
        self.on_waited(self.waited_ms)
        members = self._members()
        rows, self._rows = self._rows, []
        batch = Batch()
        for extra, _ in rows:
            for table, changes in extra.rows.items():
                batch.rows.setdefault(table, {}).update(changes)
        self.room.begin()
        try:
            for member in members:
                member.join()
            if self._waiting or self._riders:
                members += [member for member in self._members() if member not in members]
            self.is_shared = len(members) > 1
            for member in members:
                member.prepare(batch)
            self.cycles += 1
            self._writer.submit(batch, lambda error: self._done(members, rows, error))
        except Exception as error:
            # What was decided so far is neither on disk nor can it be undone.
            log.error("a commit cycle failed", error=str(error), exc_info=not isinstance(error, PushqError))
            self._done(members, rows, error)

    def _wanting(self) -> list[Member]:
        return [*self._crowded_out, *self._waiting, *self._riders]

    def _members(self) -> list[Member]:
        members = list(self._crowded_out | self._waiting | self._riders)
        self._crowded_out.clear()
        self._waiting.clear()
        self._riders.clear()
        return members

    def _done(
        self, members: list[Member], rows: list[tuple[Batch, asyncio.Future[None]]], error: BaseException | None
    ) -> None:
        if error is not None:
            unknown = OutcomeUnknown(f"storing the request failed: {error}")
            for member in members:
                member.failed(unknown)
            for _, done in rows:
                if not done.done():
                    done.set_exception(unknown)
            # Even if nothing was written, memory now differs from the disk: restart from the disk.
            self._on_fatal(error)
            return
        self.touched.add_all(members)
        if len(members) > 1:
            # Members with little to deliver go first: a queue under load must not delay the others' answers.
            members.sort(key=_burden)
        try:
            for member in members:
                member.committed()
        except Exception as fault:
            # The disk is ahead of what some members hold: their next decision would overwrite it.
            log.exception("a commit was not taken in")
            self._on_fatal(fault)
            return
        for _, done in rows:
            if not done.done():
                done.set_result(None)
        if self._waiting or self._rows:
            self._kick()
        else:
            self._idle.set()
            self.on_waited(0)

    @property
    def waited_ms(self) -> int:
        """How long the oldest waiting publish has waited for a cycle."""
        return max((member.waited_ms for member in self._waiting), default=0)

    async def drain(self) -> None:
        """Returns when nothing waits and no commit is in flight; started attempts are written too."""
        if self._riders:
            self._waiting |= self._riders
            self._kick()
        while self._waiting or self._rows or self._writer.busy:
            self._idle.clear()
            await self._idle.wait()

    def abandon(self, error: PushqError) -> None:
        """Begins no more cycles: present and later waiters get `error`."""
        self._end(error)

    def end(self) -> None:
        """Begins no more cycles. Work that still asks for one continues after the next start."""
        self._end(Unavailable("the store is closed; nothing was started"))

    def _end(self, error: PushqError) -> None:
        self._ended = self._ended or error
        rows, self._rows = self._rows, []
        for _, done in rows:
            if not done.done():
                done.set_exception(self._ended)
        if self._soon is not None:
            self._soon.cancel()
