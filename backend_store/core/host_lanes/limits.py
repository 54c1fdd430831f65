"""Bounds of independent hosts, each with its unit last."""

LANES_PER_QUEUE_MAX = 16
"""Hosts that hold lanes of one queue, over all its clusters. Every host may ask every lane: more would be too many."""
FORWARDS_MAX = 1
"""How often a send is passed on. Where the second host cannot take it either, the sender knows better than a third."""
RETRY_AFTER_MS = 100
"""When a refused send is worth trying again."""
BULK_LEASE_MESSAGES_MAX = 100
BULK_LEASE_MS_MAX = 10_000
"""For how long an agent may hand out what it was lent; and so how long an adopter waits with what it inherits."""
BULK_LEASES_PER_LANE_MAX = 1_200
"""With 100 messages each these are the messages that a queue may have in flight."""
ASK_AGAIN_MS = 1_000
"""An agent's ask without an answer is forgotten after so long."""
ASKS_FORGOTTEN_MAX = 64
"""Of so many asks without an answer a late grant is given back; of older ones it ends by itself."""
DRIFT_DIVISOR = 40
"""An owner waits a fortieth longer than it lent for: enough for two clocks of which each goes wrong by 1 %."""
SETTLED_LEASES_MAX = 16_384
"""Messages of which it is known whose ack won, so that an ack sent twice is answered alike."""
CLOSED_EVERY_MS = 100
"""How often a lane to which nothing is sent writes down the time, so that a merge need not wait for it."""
MERGE_WINDOW_MS = 1_000
"""How long a merge waits for a lane that says nothing, unless it is strict."""
MERGE_HELD_MESSAGES_MAX = 100_000
"""Messages that a merge holds until older ones could come no more; above it, it reads only what holds it up."""
