"""Bounds of the limiters."""

from __future__ import annotations

from typing import Final

SUBJECTS_MAX: Final = 100_000
"""Principals, tenants, queues or addresses with a state of their own in one rule; about 150 bytes each."""
LOOKED_AT_PER_NEW: Final = 8
"""Subjects that a new one looks at for one that is idle, or the least busy where the table is full."""
PACE_OF_ONE_FRACTION: Final = 0.9
"""The most that one address, or one principal, gets of the pace at which sockets and connections come in."""
RULES_MAX: Final = 32
"""Rules of the settings; a request is held to each that names its operation."""
RATE_PER_S_MAX: Final = 1_000_000_000
"""The most that a rule may allow in a second: time is counted in nanoseconds."""
WINDOW_S_MAX: Final = 86_400
"""The longest window of a rule."""

GRANT_SECONDS: Final = 0.05
"""What a gateway takes from Redis ahead, as time at a rule's rate; and no more than a twentieth of the quota."""
GRANT_IDLE_SECONDS: Final = 0.2
"""Grants that nobody used for so long go back to Redis."""
GRANTS_MAX: Final = 100_000
"""Subjects whose grants or refusals a gateway remembers; one that is forgotten is asked of Redis again."""
STORE_SECONDS_MAX: Final = 0.1
"""How long an answer of Redis may take. The first that is late has requests decided without it."""
STORE_PROBE_SECONDS: Final = 1.0
"""How often a Redis that is away is tried again, in the background."""
STORE_BATCH_MAX: Final = 256
"""Decisions that go to Redis in one round trip."""
STORE_WAITING_MAX: Final = 10_000
"""Requests that wait for Redis; the next ones are decided without it."""

ABUSE_SECONDS: Final = 10
"""A socket that does nothing but run into its limits for so long is closed."""
ABUSE_FACTOR: Final = 10
"""Abuse is more than so many refused publishes for one that was taken."""
ABUSE_REFUSED_MIN: Final = 100
"""And at least so many refused ones: who waits as it is told is no abuser."""

BREAKER_WINDOW_MS: Final = 5_000
"""The past by which a dependency's circuit breaker judges it."""
BREAKER_CALLS_MIN: Final = 20
"""Calls in that time below which it does not open: a few failures prove little."""
BREAKER_FAILED_FRACTION: Final = 0.5
"""The part of those calls that failed at which it opens."""
BREAKER_OPEN_MS_MIN: Final = 1_000
"""How long an open circuit refuses calls before one probe may pass; doubled after each probe that fails."""
BREAKER_OPEN_MS_MAX: Final = 30_000
"""The longest pause between two probes of a dependency."""
RETRIES_PER_CALL_FRACTION: Final = 0.1
"""Repeated calls to a dependency, as a part of all calls to it."""
RETRIES_SAVED_MAX: Final = 10
"""Retries that quiet times may save up for a dependency."""
RETRY_PAUSE_MS_MAX: Final = 50
"""The longest pause before a call is repeated; the pause is drawn evenly from 0 up to it."""
CALLS_AT_ONCE_MAX: Final = 64
"""Calls to one dependency that may be under way together."""
CALLS_WAITING_MAX: Final = 256
"""Calls to one dependency that may wait for their turn; more are refused at once."""

LAG_WINDOW_MS: Final = 5_000
"""The past by whose 99th percentile the lag of the event loop is judged."""
LAG_REPLAYS_FACTOR: Final = 10
"""So many times `overload.lag_ms_max` stops replays and browsing, too."""
MEMORY_SOCKETS_FRACTION: Final = 0.60
"""The part of the memory limit from which no new sockets are taken and consumers' credit counts half."""
MEMORY_REPLAYS_FRACTION: Final = 0.70
"""From here on streams are not replayed, nothing is browsed, and the slowest readers are closed."""
MEMORY_PUBLISHES_FRACTION: Final = 0.80
"""From here on only what ends messages is taken: acks, nacks, extends."""
CALM_FRACTION: Final = 0.90
"""A level is left when the readings stay below this part of what it began at."""
CALM_MS: Final = 2_000
"""For how long they must, for each level."""
SOJOURN_PATIENCE_MS: Final = 500
"""For how long publishes may wait longer than `overload.sojourn_ms_max` before new ones are refused."""
SOJOURN_ALERT_MS: Final = 5_000
"""For so long after that they are refused again without such patience."""
SOJOURN_COMMITS: Final = 2
"""A wait of up to so many commits is a slow disk at work, and no backlog."""
DISK_WARN_FRACTION: Final = 0.80
"""The part of the disk from which the log warns."""
DISK_HOT_FRACTION: Final = 0.85
"""The part of the disk from which the log warns of publishes that stop soon."""
