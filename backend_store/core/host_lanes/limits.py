"""Limits of independent hosts, each with its unit last."""

LANES_PER_QUEUE_MAX = 16
"""Hosts that hold lanes of one queue, over all its clusters. Bounded because each host may ask each lane."""
FORWARDS_MAX = 1
"""How often a publish is forwarded. If the second host cannot take it either, the sender should choose, not a third."""
RETRY_AFTER_MS = 100
"""When a refused publish is worth another attempt."""
BULK_LEASE_MESSAGES_MAX = 100
BULK_LEASE_MS_MAX = 10_000
"""For how long an agent may deliver lent messages, and so how long an adopter waits before it lends inherited ones."""
BULK_LEASES_PER_LANE_MAX = 1_200
"""With 100 messages each these are the messages that a queue may have in flight."""
ASK_AGAIN_MS = 1_000
"""How long an agent waits for the answer to a request before it sends another one."""
ASKS_FORGOTTEN_MAX = 64
"""Unanswered requests whose late grants are given back; a grant to an older one ends with its time."""
DRIFT_DIVISOR = 40
"""An owner reserves messages for a fortieth longer than it lent them: enough for two clocks that are both 1 % wrong."""
SETTLED_LEASES_MAX = 16_384
"""Messages whose winning ack is remembered, so that an ack sent twice gets the same answer."""
CLOSED_EVERY_MS = 100
"""How often an idle lane writes the time to its log, so that a merge need not wait for it."""
MERGE_WINDOW_MS = 1_000
"""How long a merge waits for a silent lane, unless it is strict."""
MERGE_HELD_MESSAGES_MAX = 100_000
"""Messages that a merge holds until no older ones can arrive; above it, it reads only the lanes it waits for."""
