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

PAGE_ITEMS_DEFAULT: Final = 100
PAGE_ITEMS_MAX: Final = 1_000
RECEIVE_MESSAGES_DEFAULT: Final = 10

QUEUES_LABELLED_MAX: Final = 200
"""Queues with metric series of their own; the others are added up under `other`."""

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
