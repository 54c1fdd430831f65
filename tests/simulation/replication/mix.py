"""What one seed draws: no two worlds have the same set-up and the same troubles."""

from __future__ import annotations

from random import Random

from backend_store.core.replication.settings import Settings

SESSION_MS = 3_000
HEARTBEAT_MS = 500
LEASE_MS = SESSION_MS * 8 // 10
FOREVER_MS = 10**9
DRIFT_MAX = 0.01


class Mix:
    def __init__(self, rng: Random):
        draw = rng.choice
        self.nodes = draw([3, 3, 4])
        self.replicas = self.nodes if rng.random() < 0.3 else 3
        self.partitions = draw([1, 1, 2])
        self.mode = draw(["sync", "sync", "sync", "async"])
        self.min_in_sync = draw([1, 2, 2, 2, 2, 3])
        self.lost = draw([0.0, 0.02, 0.05])
        self.twice = draw([0.0, 0.02, 0.2])
        self.late = draw([0.0, 0.06, 0.2])
        self.late_ms = draw([300, 3_000, 9_000])
        self.damaged = draw([0.0, 0.0, 0.02])
        """Share of answers with a flipped bit."""
        self.fault_ms = draw([300, 700, 700, 2_000])
        self.faults = _faults(rng)
        self.commit_ms = draw([2, 6, 40])
        self.stall = draw([0.0, 0.01])
        self.think_ms = draw([60, 200, 400])
        self.consumes = rng.random() < 0.7
        self.page_rows = draw([20, 100])
        self.fetch_entries = draw([8, 64])
        self.lands = draw([0.0, 0.4, 1.0])
        """How often a commit in flight is on the disk after a crash."""
        self.settings = Settings(
            fetch_wait_ms=draw([50, 500]),
            fetch_timeout_ms=draw([600, 1_200]),
            fetch_timeout_ms_max=4_000,
            lag_ms_max=draw([1_000, 2_000]),
            catchup_bytes_max=draw([2_000, 20_000, 10**9]),
            peer_lease_ms=1_500,
            snapshot_keep_ms=draw([500, 10_000]),
        )


def _faults(rng: Random) -> tuple[list[str], list[int]]:
    """Some faults are frequent, some rare, some absent."""
    names = [
        "crash leader",
        "crash",
        "crash all",
        "crash most",
        "pause",
        "pause leader",
        "cut off leader",
        "cut",
        "cut from coordinator",
        "heal",
        "replace disk",
        "flip a bit",
        "hand over",
        "resign",
        "stop coordinator",
        "end a session",
        "set a clock",
        "old registration",
    ]
    return names, [rng.choice([0, 1, 1, 4]) for _ in names]
