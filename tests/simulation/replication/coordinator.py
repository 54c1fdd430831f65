"""A coordinator that is linearizable, and managers that act on what they read of it, which may be old."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend_store.core.replication import controller, moving, record
from backend_store.core.replication.record import Change, ControllerIs, Guard, Identity, NodeId, PartitionRecord
from tests.simulation.replication.mix import SESSION_MS

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

CAMPAIGN_MS = 200
COORDINATOR = "coordinator"


class Coordinator:
    """Keeps records, sessions and the managers' term. Every call here is one transaction."""

    def __init__(self, world: World):
        self.world = world
        self.is_up = True
        self.records: dict[int, PartitionRecord] = {}
        self.known: dict[NodeId, Identity] = {}
        self._sessions: dict[NodeId, tuple[Identity, float]] = {}
        self._term = 0
        self._manager: tuple[str, float] = ("", 0.0)

    def found(self, number: int, disks: dict[NodeId, Any]) -> None:
        mix = self.world.mix
        least = min(mix.min_in_sync, len(disks))
        self.records[number] = record.first_record(number, disks, min_in_sync=least, mode=mix.mode)
        self.known |= {node: Identity(node, record.NO_INCARNATION, disk) for node, disk in disks.items()}

    # -------------------------------------------------------------------------------------------------- sessions

    def sessions(self) -> dict[NodeId, Identity]:
        return {node: identity for node, (identity, until) in self._sessions.items() if until > self.world.now}

    def on_register(self, asks: Identity, reply: Callable[..., None]) -> None:
        if not controller.is_stale(self.known.get(asks.node), asks):
            self.known[asks.node] = asks
            self._sessions[asks.node] = (asks, self.world.now + SESSION_MS)
        reply(self.known[asks.node])

    def on_heartbeat(self, who: Identity, sent_ms: int, reply: Callable[..., None]) -> None:
        kept = self.sessions().get(who.node)
        is_kept = kept is not None and kept.inc == who.inc
        if is_kept:
            self._sessions[who.node] = (who, self.world.now + SESSION_MS)
        reply(is_kept, self.known[who.node], sent_ms, list(self.records.values()))

    def end_session(self, node: NodeId) -> None:
        self._sessions.pop(node, None)

    # --------------------------------------------------------------------------------------------------- changes

    def holds(self, guard: Guard) -> bool:
        if isinstance(guard, ControllerIs):
            return guard.term == self._term
        session = self.sessions().get(guard.node)
        return session is not None and session.inc == guard.inc

    def on_change(self, change: Change, reply: Callable[..., None]) -> None:
        number = change.record.partition
        if record.may_apply(change, self.records[number], self.holds):
            before, self.records[number] = self.records[number], change.record
            self.world.checks.changed(before, change.record)
            reply(True, change, change.record)
            for node in self.world.nodes:
                self.world.send(COORDINATOR, node.name, node.on_record, change.record)
        else:
            reply(False, change, self.records[number])

    def on_read(self, number: int, reply: Callable[..., None]) -> None:
        reply(self.records[number])

    def on_campaign(self, name: str, reply: Callable[..., None]) -> None:
        """Whoever holds the term keeps it while he asks; an unheld one goes to who asks first."""
        holder, until = self._manager
        if holder != name and until > self.world.now:
            return
        if holder != name:
            self._term += 1
        self._manager = (name, self.world.now + SESSION_MS)
        moves = self.world.moves
        reply(self._term, list(self.records.values()), self.sessions(), {} if moves is None else dict(moves.wanted))

    # ---------------------------------------------------------------------------------------------------- faults

    def stop(self) -> None:
        self.is_up = False

    def start(self) -> None:
        """Sessions that had not lapsed begin anew."""
        if not self.is_up:
            self.is_up = True
            again = self.world.now + SESSION_MS
            self._sessions = {node: (identity, again) for node, identity in self.sessions().items()}


class Manager:
    """A candidate for the in-cluster manager."""

    def __init__(self, world: World, name: str):
        self.world = world
        self.name = name
        self.is_up = True
        world.at(world.rng.uniform(0, CAMPAIGN_MS), self._campaign)

    def _campaign(self) -> None:
        world, target = self.world, self.world.coordinator
        reply = world.replies(COORDINATOR, self.name, self._on_term)
        world.send(self.name, COORDINATOR, target.on_campaign, self.name, reply)
        world.at(CAMPAIGN_MS, self._campaign)

    def _on_term(
        self,
        term: int,
        records: list[PartitionRecord],
        sessions: dict[NodeId, Identity],
        wanted: dict[int, tuple[NodeId, ...]],
    ) -> None:
        world = self.world
        for found in records:
            change = controller.decide(found, sessions, term=term)
            if change is None and found.partition in wanted:
                change = moving.next_step(found, wanted[found.partition], sessions, term=term)
            if change is not None:
                world.send(self.name, COORDINATOR, world.coordinator.on_change, change, _ignored)


def _ignored(*_: object) -> None:
    """A manager looks again anyway."""
