"""The reference queue: what a work queue promises, as a simple list of messages.

The model makes no choices: the real queue takes messages, and the model says whether it may. What one commit makes
durable is a snapshot of every message, so a crash is a step back to the last snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

Receipt = tuple[str, int]
"""(token, seq)."""


@dataclass
class Message:
    seq: int
    body: bytes
    state: str = "ready"
    """ready · leased · returned (given back, not yet durable) · delayed · settling · gone"""
    was_held: bool = False
    attempt: int = 0
    token: str = ""
    deadline_ms: int = 0
    due_ms: int = 0
    holder: int = -1


@dataclass
class QueueModel:
    now_ms: int
    messages: dict[int, Message] = field(default_factory=dict)
    winners: set[Receipt] = field(default_factory=set)
    published_total: int = 0
    acked_total: int = 0
    disk: tuple[dict[int, Message], int, int] = field(default_factory=lambda: ({}, 0, 0))
    prepared: tuple[dict[int, Message], int, int] | None = None

    def in_state(self, *states: str) -> list[int]:
        return [m.seq for m in self.messages.values() if m.state in states]

    def taken(self, seqs: list[int], token: str, holder: int, deadline_ms: int) -> None:
        for seq in seqs:
            m = self.messages[seq]
            assert m.state == "ready", f"{seq} was handed out while it is {m.state}"
            m.state, m.token, m.holder, m.deadline_ms, m.due_ms = "leased", token, holder, deadline_ms, 0
            m.attempt += 1

    def holds(self, receipt: Receipt) -> bool:
        m = self.messages.get(receipt[1])
        return m is not None and m.state == "leased" and m.token == receipt[0]

    def unsent(self, token: str) -> None:
        for m in self.messages.values():
            if m.state == "leased" and m.token == token:
                m.state, m.attempt = "ready", m.attempt - 1

    def give_back(self, seq: int, due_ms: int = 0) -> None:
        m = self.messages[seq]
        m.state, m.due_ms = "returned", due_ms

    def ack(self, receipt: Receipt) -> bool:
        """Decided when a commit is prepared: the holder's ack wins, or any ack while nobody holds the message."""
        m = self.messages.get(receipt[1])
        if receipt in self.winners:
            return True
        if m is None or m.state in ("settling", "gone") or (m.state == "leased" and m.token != receipt[0]):
            return False
        m.was_held = m.state in ("leased", "returned")
        m.state = "settling"
        self.winners.add(receipt)
        return True

    def prepare(self, published: list[Message], *, purged: bool) -> None:
        """Current decisions take effect together, when the commit lands, or never."""
        held = {m.seq: replace(m) for m in self.messages.values()} | {m.seq: replace(m) for m in published}
        acked = self.acked_total + len(self.in_state("settling"))
        for m in held.values():
            m.state = "gone" if m.state == "settling" or purged else m.state
        self.prepared = held, self.published_total + len(published), acked

    def land(self) -> None:
        assert self.prepared is not None
        (durable, self.published_total, self.acked_total), self.disk = self.prepared, self.prepared
        self.prepared = None
        for seq, then in durable.items():
            m = self.messages.setdefault(seq, replace(then))
            if then.state == "gone":
                m.state = "gone"
            elif then.state == m.state == "returned":
                m.state = "delayed" if m.due_ms else "ready"

    def tick(self, now_ms: int) -> list[Receipt]:
        """Returns the leases that ran out."""
        self.now_ms = now_ms
        lost = [m for m in self.messages.values() if m.state == "leased" and m.deadline_ms <= now_ms]
        for m in lost:
            m.state = "returned"
        for m in self.messages.values():
            if m.state == "delayed" and m.due_ms <= now_ms:
                m.state = "ready"
        return [(m.token, m.seq) for m in lost]

    def crash(self, *, landed: bool) -> None:
        if landed and self.prepared is not None:
            self.disk = self.prepared
        messages, self.published_total, self.acked_total = self.disk
        for m in messages.values():
            now = self.messages.get(m.seq)
            assert now is None or m.state == "gone" or now.attempt - m.attempt <= 1, f"{m.seq} loses attempts"
        self.messages = {m.seq: replace(m) for m in messages.values()}
        self.prepared, self.winners = None, set()
        for m in self.messages.values():
            if m.state != "gone":
                m.state = "delayed" if m.due_ms > self.now_ms else "ready"
