"""How a message is known again: 16 bytes made of its id, of its producer's number, or of its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from backend_store.client import KIND_BYTES
from backend_store.model import QueueConfig
from gateway.given import Given

HASH_BYTES: Final = 16
_CONTENT_TYPES: Final = ("application/json", "application/octet-stream")


def hashes(
    given: Given,
    config: QueueConfig,
    kind: int | bytes,
    bodies: Sequence[bytes],
    table: Mapping[str, Sequence[Any]],
    names: Sequence[str] | None = None,
    content_key: Callable[[], bytes] = bytes,
) -> Sequence[bytes | None] | None:
    """A hash a message, by what the queue deduplicates; None for a message that is like no other.

    `names` are those by an idempotency key: where ids are looked at, what is known by nothing else is known by them.
    """
    if config.dedupe == "none":
        return None
    if config.dedupe == "content":
        return _of_contents(kind, bodies, table.get("content_type") or [None] * given.count, content_key())
    # Of the ids there were; those made of the idempotency key come last.
    own = given.column("id")
    found: list[bytes | None] = [None] * given.count
    if own is not None:
        # A call less for each: this is most of what an id costs here.
        found = [None if i is None else _new(b"id\0" + i.encode()).digest() for i in own]
        if (sources := given.column("source")) is not None:
            found = [_of_event(source, id) for source, id in zip(sources, own, strict=True)]
    if names is not None:
        # Not by the producer's number: a repeat from another process has another one.
        found = [_of_id(name) if known is None else known for known, name in zip(found, names, strict=True)]
    if config.delivery == "exactly_once" and None in found:
        _by_number(given, found, table)
    return found


def _of_contents(
    kind: int | bytes, bodies: Sequence[bytes], types: Sequence[str | None], key: bytes
) -> list[bytes | None]:
    """Of the body's bytes and the content type; headers say nothing about what a message is.

    The hash lies in the clear beside the message: with a key it tells nobody that two queues have the same content, or
    whether a guessed content is right.
    """
    kinds = [kind] * len(bodies) if isinstance(kind, int) else kind
    usual = [_CONTENT_TYPES[k == KIND_BYTES] for k in kinds]
    return [
        blake2b(b"content\0%b\0%b" % ((given or default).encode(), body), digest_size=HASH_BYTES, key=key).digest()
        for body, given, default in zip(bodies, types, usual, strict=True)
    ]


def _by_number(given: Given, found: list[bytes | None], table: Mapping[str, Sequence[Any]]) -> None:
    """Exactly once needs a name for every message; the producer's own number is one too."""
    producers, numbers = table.get("pr"), table.get("ps")
    for place, known in enumerate(found):
        if known is not None:
            continue
        producer = producers[place] if producers is not None else None
        if producer is None or numbers is None:
            given.wrong(
                place,
                "id",
                "this queue delivers exactly once, so a repeated message must be known again: give it an `id`, or "
                "`producer` and `producer_seq`, or the request an idempotency key",
            )
        else:
            found[place] = _hash(b"seq\0%d\0%b" % (numbers[place] or 0, producer.encode()))


_new: Final = partial(blake2b, digest_size=HASH_BYTES)


def _of_event(source: str, id: str) -> bytes:
    """Another source may use the same id for another event (CloudEvents 1.0, `id`)."""
    source_bytes = source.encode()
    return _hash(b"event\0%d\0%b%b" % (len(source_bytes), source_bytes, id.encode()))


def _of_id(name: str) -> bytes:
    return _hash(b"id\0" + name.encode())


def _hash(data: bytes) -> bytes:
    return _new(data).digest()
