"""Bounds of a gateway towards its backends."""

from typing import Final

LETTERS_CARRIED_MAX: Final = 256
"""Dead letters that a gateway moves at once from one queue of a shard to the queue that this names for them."""
LINE_CONNECT_SECONDS_MAX: Final = 2.0
"""How long connecting to a backend may take before it is tried anew."""
LINE_RECONNECT_SECONDS_MAX: Final = 0.5
"""The longest pause between two tries to connect to a backend."""
LINE_STRANGERS_IN_A_ROW: Final = 10
"""After so many connections in a row to backends of another version, a gateway tries less often."""
LINE_STRANGER_SECONDS_MAX: Final = 5.0
"""The longest pause between two such tries."""
STRANGER_SECONDS: Final = 60.0
"""How long a line does not go home to a host that spoke another version."""
LINE_ONWARD_MS: Final = 1_000
"""How long a gateway waits at the backend that is about to lead a shard, if the previous leader sent it there."""
LINE_PING_SECONDS: Final = 1.5
"""How often a gateway pings a backend."""
LINE_SILENCE_SECONDS_MAX: Final = 2.5
"""How long a backend may take to answer a ping before it counts as lost; together with the time between pings, less
than its session."""
LINE_CALLS_MAX: Final = 20_000
"""Publishes and settlements of one gateway that wait for one backend; one more is refused."""
LINE_PUBLISHES_MAX: Final = 18_000
"""With so many calls waiting, no further publish is taken, so that settlements still find room."""
LINE_CROWDED_MIN: Final = 16_200
"""With so many a tenant that has nine times as many as publishes may still take finds no place for another publish:
alone it has so many, and there is always room for others."""
LINE_COUNT_CALLS: Final = 1_000
"""How many further calls are taken or refused at a line so full before it is counted anew whose they are."""
LINE_ASKS_MAX: Final = 400
"""Other requests of one gateway that wait for one backend; one more is refused. A tenant may have as many as are still
free: alone 200, and there is always room for another."""
LINE_OWN_ASKS_MAX: Final = 200
"""As above, beside them: those of operators, and those that the gateway has of its own."""
RECALL_CALLS_MAX: Final = 200
"""Publishes per request that asks another place of their queue what it remembers of them."""
RECALL_MESSAGES_SOFT_MAX: Final = 2_000
"""Such a request ends with the call that reaches so many messages."""
RECALL_ASKS_MAX: Final = 50
"""Such requests to one backend at once, each about another queue; others of its requests have room beside them."""
LINE_FRAME_BYTES_SOFT_MAX: Final = 1024 * 1024
"""A frame of publishes ends with the publish that passes this size."""
SETTLE_MS_MAX: Final = 10_000
"""How long acks, nacks and extensions wait for a backend."""
TAKE_OVER_MS_MAX: Final = 1_000
"""How long a request for another gateway's leases waits for a backend: the client of a session waits for all of them.
"""
ACK_WAIT_MS: Final = 2
"""How long an ack whose answer no consumer waits for may wait for a publish to share a commit with."""
ASK_MS_MAX: Final = 5_000
"""How long other requests wait for a backend."""
LATE_ANSWER_MS: Final = 1_000
"""How long after a call's deadline its answer may still come, before its outcome counts as unknown."""
SWEEP_SECONDS: Final = 0.1
"""How often a gateway looks for calls whose deadline has passed."""
LOOK_FRESH_MS: Final = 50
"""How old the numbers of a queue may be that are shown."""
LOOK_WAIT_SECONDS_MAX: Final = 1.0
"""How long a receive that does not wait for messages waits for the backend to say that there are none."""
START_SECONDS_MAX: Final = 20.0
"""How long a gateway waits at its start for its backends."""
OTHERS_SECONDS_MAX: Final = 2.0
"""How long it then waits for shards without definitions and for further clusters; a request that needs a missing one
waits for it."""
PULSES_FRESH_SECONDS: Final = 2.0
"""How old the numbers of all queues may be, for series and alerts, before they are asked for anew."""
NEWS_WAIT_SECONDS_MAX: Final = 1.0
"""How long a scrape of the metrics, or a look at quotas, waits to hear what happened to queues, and how they are."""
READ_BYTES_MAX: Final = 512 * 1024
"""Bytes of chunks of a stream that are fetched at once for readers."""
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of chunks of a partition that are kept for readers of a stream."""
TAIL_IDLE_SECONDS: Final = 5.0
"""How long a gateway still follows a stream without readers."""
TAIL_WAIT_SECONDS_MAX: Final = 5.0
"""How long a reader waits for news of a stream's partitions."""
LEARN_RETRY_SECONDS: Final = 1.0
"""How long after a failure a gateway tries again to unwrap data keys that other gateways made."""
LEARN_WAIT_SECONDS_MAX: Final = 2.0
"""How long messages wait for such a key before they are returned, for another gateway."""
UNHEARD_FRESH_SECONDS: Final = 0.01
"""How long it counts that a name was not there when the storage of this machine was asked."""
UNHEARD_NAMES_MAX: Final = 10_000
"""How many such names are remembered."""
REPORT_SECONDS: Final = 0.5
"""How often gateways ask the storage of their machine about its disk and its commits."""
ADOPT_SECONDS_MAX: Final = 8.0
"""How long messages wait for a shard without a leader to take over the queue that they are for."""
ADOPT_RETRY_SECONDS: Final = 0.2
"""The shortest pause before such a shard is asked again."""
ADOPT_RETRY_SECONDS_MAX: Final = 5.0
"""The longest pause between two such requests to a shard that refuses what it is told."""
ADOPTED_AT_ONCE_MAX: Final = 200
"""Queues that a shard is told of with one request, where it lacks them."""
LOOKED_AT_ONCE_MAX: Final = 1_000
"""Queues that a gateway compares in one step with those that a shard has."""
GAPS_KEPT: Final = 256
"""Gaps of a consumer group that no consumer here was told of; beyond that, the oldest are forgotten."""
GROUP_LOOK_SECONDS: Final = 0.5
"""How often a gateway checks whether a group of a moved stream has finished with the place before."""
GROUP_IDLE_SECONDS: Final = 60.0
"""How long after it was last asked for an unused group may be forgotten: it may be deleted elsewhere."""
GRANTS_KEPT: Final = 64
"""Visibility timeouts of one queue whose credit counts are kept however long they are idle."""
GRANT_IDLE_SECONDS: Final = 60.0
"""How long a visibility timeout is idle before its credit count is forgotten: messages in flight have come by then."""
GRANTS_FORGOTTEN_AT_ONCE_MAX: Final = 32
"""How many such counts are forgotten in one turn."""
AWAY_SECONDS: Final = 3.0
"""How long a backend of a further cluster may be away before requests for it are refused at once."""
CLAIM_RETRY_SECONDS: Final = 1.0
"""How often a shard of a further cluster is asked to take this home cluster's queues, until it does."""
CHOOSE_RETRY_MS: Final = 5_000
"""When to try again to make a queue that no cluster takes now."""
RECENT_QUEUES_MAX: Final = 10_000
"""Queues made lately that are counted for the choice of a cluster."""
DROP_AFTER_SECONDS: Final = 2.0
"""How long a shard may have a queue without a definition before that is asked about."""
SEALS_AFTER_SECONDS: Final = 60.0
"""How long blocks are still encrypted after a queue's `encrypted` was switched off: all gateways hear of it before."""
REDRIVE_LOOK_SECONDS: Final = 1.0
"""How often the gateway that began a redrive asks how far it is."""
REDRIVE_LOST_SECONDS: Final = 10.0
"""How long a redrive of several parts counts as running although one part's leader does not know it: the gateway that
began it resumes it there."""
TAIL_RETRY_SECONDS: Final = 1.0
"""How long after a failed page a gateway goes on reading a stream."""
DOOR_HOME_SECONDS: Final = 5.0
"""How often a gateway whose line to a host's door went on to another host looks whether the first one is back."""
BACKENDS_HEARD_MAX: Final = 256
"""Backends of one cluster that a gateway learns of from backends; beyond that, the last by name are left out."""
QUEUE_NEEDS: Final = 0.01
"""The share of one backend's capacity that a new queue is assumed to need until its cluster has reported with it."""
OPERATOR_ASK_SECONDS_MAX: Final = 10.0
"""How long one backend may take to answer an operator's question."""
MOVE_STEP_SECONDS: Final = 0.25
"""How soon a gateway tries the next step of a queue's move to another cluster again, while publishes wait for it."""
MOVE_LOOK_SECONDS: Final = 2.0
"""How often it asks what is left in the cluster that the queue left."""
MOVE_RETRY_SECONDS: Final = 0.1
"""How soon a publish goes again to a place that refused it without being left; each time twice as long."""
MOVE_RETRY_SECONDS_MAX: Final = 2.0
"""The longest pause between two such tries."""
MOVE_STEPS_MAX: Final = 16
"""Queues whose moves a gateway advances at once."""
MOVE_REMEMBER_SECONDS: Final = 60.0
"""How often it looks whether a place may be forgotten that has nothing left but ids."""
MOVE_FORGET_MS: Final = 60_000
"""How long after the end of its dedupe window a place that a queue left is remembered: all gateways heard of it
before."""
MOVE_SETTLE_SECONDS_MAX: Final = 1.0
"""How long publishes to a queue that arrived in a place wait until all shards there have said that they have it."""
READY_LOOK_SECONDS: Final = 0.05
"""How often a gateway checks whether the cluster that a queue is to move to is ready."""
MOVED_RETRY_MS: Final = 100
"""When to send a call again that was encoded for a place that its queue has left."""
