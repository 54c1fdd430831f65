"""Limits of a backend towards its gateways."""

from typing import Final

GREETING_SECONDS_MAX: Final = 5.0
"""How long a process that connects to a backend may take to say who it is."""
VISITOR_RESUME_SECONDS: Final = 5.0
"""How long the leases of a gateway whose connection was lost wait for its return."""
LEAVE_SECONDS_MAX: Final = 1.0
"""How long the last frames to a gateway may take to leave before its shard is led elsewhere."""
FINISH_SECONDS_MAX: Final = 0.1
"""How long a handover waits for the answers to what was begun; what takes longer is begun anew at the next leader, or
its outcome is unknown."""
ONWARD_SECONDS_MAX: Final = 1.0
"""How long a gateway waits at a backend that is about to lead the shard it asks for."""
VISITOR_SILENCE_SECONDS_MAX: Final = 5.0
"""Between a gateway and a backend: a side that sends nothing for so long after a ping counts as gone."""
GAPS_IN_DOUBT_MAX: Final = 256
"""Gaps of consumer groups that a gateway was told recently, and is told again where its connection is lost."""
VISITOR_OUTBOX_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes that may wait to be sent to one gateway before no more is leased to it."""
LEASES_FRAME_BYTES_SOFT_MAX: Final = 1024 * 1024
"""A frame of leases to a gateway ends with the lease that exceeds this."""
ACT_SECONDS_MAX: Final = 60.0
"""How long the audit waits for the end of an act whose gateway process may have died."""
SHARED_TICKETS_MAX: Final = 100_000
"""Unspent tickets of all gateways of one server or cluster; a tenant may have as many as are free."""
LEFT_SESSIONS_MAX: Final = 100_000
"""Sessions of gateways that stopped, kept for their clients; a tenant may have as many as are free."""
LEFT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of these sessions; a tenant may have as many as are free."""
SESSIONS_SOUGHT_MAX: Final = 20_000
"""Sessions that are asked for at their gateways at once; and sessions that moved, whose present gateway is known."""
SEEK_SECONDS_MAX: Final = 2.0
"""How long a gateway may take to give a session to another one."""
SESSION_KEEP_SECONDS_MAX: Final = 120
"""How long sessions and leases of a gateway that stopped wait for their clients, at most."""
LEASES_PER_LOOK_MAX: Final = 2_000
"""Leases of one gateway that are checked in one go for messages that were settled elsewhere; the others follow soon."""
VISITOR_ASKS_MAX: Final = 512
"""Requests other than publishes and receipts that a backend works on for one gateway at once. A tenant may have as many
as are still free: alone 256."""
VISITOR_OWN_ASKS_MAX: Final = 256
"""The same, in addition, for requests of operators and of the gateway itself."""
DEFINITIONS_PER_FRAME_MAX: Final = 500
"""Rows of the definitions that one frame to a gateway has, where the gateway needs all of them."""
KEY_IDS_PER_VISIT: Final = 10_000
"""Ids of data keys that a gateway may give out until it connects again."""
PULSES_PER_ASK_MAX: Final = 500
"""Queues whose statistics one request returns for a gateway's time series."""
LETTERS_SECONDS_MAX: Final = 1.0
"""How long one request counts the dead letters of a redrive; the next one continues after them."""
GROUPS_PER_ASK_MAX: Final = 100
"""Consumer groups of a stream that one request lists."""
RANGE_BYTES_PER_ASK_MAX: Final = 4 * 1024 * 1024
"""One request's part of a range ends with the chunk that exceeds this."""
RANGE_SECONDS_MAX: Final = 2.0
"""How long one request reads a range before it answers with what it has."""
PEEK_BYTES_PER_ASK_MAX: Final = 8 * 1024 * 1024
"""A page of a peek for a gateway ends with the chunk that exceeds this; the gateway asks for the next one."""
LEFT_CHUNKS_PER_ASK_MAX: Final = 128
"""Chunks that are checked when a gateway asks what is left of some slots of a queue that is split."""
LEFT_SECONDS_MAX: Final = 1.0
"""How long that may take; the next request continues where nothing more is left."""
DROPPED_KNOWN_MAX: Final = 10_000
"""Deleted queues whose uids a shard keeps in memory, so that no late definition brings one back."""
