"""One watch over etcd: a task that reads a stream, and moves to another member when this one falls silent.

The reader takes from a bounded buffer; while it is slow, the socket is not read, and etcd keeps the next changes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import aclosing
from typing import Final

import msgspec
import structlog

from backend_store.cluster.coordinator import Compacted, UnsupportedServer
from backend_store.cluster.core.values import Changes, Revision
from backend_store.cluster.etcd.codec import WatchLine, WatchResult, decode, failure_of, watch_request
from backend_store.cluster.etcd.lines import Assembler, Lines
from backend_store.cluster.etcd.members import Members
from backend_store.cluster.limits import (
    ETCD_PULSE_SECONDS,
    ETCD_PULSES_MISSED_MAX,
    ETCD_RECONNECT_SECONDS_MAX,
    ETCD_RECONNECT_SECONDS_MIN,
    WATCH_CHANGES_WAITING_MAX,
)
from backend_store.model import Forbidden, OutcomeUnknown, PushqError, Unavailable

log = structlog.get_logger("pushq.etcd")

WATCH: Final = "/v3/watch"


class Watch:
    """One watch: call `take` for the changes, and `close` at the end."""

    def __init__(self, members: Members, namespace: bytes, prefix: bytes, after: Revision):
        self.connects = 0
        """How often a stream was opened."""
        self._members = members
        self._denials = 0
        """Consecutive refusals. The first may mean that our token is too old: etcd's message is the same then."""
        self._prefix = namespace + prefix
        self._assembler = Assembler(namespace, after)
        self._waiting: asyncio.Queue[Changes | PushqError] = asyncio.Queue(WATCH_CHANGES_WAITING_MAX)
        self._taken: deque[Changes] = deque()
        """Changes of the last line that do not fit into `_waiting` yet."""
        self._reader = asyncio.get_running_loop().create_task(self._run(), name=f"watch of {prefix!r}")

    async def take(self) -> Changes:
        """Returns the next revision. Raises the error that ended the watch; nothing comes afterwards."""
        changes = await self._waiting.get()
        if isinstance(changes, PushqError):
            raise changes
        return changes

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def end(self, reason: str) -> None:
        """Ends the watch with an error in place of changes that were not taken yet: a part of them would be a gap."""
        await self.close()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(Unavailable(reason))

    async def _run(self) -> None:
        pause = ETCD_RECONNECT_SECONDS_MIN
        while True:
            member = self._members.current
            seen = self._assembler.seen
            try:
                await self._hand_out()
                await self._listen(member)
            except (Unavailable, UnsupportedServer) as error:
                log.info("a watch goes on elsewhere", member=member, error=error.detail)
            except PushqError as error:
                await self._waiting.put(error)
                return
            except Exception as error:
                log.exception("a watch failed", member=member)
                await self._waiting.put(Unavailable(f"the watch failed: {error!r}"))
                return
            self._members.leave(member)
            if self._assembler.seen > seen:
                pause = ETCD_RECONNECT_SECONDS_MIN
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(ETCD_RECONNECT_SECONDS_MAX, pause * 2)

    async def _listen(self, member: str) -> None:
        """Raises `Unavailable` when the stream is lost, or its member is."""
        try:
            async with asyncio.timeout(None) as guard:
                pulse = asyncio.create_task(self._feel_pulse(member, guard), name=f"pulse of {member}")
                try:
                    await self._read(member)
                finally:
                    pulse.cancel()
                    await asyncio.gather(pulse, return_exceptions=True)
        except TimeoutError:
            raise Unavailable(f"{member} does not answer any more, or has no leader") from None

    async def _feel_pulse(self, member: str, guard: asyncio.Timeout) -> None:
        """A silent stream is quiet or dead: only asking the member tells."""
        missed = 0
        while missed < ETCD_PULSES_MISSED_MAX:
            await asyncio.sleep(ETCD_PULSE_SECONDS)
            missed = 0 if await self._members.answers(member) else missed + 1
        guard.reschedule(asyncio.get_running_loop().time())

    async def _read(self, member: str) -> None:
        self.connects += 1
        self._assembler.restart()
        lines = Lines()
        request = watch_request(self._prefix, self._assembler.seen)
        async with aclosing(self._members.stream(member, WATCH, request)) as stream:
            async for part in stream:
                for line in lines.feed(part):
                    await self._take_in(member, line)

    async def _take_in(self, member: str, line: bytes) -> None:
        try:
            said = decode(line, WatchLine)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"{member} said what cannot be read: {error}") from None
        if said.error is not None:
            raise _ended(failure_of(member, said.error, "an error"))
        if said.result is None:
            return
        if said.result.canceled:
            raise self._cancelled(member, said.result)
        self._denials = 0
        self._taken += self._assembler.take(said.result)
        await self._hand_out()

    def _cancelled(self, member: str, result: WatchResult) -> PushqError:
        if result.compact_revision:
            oldest = Revision(result.compact_revision)
            return Compacted(f"{member}: revisions before {oldest} are not kept", oldest)
        reason = f"{member} cancelled the watch: {result.cancel_reason[:200] or 'it did not say why'}"
        if "permission denied" in result.cancel_reason:
            self._denials += 1
            self._members.forget_token()
            if self._denials > 1:
                return Forbidden(reason)
        return Unavailable(reason)

    async def _hand_out(self) -> None:
        # Changes from one connection are handed out even when that connection is given up meanwhile.
        while self._taken:
            await self._waiting.put(self._taken[0])
            self._taken.popleft()


def _ended(error: PushqError) -> PushqError:
    return Unavailable(error.detail) if isinstance(error, OutcomeUnknown) else error
