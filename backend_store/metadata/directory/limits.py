"""Limits of the directory, each with its unit last."""

from __future__ import annotations

from typing import Final

ARCS: Final = 32
"""Parts into which the directory's names are divided; each is kept by two hosts. A stored format: it cannot change."""
HOSTS_MAX: Final = 32
"""Hosts of one directory: with more, some would keep no arc."""
COPIES: Final = 2
"""Hosts that keep each arc, where there are as many."""
NAME_CHARS_MAX: Final = 140
"""A queue's, tenant's or key's name in the directory: a gateway allows fewer, and adds the suffix of a companion."""
NAMES_BYTES_MAX: Final = 240
"""Tenant and name of one queue together, as a coordinator takes keys of 256 bytes."""
PARTS_PER_QUEUE_MAX: Final = 256
"""Partitions of one queue that have a placement."""
UIDS_PER_BLOCK: Final = 64
"""Uids for queues that a host reserves at a time. Those it has not given out when it ends are never used."""
RECORDS_MAX: Final = 4_000_000
"""Records that one host of a directory keeps in memory. Requests to arcs beyond it go to the coordinator each time."""
CONFLICTS_MAX: Final = 50
"""How often a write is retried because another host changed what it is based on."""
CONFLICT_PAUSE_SECONDS_MAX: Final = 0.05
"""The longest pause before such a retry; pauses are random."""
BEAT_SECONDS: Final = 1.0
"""How often a host writes a heartbeat and waits until its own watch brings it: that dates the host's records."""
BEATS_IN_FLIGHT_MAX: Final = 16
"""Heartbeats that the watch has not brought yet."""
FRESH_SECONDS_MAX: Final = 4.0
"""A host whose records are not proven to be younger than this answers nothing from memory, and ends its watches. With
the time that an answer travels this is below the promised 5 s."""
SEEN_SECONDS_MAX: Final = 2.0
"""How long a confirmed write waits for the watch to bring it before it is answered all the same."""
REWATCH_SECONDS: Final = 0.2
"""The pause after a watch failed."""
HOST_SESSION_SECONDS: Final = 4
"""How long after a host's last heartbeat its arcs go to others; requests go to their second host at once."""
KEYS_PER_DELETION_MAX: Final = 100
"""Keys that are deleted with their tenant in one transaction; a tenant with more keys loses them in several first."""
SHUNNED_SECONDS: Final = 3.0
"""How long a host that did not answer is asked after all others."""
RING_ASKED_SECONDS: Final = 1.0
"""How often a gateway of the form `sharded` asks for the ring."""
