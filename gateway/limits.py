"""Bounds of the gateway, each with its unit last. Those an operator may move stand in `config.Limits` instead."""

from __future__ import annotations

from typing import Final

IDENTITIES_MAX: Final = 10_000
"""Tokens whose principal is remembered; an unknown one costs a hash and a look-up more."""
ACCESS_DECISIONS_MAX: Final = 1_000
"""Remembered answers to "may this key do that to this queue", per key."""
TICKETS_MAX: Final = 100_000
TICKET_SECONDS: Final = 30
TEMPORARY_KEY_SECONDS: Final = 3_600
"""The life of a key that is in memory only, such as the demo page's; at most two of a name live at a time."""

SCOPES_PER_KEY_MAX: Final = 100
NAME_CHARS_MAX: Final = 128
ROTATE_GRACE_MS_MAX: Final = 30 * 24 * 3600 * 1000
TAGS_MAX: Final = 64
TAG_BYTES_MAX: Final = 16 * 1024

HORIZON_MS_MAX: Final = 36_525 * 24 * 3600 * 1000
"""A hundred years: the longest delay, time to live and retention. What is later is `null`, or a mistake of units."""
PRODUCER_SEQ_MAX: Final = (1 << 63) - 1
"""The largest `producer_seq` of a message."""
ATTEMPTS_MAX: Final = 10_000
"""The largest `max_attempts` of a queue; one without limit has `dead_letter_queue: null`."""
SORT_WINDOW_MS_MAX: Final = 3600 * 1000
"""The longest `sort_window_ms` of a queue: every message of a sorted queue may wait so long."""
SORT_HELD_MESSAGES_LIMIT: Final = 1_000_000
"""The most that a queue's `sort_held_messages_max` may allow."""
KEY_RUN_LIMIT: Final = 1_000
"""The largest `key_run_max` of a queue."""
DEDUPE_WINDOW_MS_MIN: Final = 100
"""The shortest `dedupe_window_ms` of a queue: ids are forgotten a sixteenth of the window at a time."""
DEDUPE_WINDOW_MS_MAX: Final = 14 * 24 * 3600 * 1000
"""The longest `dedupe_window_ms` of a queue."""
QUEUE_MESSAGES_LIMIT: Final = 1_000_000_000_000
"""The largest `max_messages` of a queue."""
QUEUE_BYTES_LIMIT: Final = 1 << 50
"""The largest `max_bytes` and `retention_bytes` of a queue."""
REDRIVE_PER_SECOND_MAX: Final = 100_000
"""The largest `rate_per_s` of a redrive; without one it goes as fast as it can."""
REDRIVE_IDS_MAX: Final = 10_000
"""Ids in the filter of a redrive."""
AUTO_CREATE_ENTRIES_MAX: Final = 100
"""Entries of `queues.auto_create`; a name is held against each until one fits."""

PAGE_ITEMS_DEFAULT: Final = 100
PAGE_ITEMS_MAX: Final = 1_000
RECEIVE_MESSAGES_DEFAULT: Final = 10

QUEUES_LABELLED_MAX: Final = 200
"""Queues with metric series of their own; the others are added up under `other`."""
GROUPS_LABELLED_MAX: Final = 500
"""Consumer groups with a metric series of their own; the others are added up under `other`."""

HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 64 * 1024
REQUEST_HEAD_SECONDS_MAX: Final = 20
REQUEST_BODY_SECONDS_MAX: Final = 120
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the idle time-out of common balancers, so that they, not we, close an idle connection."""
LISTEN_BACKLOG: Final = 4_096
FILES_RESERVED: Final = 200
"""Open files kept for the database, logs and plain HTTP requests; the rest may be sockets of consumers."""

DRAIN_SECONDS_MAX: Final = 8.0
"""Farewells and answers under way; the process leaves within 10 s of SIGTERM whatever they do."""
ANSWERS_SECONDS_MAX: Final = 1
"""What requests in progress get to finish after the farewells."""
