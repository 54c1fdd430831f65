"""The store's public interface: what gateways may ask of queues, wherever their partitions are.

`Queue` and `Store` are all that the rest of Pushq knows of the backend. `embedded` serves them from a node in this
process. Calls answered by a commit take a callback, because a task per frame would cost more than the work on the hot
path.
"""

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.embedded import EmbeddedStore as Store
from backend_store.client.embedded import open_store
from backend_store.client.filters import PeekFilter
from backend_store.client.groups import (
    GroupInfo,
    GroupQueue,
    delete_group,
    find_group,
    list_groups,
    open_group,
    put_group,
)
from backend_store.client.layout import PartitionInfo
from backend_store.client.messages import (
    dead_letter,
    full_message,
    headers_of,
    message_id_of,
    ordering,
    timestamp,
    trace_context,
)
from backend_store.client.peek import check_cursor
from backend_store.client.pulses import Pulse, Pulses, Toucher, Touches, definitions, pulses_of
from backend_store.client.queue import EmbeddedQueue as Queue
from backend_store.client.queue import Purge, SettledAndPublished
from backend_store.client.ranges import PartitionOffsets, RangePage, kind_of, offsets_of, read_range
from backend_store.client.redrive import Redrive
from backend_store.client.since import ASKED, Asked, changed, unbounded_task, waited_until
from backend_store.client.streams import Gap, Start, StreamPart, StreamParts, position_in
from backend_store.core.dedupe.numbered_ids import DIGITS, NumberedNames
from backend_store.core.leases.leases import Holder, Lease
from backend_store.core.leases.receipts import INDEX_OF, SUFFIXES, by_token
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.core.ledger import KINDS as LEDGER_KINDS
from backend_store.core.ledger import LedgerCut
from backend_store.core.limits import IN_FLIGHT_PER_SUBSCRIPTION_MAX, TAKE_MESSAGES_MAX
from backend_store.core.log.bits import indexes
from backend_store.core.log.block import BLOCK_HEAD, BYTES_BESIDE_BODY, unpack
from backend_store.core.log.chunk import (
    KIND_BYTES,
    KIND_JSON,
    KIND_MIXED,
    Blocks,
    Chunk,
    Columns,
    CorruptEntry,
    Draft,
    blocks_of,
    column_blocks,
    holes,
    message_id,
    plain_blocks,
)
from backend_store.core.log.cursor import cursors_along, decode_cursor, encode_cursor, where_they_part
from backend_store.core.log.records import EpochStart
from backend_store.core.log.sealed_block import (
    CLEAR_NAMES,
    SEALED_FLAGS,
    UNREADABLE_TYPE,
    CannotOpen,
    Seal,
    SealedBlock,
    identity,
    is_sealed,
)
from backend_store.core.log.sublogs import is_prompt, own_priority, priority_of
from backend_store.core.partitions.slot_history import standing
from backend_store.core.reorder.hlc import HybridClock, format_stamp, parse_stamp
from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.documents import Document, Documents, Duty
from backend_store.metadata.embedded import Metadata
from backend_store.model import Block
from backend_store.node.audit import AuditEntry, AuditLog
from backend_store.node.ledger import LedgerBook, QueueTotal
from backend_store.storage.engine import StorageCorrupt
from backend_store.storage.writer import COMMIT_SECONDS_BUCKETS

__all__ = [
    "ASKED",
    "Asked",
    "AuditEntry",
    "AuditLog",
    "BLOCK_HEAD",
    "BYTES_BESIDE_BODY",
    "Block",
    "Blocks",
    "COMMIT_SECONDS_BUCKETS",
    "CannotOpen",
    "Chunk",
    "Columns",
    "CorruptEntry",
    "DIGITS",
    "DataKey",
    "Draft",
    "EpochStart",
    "Gap",
    "GroupInfo",
    "GroupQueue",
    "Holder",
    "HybridClock",
    "INDEX_OF",
    "IN_FLIGHT_PER_SUBSCRIPTION_MAX",
    "KIND_BYTES",
    "KIND_JSON",
    "KIND_MIXED",
    "KeptSession",
    "Lease",
    "LEDGER_KINDS",
    "LedgerBook",
    "LedgerCut",
    "LetterFilter",
    "Metadata",
    "NumberedNames",
    "PartitionInfo",
    "PartitionOffsets",
    "PeekFilter",
    "Purge",
    "Queue",
    "QueueTotal",
    "RangePage",
    "Redrive",
    "CLEAR_NAMES",
    "SEALED_FLAGS",
    "SUFFIXES",
    "Seal",
    "SealedBlock",
    "SettledAndPublished",
    "Start",
    "StorageCorrupt",
    "Store",
    "Toucher",
    "Touches",
    "StoredRotation",
    "StreamPart",
    "StreamParts",
    "TAKE_MESSAGES_MAX",
    "UNREADABLE_TYPE",
    "blocks_of",
    "by_token",
    "changed",
    "check_cursor",
    "column_blocks",
    "cursors_along",
    "dead_letter",
    "decode_cursor",
    "delete_group",
    "encode_cursor",
    "find_group",
    "format_stamp",
    "full_message",
    "headers_of",
    "holes",
    "identity",
    "indexes",
    "is_prompt",
    "is_sealed",
    "kind_of",
    "list_groups",
    "message_id",
    "message_id_of",
    "offsets_of",
    "open_group",
    "open_store",
    "ordering",
    "parse_stamp",
    "plain_blocks",
    "unpack",
    "Document",
    "Documents",
    "Duty",
    "Pulse",
    "Pulses",
    "definitions",
    "pulses_of",
    "own_priority",
    "position_in",
    "priority_of",
    "put_group",
    "read_range",
    "standing",
    "timestamp",
    "trace_context",
    "unbounded_task",
    "waited_until",
    "where_they_part",
]
