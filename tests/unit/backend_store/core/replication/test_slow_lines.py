"""A line that takes longer for an answer than a fetch may take: entries get through all the same."""

from __future__ import annotations

from collections import deque

from backend_store.core.replication.limits import UNFOLLOWED_BYTES_PER_MS
from backend_store.core.replication.messages import Fetch, Fetched, Message
from backend_store.core.replication.settings import Settings
from tests.support.replicas import A, B, Shell, led

STEP_MS = 20
BYTES_PER_MS = 2 * UNFOLLOWED_BYTES_PER_MS
SECONDS_MAX = 60
TIMEOUT_MS = Settings().fetch_timeout_ms


class SlowLine:
    """From a leader to its follower; the other direction, and the coordinator, take no time."""

    def __init__(self, leader: Shell, follower: Shell) -> None:
        self.leader, self.follower = leader, follower
        self.fetches = 0
        self._on_its_way: deque[tuple[float, Message]] = deque()
        self._free_ms = 0.0
        self._answered = 0

    def step(self) -> None:
        leader, follower = self.leader, self.follower
        for shell in (leader, follower):
            shell.wait(STEP_MS)
            if not shell.replica.log.is_clean:
                shell.commit()
        self._coordinate()
        for _, message in follower.outbox:
            self.fetches += isinstance(message, Fetch)
            leader.hear(message)
        follower.outbox.clear()
        for _, message in leader.outbox:
            size = sum(map(len, message.entries)) if isinstance(message, Fetched) else 0
            self._free_ms = max(self._free_ms, leader.now_ms) + size / BYTES_PER_MS
            self._on_its_way.append((self._free_ms, message))
        leader.outbox.clear()
        while self._on_its_way and self._on_its_way[0][0] <= follower.now_ms:
            follower.hear(self._on_its_way.popleft()[1])

    def _coordinate(self) -> None:
        for change in self.leader.submitted[self._answered :]:
            record = self.leader.replica.record
            assert record is not None
            if change.expects == record.version:
                self.leader.learn(change.record)
                self.follower.learn(change.record)
        self._answered = len(self.leader.submitted)


def test_entry_that_takes_longer_than_a_fetch_may_reaches_the_follower() -> None:
    """It was sent over and over: each answer came after the follower had asked again, and did not count."""
    _, (a, b) = led(A, B)
    entry_ms = 8_000
    assert entry_ms > 5 * TIMEOUT_MS
    a.publish(b"x" * (entry_ms * BYTES_PER_MS))
    line = SlowLine(a, b)
    while not a.confirmed and a.now_ms < SECONDS_MAX * 1_000:
        line.step()
    assert len(a.confirmed) == 1
    record = a.replica.record
    assert record is not None and record.isr == (A, B)
    before = line.fetches
    a.publish(b"y" * (entry_ms * BYTES_PER_MS))
    while b.replica.log.end < a.replica.log.end:
        line.step()
        assert a.now_ms < 2 * SECONDS_MAX * 1_000
    assert line.fetches - before <= 3, "it knows by now how long such an answer takes"


def test_after_quick_answers_a_lost_one_is_asked_for_again_soon() -> None:
    _, (a, b) = led(A, B)
    line = SlowLine(a, b)
    a.publish(b"x" * (4 * TIMEOUT_MS * BYTES_PER_MS))
    while not a.confirmed and a.now_ms < SECONDS_MAX * 1_000:
        line.step()
    for _ in range(10):
        line.step()
        a.publish(b"small")
    for _ in range(2 * TIMEOUT_MS // STEP_MS):
        line.step()
    role = b.replica.role
    assert role is not None and role.timeout_ms == TIMEOUT_MS  # type: ignore[union-attr]


def test_new_line_to_the_leader_is_asked_over_at_once() -> None:
    _, (_, b) = led(A, B)
    b.outbox.clear()
    for _ in range(5):
        b.wait(4 * TIMEOUT_MS)
    b.outbox.clear()
    b.replica.reconnected(A, now_ms=b.now_ms)
    b.settle()
    [(to, fetch)] = b.outbox
    assert (to, type(fetch)) == (A, Fetch)
    b.outbox.clear()
    b.wait(TIMEOUT_MS)
    assert len(b.outbox) == 1, "and again after the shortest time-out"
    b.replica.reconnected(B, now_ms=b.now_ms)
    b.settle()
    assert len(b.outbox) == 1
