"""Deduplication hashes of messages: 16 bytes made from the id, the producer's sequence number, or the content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from backend_store.client import KIND_BYTES
from backend_store.model import QueueConfig
from gateway.publishing.columns import CallColumns

HASH_BYTES: Final = 16
_CONTENT_TYPES: Final = ("application/json", "application/octet-stream")


def hashes(
    given: CallColumns,
    config: QueueConfig,
    kind: int | bytes,
    bodies: Sequence[bytes],
    table: Mapping[str, Sequence[Any]],
    names: Sequence[str] | None = None,
    content_key: Callable[[], bytes] = bytes,
) -> Sequence[bytes | None] | None:
    """One hash per message, by the queue's `dedupe` setting; None for a message that has no duplicates.

    `names`: message ids made from an idempotency key, used for messages without an id of their own.
    """
    if config.dedupe == "none":
        return None
    if config.dedupe == "content":
        return _of_contents(kind, bodies, table.get("content_type") or [None] * given.count, content_key())
    # The messages' own ids first, then those made from the idempotency key.
    own = given.column("id")
    found: list[bytes | None] = [None] * given.count
    if own is not None:
        # Inlined to save a call per message: this is most of what an id costs here.
        found = [None if i is None else _new(b"id\0" + i.encode()).digest() for i in own]
        if (sources := given.column("source")) is not None:
            found = [_of_event(source, id) for source, id in zip(sources, own, strict=True)]
    if names is not None:
        # Not the producer's number: a repeat from another process has another one.
        found = [_of_id(name) if known is None else known for known, name in zip(found, names, strict=True)]
    if config.delivery == "exactly_once" and None in found:
        _by_number(given, found, table)
    return found


def _of_contents(
    kind: int | bytes, bodies: Sequence[bytes], types: Sequence[str | None], key: bytes
) -> list[bytes | None]:
    """Hashes of body and content type; headers are not part of a message's identity.

    The hash is stored in the clear beside the message. With a key it does not reveal that two queues have the same
    content, or whether a guessed content is right.
    """
    kinds = [kind] * len(bodies) if isinstance(kind, int) else kind
    usual = [_CONTENT_TYPES[k == KIND_BYTES] for k in kinds]
    return [
        blake2b(b"content\0%b\0%b" % ((given or default).encode(), body), digest_size=HASH_BYTES, key=key).digest()
        for body, given, default in zip(bodies, types, usual, strict=True)
    ]


def _by_number(given: CallColumns, found: list[bytes | None], table: Mapping[str, Sequence[Any]]) -> None:
    """Fills the gaps with hashes of the producer's number: exactly-once delivery needs a hash for every message."""
    producers, numbers = table.get("pr"), table.get("ps")
    for place, known in enumerate(found):
        if known is not None:
            continue
        producer = producers[place] if producers is not None else None
        if producer is None or numbers is None:
            given.wrong(
                place,
                "id",
                "this queue delivers exactly once, so every message needs an identity: set `id`, or `producer` and "
                "`producer_seq`, or an idempotency key for the request",
            )
        else:
            found[place] = _hash(b"seq\0%d\0%b" % (numbers[place] or 0, producer.encode()))


_new: Final = partial(blake2b, digest_size=HASH_BYTES)


def _of_event(source: str, id: str) -> bytes:
    """Hashes source and id: another source may use the same id for another event (CloudEvents 1.0, `id`)."""
    source_bytes = source.encode()
    return _hash(b"event\0%d\0%b%b" % (len(source_bytes), source_bytes, id.encode()))


def _of_id(name: str) -> bytes:
    return _hash(b"id\0" + name.encode())


def _hash(data: bytes) -> bytes:
    return _new(data).digest()
