"""Tells a shard the queues that it is to serve, and keeps which of them the shard has adopted.

Definitions come from the first shard. If a queue lies in another shard, every gateway that finds it missing there tells
that shard, so no single gateway's crash between the two steps loses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from backend_store.client.embedded import OUTBOX_SUFFIX, owner_of
from backend_store.metadata.relocation import as_known_in, lies_in
from backend_store.model import ClusterAway, Conflict, Overloaded, PushqError, QueueDefinition, Unavailable
from backend_store.remote.limits import (
    ADOPT_RETRY_SECONDS,
    ADOPT_RETRY_SECONDS_MAX,
    ADOPT_SECONDS_MAX,
    ADOPTED_AT_ONCE_MAX,
    CLAIM_RETRY_SECONDS,
    DROP_AFTER_SECONDS,
    LINE_CALLS_MAX,
    LOOKED_AT_ONCE_MAX,
)
from backend_store.service.defining import AdoptQueues, DropQueues, GoneQueues, NameCluster
from backend_store.service.definitions import Definitions as News

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

_uids = msgspec.msgpack.Decoder(list[int]).decode

Name = tuple[str, str]
"""Tenant and queue."""
Waiting = Callable[[PushqError | None], None]
"""Called with None once the shard has the queue, or with the error why it has not."""


class _Waits(NamedTuple):
    """A call that waits for the shard to have its queue."""

    go_on: Waiting
    timer: asyncio.TimerHandle | None
    """Ends the wait at the call's deadline."""


