"""Bounds of a backend towards its gateways."""

from typing import Final

GREETING_SECONDS_MAX: Final = 5.0
"""How long who connects to a backend may take to say who it is."""
VISITOR_RESUME_SECONDS: Final = 5.0
"""How long the leases of a gateway whose connection was lost wait for it to come back."""
LEAVE_SECONDS_MAX: Final = 1.0
"""How long what was said to a gateway before its shard is led elsewhere may take to leave."""
FINISH_SECONDS_MAX: Final = 0.1
"""How long a handover waits for the answers to what was begun; what takes longer is begun anew at the next leader, or
its outcome is unknown."""
ONWARD_SECONDS_MAX: Final = 1.0
"""How long a gateway is kept waiting at a backend that is about to lead the shard it asks for."""
VISITOR_SILENCE_SECONDS_MAX: Final = 5.0
"""Between a gateway and a backend: who says nothing for so long after a ping is taken for gone."""
GAPS_IN_DOUBT_MAX: Final = 256
"""What a gateway was told of late that consumer groups have missed, and is told again where its connection is lost."""
VISITOR_OUTBOX_BYTES_MAX: Final = 8 * 1024 * 1024
"""What may wait to be sent to one gateway before no more is leased to it."""
LEASES_FRAME_BYTES_SOFT_MAX: Final = 1024 * 1024
"""A frame of leases to a gateway ends with the one that passes this."""
ACT_SECONDS_MAX: Final = 60.0
"""How long the audit waits for the end of an act whose gateway process may have died."""
SHARED_TICKETS_MAX: Final = 100_000
"""Tickets that wait to be used, of all gateway processes of one server; a tenant may have as many as are free."""
LEASES_PER_LOOK_MAX: Final = 2_000
"""Leases of one gateway that are looked at in one go for what somebody else has settled; the others follow soon."""
VISITOR_ASKS_MAX: Final = 512
"""Requests other than publishes and receipts that a backend works on for one gateway at once. A tenant may have as many
as are still free: alone 256."""
VISITOR_OWN_ASKS_MAX: Final = 256
"""As above, beside them: those of operators, and those that the gateway has of its own."""
DEFINITIONS_PER_FRAME_MAX: Final = 500
"""Rows of the definitions that a gateway which has to hear of all of them is told at once."""
KEY_IDS_PER_VISIT: Final = 10_000
"""Ids of data keys that a gateway may give out until it connects anew."""
PULSES_PER_ASK_MAX: Final = 500
"""Queues whose numbers a gateway's series get with one request."""
LETTERS_SECONDS_MAX: Final = 1.0
"""How long one request counts the dead letters of a redrive; the next one goes on behind them."""
GROUPS_PER_ASK_MAX: Final = 100
"""Consumer groups of a stream that one request lists."""
RANGE_BYTES_PER_ASK_MAX: Final = 4 * 1024 * 1024
"""Bytes of chunks with which one request's part of a range ends."""
RANGE_SECONDS_MAX: Final = 2.0
"""How long one request reads a range before it answers with what it has."""
PEEK_BYTES_PER_ASK_MAX: Final = 8 * 1024 * 1024
"""A page of a peek that a gateway asks for ends with the chunk that passes this; it asks for the next one."""
LEFT_CHUNKS_PER_ASK_MAX: Final = 128
"""Chunks that are looked at when a gateway asks what is left of some slots of a queue that is split."""
LEFT_SECONDS_MAX: Final = 1.0
"""How long that may take; the next time goes on where nothing more is left."""
DROPPED_KNOWN_MAX: Final = 10_000
"""Deleted queues whose numbers a shard keeps in memory, so that no late word brings one back."""
