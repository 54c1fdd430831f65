"""Every bound of the server for the reference page: its value from the code, its sentence too or from here."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import NamedTuple

MODULES_COVERED = (
    "backend_store.cluster.limits",
    "backend_store.core.limits",
    "backend_store.metadata.limits",
    "backend_store.node.limits",
    "gateway.limits",
    "push.limits",
    "push.protocol",
    "throttling.config",
)
"""Each number in these must be on the page."""


class Group(NamedTuple):
    heading: str
    lines: dict[str, str]
    """`module:NAME` → sentence; an empty one is taken from the docstring below the constant."""


GROUPS = (
    Group(
        "Messages",
        {
            "backend_store.model:MESSAGE_BYTES_LIMIT": "The most that a queue's `max_message_bytes` may allow.",
            "backend_store.model:MESSAGES_PER_REQUEST_MAX": "Messages of one publish.",
            "gateway.given:NAME_BYTES_MAX": "A message's `id`, `key`, `reply_to`, `correlation_id`, `content_type`.",
            "gateway.given:HEADERS_MAX": "Headers of a message.",
            "gateway.given:HEADERS_BYTES_MAX": "Headers of a message, names and values together.",
            "gateway.limits:HORIZON_MS_MAX": "",
            "gateway.limits:PRODUCER_SEQ_MAX": "",
            "backend_store.model:PRIORITIES_MAX": "Priorities of a queue.",
            "backend_store.model:VISIBILITY_MS_MAX": "The longest lease; also the longest delay of a `nack`.",
        },
    ),
    Group(
        "Requests",
        {
            "gateway.limits:HEADERS_MAX": "Header lines of an HTTP request.",
            "gateway.limits:HEADERS_BYTES_MAX": "The head of an HTTP request.",
            "gateway.limits:REQUEST_HEAD_SECONDS_MAX": "How long a client may take to send it.",
            "gateway.limits:REQUEST_BODY_SECONDS_MAX": "How long a client may take to send the body.",
            "gateway.limits:TLS_HANDSHAKE_SECONDS_MAX": "",
            "gateway.limits:PROXY_HEADER_SECONDS_MAX": "",
            "gateway.limits:PROXY_HEADER_BYTES_MAX": "",
            "gateway.limits:CERTIFICATE_LOOK_SECONDS": "",
            "gateway.limits:CERTIFICATE_WARN_SECONDS": "",
            "gateway.limits:KEEP_ALIVE_SECONDS": "How long an idle HTTP connection stays open.",
            "gateway.limits:LISTEN_BACKLOG": "Connections that wait to be accepted.",
            "gateway.limits:FILES_RESERVED": "",
            "gateway.limits:RECEIVE_MESSAGES_DEFAULT": "`max` of a receive that names none.",
            "push.transports.longpoll:RECEIVE_MAX": "The largest `max` of a receive.",
            "push.transports.longpoll:WAIT_MS_MAX": "The longest `wait_ms` of a receive.",
            "push.transports.longpoll:RESPONSE_BYTES_MAX": "An answer of this size takes no more messages.",
            "push.transports.longpoll:LOOKS_MAX": "Turns of the loop in which a receive looks for messages.",
            "push.protocol:RECEIPTS_PER_REQUEST_MAX": "Receipts of one ack, nack or extend.",
            "gateway.limits:PAGE_ITEMS_DEFAULT": "Items of a page, where `limit` is not given.",
            "gateway.limits:PAGE_ITEMS_MAX": "The largest `limit` of a page.",
            "backend_store.node.limits:PEEK_MESSAGES_MAX": "",
            "backend_store.node.limits:PEEK_SECONDS_MAX": "",
            "backend_store.node.limits:CANCEL_LOOKS_MAX": "",
            "push.limits:PUBLISHES_PER_ACK_MAX": "",
            "push.limits:IDEMPOTENCY_KEY_CHARS_MAX": "",
            "gateway.limits:REDRIVE_PER_SECOND_MAX": "",
            "gateway.limits:REDRIVE_IDS_MAX": "",
            "backend_store.client.redrive:REDRIVES_REMEMBERED_MAX": "",
        },
    ),
    Group(
        "WebSocket and SSE",
        {
            "push.protocol:FRAME_BYTES_MAX": "A frame from a client.",
            "push.protocol:CONNECT_SECONDS_MAX": "How long a socket may take to say `connect`.",
            "push.protocol:REQUEST_ID_CHARS_MAX": "A request's `id`, if it is a string.",
            "push.protocol:REQUESTS_IN_PROGRESS_MAX": "",
            "push.protocol:PING_MS": "How often an idle socket is pinged, at the latest.",
            "push.protocol:PONG_MS_MAX": "How much longer it may stay silent before it is closed.",
            "push.limits:FRAGMENTS_PER_FRAME_MAX": "",
            "push.limits:CREDIT_DEFAULT": "`credit` of a work queue's subscription that names none.",
            "push.limits:CREDIT_MAX": "The largest `credit`.",
            "backend_store.core.limits:IN_FLIGHT_PER_SUBSCRIPTION_MAX": "Messages that one subscription may hold.",
            "backend_store.core.limits:LEASE_MS_MIN": "The shortest lease, for a visibility time-out of 0.",
            "push.checks:REASON_CHARS_MAX": "Characters of a nack's reason.",
            "backend_store.core.limits:IN_FLIGHT_PER_QUEUE_MAX": "Messages of a queue that all consumers may hold.",
            "push.limits:SUBSCRIPTIONS_PER_SESSION_MAX": "Subscriptions of a session.",
            "push.limits:DELIVER_FRAME_BYTES_MAX": "",
            "push.limits:REPLY_FRAME_BYTES_MAX": "Answers share a frame up to this size.",
            "push.limits:OUTBOX_BYTES_SOFT_MAX": "",
            "push.limits:OUTBOX_BYTES_HARD_MAX": "",
            "push.limits:WRITE_BLOCKED_SECONDS_MAX": "A socket whose peer does not read for so long is closed.",
            "push.transports.websocket:CLOSE_SECONDS_MAX": "",
            "push.transports.sse:HEARTBEAT_SECONDS": "An SSE stream sends a comment this often.",
            "push.limits:SUBSCRIPTIONS_SHOWN_MAX": "",
            "push.limits:PARKED_SESSIONS_MAX": "Cut sessions that may come back; the oldest makes room.",
            "push.limits:KEY_CHECK_SECONDS": "",
            "push.limits:DRAIN_SECONDS_DEFAULT": "Over how long a drain closes sockets; see `limits.drain_window_s`.",
            "push.limits:DRAIN_WAVE_SECONDS": "",
            "push.limits:BYE_RETRY_MS_MIN": "",
            "push.limits:STREAM_RETRY_MS_MIN": "The least that a drained SSE stream is asked to wait.",
            "push.limits:STREAM_RETRY_MS_MAX": "",
            "push.limits:PINGS_PER_SECOND_MAX": "",
            "push.limits:SPAN_LINKS_MAX": "",
        },
    ),
    Group(
        "Keys, tickets, tenants, queues",
        {
            "gateway.limits:NAME_CHARS_MAX": "The name of a queue, key or tenant, and a scope's pattern.",
            "gateway.limits:SCOPES_PER_KEY_MAX": "Scopes of a key.",
            "gateway.limits:ROTATE_GRACE_MS_MAX": "The longest time that a key's old secret works on.",
            "gateway.limits:TOKEN_BYTES_MAX": "",
            "gateway.limits:ISSUERS_MAX": "",
            "gateway.limits:ISSUER_CHARS_MAX": "",
            "gateway.limits:SUBJECT_CHARS_MAX": "",
            "gateway.limits:SCOPE_CHARS_MAX": "",
            "gateway.limits:KEY_ID_CHARS_MAX": "",
            "gateway.limits:JWT_LEEWAY_SECONDS_DEFAULT": "`auth.jwt.leeway_s`, where it is not set.",
            "gateway.limits:JWT_LEEWAY_SECONDS_MAX": "",
            "gateway.limits:JWT_SECRET_BYTES_MIN": "",
            "gateway.limits:RSA_BITS_MIN": "",
            "gateway.limits:RSA_BITS_MAX": "",
            "gateway.limits:JWKS_BYTES_MAX": "",
            "gateway.limits:JWKS_KEYS_MAX": "",
            "gateway.limits:JWKS_MAX_AGE_SECONDS_DEFAULT": "`auth.jwt.jwks_max_age_s`, where it is not set.",
            "gateway.limits:JWKS_MAX_AGE_SECONDS_MIN": "",
            "gateway.limits:JWKS_MAX_AGE_SECONDS_MAX": "",
            "gateway.limits:JWKS_REFRESH_SECONDS_MIN": "",
            "gateway.limits:JWKS_STALE_SECONDS_MAX": "",
            "gateway.limits:JWKS_FETCH_SECONDS_MAX": "",
            "gateway.limits:JWKS_FETCHES_AT_ONCE_MAX": "",
            "gateway.limits:JWKS_START_SECONDS_MAX": "",
            "gateway.limits:KEY_IDS_MISSED_MAX": "",
            "gateway.limits:KEY_CARE_SECONDS": "",
            "gateway.limits:KEYS_USED_PER_COMMIT_MAX": "",
            "gateway.limits:EXPIRED_KEY_KEPT_MS": "",
            "gateway.limits:EXPIRED_KEYS_PER_LOOK_MAX": "",
            "gateway.limits:TICKET_SECONDS": "How long a ticket is good.",
            "gateway.limits:TICKETS_MAX": "Tickets that wait to be used; above it `overloaded`.",
            "gateway.limits:TEMPORARY_KEY_SECONDS": "",
            "gateway.limits:QUOTA_MAX": "",
            "gateway.limits:STORED_LOOK_SECONDS": "",
            "gateway.limits:STORED_QUEUES_PER_TURN": "",
            "gateway.limits:TAGS_MAX": "Tags of a queue.",
            "gateway.limits:TAG_BYTES_MAX": "Tags of a queue, names and values together.",
            "gateway.limits:ATTEMPTS_MAX": "",
            "gateway.limits:DEDUPE_WINDOW_MS_MIN": "",
            "gateway.limits:DEDUPE_WINDOW_MS_MAX": "",
            "gateway.limits:SORT_WINDOW_MS_MAX": "",
            "gateway.limits:SORT_HELD_MESSAGES_LIMIT": "",
            "gateway.limits:KEY_RUN_LIMIT": "",
            "gateway.limits:QUEUE_MESSAGES_LIMIT": "",
            "gateway.limits:QUEUE_BYTES_LIMIT": "",
            "gateway.limits:AUTO_CREATE_ENTRIES_MAX": "",
            "backend_store.metadata.embedded:QUEUES_MAX": "Queues.",
            "backend_store.metadata.embedded:KEYS_MAX": "Keys.",
            "backend_store.metadata.embedded:TENANTS_MAX": "Tenants.",
            "backend_store.node.limits:GROUPS_PER_STREAM_MAX": "",
            "backend_store.client.embedded:MOVED_MS": "",
        },
    ),
    Group(
        "Storage",
        {
            "backend_store.storage.space:PUBLISH_STOP_FRACTION": "How full the disk may be while publishes go on.",
            "backend_store.storage.space:BALLAST_BYTES_MAX": "The ballast file, at most.",
            "backend_store.storage.space:BALLAST_DISK_FRACTION": "The ballast file, as a part of the disk.",
            "backend_store.node.limits:SPACE_CHECK_SECONDS": "How often the disk's room is looked at.",
            "backend_store.node.limits:INBOX_MESSAGES_MAX": "Messages of a queue that may wait for a commit; above it "
            "`overloaded`.",
            "backend_store.node.limits:INBOX_BYTES_MAX": "The same in bytes.",
            "backend_store.node.limits:VERIFY_AT_START_BYTES_MAX": "After an unclean end a store up to this size is "
            "read through before it serves. In a bigger one each entry is checked when it is read.",
            "backend_store.storage.env:MAP_BYTES": "The largest store.",
            "backend_store.storage.backup:BACKUP_SECONDS_MAX": "How long a backup may take.",
        },
    ),
    Group(
        "Order and fairness",
        {
            "backend_store.core.limits:LOW_LANES_SHARE": "",
            "backend_store.core.limits:CLOCK_AHEAD_MS_MAX": "",
            "backend_store.core.limits:PRODUCERS_PER_PARTITION_MAX": "",
            "backend_store.core.limits:GAPS_PER_PRODUCER_MAX": "",
            "backend_store.core.limits:RECENT_RUNS_PER_PRODUCER_MAX": "",
            "backend_store.core.limits:KEYED_RUNS_IN_MEMORY_MAX": "",
            "backend_store.core.limits:KEYED_LOOK_AHEAD_RUNS_MAX": "",
            "backend_store.core.limits:KEYED_CHUNKS_IN_MEMORY_MAX": "",
            "backend_store.core.limits:KEYED_COLUMNS_MAX": "",
            "backend_store.core.limits:KEYED_STUCK_MS": "",
            "backend_store.core.limits:KEYED_CROWD_MIN": "",
            "backend_store.core.limits:KEYED_PATIENCE_MS": "",
            "backend_store.core.limits:NOISY_MESSAGES_MIN": "",
            "backend_store.core.limits:FAIR_MEMORY_MESSAGES": "",
            "backend_store.core.limits:FAIR_AHEAD_CHUNKS_MAX": "",
            "backend_store.core.limits:FAIR_ASIDE_RUNS_MAX": "",
            "backend_store.node.limits:SHARED_CYCLE_MESSAGES_MAX": "",
            "push.limits:DISPATCH_MESSAGES_MAX": "",
        },
    ),
    Group(
        "Partitions",
        {
            "backend_store.model:PARTITIONS_MAX": "Partitions of a queue.",
            "backend_store.core.slots:SLOTS": "Slots that a queue's partitions share among them.",
            "backend_store.core.slots:MOVE_SLOTS_MAX": "Slots that go to a partition at a time; a publish to one of "
            "them waits meanwhile.",
            "backend_store.core.expansion:EXPAND_CHECK_MS": "How often `auto_expand` looks at what lies in the queue.",
            "backend_store.core.expansion:SHRINK_AFTER_MS": "How long a queue must hold little before `auto_expand` "
            "takes a partition away: a pause is no end.",
            "backend_store.node.limits:SLOT_LOOK_SECONDS": "",
            "backend_store.node.limits:DRAIN_CHUNKS_PER_LOOK": "",
            "backend_store.node.limits:DRAIN_CHUNKS_KEPT": "",
        },
    ),
    Group(
        "Under load",
        {
            "push.limits:ACCEPTS_PER_SECOND_DEFAULT": "New sockets a second; see `limits.accepts_per_s`.",
            "push.limits:ACCEPTS_BURST_DEFAULT": "How many may come at once; see `limits.accepts_burst`.",
            "push.limits:REFUSED_SOCKET_MS_MIN": "The least that a refused socket is asked to wait.",
            "push.limits:REFUSED_SOCKET_MS_MAX": "",
            "push.limits:REFUSED_PUBLISH_MS_MIN": "The least that any other work refused under load is asked to wait.",
            "push.limits:REFUSED_PUBLISH_MS_MAX": "The most.",
            "push.limits:UNCONFIRMED_BYTES_MAX": "",
            "gateway.limits:UNCONFIRMED_MEMORY_FRACTION": "",
            "gateway.limits:SETTLING_BODY_BYTES_SURE": "",
            "throttling.config:LAG_WINDOW_MS": "",
            "throttling.config:LAG_REPLAYS_FACTOR": "",
            "throttling.config:MEMORY_SOCKETS_FRACTION": "",
            "throttling.config:MEMORY_REPLAYS_FRACTION": "",
            "throttling.config:MEMORY_PUBLISHES_FRACTION": "",
            "throttling.config:CALM_FRACTION": "",
            "throttling.config:CALM_MS": "",
            "throttling.config:SOJOURN_PATIENCE_MS": "",
            "throttling.config:SOJOURN_ALERT_MS": "",
            "throttling.config:SOJOURN_COMMITS": "",
            "throttling.config:DISK_WARN_FRACTION": "",
            "throttling.config:DISK_HOT_FRACTION": "",
            "push.limits:SLOWEST_CLOSED_FRACTION": "",
            "push.limits:SLOWEST_BLOCKED_SECONDS_MIN": "",
            "push.limits:HELD_REPLAY_SECONDS": "",
            "gateway.limits:OVERLOAD_LOOK_SECONDS": "",
            "gateway.limits:CONNECTIONS_PER_SOCKET": "",
            "gateway.limits:HTTP_CONNECTIONS_MAX": "",
            "gateway.limits:READER_BYTES_MIN": "",
        },
    ),
    Group(
        "Metadata",
        {
            "backend_store.metadata.limits:CHANGES_KEPT_MAX": "",
            "backend_store.metadata.limits:CHANGES_PER_TURN_MAX": "",
            "backend_store.metadata.limits:PAGE_ITEMS_MAX": "",
            "backend_store.metadata.limits:HEARTBEAT_SECONDS": "",
            "backend_store.metadata.limits:SILENCE_SECONDS_MAX": "",
            "backend_store.metadata.limits:REQUESTS_IN_PROGRESS_MAX": "",
            "backend_store.metadata.limits:REQUESTS_WAITING_MAX": "",
            "backend_store.metadata.limits:NEWS_WAITING_MAX": "",
            "backend_store.metadata.limits:READ_MS_MAX": "",
            "backend_store.metadata.limits:WRITE_MS_MAX": "",
            "backend_store.metadata.limits:HELLO_SECONDS_MAX": "",
            "backend_store.metadata.limits:CONNECT_SECONDS_MAX": "",
            "backend_store.metadata.limits:RECONNECT_SECONDS_MAX": "",
            "gateway.limits:CATALOGUE_FRESH_MS": "",
            "gateway.limits:CATALOGUE_QUEUES_MAX": "",
            "gateway.limits:CATALOGUE_KEYS_MAX": "",
            "gateway.limits:CATALOGUE_TENANTS_MAX": "",
            "gateway.limits:CATALOGUE_ABSENT_MAX": "",
            "gateway.limits:CATALOGUE_ASKS_MAX": "",
            "gateway.limits:CATALOGUE_LIST_MS": "",
            "gateway.limits:CATALOGUE_FLIGHTS_MAX": "",
            "gateway.limits:CATALOGUE_WAIT_SECONDS": "",
            "gateway.limits:CATALOGUE_WRITE_SECONDS": "",
            "gateway.limits:CATALOGUE_REWATCH_SECONDS": "",
            "gateway.core.cached:EXCUSE_MS": "How long an old entry serves when nobody answers.",
            "push.limits:PUBLISH_MS_DEFAULT": "",
            "push.limits:PUBLISH_MS_MAX": "",
            "push.limits:LOOK_UPS_MAX": "",
            "backend_store.wire.frames:FRAME_BYTES_MAX": "A frame between a gateway and a metadata service.",
        },
    ),
    Group(
        "Coordination",
        {
            "backend_store.cluster.limits:KEY_BYTES_MAX": "",
            "backend_store.cluster.limits:VALUE_BYTES_MAX": "",
            "backend_store.cluster.limits:OPERATIONS_PER_TRANSACTION_MAX": "",
            "backend_store.cluster.limits:TRANSACTION_BYTES_MAX": "",
            "backend_store.cluster.limits:RECORDS_PER_PAGE_MAX": "",
            "backend_store.cluster.limits:SESSION_SECONDS_MIN": "",
            "backend_store.cluster.limits:SESSION_SECONDS_MAX": "",
            "backend_store.cluster.limits:SESSION_HELD_FRACTION": "",
            "backend_store.cluster.limits:KEEP_ALIVE_SECONDS": "",
            "backend_store.cluster.limits:KEEP_ALIVES_IN_FLIGHT_MAX": "",
            "backend_store.cluster.limits:WATCHES_MAX": "",
            "backend_store.cluster.limits:EMBEDDED_RECORDS_MAX": "",
            "backend_store.cluster.limits:EMBEDDED_BYTES_MAX": "",
            "backend_store.cluster.limits:EMBEDDED_SESSIONS_MAX": "",
            "backend_store.cluster.limits:EMBEDDED_COMMANDS_MAX": "",
            "backend_store.cluster.limits:EMBEDDED_EXPIRY_SECONDS": "",
            "backend_store.cluster.limits:HISTORY_REVISIONS_MAX": "",
            "backend_store.cluster.limits:HISTORY_BYTES_MAX": "",
            "backend_store.cluster.limits:ETCD_ENDPOINTS_MAX": "",
            "backend_store.cluster.limits:ETCD_CONNECT_SECONDS_MAX": "",
            "backend_store.cluster.limits:ETCD_READ_SECONDS_MAX": "",
            "backend_store.cluster.limits:ETCD_WRITE_SECONDS_MAX": "",
            "backend_store.cluster.limits:ETCD_REQUEST_SECONDS_MAX": "",
            "backend_store.cluster.limits:ETCD_ANSWER_BYTES_MAX": "",
            "backend_store.cluster.limits:ETCD_CONNECTIONS_MAX": "",
            "backend_store.cluster.limits:ETCD_PULSE_SECONDS": "",
            "backend_store.cluster.limits:ETCD_PULSES_MISSED_MAX": "",
            "backend_store.cluster.limits:ETCD_RECONNECT_SECONDS_MIN": "",
            "backend_store.cluster.limits:ETCD_RECONNECT_SECONDS_MAX": "",
            "backend_store.cluster.limits:WATCH_CHANGES_WAITING_MAX": "",
            "backend_store.cluster.limits:FENCED_TRIES_MAX": "",
            "backend_store.cluster.limits:FENCED_PAUSE_SECONDS": "",
            "backend_store.cluster.limits:CAMPAIGN_PAUSE_SECONDS": "",
            "backend_store.cluster.limits:MIRROR_RECORDS_MAX": "",
            "backend_store.cluster.limits:MIRROR_CHECK_SECONDS": "",
            "backend_store.cluster.limits:MIRROR_BEHIND_SECONDS_MAX": "",
        },
    ),
    Group(
        "Usage and audit",
        {
            "gateway.limits:USAGE_ROWS_PER_MINUTE_MAX": "",
            "gateway.limits:USAGE_UNWRITTEN_ROWS_MAX": "",
            "gateway.limits:USAGE_AUDIT_ROWS_KEPT": "",
            "gateway.limits:USAGE_AUDIT_LOOKS_MAX": "",
            "gateway.limits:USAGE_DAYS_PER_REQUEST_MAX": "",
            "gateway.limits:USAGE_CLOSE_SECONDS_MAX": "",
            "gateway.usage.verify:RANGES_REMEMBERED": "",
            "gateway.usage.verify:VIOLATIONS_MAX": "Faults that `pushq usage verify` names.",
            "backend_store.node.limits:LEDGER_CUTS_AT_ONCE": "",
            "backend_store.node.limits:LEDGER_ROWS_PER_READ": "",
            "backend_store.node.limits:LEDGER_DAYS_SWEPT_AT_ONCE": "",
        },
    ),
    Group(
        "Encryption",
        {
            "gateway.limits:DATA_KEY_BLOCKS_MAX": "",
            "gateway.limits:DATA_KEY_BLOCKS_RESERVED": "",
            "gateway.limits:DATA_KEY_CHECK_SECONDS": "",
            "gateway.limits:DATA_KEY_RETRY_SECONDS": "",
            "gateway.limits:DATA_KEYS_PER_REQUEST_MAX": "",
            "gateway.limits:DATA_KEY_DAYS_MAX": "",
            "gateway.limits:MASTER_KEYS_MAX": "",
            "gateway.limits:MASTER_ANSWER_BYTES_MAX": "",
            "gateway.limits:MASTER_TIMEOUT_MS_MAX": "",
            "gateway.limits:ROTATIONS_REMEMBERED_MAX": "",
            "gateway.limits:ROTATION_QUEUES_MAX": "",
        },
    ),
    Group(
        "Inside the process",
        {
            "backend_store.model:BLOCK_MESSAGES_MAX": "Messages of a block.",
            "backend_store.model:BLOCK_BYTES_MAX": "Bytes of a block; a bigger message has its own.",
            "backend_store.model:CHUNK_MESSAGES_MAX": "Messages of a chunk.",
            "backend_store.model:CHUNK_BYTES_MAX": "Bytes of a chunk; a bigger message has its own.",
            "backend_store.core.limits:TAKE_MESSAGES_MAX": "",
            "backend_store.core.limits:SETTLED_TOKENS_MAX": "",
            "backend_store.core.limits:HISTORY_ROWS_MAX": "",
            "backend_store.core.limits:DELAYED_RUNS_MAX": "",
            "backend_store.core.limits:CHUNKS_LOADED_BYTES_MAX": "",
            "backend_store.core.limits:READY_RUNS_AHEAD": "",
            "backend_store.core.limits:FEW_KEYS_MAX": "",
            "backend_store.core.limits:KEYED_LOADED_FIRST_MAX": "",
            "backend_store.core.limits:KEYED_SPILL_ROWS_MAX": "",
            "backend_store.node.limits:SWEEP_ROWS_PER_COMMIT": "Rows of a purged queue that one commit deletes.",
            "backend_store.node.limits:RECOVERY_ROWS_PER_READ": "Rows that one read takes at start.",
            "backend_store.node.limits:STRANGE_RECEIPTS_PER_CYCLE": "Receipts without a lease in memory that one "
            "queue settles in a commit cycle; the rest follows in the next ones.",
            "backend_store.node.limits:READS_PER_TAKE_MAX": "",
            "backend_store.node.limits:LOOK_SLICE_SECONDS": "",
            "backend_store.node.limits:LOOK_PAUSE_SECONDS": "",
            "backend_store.node.limits:DUE_ROWS_PER_TICK": "Rows of scheduled messages that become ready in a turn; "
            "the others follow in the next.",
            "backend_store.node.limits:DUE_ROWS_LOOKED_AT": "",
            "backend_store.node.limits:EXPIRING_CHUNKS_PER_TICK": "",
            "backend_store.node.limits:TRANSFERS_AT_ONCE_MAX": "",
            "backend_store.node.limits:TRANSFER_LEASE_MS": "How long messages on their way to another queue are held.",
            "backend_store.node.limits:TRANSFER_RETRY_SECONDS": "",
            "backend_store.client.redrive:REFUSALS_MAX": "",
            "backend_store.client.redrive:PORTION_SECONDS": "",
            "backend_store.node.limits:GROUP_IDLE_MS": "",
            "backend_store.node.limits:GROUP_READS_MAX": "",
            "backend_store.node.limits:COUNTED_CHUNKS": "",
            "backend_store.node.limits:RETENTION_STEP_MS": "",
            "backend_store.node.limits:RETENTION_CHUNKS_PER_COMMIT": "",
            "backend_store.node.limits:RELEASED_PER_ROW_MAX": "",
            "backend_store.node.limits:ORDER_ROWS_TIDIED_MAX": "",
            "push.limits:CATCH_UP_CHUNKS_PER_TURN": "",
            "push.limits:CATCH_UP_SLICE_SECONDS": "",
            "push.limits:CATCH_UP_WORK_SECONDS": "",
            "push.limits:CATCH_UP_CALM_SECONDS": "",
            "push.limits:CATCH_UP_PAUSE_SECONDS": "How long that pause is.",
            "push.limits:CHUNK_CACHE_MAX": "Chunks of a stream kept for readers that are behind together.",
            "push.limits:RENDERED_PER_CHUNK_MAX": "",
            "gateway.limits:IDENTITIES_MAX": "",
            "gateway.limits:ACCESS_DECISIONS_MAX": "",
            "gateway.limits:REPLIES_RUNS_MAX": "",
            "gateway.limits:REPLIES_ASK_SECONDS": "",
            "gateway.limits:REPLIES_LINGER_SECONDS": "",
            "gateway.limits:REPLIES_PER_TRIP_MAX": "",
            "gateway.limits:QUEUES_LABELLED_MAX": "",
            "gateway.limits:GROUPS_LABELLED_MAX": "",
            "gateway.limits:FAREWELL_SECONDS_MAX": "",
            "gateway.limits:ANSWERS_SECONDS_MAX": "",
        },
    ),
    Group(
        "Rates",
        {
            "throttling.config:RULES_MAX": "",
            "throttling.config:RATE_PER_S_MAX": "",
            "throttling.config:WINDOW_S_MAX": "",
            "throttling.config:SUBJECTS_MAX": "",
            "throttling.config:LOOKED_AT_PER_NEW": "",
            "throttling.config:GRANT_SECONDS": "",
            "throttling.config:GRANT_IDLE_SECONDS": "",
            "throttling.config:GRANTS_MAX": "",
            "throttling.config:STORE_SECONDS_MAX": "",
            "throttling.config:STORE_PROBE_SECONDS": "",
            "throttling.config:STORE_BATCH_MAX": "",
            "throttling.config:STORE_WAITING_MAX": "",
            "throttling.config:ABUSE_SECONDS": "",
            "throttling.config:ABUSE_FACTOR": "",
            "throttling.config:ABUSE_REFUSED_MIN": "",
            "gateway.limits:TENANTS_REMEMBERED_MAX": "",
            "gateway.throttle:CONNECTION_RETRY_MS": "",
        },
    ),
    Group(
        "Dependencies",
        {
            "gateway.limits:REPLIES_SECONDS_MAX": "",
            "gateway.limits:REPLIES_WAITING_MAX": "",
            "throttling.config:CALLS_AT_ONCE_MAX": "",
            "throttling.config:CALLS_WAITING_MAX": "",
            "throttling.config:BREAKER_WINDOW_MS": "",
            "throttling.config:BREAKER_CALLS_MIN": "",
            "throttling.config:BREAKER_FAILED_FRACTION": "",
            "throttling.config:BREAKER_OPEN_MS_MIN": "",
            "throttling.config:BREAKER_OPEN_MS_MAX": "",
            "throttling.config:RETRIES_PER_CALL_FRACTION": "",
            "throttling.config:RETRIES_SAVED_MAX": "",
            "throttling.config:RETRY_PAUSE_MS_MAX": "",
        },
    ),
)


def limit_tables() -> dict[str, list[str]]:
    """Heading → table. Raises `LookupError` for a bound of a covered module that the page would miss."""
    shown = {place for group in GROUPS for place in group.lines}
    missing = {f"{module}:{name}" for module in MODULES_COVERED for name in _numbers(module)} - shown
    if missing:
        raise LookupError(f"bounds without a line in tests/support/reference_limits.py: {', '.join(sorted(missing))}")
    return {group.heading: _table(group) for group in GROUPS}


def _table(group: Group) -> list[str]:
    rows = ["| Limit | Value | What it bounds |", "| --- | --- | --- |"]
    for place, sentence in group.lines.items():
        module, name = place.split(":")
        value, docstring = _numbers(module)[name]
        text = sentence or docstring
        if not text:
            raise LookupError(f"{place} has no sentence: write a docstring below it")
        rows.append(f"| `{name.lower()}` | {_shown(name, value)} | {' '.join(text.split())} |")
    return rows


def _numbers(name: str) -> dict[str, tuple[float, str]]:
    """The public numbers of a module with the docstrings below them."""
    module = importlib.import_module(name)
    body = ast.parse(inspect.getsource(module)).body
    found = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if not isinstance(target, ast.Name) or not target.id.isupper() or target.id.startswith("_"):
            continue
        value = getattr(module, target.id)
        if isinstance(value, int | float):
            found[target.id] = value, _docstring(following)
    return found


def _docstring(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def _shown(name: str, value: float) -> str:
    if "FRACTION" in name:
        return f"{value:.0%}"
    if "BYTES" in name:
        for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
        return f"{value:,} bytes"
    if "_MS" in name:
        return _time(value / 1000)
    return _time(value) if "SECONDS" in name else f"{value:,}"


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:,g} {unit}"
    return f"{seconds:,g} s"
