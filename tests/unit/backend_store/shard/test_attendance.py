"""Who is away for how long: by a clock that nobody sets while a manager is in office."""

from __future__ import annotations

import time
from typing import Any

import pytest

from backend_store.cluster.core.values import Operation, Put
from backend_store.cluster.fencing import Right
from backend_store.core.replication.record import Incarnation, NodeId
from backend_store.shard.attendance import Attendance
from backend_store.shard.keys import member_key
from backend_store.shard.ledger import Ledger, Told
from backend_store.shard.members import Member, decode_member
from backend_store.shard.registry import NodeRow, encode
from backend_store.shard.rounds import Patience, is_lost
from backend_store.shard.view import ClusterView

pytestmark = pytest.mark.anyio

A, B = NodeId("a"), NodeId("b")
HOUR_MS = 3_600_000


class Written(Ledger):
    """What one term writes, with nobody to write to."""

    def __init__(self, view: ClusterView) -> None:
        nobody: Any = None
        super().__init__(nobody, nobody, view, A, Right(b"manager", 1))
        self.puts: dict[bytes, bytes] = {}

    async def write(self, operations: Any, *told: Told, compares: Any = ()) -> bool:
        done: list[Operation] = list(operations)
        self.puts.update((one.key, one.value) for one in done if isinstance(one, Put))
        return True


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_backend_that_is_away_for_a_moment_is_not_lost_because_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """All that it keeps was copied elsewhere; or nothing was for an hour."""
    view = ClusterView()
    ledger = Written(view)
    attendance = Attendance(view, Patience(), ledger)
    view.members[B] = Member(B, "", is_here=True, since_ms=ledger.now_ms() - HOUR_MS)
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + hours * HOUR_MS * 1_000_000)
    await attendance.step()
    missed = decode_member(ledger.puts[member_key(B)])
    assert not missed.is_here
    assert not is_lost(missed, view, Patience(), ledger.now_ms())
    assert is_lost(missed, view, Patience(), ledger.now_ms() + 300_000)


@pytest.mark.parametrize("is_here", [True, False])
async def test_who_was_seen_by_a_manager_whose_clock_was_ahead_is_seen_anew(is_here: bool) -> None:
    """It would be waited for until that time has come, and then for as long as is told."""
    view = ClusterView()
    if is_here:
        view.nodes[B] = NodeRow(B, Incarnation(1), "", "", "", "", {})
    ledger = Written(view)
    view.members[B] = Member(B, "", is_here=is_here, since_ms=ledger.now_ms() + HOUR_MS)
    await Attendance(view, Patience(), ledger).step()
    [(key, value)] = ledger.puts.items()
    assert key == member_key(B)
    seen = [Member(B, "", is_here=is_here, since_ms=ledger.now_ms() - ago) for ago in range(1_000)]
    assert value in [encode(one) for one in seen]
