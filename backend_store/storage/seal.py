"""Checksums for rows that have none of their own, over key and value, so that a flipped bit or a misplaced row is
noticed.

Log entries contain their own. Small rows with much effect, such as which messages are settled, are sealed here.
"""

from google_crc32c import extend, value

from backend_store.storage.engine import StorageCorrupt

SEAL_BYTES = 4


def seal(key: bytes, row: bytes) -> bytes:
    checksum: int = extend(value(key), row)
    return row + checksum.to_bytes(SEAL_BYTES, "big")


def unseal(key: bytes, stored: bytes) -> bytes:
    """Returns the row. Raises `StorageCorrupt` when it is not what was written under this key."""
    row = stored[:-SEAL_BYTES]
    if len(stored) < SEAL_BYTES or extend(value(key), row) != int.from_bytes(stored[-SEAL_BYTES:], "big"):
        raise StorageCorrupt(f"the row {key!r} does not match its checksum; restore the folder from a backup")
    return row
