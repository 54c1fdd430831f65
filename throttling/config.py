"""Bounds of the limiters."""

from __future__ import annotations

from typing import Final

SUBJECTS_MAX: Final = 100_000
"""Principals, tenants, queues or addresses with a state of their own in one rule; about 150 bytes each."""
LOOKED_AT_PER_NEW: Final = 8
"""Subjects that are checked for each new one: an idle one is forgotten, or the least busy if the table is full."""
PACE_OF_ONE_FRACTION: Final = 0.9
"""The largest fraction of the rate of new sockets and connections that one address, or one principal, gets."""
RULES_MAX: Final = 32
"""Rules in the settings; a request must pass each that names its operation."""
RATE_PER_S_MAX: Final = 1_000_000_000
"""The largest quota a second: time is counted in nanoseconds."""
WINDOW_S_MAX: Final = 86_400
"""The longest window of a rule."""

GRANT_SECONDS: Final = 0.05
"""What a gateway takes from Redis ahead, as time at a rule's rate; and no more than a twentieth of the quota."""
GRANT_IDLE_SECONDS: Final = 0.2
"""Grants that were not used for this long go back to Redis."""
GRANTS_MAX: Final = 100_000
"""Subjects whose grants or refusals a gateway remembers; a forgotten one is asked of Redis again."""
STORE_SECONDS_MAX: Final = 0.1
"""How long an answer of Redis may take. After the first late one, requests are decided without Redis."""
STORE_PROBE_SECONDS: Final = 1.0
"""How often an unavailable Redis is tried again, in the background."""
STORE_BATCH_MAX: Final = 256
"""Decisions that go to Redis in one round trip."""
STORE_WAITING_MAX: Final = 10_000
"""Requests that wait for Redis; further ones are decided without it."""

ABUSE_SECONDS: Final = 10
"""A socket whose publishes are nearly all refused for this long is closed."""
ABUSE_FACTOR: Final = 10
"""Abuse is more than this many refused publishes for each accepted one."""
ABUSE_REFUSED_MIN: Final = 100
"""And at least this many refused ones: a client that waits as it is asked to is not an abuser."""

BREAKER_WINDOW_MS: Final = 5_000
"""The time over which a dependency's circuit breaker counts calls."""
BREAKER_CALLS_MIN: Final = 20
"""With fewer calls in that time the breaker does not open: a few failures prove little."""
BREAKER_FAILED_FRACTION: Final = 0.5
"""The fraction of those calls that failed at which it opens."""
BREAKER_OPEN_MS_MIN: Final = 1_000
"""How long an open circuit refuses calls before one probe may pass; doubled after each probe that fails."""
BREAKER_OPEN_MS_MAX: Final = 30_000
"""The longest pause between two probes of a dependency."""
RETRIES_PER_CALL_FRACTION: Final = 0.1
"""Repeated calls to a dependency, as a fraction of all calls to it."""
RETRIES_SAVED_MAX: Final = 10
"""Retries that may be saved up for a dependency in quiet times."""
RETRY_PAUSE_MS_MAX: Final = 50
"""The longest pause before a call is repeated; the pause is drawn evenly from 0 up to it."""
CALLS_AT_ONCE_MAX: Final = 64
"""Concurrent calls to one dependency."""
CALLS_WAITING_MAX: Final = 256
"""Calls to one dependency that may wait for their turn; further ones are refused at once."""

LAG_WINDOW_MS: Final = 5_000
"""The time over which the 99th percentile of the event loop's lag is taken."""
LAG_REPLAYS_FACTOR: Final = 10
"""A lag of this many times `overload.lag_ms_max` stops replays and browsing, too."""
MEMORY_SOCKETS_FRACTION: Final = 0.60
"""The fraction of the memory limit from which no new sockets are accepted and consumers' credit is halved."""
MEMORY_REPLAYS_FRACTION: Final = 0.70
"""From here on streams are not replayed, messages are not browsed, and the slowest readers are closed."""
MEMORY_PUBLISHES_FRACTION: Final = 0.80
"""From here on only acks, nacks and extends are accepted."""
CALM_FRACTION: Final = 0.90
"""A level is left when the readings stay below this fraction of its threshold."""
CALM_MS: Final = 2_000
"""For how long they must, for each level."""
SOJOURN_PATIENCE_MS: Final = 500
"""For how long publishes may wait longer than `overload.sojourn_ms_max` before new ones are refused."""
SOJOURN_ALERT_MS: Final = 5_000
"""For this long after that, new publishes are refused again without such patience."""
SOJOURN_COMMITS: Final = 2
"""A wait of up to this many commits is a slow disk at work, and no backlog."""
DISK_WARN_FRACTION: Final = 0.80
"""The fraction of the disk from which the log warns."""
DISK_HOT_FRACTION: Final = 0.85
"""The fraction of the disk from which the log warns that publishes will stop soon."""
