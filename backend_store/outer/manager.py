"""The shell of the out-cluster manager: takes the duty, collects reports, writes decisions, and has servers provided
and queues moved.

All its knowledge is in the documents of the home cluster, so several managers may run and any of them can take over.
Decisions are written on the condition of the duty's term: a manager that lost the duty meanwhile writes nothing, and
makes no call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec
import structlog

from backend_store.cluster.coordinator import boot_seconds
from backend_store.core.outer.clusters import Report as ClusterReport
from backend_store.core.outer.documents import DUTY
from backend_store.core.outer.gathered import ShardSaid, gathered
from backend_store.core.outer.limits import CALL_SLACK_MS, RELIEF_SEEN_MS
from backend_store.core.outer.managing import CallEnded, Decided, Memory, ProvisionCall, Rules, Seen, closing, step
from backend_store.core.outer.moving import Attempt, NotBegun, UnderWay
from backend_store.core.outer.records import Holder, holder_of, holder_row, memory_of, rows_of
from backend_store.metadata.documents import Document, Duty
from backend_store.model import Conflict, InvalidRequest, NotFound, PushqError, QueueNotFound
from backend_store.outer.limits import DUTY_LOOKS, HEAR_SECONDS_MAX, STALL_LOOKS
from backend_store.outer.loads import Loads
from backend_store.remote.home import Home
from backend_store.remote.store import RemoteBackends
from backend_store.service.reports import Report, TakeReport
from backend_store.tracing import TRACE, Tracer, carried

log = structlog.get_logger("pushq.manager")

_report = msgspec.msgpack.Decoder(Report).decode

Provide = Callable[[ProvisionCall], Awaitable[str]]
"""Has the servers provided, and returns a sentence about the result. Raises `ProvisionFailed`."""


def hold_ms(every_s: float) -> int:
    """How long a manager holds the duty from one look on: a look may wait for the duty, for a shard and for its writes,
    and moves begin no later than that."""
    return round(max(every_s * DUTY_LOOKS, every_s + 3 * HEAR_SECONDS_MAX) * 1000)


class ProvisionFailed(Exception):
    """The message is for people, and contains no secret."""


class Manager:
    """The caller runs `run` in a task of its own, and calls `leave` when that has ended."""

    def __init__(
        self,
        store: RemoteBackends,
        rules: Rules,
        provide: Provide | None,
        *,
        name: str,
        every_s: float,
        tracer: Tracer | None = None,
    ) -> None:
        """Manages all clusters of `store`, which the caller opens and closes. `provide`: None without a provisioner."""
        self.name = name
        self.duty: Duty | None = None
        """Our duty; None while another manager holds it."""
        self.looks = 0
        self.failures = 0
        self.calls_made = 0
        self.calls_failed = 0
        self.moves_begun = 0
        self.moves_failed = 0
        self.heard: frozenset[str] = frozenset()
        """Clusters that reported at the last look."""
        self._store = store
        self._rules = rules
        self._provide = provide
        self._every_s = every_s
        self._tracer = tracer
        self._loads = Loads(store)
        self._heard_at = asyncio.get_running_loop().time()
        """When the home cluster last answered who holds the duty."""
        self._held_until = boot_seconds()
        """By a clock that goes on while the machine sleeps: another manager may have had the duty meanwhile."""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._ended: list[CallEnded] = []
        """Not written down yet."""
        self._decided: dict[str, ProvisionCall] = {}
        """By cluster: calls whose write has an unknown outcome. If they turn out to be written, they are made."""
        self._moves: tuple[Attempt, ...] = ()
        """The same for moves."""
        self._not_begun: list[NotBegun] = []
        """Not written down yet."""

    @property
    def named(self) -> list[str]:
        """The clusters of the settings."""
        return [cluster.name for cluster in self._store.clusters.values()]

    @property
    def is_well(self) -> bool:
        """Whether the home cluster answers."""
        return asyncio.get_running_loop().time() - self._heard_at <= self._every_s * STALL_LOOKS + HEAR_SECONDS_MAX

    @property
    def is_acting(self) -> bool:
        """Whether we still hold the duty: it expires while the home cluster does not answer."""
        return self.duty is not None and boot_seconds() < self._held_until

    @property
    def under_way(self) -> int:
        """Number of calls to the provisioner in progress."""
        return len(self._calls)

    async def run(self) -> None:
        """Looks at the clusters every `every_s` until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.look()
            except PushqError as error:
                self.failures += 1
                log.warning("the clusters cannot be managed", error=error.detail)
            except TimeoutError:
                self.failures += 1
                log.warning("the home cluster does not respond")
            await asyncio.sleep(max(0.0, self._every_s - (loop.time() - began)))

    async def look(self) -> None:
        """One look at the clusters. Raises `PushqError`, `TimeoutError`."""
        self.looks += 1
        if self._tracer is None:
            await self._look()
            return
        span, outcome = self._tracer.done("look at clusters"), None
        try:
            with carried(span.trace):
                await self._look()
        except PushqError as error:
            outcome = error.code
            raise
        except TimeoutError:
            outcome = "unavailable"
            raise
        finally:
            span.ended(outcome)

    async def _look(self) -> None:
        duty = await self._ask(hold_ms(self._every_s))
        if duty is None:
            return
        rows, asker = self._store.documents.all, self._store.documents.holder
        memory, known = memory_of(rows), holder_of(rows)
        self._begin_decided(memory)
        await self._begin_moves(self._moves_decided(memory))
        reports, now_ms = await self._hear(), _now_ms()
        self.heard = frozenset(reports)
        ended, not_begun = list(self._ended), list(self._not_begun)
        loads, shared = self._loads.of(memory.clusters, now_ms)
        seen = Seen(reports, ended, tuple(self._calls), loads, self._moving(), not_begun, shared)
        is_new = known is None or (known.asker, known.term) != (asker, duty.term)
        decided = step(memory, seen, now_ms, named=self.named, manager=self.name, rules=self._rules, is_new=is_new)
        holder = Holder(self.name, asker, duty.term, now_ms) if is_new else None
        self._decided.update({call.cluster: call for call in decided.begin})
        self._moves = decided.move
        await self._write(decided, duty, holder)
        del self._ended[: len(ended)], self._not_begun[: len(not_begun)]
        for call in decided.begin:
            self._begin(call)
        await self._begin_moves(decided.move)

    async def leave(self) -> None:
        """Cancels calls in progress, writes that down, and gives the duty up, so that another manager need not wait."""
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.duty is None:
            return
        try:
            async with asyncio.timeout(HEAR_SECONDS_MAX):
                if self._ended or self._not_begun:
                    memory = memory_of(self._store.documents.all)
                    last = closing(memory, self._ended, self._not_begun, _now_ms(), self.name)
                    await self._write(last, self.duty, None)
                await self._store.documents.take_duty(DUTY, 0)
                log.info("gives the duty up")
        except PushqError as error:
            log.info("the home cluster could not be told that this manager stops", error=error.detail)
        except TimeoutError:
            log.info("the home cluster does not respond and could not be told that this manager stops")

    # ------------------------------------------------------------------------------------------------------- the duty

    async def _ask(self, hold_ms: int) -> Duty | None:
        documents = self._store.documents
        asked_at = boot_seconds()
        async with asyncio.timeout(HEAR_SECONDS_MAX):
            duty = await documents.take_duty(DUTY, hold_ms)
        self._heard_at = asyncio.get_running_loop().time()
        self._held_until = asked_at + hold_ms / 1000
        before = self.duty
        self.duty = duty if duty.holder == documents.holder else None
        if self.duty is not None and before != duty:
            log.info("this process now manages the clusters", term=duty.term)
        if before is not None and self.duty is None:
            log.warning("another process now manages the clusters", holder=duty.holder, term=duty.term)
        return self.duty

    async def _write(self, decided: Decided, duty: Duty, holder: Holder | None) -> None:
        """Returns when it is durable. Raises `PushqError`; `Conflict` when another manager holds the duty."""
        rows = [Document(*row) for row in rows_of(decided)]
        if holder is not None:
            rows.append(Document(*holder_row(holder)))
        try:
            async with asyncio.timeout(HEAR_SECONDS_MAX):
                await self._store.documents.write(rows, duty=duty)
        except Conflict:
            self.duty = None
            raise
        for event in decided.events:
            log.info(event.text, kind=event.kind, number=event.number, cluster=event.cluster)

    # -------------------------------------------------------------------------------------------------------- reports

    async def _hear(self) -> dict[str, ClusterReport]:
        """Reports of all clusters that answer and have the expected identity: the wrong cluster would grow
        otherwise."""
        clusters = [one for one in self._store.clusters.values() if one.first.is_ours]
        said = await asyncio.gather(*(_said_by(cluster.homes) for cluster in clusters))
        now_ms = _now_ms()
        found: dict[str, ClusterReport] = {}
        for cluster, shards in zip(clusters, said, strict=True):
            if (report := gathered(cluster.name, now_ms, shards)) is not None:
                found[cluster.name] = replace(report, is_fixed=cluster.lanes > 0)
        return found

    # ------------------------------------------------------------------------------------------------ the provisioner

    def _begin_decided(self, memory: Memory) -> None:
        """Makes calls that turn out to be written down: no other manager makes them."""
        for name, call in list(self._decided.items()):
            if _now_ms() - call.begun_ms > CALL_SLACK_MS:
                del self._decided[name]  # it would not end in the time that another manager allows for it
            elif memory.calls.get(name) == call:
                self._begin(call)

    def _begin(self, call: ProvisionCall) -> None:
        assert self._provide is not None, "the rules say that there is none"
        self._decided.pop(call.cluster, None)
        self.calls_made += 1
        task = asyncio.get_running_loop().create_task(
            self._make(call, self._provide), name=f"provisions {call.cluster}"
        )
        self._calls[call.number] = task

    async def _make(self, call: ProvisionCall, provide: Provide) -> None:
        is_ok, text = False, "the manager was stopped in the meantime"
        span = None
        if self._tracer is not None:
            span = self._tracer.served("provision", TRACE.get() or "")  # a child of the look that decided it
        try:
            async with asyncio.timeout(self._rules.call_ms_max / 1000):
                text = await provide(call)
            is_ok = True
        except TimeoutError:
            text = f"it took longer than {self._rules.call_ms_max / 1000:g} s and was stopped"
        except ProvisionFailed as error:
            text = str(error)
        except Exception as error:
            log.exception("provisioner call failed")
            text = f"internal error: {type(error).__name__}"
        finally:
            if span is not None:
                span.ended(None if is_ok else "provision-failed")
            self.calls_failed += not is_ok
            self._calls.pop(call.number, None)
            self._ended.append(CallEnded(call.number, call.cluster, is_ok, text))

    # ---------------------------------------------------------------------------------------------------------- moves

    def _moving(self) -> list[UnderWay]:
        moves = self._store.moves.under_way()
        return [UnderWay(one.tenant, one.queue, one.since_ms, one.state == "remembering") for one in moves]

    def _moves_decided(self, memory: Memory) -> list[Attempt]:
        """Moves that turn out to be written down, while the decision is still recent enough."""
        since_ms = _now_ms() - RELIEF_SEEN_MS
        return [move for move in self._moves if move in memory.attempts and move.at_ms > since_ms]

    async def _begin_moves(self, moves: Sequence[Attempt]) -> None:
        """Begins moves that are written down, only while we hold the duty: another manager may plan otherwise."""
        self._moves = ()
        await asyncio.gather(*map(self._move, moves))

    async def _move(self, attempt: Attempt) -> None:
        left_s = min(self._held_until - boot_seconds(), HEAR_SECONDS_MAX)
        text, is_refused = "the time of the duty was over", False
        try:
            if self.is_acting:
                async with asyncio.timeout(left_s):
                    await self._have_moved(attempt)
                self.moves_begun += 1
                return
        except (Conflict, InvalidRequest, NotFound, QueueNotFound) as error:
            text, is_refused = error.detail, True
        except PushqError as error:
            text = error.detail
        except TimeoutError:
            text = "no response in time, so it may have started"
        except Exception as error:
            log.exception("move not started")
            text = f"internal error: {type(error).__name__}"
        self.moves_failed += 1
        self._not_begun.append(NotBegun(attempt, text, is_refused))

    async def _have_moved(self, attempt: Attempt) -> None:
        tenant, queue = attempt.of
        definition, moves = self._store.metadata.find(tenant, queue), self._store.moves
        if attempt.is_merge:
            if not definition.is_shared or attempt.to not in [one.cluster for one in moves.shares(definition)]:
                raise Conflict(
                    f"queue {queue!r} is moving, or no longer has a part in {attempt.to!r}, since the plan was made"
                )
        elif definition.is_on_its_way:
            raise Conflict(f"queue {queue!r} is moving, or is shared by several clusters, since the plan was made")
        elif attempt.source not in [one.cluster for one in moves.shares(definition)]:
            raise Conflict(f"queue {queue!r} is no longer in {attempt.source!r}, since the plan was made")
        if attempt.is_split:
            await moves.spread(tenant, queue, [attempt.source, attempt.to])
        else:
            await moves.begin(tenant, queue, attempt.to)


async def _said_by(homes: Sequence[Home]) -> list[ShardSaid | None]:
    return list(await asyncio.gather(*map(_said, homes)))


async def _said(home: Home) -> ShardSaid | None:
    """None where the shard does not answer."""
    try:
        async with asyncio.timeout(HEAR_SECONDS_MAX):
            return said_of(await home.ask(TakeReport(), may_repeat=True))
    except (PushqError, TimeoutError):
        return None
    except msgspec.MsgspecError as error:
        log.warning("what a shard says of itself is not understood", shard=home.shard, error=str(error))
        return None


def said_of(answer: msgspec.Raw) -> ShardSaid:
    """Reads a `Report`, also one of an older backend, which has fewer fields."""
    report = _report(answer)
    load = report.load
    ails = report.why_not_durable or ("" if report.publishes_allowed else report.why_no_publishes)
    return ShardSaid(
        load.node,
        load.cpu,
        report.disk_used,
        load.commits_waited,
        load.others,
        nodes_needed=load.nodes_needed,
        copies_missing=load.copies_missing,
        ails=ails,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
