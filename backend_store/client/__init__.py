"""The door to the store: what gateways may ask of queues, wherever their partitions are.

`Queue` and `Store` are what the rest of Pushq knows of the backend. `embedded` serves them from a node in this
process; calls that a commit answers take a callback, because on the hot path a task for each frame would cost more
than the work.
"""

from backend_store.client.embedded import EmbeddedQueue as Queue
from backend_store.client.embedded import EmbeddedStore as Store
from backend_store.client.embedded import Purge, open_store
from backend_store.client.messages import full_message, message_id, timestamp
from backend_store.client.peek import PeekFilter
from backend_store.core.bits import indexes
from backend_store.core.chunk import KIND_BYTES, KIND_JSON, Chunk, Draft, blocks_of, plain_blocks
from backend_store.core.cursor import StreamStart, decode_cursor, encode_cursor
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Holder, Lease
from backend_store.core.limits import IN_FLIGHT_PER_SUBSCRIPTION_MAX, TAKE_MESSAGES_MAX
from backend_store.core.receipts import INDEX_OF, SUFFIXES, by_token
from backend_store.model import Block
from backend_store.storage.writer import COMMIT_SECONDS_BUCKETS

__all__ = [
    "COMMIT_SECONDS_BUCKETS",
    "IN_FLIGHT_PER_SUBSCRIPTION_MAX",
    "INDEX_OF",
    "KIND_BYTES",
    "KIND_JSON",
    "SUFFIXES",
    "TAKE_MESSAGES_MAX",
    "Block",
    "Chunk",
    "Draft",
    "Holder",
    "KeptSession",
    "Lease",
    "PeekFilter",
    "Purge",
    "Queue",
    "Store",
    "StreamStart",
    "blocks_of",
    "by_token",
    "decode_cursor",
    "encode_cursor",
    "full_message",
    "indexes",
    "message_id",
    "open_store",
    "plain_blocks",
    "timestamp",
]