class Adopted:
    """The adopted queues of one shard; its `Home` owns it."""

    def __init__(self, home: Home, store: RemoteBackends) -> None:
        self.is_ours = home.cluster.is_home
        """Whether the shard takes the queues that our home cluster defines, and no others."""
        self._home = home
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._identity = ""
        """Identity of the shard's metadata."""
        self._there: dict[int, int] = {}
        """Uid → version of the queues that the shard has adopted."""
        self._names: dict[Name, int] = {}
        self._lacking: dict[Name, None] = {}
        """Queues that the shard may lack, in the order in which they are checked: a superset of those that it lacks."""
        self._strange: dict[Name, None] = {}
        """Queues that the shard has adopted but that were deleted or moved. Kept, as finding them must not take a scan
        of all queues."""
        self._waiting: dict[int, dict[int, _Waits]] = {}
        """By uid, the calls that wait for the queue; by their numbers, in order."""
        self._waits = 0
        self._is_claiming = self._is_adopting = self._is_dropping = False
        self._defined_anew = asyncio.Event()
        """Wakes `_adopt_missing`."""
        self._knows_definers = True

    def greeted(self, metadata: str) -> None:
        """Takes over the identity of the shard's metadata; "" from a version without further clusters."""
        self._knows_definers = bool(metadata)
        if metadata != self._identity:
            self._identity = metadata
            self.is_ours = self._home.cluster.is_home

    def has(self, definition: QueueDefinition) -> bool:
        """Whether the shard serves the queue, as far as this gateway knows, and no earlier call waits for it to."""
        uid = definition.uid
        return self._home.is_first or (uid in self._there and uid not in self._waiting) or uid in self._home.moved

    def knows(self, definition: QueueDefinition) -> bool:
        """Whether the shard has this version of the definition, or a later one."""
        return self._home.is_first or self._there.get(definition.uid, 0) >= definition.version

    def when_there(self, definition: QueueDefinition, go_on: Waiting, *, until_ms: int) -> None:
        """Calls `go_on`, in the order of the calls, once the shard serves the queue; with `Unavailable` at `until_ms`
        of the store's own clock (0: no deadline), and with `Overloaded` where `LINE_CALLS_MAX` calls wait already."""
        waiting = self._waiting.get(definition.uid)
        if waiting is None:
            waiting = self._waiting[definition.uid] = {}
            self._store.background(self._adopted_for(definition, waiting))
        if len(waiting) >= LINE_CALLS_MAX:
            go_on(Overloaded(f"{LINE_CALLS_MAX} requests are already waiting for the backend", retry_after_ms=500))
            return
        self._waits += 1
        timer = None
        if until_ms:
            left_s = max(0, until_ms - self._store.own_ms()) / 1000
            timer = self._loop.call_later(left_s, self._give_up, definition, waiting, self._waits)
        waiting[self._waits] = _Waits(go_on, timer)

    def _give_up(self, definition: QueueDefinition, waiting: dict[int, _Waits], number: int) -> None:
        """Ends a call at its deadline. Later calls wait on."""
        detail = f"queue {definition.name!r} is not known to its shard yet; nothing was accepted"
        waiting.pop(number).go_on(Unavailable(detail, retry_after_ms=500))

    async def _adopted_for(self, definition: QueueDefinition, waiting: dict[int, _Waits]) -> None:
        error: PushqError | None = self._home.line.unavailable()
        try:
            error = await self._adopt_soon(definition)
        finally:
            self._waiting.pop(definition.uid, None)
            going = list(waiting.values())
            waiting.clear()
            for one in going:
                if one.timer is not None:
                    one.timer.cancel()
                try:
                    one.go_on(error)
                except Exception:
                    log.exception("what waited for a queue failed", shard=self._home.shard, queue=definition.name)

    async def _adopt_soon(self, definition: QueueDefinition) -> PushqError | None:
        """Returns None once the shard has the queue, else the last error. Retries `Unavailable` for up to
        `ADOPT_SECONDS_MAX`, as the shard may be between two leaders."""
        over = self._loop.time() + ADOPT_SECONDS_MAX
        while True:
            try:
                await self.tell([definition])
            except PushqError as error:
                may_come = isinstance(error, Unavailable) and not self._home.cluster.is_away
                if not may_come or self._loop.time() >= over:
                    return error
                await asyncio.sleep(ADOPT_RETRY_SECONDS)
            else:
                return None

    async def tell(self, definitions: list[QueueDefinition]) -> None:
        """Returns when the shard has adopted the definitions. Raises `PushqError`."""
        if definitions and not self._store.first.line.is_open:
            raise self._store.first.line.unavailable()  # a queue may have been deleted or moved without our hearing
        definitions = [self._as_told(one) for one in self._with_named(definitions)]
        definer = self._definer()
        is_new = self._home is self._home.cluster.first and not self.is_ours
        if is_new:
            await self._name(is_only_asked=True)
        await self._home.ask(AdoptQueues([] if is_new else definitions, definer), may_repeat=True)
        if is_new:
            await self._name()
        self.is_ours = True
        if is_new and definitions:
            await self._home.ask(AdoptQueues(definitions, definer), may_repeat=True)

    def _with_named(self, definitions: Iterable[QueueDefinition]) -> list[QueueDefinition]:
        """Puts before each definition its dead-letter queue, if the shard lacks that: a queue whose dead-letter queue
        is missing keeps dead letters in its companion."""
        found: dict[int, QueueDefinition] = {}
        for one in definitions:
            named = self._store.metadata.queues.get((one.tenant, one.config.dead_letter_queue or ""))
            if named is not None and self._lacks(named):
                found.setdefault(named.uid, named)
            found.setdefault(one.uid, one)
        return list(found.values())

    def _as_told(self, definition: QueueDefinition) -> QueueDefinition:
        """Returns the definition as the shard is to have it; for a companion that of the queue beside which it lies."""
        owner = owner_of(definition.name.removesuffix(OUTBOX_SUFFIX))
        known = self._store.metadata.queues.get((definition.tenant, owner))
        if known is not None and known.uid == definition.uid:
            definition = known
        return as_known_in(definition, self._home.spot)

    async def _name(self, *, is_only_asked: bool = False) -> None:
        """Has the home cluster bind a further cluster's name to its metadata. Raises `ClusterAway` if the name belongs
        to other metadata."""
        asked = NameCluster(self._home.cluster.name, self._identity, is_only_asked)
        try:
            await self._store.ask(asked, may_repeat=True)
        except Conflict as error:
            self._home.cluster.why_not = error.detail
            raise ClusterAway(error.detail, retry_after_ms=5_000) from None
        if self._home.cluster.why_not:
            self._home.cluster.why_not = ""
            self._store.met()

    async def drop(self, uids: Sequence[int], moved: Sequence[tuple[int, int]] = ()) -> None:
        """Has the shard drop deleted queues. `moved`: uid and version of queues whose definitions, from that version
        on, place them elsewhere. Raises `PushqError`."""
        await self._home.ask(DropQueues(list(uids), self._definer(), tuple(moved)), may_repeat=True)

    def _definer(self) -> str:
        """Returns the identity of the home cluster's metadata, by which a shard of a further cluster accepts its
        queues; "" for a shard of the home cluster. Raises `Unavailable`."""
        if self._home.cluster.is_home:
            return ""
        definer = self._store.definer
        if not definer and not self._store.first.line.is_open:
            raise self._store.first.line.unavailable()
        if not (definer and self._knows_definers):
            older = f"cluster {self._home.cluster.name!r}" if definer else "the home cluster"
            raise Unavailable(f"backends of {older} have a version without further clusters; upgrade them first")
        # Only a cluster's first shard is sure to have queues of another home cluster, if there is one, and so to refuse
        # ours: once it accepts ours, all shards are ours.
        if self._home is not self._home.cluster.first and not self._home.cluster.first.is_ours:
            unsaid = (
                f"cluster {self._home.cluster.name!r} has not confirmed yet that it accepts this home cluster's queues"
            )
            detail = self._home.cluster.why_not or unsaid
            raise Unavailable(detail, retry_after_ms=500)
        return definer

    async def _claim(self) -> None:
        """Has a further cluster's shard accept our home cluster before any queue is put there; retries until then."""
        told = ""
        try:
            while self._home.line.is_open and not self.is_ours:
                try:
                    await self.tell([])
                except PushqError as error:
                    told = self._told_why(error.detail, told)
                    await asyncio.sleep(CLAIM_RETRY_SECONDS)
        finally:
            self._is_claiming = False
        if self.is_ours:
            self._doubt_all()
            self.go_on()

    def _told_why(self, reason: str, told: str) -> str:
        """Logs why a cluster gets no queues, each reason once in a row; returns the reason logged last. Logs nothing
        while the home cluster's first shard, which knows the cluster's name, is away."""
        if self._home is not self._home.cluster.first or not self._store.first.line.is_open or reason == told:
            return told
        cluster, shard = self._home.cluster.name, self._home.shard
        log.error("a cluster gets no queues", cluster=cluster, shard=shard, reason=reason)
        return reason

    def defined_elsewhere(self, changed: Sequence[QueueDefinition], gone: Sequence[QueueDefinition]) -> None:
        """Takes over changes reported by the first shard: has the shard adopt those that lie here and drop the rest."""
        for one in gone:
            self._lacking.pop(_name_of(one), None)
        for one in (*changed, *gone):
            self._told_of(_name_of(one))
        if any(self._lacks(one) for one in changed):
            self._adopt()
        self.drop_soon()

    def go_on(self) -> None:
        """Resumes adopting and dropping after one of the two shards has come back."""
        if self._lacking:
            self._adopt()
        self.drop_soon()

    def _doubt_all(self) -> None:
        """Has all defined queues checked again, in parts, for whether the shard lacks them."""
        self._lacking = dict.fromkeys(self._store.metadata.queues)

    def _adopt(self) -> None:
        if not (self._home.line.is_open and self.is_ours and self._store.first.line.is_open):
            return
        self._defined_anew.set()
        if not self._is_adopting:
            self._is_adopting = True
            self._store.background(self._adopt_missing())

    def _lies_here(self, definition: QueueDefinition) -> bool:
        return lies_in(definition, self._home.spot)

    def _lacks(self, one: QueueDefinition) -> bool:
        is_here = self._lies_here(one)
        return is_here and self._there.get(one.uid, 0) < one.version and one.uid not in self._home.moved

    async def _adopt_missing(self) -> None:
        """Retries until the shard has all its queues, or one of the two shards is lost; its return starts this anew."""
        pause, told = ADOPT_RETRY_SECONDS, ""
        try:
            while (error := await self._adopt_all()) is not None:
                if error.detail != told:
                    told = error.detail
                    log.info("a shard did not take its queues over", shard=self._home.shard, error=told)
                self._defined_anew.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._defined_anew.wait(), pause)
                pause = min(ADOPT_RETRY_SECONDS_MAX, 2 * pause)
        finally:
            self._is_adopting = False

    async def _adopt_all(self) -> PushqError | None:
        """Tells each leader of the shard each version that it lacks, once. Returns the last error if queues are still
        missing, else None."""
        tried: set[tuple[int, int]] = set()
        error: PushqError | None = None
        connection = self._home.line.connections
        while self._home.line.is_open and self._store.first.line.is_open:
            if connection != self._home.line.connections:
                connection = self._home.line.connections
                tried.clear()
            self._defined_anew.clear()
            missing = await self._some_missing(tried)
            if not missing and self._defined_anew.is_set():
                continue
            if not missing:
                return error
            tried.update((one.uid, one.version) for one in missing)
            try:
                await self.tell(missing)
            except PushqError as refused:
                error = refused
        return None

    async def _some_missing(self, tried: Collection[tuple[int, int]]) -> list[QueueDefinition]:
        """Returns up to `ADOPTED_AT_ONCE_MAX` missing queues that are not in `tried`."""
        found: list[QueueDefinition] = []
        for number, name in enumerate(list(self._lacking), 1):
            known = self._store.metadata.queues.get(name)
            if known is None or not self._lacks(known):
                self._lacking.pop(name, None)
            elif (known.uid, known.version) not in tried:
                found.append(known)
                if len(found) == ADOPTED_AT_ONCE_MAX:
                    break
            if number % LOOKED_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)
        return found

    def drop_soon(self) -> None:
        """Begins to drop queues that the shard has but should not have."""
        if not self._home.is_first and self.is_ours and not self._is_dropping and self._strange:
            self._is_dropping = True
            self._store.background(self._drop())

    def _told_of(self, name: Name) -> None:
        """Re-evaluates, after news from either shard, whether the shard has a queue that it should not have, or lacks
        one that it should have."""
        uid, known = self._names.get(name), self._store.metadata.queues.get(name)
        if uid is not None and (known is None or known.uid != uid or not self._lies_here(known)):
            self._strange[name] = None
        else:
            self._strange.pop(name, None)
        if known is not None and self._lacks(known):
            self._lacking[name] = None

    async def _drop(self) -> None:
        """Has the shard drop `_strange` queues. News of the two shards arrive in any order, so the first shard confirms
        before anything is dropped. Retries refusals until one of the two shards is lost; its return starts this anew.
        """
        asked: set[int] = set()
        pause, told, connection = DROP_AFTER_SECONDS, "", self._home.line.connections
        try:
            while True:
                await asyncio.sleep(pause)
                if connection != self._home.line.connections:  # another leader may have what this one has dropped
                    connection = self._home.line.connections
                    asked.clear()
                strangers = [uid for name in self._strange if (uid := self._names[name]) not in asked]
                if not strangers or not self.is_ours:
                    return
                try:
                    gone = _uids(await self._store.ask(self._gone(strangers), may_repeat=True))
                    if gone:
                        await self._drop_of(set(gone))
                except PushqError as error:
                    if error.detail != told:
                        told = error.detail
                        log.info("a shard did not drop its queues", shard=self._home.shard, error=told)
                    if not (self._home.line.is_open and self._store.first.line.is_open):
                        return
                    pause = min(ADOPT_RETRY_SECONDS_MAX, 2 * pause)
                else:
                    pause = DROP_AFTER_SECONDS
                    asked.update(strangers)
        finally:
            self._is_dropping = False

    async def _drop_of(self, uids: set[int]) -> None:
        """Drops the queues as they are known now: a queue may have been defined here again meanwhile."""
        gone, moved = [], []
        for name in self._strange:
            known, uid = self._store.metadata.queues.get(name), self._names[name]
            if uid not in uids:
                continue
            if known is None or known.uid != uid:
                gone.append(uid)
            elif not self._lies_here(known):
                moved.append((uid, known.version))
        await self.drop(gone, moved)

    def _gone(self, uids: list[int]) -> GoneQueues:
        return GoneQueues(uids, self._home.spot)

    def told(self, news: News, *, is_first: bool, is_open: bool) -> None:
        """Takes over the shard's own news. `is_first`: a full listing of what the shard has begins. `is_open`: the
        shard is connected and its initial listing is complete."""
        if is_first:
            self._there.clear()
            self._names.clear()
            self._strange.clear()
        for name in news.queues_gone:
            if (uid := self._names.pop(name, None)) is not None:
                self._there.pop(uid, None)
            self._told_of(name)
        for definition in news.queues:
            is_new = definition.uid not in self._there
            name = _name_of(definition)
            if (before := self._names.get(name)) is not None and before != definition.uid:
                self._there.pop(before, None)
            self._names[name] = definition.uid
            self._there[definition.uid] = definition.version
            self._told_of(name)
            if is_new and is_open:
                self._home.came_to_be(definition)
        if is_open:
            self.drop_soon()

    def begin(self, *, is_anew: bool) -> None:
        """The shard is connected and what it has is known. `is_anew`: by a full listing, not by changes alone."""
        if is_anew:
            self._doubt_all()
        if self.is_ours:
            self.go_on()
        elif not self._is_claiming:
            self._is_claiming = True
            self._store.background(self._claim())


def _name_of(definition: QueueDefinition) -> Name:
    return definition.tenant, definition.name
