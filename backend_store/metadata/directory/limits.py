"""Bounds of the directory, each with its unit last."""

from __future__ import annotations

from typing import Final

ARCS: Final = 32
"""Parts into which the directory's names are divided; each is kept by two hosts. A stored format: it cannot change."""
HOSTS_MAX: Final = 32
"""Hosts of one directory: with more, some would keep no arc."""
COPIES: Final = 2
"""Hosts that keep each arc, where there are as many."""
NAME_CHARS_MAX: Final = 140
"""A queue's, tenant's or key's name in the directory: a gateway takes fewer, and adds the ending of a companion."""
NAMES_BYTES_MAX: Final = 240
"""Tenant and name of one queue together, as a coordinator takes keys of 256 bytes."""
PARTS_PER_QUEUE_MAX: Final = 256
"""Partitions of one queue that have a place."""
UIDS_PER_BLOCK: Final = 64
"""Numbers for queues that a host takes at a time. Those it has not given out when it ends are given to nobody."""
RECORDS_MAX: Final = 4_000_000
"""Records that one host of a directory keeps in memory. Arcs beyond it are asked of the coordinator each time."""
CONFLICTS_MAX: Final = 50
"""How often a write is tried anew because another host changed what it is based on."""
CONFLICT_PAUSE_SECONDS_MAX: Final = 0.05
"""The longest pause before that, drawn by lot."""
BEAT_SECONDS: Final = 1.0
"""How often a host writes its sign of life and waits for its own watch to tell of it: that dates what it holds."""
BEATS_IN_FLIGHT_MAX: Final = 16
"""Signs of life that the watch has not told of yet."""
FRESH_SECONDS_MAX: Final = 4.0
"""A host whose memory is not proven to be younger than this answers nothing from it, and lets go of who watches it.
With the time that an answer travels this is under the promised 5 s."""
SEEN_SECONDS_MAX: Final = 2.0
"""How long a confirmed write waits for the watch to tell of it before it is answered all the same."""
REWATCH_SECONDS: Final = 0.2
"""The pause after a watch failed."""
HOST_SESSION_SECONDS: Final = 4
"""So long after its last sign of life a host's arcs go to others; who asks turns to their second host at once."""
KEYS_PER_DELETION_MAX: Final = 100
"""Keys that go with their tenant in one transaction; a tenant with more loses them in several, and goes last."""
SHUNNED_SECONDS: Final = 3.0
"""For so long a host that did not answer is asked after all others."""
RING_ASKED_SECONDS: Final = 1.0
"""How often a gateway of the form `sharded` asks for the ring."""
