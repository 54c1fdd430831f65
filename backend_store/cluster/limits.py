"""Limits of a coordinator and of its clients, each with its unit last."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 256
"""The key of a coordinator's record."""
VALUE_BYTES_MAX: Final = 512 * 1024
"""The value of a coordinator's record."""
OPERATIONS_PER_TRANSACTION_MAX: Final = 128
"""Compares of one coordinator transaction, and operations of each of its branches; as many as etcd takes by default."""
TRANSACTION_BYTES_MAX: Final = 1024 * 1024
"""Keys and values of one coordinator transaction together; etcd takes 1.5 MiB by default, with its own framing."""
RECORDS_PER_PAGE_MAX: Final = 1_000
"""Records of a coordinator in the answer to one read."""
SESSION_SECONDS_MIN: Final = 2
"""The shortest session: etcd grants no shorter one."""
SESSION_SECONDS_MAX: Final = 3_600
"""The longest session: so long a dead holder can block others."""
SESSION_HELD_FRACTION: Final = 0.8
"""After this part of a session's time without a confirmed keep-alive its holder must not act on it any more."""
KEEP_ALIVE_SECONDS: Final = 0.5
"""How often a session is kept alive; the next keep-alive does not wait for the answer to the last one."""
KEEP_ALIVES_IN_FLIGHT_MAX: Final = 4
"""Keep-alives of one session that wait for an answer."""
UNANSWERED_SECONDS_MAX: Final = 1.0
"""So long after the last confirmed keep-alive, and with a failed one since, a coordinator counts as away."""
FAREWELL_SECONDS_MAX: Final = 0.25
"""How long ending a session may take at a coordinator that counts as away."""
WATCHES_MAX: Final = 64
"""Open watches of one process at a coordinator."""

EMBEDDED_RECORDS_MAX: Final = 100_000
"""Records of an embedded coordinator."""
EMBEDDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Keys and values of an embedded coordinator together: they are in memory, too."""
EMBEDDED_SESSIONS_MAX: Final = 10_000
"""Sessions of an embedded coordinator."""
EMBEDDED_COMMANDS_MAX: Final = 1_000
"""Writes that wait for the disk of an embedded coordinator; one more is refused."""
EMBEDDED_EXPIRY_SECONDS: Final = 0.25
"""How often an embedded coordinator checks for expired sessions."""
HISTORY_REVISIONS_MAX: Final = 10_000
"""Past revisions that an embedded coordinator can still be watched or read from."""
HISTORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of these revisions; beyond it the oldest are dropped."""

ETCD_ENDPOINTS_MAX: Final = 16
"""Addresses of one etcd cluster."""
ETCD_CONNECT_SECONDS_MAX: Final = 1.0
"""How long connecting to an etcd member may take."""
ETCD_READ_SECONDS_MAX: Final = 1.0
"""How long one member may take for a read or a keep-alive, before another is asked."""
ETCD_WRITE_SECONDS_MAX: Final = 2.0
"""How long one member may take for a write. After that the outcome is unknown, and the write is not repeated by
itself."""
ETCD_REQUEST_SECONDS_MAX: Final = 10.0
"""How long a request is tried at all members together."""
ETCD_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""One answer of etcd, or one line of a watch. A bigger page of records is requested in smaller parts."""
ETCD_CONNECTIONS_MAX: Final = 128
"""Connections to etcd of one process, including its watches."""
ETCD_PULSE_SECONDS: Final = 1.0
"""How often the member behind a watch is asked whether it still answers."""
ETCD_PULSES_MISSED_MAX: Final = 2
"""After so many questions without an answer the watch continues at another member."""
ETCD_RECONNECT_SECONDS_MIN: Final = 0.05
"""The shortest pause before a member of etcd is tried again; it doubles with each failure."""
ETCD_RECONNECT_SECONDS_MAX: Final = 1.0
"""The longest such pause."""
WATCH_CHANGES_WAITING_MAX: Final = 64
"""Changes that were read from a watch and are not taken yet; beyond it nothing more is read from the socket."""

FENCED_TRIES_MAX: Final = 10
"""How often a fenced write with an unknown outcome is repeated until the outcome is known."""
FENCED_PAUSE_SECONDS: Final = 0.2
"""The pause between two of these tries."""
CAMPAIGN_PAUSE_SECONDS: Final = 0.2
"""The pause of a candidate whose coordinator is unavailable."""

MIRROR_RECORDS_MAX: Final = 100_000
"""Records of one mirrored prefix."""
MIRROR_CHECK_SECONDS: Final = 1.0
"""How often a mirror asks the coordinator whether it is still up to date."""
MIRROR_BEHIND_SECONDS_MAX: Final = 5.0
"""A mirror that is behind for so long, while the coordinator answers, is read again."""
