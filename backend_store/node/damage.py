"""Whether a stored entry may be served: asked at an unclean start and before a backup is restored."""

from __future__ import annotations

from backend_store.core.chunk import CorruptEntry, decode_chunk
from backend_store.model import Offset
from backend_store.storage.keys import parse_entry_key


def broken_entry(key: bytes, data: bytes) -> str | None:
    """Why this row of the log is no entry that could be served; None when it is one."""
    replica, _, offset = parse_entry_key(key)
    try:
        decode_chunk(data, seed=replica, offset=Offset(offset)).cut()
    except CorruptEntry as error:
        return str(error)
    return None
