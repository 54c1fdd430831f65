"""The keys of rows: big-endian, so that the order of bytes is the order of offsets, and beginning with the replica.

A replica id is local to this node: a snapshot is installed under a new id and switched in by a single put. META rows
have names instead; the four below belong to storage itself.
"""

import struct

META_FORMAT = b"format"
"""Version of this layout of tables and keys, one byte."""
META_DISK_ID = b"disk_id"
"""Identity of this copy of the data, a UUID in ASCII."""
META_RUNNING = b"running"
"""There while a process has the folder open: its id in ASCII. A crash leaves it behind."""
META_RESTORED = b"restored"
"""There after a restore: its time in milliseconds, u64. The code that raises the epochs deletes it in the same
commit."""

REPLICA_MAX = 2**32 - 2

_LOG = struct.Struct(">IQ")
_VIEW = struct.Struct(">IIQ")
_REPLICA = struct.Struct(">I")
_GROUP = struct.Struct(">II")
_LANE = struct.Struct(">IBQ")
_TIMED = struct.Struct(">IQQ")
_ORDER = struct.Struct(">IBQ")
_PARKED = struct.Struct(">IIQQ")


def log_key(replica: int, offset: int) -> bytes:
    """Key of the entry whose first message or record has this offset."""
    return _LOG.pack(replica, offset)


def parse_log_key(key: bytes) -> tuple[int, int]:
    """(replica, offset)."""
    replica, offset = _LOG.unpack(key)
    return replica, offset


def log_range(replica: int) -> tuple[bytes, bytes]:
    """(start, end) of all LOG, MARKS or RETRY rows of a replica."""
    return _REPLICA.pack(replica), _REPLICA.pack(replica + 1)


def mark_key(replica: int, group: int, base: int) -> bytes:
    """Key of a group's settled and started bits of the chunk at `base`."""
    return _VIEW.pack(replica, group, base)


def retry_key(replica: int, group: int, base: int) -> bytes:
    """Key of a group's attempts, due times and causes of the chunk at `base`."""
    return _VIEW.pack(replica, group, base)


def parse_mark_key(key: bytes) -> tuple[int, int, int]:
    """(replica, group, base)."""
    replica, group, base = _VIEW.unpack(key)
    return replica, group, base


def parse_retry_key(key: bytes) -> tuple[int, int, int]:
    """(replica, group, base)."""
    replica, group, base = _VIEW.unpack(key)
    return replica, group, base


def view_range(replica: int, group: int) -> tuple[bytes, bytes]:
    """(start, end) of a group's MARKS or RETRY rows."""
    return _GROUP.pack(replica, group), (int.from_bytes(_GROUP.pack(replica, group)) + 1).to_bytes(8)


def lane_key(replica: int, shelf: int, offset: int) -> bytes:
    """Key of an entry on a shelf other than the log itself."""
    return _LANE.pack(replica, shelf, offset)


def parse_lane_key(key: bytes) -> tuple[int, int, int]:
    """(replica, shelf, offset)."""
    replica, shelf, offset = _LANE.unpack(key)
    return replica, shelf, offset


def timed_key(replica: int, time_ms: int, base: int) -> bytes:
    """Key of a DUE or EXPIRY row: when messages of the chunk at `base` become due or expire."""
    return _TIMED.pack(replica, time_ms, base)


def parse_timed_key(key: bytes) -> tuple[int, int, int]:
    """(replica, time in ms, base)."""
    replica, time_ms, base = _TIMED.unpack(key)
    return replica, time_ms, base


def lease_key(replica: int, view: int, number: int) -> bytes:
    """Key of a lease that outlives a crash."""
    return _VIEW.pack(replica, view, number)


def order_key(replica: int, is_head: bool, number: int) -> bytes:
    """Key of a batch that a sorting queue released; those for the head of the queue come first."""
    return _ORDER.pack(replica, 0 if is_head else 1, number)


def group_key(replica: int, number: int) -> bytes:
    """Key of a consumer group's row in GROUPS, by the number of its view."""
    return _GROUP.pack(replica, number)


def counted_key(replica: int, base: int) -> bytes:
    """Key of the count of a stream's messages before the chunk at `base`, in GROUPS: before all groups."""
    return _VIEW.pack(replica, 0, base)


def replica_range(replica: int) -> tuple[bytes, bytes]:
    """(start, end) of all rows of a replica, in any table."""
    return log_range(replica)


def schedule_key(replica: int, base: int) -> bytes:
    """Key of the due times of a scheduled chunk, in BY_ID."""
    return _LANE.pack(replica, 0, base)


def name_key(replica: int, name: bytes) -> bytes:
    """Key of a scheduled message's position, by the 16-byte hash of its id, in BY_ID."""
    return _REPLICA.pack(replica) + b"\x01" + name


def name_range(replica: int) -> tuple[bytes, bytes]:
    """(start, end) of the positions of scheduled messages by id, in BY_ID."""
    return _REPLICA.pack(replica) + b"\x01", _REPLICA.pack(replica) + b"\x02"


def producer_key(replica: int, producer: str) -> bytes:
    """Key of what a sorting queue knows of a producer; with an empty name, of its clock."""
    return _REPLICA.pack(replica) + producer.encode("utf-8", "surrogatepass")


def parked_key(replica: int, lane: int, number: int, position: int) -> bytes:
    """Key of messages that wait behind others of their key: the number of their line and their position in it.

    `lane` identifies the owner of the line: a view's number, and in the low eight bits a shelf.
    """
    return _PARKED.pack(replica, lane, number, position)


def parked_range(replica: int, view: int) -> tuple[bytes, bytes]:
    """(start, end) of a view's parked rows."""
    return _PARKED.pack(replica, view << 8, 0, 0), _PARKED.pack(replica, (view + 1) << 8, 0, 0)


def parse_parked_key(key: bytes) -> tuple[int, int, int]:
    """(lane, number, position)."""
    _, lane, number, position = _PARKED.unpack(key)
    return lane, number, position


def parse_entry_key(key: bytes) -> tuple[int, int, int]:
    """(replica, shelf, offset) of an entry, in the log or on another shelf."""
    if len(key) == _LOG.size:
        replica, offset = _LOG.unpack(key)
        return replica, 0, offset
    return parse_lane_key(key)
