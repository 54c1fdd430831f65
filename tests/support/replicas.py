"""Replicas without a network or a disk: a test moves each message and each commit by hand, or lets all proceed."""

from __future__ import annotations

from typing import Any, TypeVar

from backend_store.core.replication import effects
from backend_store.core.replication.entries import Draft, Entry
from backend_store.core.replication.log import StoredLog
from backend_store.core.replication.messages import Message, Row
from backend_store.core.replication.record import (
    Change,
    DiskId,
    Identity,
    Incarnation,
    Mode,
    NodeId,
    PartitionRecord,
    first_record,
)
from backend_store.core.replication.replica import Replica
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
WALL_MS = 1_000_000
ROUNDS_MAX = 200

_Asked = TypeVar("_Asked")


def record_of(*nodes: NodeId, min_in_sync: int = 2, mode: Mode = "sync", **fields: Any) -> PartitionRecord:
    """A record of a partition in its first life, led by the first node, with all nodes in sync."""
    first = first_record(0, {node: disk_of(node) for node in nodes}, min_in_sync=min_in_sync, mode=mode)
    return changed(first, epoch=Epoch(1), leader=nodes[0], leader_inc=Incarnation(1), **fields)


def changed(record: PartitionRecord, **fields: Any) -> PartitionRecord:
    """The next version of the record."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return PartitionRecord(**{**values, "version": record.version + 1, **fields})


def disk_of(node: NodeId) -> DiskId:
    return DiskId(f"disk of {node}")


class Shell:
    """One replica, with what it has stored and what it has requested."""

    def __init__(
        self,
        node: NodeId,
        *,
        inc: int = 1,
        disk: DiskId | None = None,
        settings: Settings | None = None,
        stored: StoredLog | None = None,
        entries: tuple[Entry, ...] = (),
    ):
        self.now_ms = 10_000
        self.entries = list(entries)
        self.rows: dict[bytes, bytes] = {}
        self.quarantine: list[Entry] = []
        self.asked: list[effects.Effect] = []
        self.outbox: list[tuple[NodeId, Message]] = []
        me = Identity(node, Incarnation(inc), disk or disk_of(node))
        stored = stored or StoredLog()
        tail = [entry for entry in entries if entry.offset >= stored.base.end]
        self.replica = Replica(me, stored, tail, settings=settings, now_ms=self.now_ms)

    @property
    def node(self) -> NodeId:
        return self.replica.me.node

    @property
    def log(self) -> tuple[tuple[int, int], ...]:
        """Offset and epoch of each entry."""
        return tuple((entry.offset, entry.epoch) for entry in self.entries)

    def reborn(self, inc: int) -> Shell:
        """The same disk in the next process; uncommitted writes had landed."""
        return Shell(self.node, inc=inc, stored=self.replica.log.stored(), entries=tuple(self.entries))

    def all(self, kind: type[_Asked]) -> list[_Asked]:
        return [effect for effect in self.asked if isinstance(effect, kind)]

    @property
    def submitted(self) -> list[Change]:
        return [effect.change for effect in self.all(effects.Submit)]

    @property
    def confirmed(self) -> list[Any]:
        return [ticket for effect in self.all(effects.Confirm) for ticket in effect.tickets]

    # --------------------------------------------------------------------------------------------------- steps

    def learn(self, record: PartitionRecord) -> None:
        self.replica.on_record(record, now_ms=self.now_ms, wall_ms=WALL_MS)
        self.settle()

    def hear(self, message: Message) -> None:
        self.replica.on_message(message, now_ms=self.now_ms)
        self.settle()

    def publish(self, *payloads: bytes, ticket: Any = None) -> Any:
        drafts = [Draft(1, (payload,)) for payload in payloads]
        made = self.replica.append(drafts, now_ms=self.now_ms, wall_ms=WALL_MS)
        if isinstance(made, tuple):
            self.replica.wait(made[-1].end, ticket or payloads[-1], now_ms=self.now_ms)
        self.settle()
        return made

    def commit(self) -> None:
        self.replica.committed(self.replica.staged(), now_ms=self.now_ms)
        self.settle()

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.replica.look(now_ms=self.now_ms)
        self.settle()

    def settle(self) -> None:
        while asked := self.replica.take():
            for effect in asked:
                self.asked.append(effect)
                self._do(effect)

    def _do(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Append(entries):
                self.entries += entries
            case effects.Truncate(end, keeps):
                self._cut(end, keeps=keeps)
            case effects.Trim(start):
                self.entries = [entry for entry in self.entries if entry.offset >= start]
            case effects.Apply(end):
                self.replica.applied_to(end)
            case effects.Switch(base, end, keeps):
                self._cut(end, keeps=keeps)
                self.entries = [entry for entry in self.entries if entry.offset >= base.end]
            case effects.Send(to, message):
                self.outbox.append((to, message))
            case effects.Serve(fetch):
                found = tuple(entry.data for entry in self.entries if entry.offset >= fetch.end)
                self.replica.fetched(fetch, found, now_ms=self.now_ms)
            case effects.ServeSnapshot(ask):
                rows: tuple[Row, ...] = tuple(sorted(row for row in self.rows.items() if row[0] > ask.after))
                self.replica.page(ask, rows, is_last=True)
            case _:
                pass

    def _cut(self, end: Offset, *, keeps: bool) -> None:
        if keeps:
            self.quarantine += [entry for entry in self.entries if entry.offset >= end]
        self.entries = [entry for entry in self.entries if entry.offset < end]


def let_go(*shells: Shell) -> None:
    """Commits and delivers until nothing is left to do; messages to absent nodes are lost."""
    by_node = {shell.node: shell for shell in shells}
    for _ in range(ROUNDS_MAX):
        for shell in shells:
            if not shell.replica.log.is_clean:
                shell.commit()
        sent = [(to, message) for shell in shells for to, message in shell.outbox]
        for shell in shells:
            shell.outbox.clear()
        if not sent:
            return
        for to, message in sent:
            if to in by_node:
                by_node[to].hear(message)
    raise AssertionError("the replicas do not become idle")


def led(*nodes: NodeId, **fields: Any) -> tuple[PartitionRecord, list[Shell]]:
    """A partition that its first node leads, with a committed barrier."""
    record, shells = record_of(*nodes, **fields), [Shell(node) for node in nodes]
    for shell in shells:
        shell.learn(record)
    let_go(*shells)
    return record, shells
