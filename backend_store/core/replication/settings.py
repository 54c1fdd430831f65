"""Settings of a replica: the times and sizes that a deployment, or a simulation, may choose."""

from __future__ import annotations

import msgspec

from backend_store.core.replication import limits


class Settings(msgspec.Struct, frozen=True):
    fetch_wait_ms: int = limits.FETCH_WAIT_MS
    fetch_timeout_ms: int = limits.FETCH_TIMEOUT_MS
    fetch_timeout_ms_max: int = limits.FETCH_TIMEOUT_MS_MAX
    lag_ms_max: int = limits.LAG_MS_MAX
    unfollowed_ms: int = limits.UNFOLLOWED_MS
    change_retry_ms: int = limits.CHANGE_RETRY_MS
    look_ms: int = limits.LOOK_MS
    handover_ms_max: int = limits.HANDOVER_MS_MAX
    peer_lease_ms: int = limits.PEER_LEASE_MS
    catchup_bytes_max: int = limits.CATCHUP_BYTES_MAX
    snapshot_keep_ms: int = limits.SNAPSHOT_KEEP_MS

    def __post_init__(self) -> None:
        if self.lag_ms_max < 2 * self.fetch_wait_ms:
            raise ValueError(
                f"lag_ms_max: {self.lag_ms_max} ms would drop followers whose fetch waits {self.fetch_wait_ms} ms; "
                "set at least twice as much"
            )
        if self.fetch_timeout_ms <= self.fetch_wait_ms:
            raise ValueError(
                f"fetch_timeout_ms: {self.fetch_timeout_ms} ms is shorter than the leader's maximum wait of "
                f"{self.fetch_wait_ms} ms; set more"
            )
        if self.fetch_timeout_ms_max < self.fetch_timeout_ms:
            raise ValueError(
                f"fetch_timeout_ms_max: {self.fetch_timeout_ms_max} ms is below fetch_timeout_ms, "
                f"{self.fetch_timeout_ms} ms; set at least that"
            )
