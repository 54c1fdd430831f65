"""A backend host: all shards of one process, its connections to peers, its registration at the coordinator, and the
in-cluster manager when this process is elected.

Heartbeats are sent only while the event loop and every disk make progress: a backend that cannot commit must not count
as alive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backend_store.cluster.coordinator import Coordinator, get
from backend_store.cluster.mirror import Mirror
from backend_store.cluster.session import Session
from backend_store.core.replication.messages import Message
from backend_store.core.replication.record import Change, Incarnation, NodeId, PartitionRecord
from backend_store.core.replication.settings import Settings
from backend_store.model import Conflict, PushqError
from backend_store.node.meter import Load, Meter
from backend_store.node.node import Node, end_process
from backend_store.shard.departures import Departures, clear_gone
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import OnLeave, Shard, ShardLeader, ShardNumber
from backend_store.shard.keys import RECORDS_FORMAT, ROOT, node_key, record_key, report_key
from backend_store.shard.limits import (
    COMMIT_STALL_SECONDS_MAX,
    DRAIN_SECONDS_MAX,
    HOME_SECONDS,
    LOOK_SECONDS,
    MOVE_BYTES_PER_SECOND,
    REGISTER_PAUSE_SECONDS,
    REPORT_SECONDS,
    SCRUB_BYTES_PER_SECOND,
    SCRUB_EVERY_SECONDS,
    SESSION_SECONDS_DEFAULT,
)
from backend_store.shard.lines import Lines
from backend_store.shard.manager import Manager, Rules
from backend_store.shard.members import Report
from backend_store.shard.pace import Pace
from backend_store.shard.placing import Plan, successor
from backend_store.shard.recovery import Recovery
from backend_store.shard.registry import Made, NodeRow, begin_life, decode_record, encode, put_bound, say_leader, submit
from backend_store.shard.replicated import Replicated
from backend_store.shard.reporting import report_of
from backend_store.shard.scrub import Scrub
from backend_store.shard.view import ClusterView
from backend_store.storage.engine import StorageError
from backend_store.storage.folder import make_private
from backend_store.wire.tls import BothSides

log = structlog.get_logger("pushq.backend")


@dataclass(frozen=True, slots=True)
class HostConfig:
    name: NodeId
    directory: Path
    peer: str
    """`HOST:PORT` to listen on for other backends; port 0 takes a free one. Others read the address at the
    coordinator."""
    zone: str = ""
    service: str = ""
    """`HOST:PORT` where this process serves its shards, to be published."""
    http: str = ""
    tls: BothSides | None = None
    rules: Rules = field(default_factory=Rules)
    session_s: int = SESSION_SECONDS_DEFAULT
    home_s: float = HOME_SECONDS
    move_bytes_per_s: int = MOVE_BYTES_PER_SECOND
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_SECOND
    scrub_every_s: float = SCRUB_EVERY_SECONDS
    settings: Settings | None = None


class BackendHost:
    """Implements `interface.ShardHost`. Made by `open_host`; its owner calls `close`, or `drain` and then `close`."""

    def __init__(
        self, config: HostConfig, coordinator: Coordinator, *, on_fatal: Callable[[BaseException], None] = end_process
    ) -> None:
        self.config = config
        self.view = ClusterView()
        self.inc = Incarnation(0)
        self.session: Session | None = None
        self._shards: dict[ShardNumber, HostedShard] = {}
        self._coordinator = coordinator
        self._on_fatal = on_fatal
        self.lines = Lines(config.name, config.tls, self._on_message, self._on_line, self._admits)
        self.peer = config.peer
        """This backend's address for peers; known once it listens."""
        self._mirror = Mirror(coordinator, ROOT, told=self.view.told)
        self.manager = Manager(coordinator, self._mirror, self.view, config.name, config.rules)
        self._folder = config.directory / "shards"
        self.departures = Departures(coordinator, self.view, self._folder, self._shards.pop)
        self.recovery = Recovery(self._shards, self._folder)
        self.pace = Pace(config.move_bytes_per_s)
        self.scrub = Scrub(self._shards, bytes_per_s=config.scrub_bytes_per_s, every_s=config.scrub_every_s)
        self.meter = Meter(self._nodes)
        self._is_to_renew = asyncio.Event()
        """A copy that this backend let go of in this life is planned here again: only a new life can have it."""
        self._listeners: list[tuple[Callable[[Shard, Node], None], Callable[[Shard], None]]] = []
        self._on_leave: list[OnLeave] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._home_since: dict[ShardNumber, float] = {}
        self._handing: set[ShardNumber] = set()
        self._reported: tuple[Incarnation, Report] | None = None
        self.more_metrics: Callable[[], Iterable[Any]] = tuple
        """Metric families that the layer above adds to this host's metrics."""
        self.before_drain: Callable[[], Awaitable[None]] | None = None
        """Ends what the layer above has to end before shards are handed over."""
        self._drains_itself = False
        self._given: set[ShardNumber] = set()
        """Shards that this node handed over because it drains itself."""
        self._saying = asyncio.Lock()
        """Serializes writes of this node's row: of two concurrent ones the older could be the last."""
        self.is_closing = False

    # ------------------------------------------------------------------------------------------------- the interface

    @property
    def shards(self) -> Mapping[ShardNumber, HostedShard]:
        return self._shards

    @property
    def leaders(self) -> Mapping[ShardNumber, ShardLeader]:
        return self.view.leaders

    def listen(
        self,
        *,
        on_lead: Callable[[Shard, Node], None],
        on_lose: Callable[[Shard], None],
        on_leave: OnLeave | None = None,
    ) -> None:
        self._listeners.append((on_lead, on_lose))
        if on_leave is not None:
            self._on_leave.append(on_leave)
        for shard in self._shards.values():
            if shard.node is not None:
                on_lead(shard, shard.node)

    def _nodes(self) -> list[Node]:
        return [shard.node for shard in self._shards.values() if shard.node is not None]

    def load(self) -> Load:
        """How full this process is, and what the other live backends reported."""
        view, me = self.view, self.config.name
        others = {str(name): view.reports[name].used if name in view.reports else None for name in view.nodes}
        others.pop(me, None)
        rules = self.config.rules
        return msgspec.structs.replace(
            self.meter.load(me, others),
            nodes_needed=max(rules.replicas, rules.lanes),
            copies_missing=view.copies_missing,
        )

    # ------------------------------------------------------------------------------------------------ start and close

    async def start(self) -> None:
        """Opens the shards on the disk, listens, registers. Raises storage errors, `OSError`, `ssl.SSLError`."""
        make_private(self.config.directory)
        make_private(self._folder)
        clear_gone(self._folder)
        for folder in sorted(self._folder.iterdir()):
            if folder.name.isdigit():
                self._open(ShardNumber(int(folder.name)))
        host, _, port = self.config.peer.rpartition(":")
        self.peer = f"{host}:{await self.lines.listen(host.strip('[]'), int(port))}"
        self.view.on_nodes = self._nodes_changed
        self.view.on_format = self._formatted
        self.view.on_plan = self._planned
        self.view.on_record = self._on_record
        self._spawn(self._mirror.run(), "mirror")
        self._spawn(self._live(), "life")
        self._spawn(self._look(), "looks")
        self._spawn(self._reports(), "reports")
        self._spawn(self.meter.run(), "meter")
        self._spawn(self.scrub.run(), "scrub")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the backend failed", task=task.get_name(), error=repr(error))
            self._on_fatal(error)

    async def drain(self) -> None:
        """Hands all leaderships over, as far as another node can take them, and takes none. While the coordinator
        does not answer no node can: then `drain` returns at once, and other nodes are elected once the coordinator
        is back."""
        if self.before_drain is not None:
            await self.before_drain()
        self._drains_itself = True
        until = asyncio.get_running_loop().time() + DRAIN_SECONDS_MAX
        while any(map(self._is_leaving, self._shards.values())):
            if (session := self.session) is None or not session.is_answered:
                log.warning("ends without handing over: the coordinator does not answer")
                return
            await asyncio.sleep(LOOK_SECONDS)
            if asyncio.get_running_loop().time() > until:
                return

    def _is_leaving(self, shard: HostedShard) -> bool:
        """Whether the shard is about to be led elsewhere, and its next leader does not serve yet."""
        if shard.number in self._handing or self._successor(shard) is not None:
            return True
        record, leader = shard.replicated.replica.record, self.view.leaders.get(shard.number)
        if record is None or record.leader is None or record.leader == self.config.name:
            return False
        return record.leader in self.view.nodes and (leader is None or leader.epoch < record.epoch)

    @property
    def is_draining(self) -> bool:
        return self._drains_itself or self.config.name in self.view.leaving

    async def close(self) -> None:
        self.is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for shard in self._shards.values():
            await shard.close()
        await self.departures.finish()
        await self.lines.close()
        if self.session is not None:
            await self.session.close()

    # -------------------------------------------------------------------------------------------------- one life

    def is_well(self) -> bool:
        """Whether every disk makes progress. It is called on the loop, so the loop makes progress, too."""
        return all(shard.replicated.store.busy_seconds < COMMIT_STALL_SECONDS_MAX for shard in self._shards.values())

    def _row(self, inc: Incarnation) -> NodeRow:
        config = self.config
        disks = {str(number): shard.replicated.replica.me.disk for number, shard in self._shards.items()}
        logs = {number: shard.replicated.replica.log for number, shard in self._shards.items()}
        ends = {str(number): (log.last_epoch, log.end) for number, log in logs.items()}
        return NodeRow(config.name, inc, config.zone, self.peer, config.service, config.http, disks, ends)

    async def _live(self) -> None:
        """One life after the other: a session and its rows, until the session is lost."""
        while True:
            session: Session | None = None
            await self.departures.finish()  # a registered node may be elected at once
            try:
                session = await self._coordinator.open_session(self.config.session_s, is_alive=self.is_well)
                inc = await begin_life(
                    self._coordinator, session, self.config.directory, self._row, self.config.name, self._rename
                )
                if inc is not None:
                    await self._live_once(session, inc)
            except PushqError as error:
                log.info("cannot register", error=error.detail)
            finally:
                self.session = None
                if session is not None:
                    await session.close()
            await asyncio.sleep(REGISTER_PAUSE_SECONDS)

    async def _rename(self) -> None:
        for shard in list(self._shards.values()):
            await shard.replicated.rename()

    async def _live_once(self, session: Session, inc: Incarnation) -> None:
        log.info("registered", node=self.config.name, inc=inc)
        await self.departures.finish()
        self.inc, self.session = inc, session
        self.departures.begin_life()
        self._is_to_renew.clear()
        for shard in self._shards.values():
            shard.replicated.rejoin(inc)
        for plan in list(self.view.plans.values()):
            self._planned(plan)
        for number, record in list(self.view.records.items()):
            self._on_record(number, record)
        await self._say(session)
        managing = asyncio.create_task(self.manager.run(session), name="manager")
        try:
            await self._until_over(session)
        finally:
            managing.cancel()
            await asyncio.gather(managing, return_exceptions=True)

    async def _until_over(self, session: Session) -> None:
        lost = asyncio.ensure_future(session.wait_lost())
        renewing = asyncio.ensure_future(self._is_to_renew.wait())
        try:
            await asyncio.wait((lost, renewing), return_when=asyncio.FIRST_COMPLETED)
            reason = lost.result() if lost.done() else "a copy that was let go of is wanted again"
            log.warning("the session is over", reason=reason)
        finally:
            for task in (lost, renewing):
                task.cancel()
            await asyncio.gather(lost, renewing, return_exceptions=True)

    @property
    def _me(self) -> tuple[NodeId, Incarnation]:
        return self.config.name, self.inc

    # ------------------------------------------------------------------------------------ changes at the coordinator

    def _nodes_changed(self) -> None:
        me = self.config.name
        self.lines.known({name: row.peer for name, row in self.view.nodes.items() if name != me})

    def _formatted(self, number: int) -> None:
        """Ends the process where the records have another format: they must neither be interpreted nor overwritten
        here."""
        if number != RECORDS_FORMAT:
            error = Conflict(
                f"the cluster's records have format {number}, but this version of Pushq reads format "
                f"{RECORDS_FORMAT}: "
                f"{'upgrade this backend' if number > RECORDS_FORMAT else 'it is too new for this cluster'}"
            )
            log.error("the cluster is another version's", reason=error.detail)
            self._on_fatal(error)

    def _planned(self, plan: Plan) -> None:
        if plan.lanes != self.config.rules.lanes:
            error = Conflict(_other_model(plan.lanes, self.config.rules.lanes))
            log.error("the settings are another cluster's", reason=error.detail)
            self._on_fatal(error)
            return
        is_mine = self.config.name in plan.replicas and plan.shard not in self.departures.left
        if is_mine and plan.shard not in self._shards:
            self._open(plan.shard)
            self._spawn(self._say_disks(), "disks")

    def _open(self, number: ShardNumber) -> None:
        replicated = Replicated(
            number,
            self._me,
            self._folder / f"{number:05d}",
            self,
            on_fatal=self._on_fatal,
            settings=self.config.settings,
            pace=self.pace,
        )
        self._shards[number] = HostedShard(replicated, self.config.directory, self)

    async def _say_disks(self) -> None:
        """Publishes this node's row until that succeeds: others must know which copy is here before they count on
        it."""
        while (session := self.session) is not None and not session.is_lost:
            try:
                await self._say(session)
                return
            except PushqError:
                await asyncio.sleep(REGISTER_PAUSE_SECONDS)

    async def _say(self, session: Session) -> None:
        """Writes this node's row. Raises `PushqError`."""
        async with self._saying:
            await put_bound(
                self._coordinator, session, self._me, node_key(self.config.name), encode(self._row(self.inc))
            )

    def _on_record(self, number: ShardNumber, record: PartitionRecord) -> None:
        shard = self._shards.get(number)
        if shard is not None and self.inc:
            shard.replicated.on_record(record)

    def _admits(self, node: NodeId) -> bool:
        view = self.view
        return node in view.nodes or any(node in plan.replicas for plan in view.plans.values())

    def _on_message(self, sender: NodeId, message: Message) -> None:
        shard = self._shards.get(ShardNumber(message.partition))
        if shard is not None and not self.is_closing:
            shard.replicated.on_message(sender, message)

    def _on_line(self, node: NodeId) -> None:
        for shard in list(self._shards.values()):
            shard.replicated.on_line(node)

    async def _look(self) -> None:
        while True:
            session = self.session
            held_until = None if session is None or session.is_lost else session.held_until
            for shard in list(self._shards.values()):
                shard.replicated.look(held_until, self.view.nodes)
                shard.look()
                self._maybe_hand_over(shard)
                self._maybe_leave(shard)
                self._maybe_renew(shard)
            if self.inc and self.departures.needs_another_life(self.config.name, self.inc):
                self._is_to_renew.set()
            await asyncio.sleep(LOOK_SECONDS)

    # -------------------------------------------------------------------------------------------- handing a shard over

    def _successor(self, shard: HostedShard) -> NodeId | None:
        leader = shard.replicated.replica.leader
        if leader is None or shard.number in self._given:
            return None  # a shard that came back came from a node that stops, too: they would hand it to and fro
        now, number, me, record = asyncio.get_running_loop().time(), shard.number, self.config.name, leader.record
        plan = self.view.plans.get(number)
        wanted = record.replicas if plan is None else plan.replicas
        if wanted[0] not in record.isr or wanted[0] == me:
            self._home_since.pop(number, None)
        since = self._home_since.setdefault(number, now)
        draining = self.view.leaving | ({me} if self._drains_itself else set())
        ready = now - since >= self.config.home_s
        found = partial(successor, record, me, wanted=wanted, alive=self.view.nodes, home_ready=ready)
        target = found(draining=draining | self._damaged(shard))
        # A node that must go hands a shard to a damaged copy rather than to none.
        return found(draining=draining) if target is None and me in draining else target

    def _damaged(self, shard: HostedShard) -> set[NodeId]:
        """Nodes whose copies have rows that differ from what was written, as far as they have reported it."""
        me, number = self.config.name, str(shard.number)
        found = {node for node, report in self.view.reports.items() if number in report.damaged}
        return found | {me} if shard.replicated.damaged else found - {me}

    def _maybe_hand_over(self, shard: HostedShard) -> None:
        target = self._successor(shard)
        if target is not None and shard.is_serving and shard.number not in self._handing:
            self._handing.add(shard.number)
            self._spawn(self._hand_over(shard, target), "hand over")

    async def _hand_over(self, shard: HostedShard, target: NodeId) -> None:
        try:
            if await shard.hand_over(target) and self._drains_itself:
                self._given.add(shard.number)
        finally:
            self._home_since.pop(shard.number, None)
            self._handing.discard(shard.number)

    def _maybe_renew(self, shard: HostedShard) -> None:
        """Replaces a damaged copy once enough other replicas are in sync: until then it may be one of the fewest. Of
        several damaged copies one goes first, and none copies the rows of a leader that is damaged too: this copy may
        be the last one that has them whole.
        """
        replicated, me = shard.replicated, self.config.name
        record = replicated.replica.record
        if replicated.damaged and record is not None and not replicated.is_leading:
            damaged = self._damaged(shard)
            others = [node for node in record.isr if node != me and not (node in damaged and node < me)]
            if len(others) >= record.min_in_sync and record.leader not in damaged:
                replicated.renew()

    # ---------------------------------------------------------------------------------------------- letting a copy go

    def _maybe_leave(self, shard: HostedShard) -> None:
        if self.inc and not self.is_closing and self.departures.is_due(shard):
            self._spawn(self._leave(shard), "lets go")

    async def _leave(self, shard: HostedShard) -> None:
        await self.departures.leave(shard, lambda: self.inc)
        if shard.number not in self._shards:
            await self._say_disks()

    async def _report(self) -> None:
        session = self.session
        if session is not None and not session.is_lost:
            quarantined = await self.recovery.messages()
            report = report_of(self.config.directory, self._shards.values(), quarantined, self.meter.load())
            if self._reported != (self.inc, report):
                key = report_key(self.config.name)
                await put_bound(self._coordinator, session, self._me, key, encode(report))
                self._reported = self.inc, report

    async def _reports(self) -> None:
        while True:
            with contextlib.suppress(PushqError, OSError, StorageError):
                await self._report()
            known = self.view.nodes.get(self.config.name)
            # Log ends are those of when the session began.
            own = msgspec.structs.replace(self._row(self.inc), logs=known.logs) if known is not None else None
            if known is not None and known.inc == self.inc and known != own:
                await self._say_disks()  # a write with an unknown outcome was applied after the next one
            await asyncio.sleep(REPORT_SECONDS)

    # -------------------------------------------------------------------------------------------------- for shards

    def send(self, to: NodeId, message: Message) -> None:
        self.lines.send(to, message)

    def submit(self, shard: ShardNumber, change: Change) -> None:
        self._spawn(self._submit(shard, change), "change")

    async def _submit(self, number: ShardNumber, change: Change) -> None:
        with contextlib.suppress(PushqError):
            made = await submit(self._coordinator, number, change)
            if made is not None:
                self._made(number, change, made)

    def _made(self, number: ShardNumber, change: Change, made: Made) -> None:
        shard = self._shards.get(number)
        if shard is None:
            return
        if made.is_made:
            shard.replicated.on_record(made.record)
        else:
            shard.replicated.on_refused(change, made.record)

    def reread(self, shard: ShardNumber) -> None:
        self._spawn(self._reread(shard), "reads a record")

    async def _reread(self, number: ShardNumber) -> None:
        with contextlib.suppress(PushqError):
            found, _ = await get(self._coordinator, record_key(number))
            if found is not None:
                self._on_record(number, decode_record(found.value))

    def followed(self, shard: ShardNumber) -> None:
        if shard in self._shards:
            self._shards[shard].followed()

    def confirmed(self, shard: ShardNumber) -> None:
        if shard in self._shards:
            asyncio.get_running_loop().call_soon(self._shards[shard].look)

    def serving(self, shard: HostedShard, node: Node) -> None:
        leader = ShardLeader(shard.number, self.config.name, self.inc, shard.epoch, self.config.service)
        self._spawn(self._publish(shard, leader), "publishes a leader")
        for on_lead, _ in self._listeners:
            on_lead(shard, node)

    async def _publish(self, shard: HostedShard, leader: ShardLeader) -> None:
        """Publishes the leader, until that is written or not true any more."""
        while shard.is_serving and shard.epoch == leader.epoch and (session := self.session) is not None:
            record = shard.replicated.replica.record
            assert record is not None, "it serves by a record"
            with contextlib.suppress(PushqError):
                if await say_leader(self._coordinator, session, self._me, leader, record.version):
                    return
            await asyncio.sleep(REGISTER_PAUSE_SECONDS)

    async def leaving(self, shard: HostedShard, target: NodeId) -> None:
        known = self.view.nodes.get(target)
        if known is not None and known.service:
            await asyncio.gather(*(on_leave(shard, known.service) for on_leave in self._on_leave))

    def stopped(self, shard: HostedShard) -> None:
        for _, on_lose in self._listeners:
            on_lose(shard)

    def leader_of(self, shard: ShardNumber) -> ShardLeader | None:
        return self.view.leaders.get(shard)


def _other_model(founded: int, wanted: int) -> str:
    models = {count: f"independent_hosts with cluster.lanes {count}" for count in (founded, wanted)}
    found = {**models, 0: "leader_follower"}
    return f"cluster.model: the cluster was founded as {found[founded]}, and cannot become {found[wanted]}"


async def open_host(config: HostConfig, coordinator: Coordinator) -> BackendHost:
    """Opens a backend host that has begun to register. Raises storage errors, `OSError`, `ssl.SSLError`."""
    host = BackendHost(config, coordinator)
    try:
        await host.start()
    except BaseException:
        await host.close()
        raise
    return host
