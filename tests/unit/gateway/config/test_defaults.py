"""Figures that clients and operators count on. The reference pages are made from the code and follow its changes; these
do not."""

from __future__ import annotations

import pytest

from backend_store.client.embedded import MOVED_MS
from backend_store.cluster import limits as cluster
from backend_store.core import limits as core
from backend_store.core.dedupe.dedupe import Bounds
from backend_store.core.host_lanes import limits as lanes
from backend_store.core.outer import limits as outer
from backend_store.core.replication import limits as replication
from backend_store.node import limits as node
from backend_store.shard import limits as shard
from gateway import limits as gateway
from gateway.alerts import limits as alerts
from gateway.config.load import load_settings
from push import limits as push
from push import protocol
from push.transports import sse
from throttling import config as throttling

KIB, MIB = 1024, 1024 * 1024
DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("resume_ms", 5_000),
        ("dispatch.timeout_ms", 10_000),
        ("limits.connections_max", 20_000),
        ("limits.connections_per_tenant_max", 10_000),
        ("limits.connections_per_principal_max", 0),
        ("limits.connections_per_address_max", 0),
        ("limits.request_bytes_max", 16 * MIB),
        ("limits.accepts_per_s", 200),
        ("limits.accepts_burst", 500),
        ("overload.lag_ms_max", 100),
        ("overload.sojourn_ms_max", 50),
        ("storage.publish_stop_percent", 90),
        ("auth.jwt.audience", "pushq"),
        ("queues.allow_delete_over_http", False),
        ("cluster.replicas", 3),
        ("cluster.min_in_sync", 2),
    ],
)
def test_a_setting_that_is_not_set_has_the_promised_value(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("nothing"))
    found: object = load_settings({}, {}).settings
    for name in setting.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        (protocol.FRAME_BYTES_MAX, 4 * MIB),
        (protocol.REQUESTS_IN_PROGRESS_MAX, 4_096),
        (protocol.CONNECT_SECONDS_MAX, 5),
        (protocol.PING_MS, 25_000),
        (protocol.PONG_MS_MAX, 10_000),
        (sse.HEARTBEAT_SECONDS, 15),
        ((push.STREAM_RETRY_MS_MIN, push.STREAM_RETRY_MS_MAX), (1_000, 15_000)),
        ((push.REFUSED_SOCKET_MS_MIN, push.REFUSED_SOCKET_MS_MAX), (1_000, 30_000)),
        ((push.OUTBOX_BYTES_SOFT_MAX, push.OUTBOX_BYTES_HARD_MAX), (256 * KIB, MIB)),
        (push.WRITE_BLOCKED_SECONDS_MAX, 10),
        (push.CREDIT_DEFAULT, 32),
        (push.CREDIT_MAX, 10_000),
        (push.PUBLISH_MS_MAX, 60_000),
        (core.IN_FLIGHT_PER_SUBSCRIPTION_MAX, 10_000),
        (core.IN_FLIGHT_PER_QUEUE_MAX, 120_000),
        (core.LOW_LANES_SHARE, 20),
        (Bounds().ids_max, 50_000_000),
        ((node.INBOX_MESSAGES_MAX, node.INBOX_BYTES_MAX), (10_000, 32 * MIB)),
        (gateway.TICKET_SECONDS, 30),
        (gateway.BODY_DEPTH_MAX, 32),
        (throttling.SOJOURN_PATIENCE_MS, 500),
        ((throttling.DISK_WARN_FRACTION, throttling.DISK_HOT_FRACTION), (0.8, 0.85)),
        ((outer.HOT_AT, outer.SHRINK_BELOW), (0.8, 0.3)),
        ((throttling.BREAKER_FAILED_FRACTION, throttling.BREAKER_WINDOW_MS), (0.5, 5_000)),
        (throttling.RETRIES_PER_CALL_FRACTION, 0.1),
        (MOVED_MS, 7 * DAY_MS),
        (gateway.DEDUPE_WINDOW_MS_MAX, 14 * DAY_MS),
        (alerts.HISTORY_MS_MAX, 30 * DAY_MS),
        (shard.SESSION_SECONDS_DEFAULT, 5),
        (shard.COMMIT_STALL_SECONDS_MAX, 1),
        ((cluster.KEEP_ALIVE_SECONDS, cluster.SESSION_HELD_FRACTION), (0.5, 0.8)),
        (replication.LAG_MS_MAX, 2_000),
        ((lanes.BULK_LEASE_MESSAGES_MAX, lanes.BULK_LEASE_MS_MAX), (100, 10_000)),
        (lanes.CLOSED_EVERY_MS, 100),
    ],
)
def test_a_limit_without_a_setting_has_the_promised_value(limit: object, value: object) -> None:
    assert limit == value


def test_a_session_that_ended_with_its_token_is_closed_within_30_s() -> None:
    beat_s = 1
    assert gateway.JWT_LEEWAY_SECONDS_DEFAULT + push.KEY_CHECK_SECONDS + beat_s < 30
