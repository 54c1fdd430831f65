"""Bounds of the processes of one server."""

from typing import Final

GATEWAYS_MAX: Final = 64
"""Gateway processes of one `pushq serve`."""
RESTART_MS_MIN: Final = 100
"""The pause before a process that crashed is restarted; it doubles each time."""
RESTART_MS_MAX: Final = 5_000
"""The longest pause before a process is restarted."""
STEADY_MS: Final = 10_000
"""A process that served for this long is restarted after the shortest pause again."""
GATEWAY_END_MS_MAX: Final = 20_000
"""How long after its drain window a gateway process may take to end, before it is killed."""
STORAGE_END_MS_MAX: Final = 30_000
"""How long the storage process may take to end, once the gateways have, before it is killed."""
LEAVING_SECONDS_MAX: Final = 90.0
"""How long the storage process waits for its gateways to leave when its parent is gone."""
SPEC_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the specification that a process gets at its start."""
DESK_SECONDS_MAX: Final = 5.0
"""How long a gateway process waits for another one to accept a request."""
SESSIONS_PER_ASK_MAX: Final = 500
"""Sessions that a gateway which stops leaves to the others with one request."""
LEAVE_BYTES_SOFT_MAX: Final = 1024 * 1024
"""Such a request ends with the session that passes this size."""
SESSION_BYTES_MAX: Final = 4 * 1024 * 1024
"""A session goes to another gateway with so many of its leases and lost receipts; the other leases return."""
PLACE_SECONDS_MAX: Final = 1.0
"""How long a gateway that takes a session over looks for a queue or a group of its leases."""
LEAVE_SECONDS_MAX: Final = 5.0
"""How long a gateway that stops takes at most to leave its sessions to the others."""
SIBLING_SECONDS_MAX: Final = 5.0
"""How long the first gateway process waits for the metrics and connections of another one."""
