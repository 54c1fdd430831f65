"""A checksum for rows that carry none of their own: over key and value, so that a flipped bit or a misplaced row shows.

Entries of the log have theirs inside. What is small and decides much, such as which messages are settled, is sealed.
"""

from google_crc32c import extend, value

from backend_store.storage.engine import StorageCorrupt

SEAL_BYTES = 4


def seal(key: bytes, row: bytes) -> bytes:
    checksum: int = extend(value(key), row)
    return row + checksum.to_bytes(SEAL_BYTES, "big")


def unseal(key: bytes, stored: bytes) -> bytes:
    """The row. Raises `StorageCorrupt` when it is not what was written under this key."""
    row = stored[:-SEAL_BYTES]
    if len(stored) < SEAL_BYTES or extend(value(key), row) != int.from_bytes(stored[-SEAL_BYTES:], "big"):
        raise StorageCorrupt(f"the row {key!r} does not match its checksum; restore the folder from a backup")
    return row
