"""Limits of the metadata service and of its clients, each with its unit last."""

from __future__ import annotations

from typing import Final

CHANGES_KEPT_MAX: Final = 10_000
"""Changes of metadata that a gateway which was away can still catch up on; beyond that it reads everything again."""
ROW_CHANGES_KEPT_MAX: Final = 10_000
"""Changes of rows beside the metadata that are remembered: a reader that knows all earlier ones need not compare all
rows."""
MOVED_PER_TENANT_MAX: Final = 10_000
"""Deleted queues of a tenant whose messages go to others: no further one is moved until they are forgotten."""
CHANGES_PER_TURN_MAX: Final = 1_000
"""Changes of metadata in one frame."""
PAGE_ITEMS_MAX: Final = 1_000
"""Items of one page of a remote metadata service."""
HEARTBEAT_SECONDS: Final = 1.0
"""How often a watch of a metadata service gets at least a heartbeat."""
SILENCE_SECONDS_MAX: Final = 3.0
"""A watch that hears nothing for so long, not even a heartbeat, is lost; so is a connection without pongs."""

REQUESTS_IN_PROGRESS_MAX: Final = 256
"""Requests of one gateway that a metadata service works on at once; more are not read meanwhile."""
REQUESTS_WAITING_MAX: Final = 1_000
"""Requests of one gateway that wait for a metadata service; one more is refused."""
NEWS_WAITING_MAX: Final = 1_000
"""Pieces of news that a watch has not taken yet; with more the connection begins anew."""
READ_MS_MAX: Final = 2_000
"""How long a look-up waits for a remote metadata service."""
WRITE_MS_MAX: Final = 5_000
"""How long a change waits for a remote metadata service."""
HELLO_SECONDS_MAX: Final = 5.0
"""How long a process that connects to a metadata service may take to say what it is."""
CONNECT_SECONDS_MAX: Final = 2.0
"""How long connecting to a metadata service may take before it is tried again."""
RECONNECT_SECONDS_MAX: Final = 1.0
"""The longest pause between two tries to connect to a metadata service."""
