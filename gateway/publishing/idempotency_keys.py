"""Turns the idempotency key of a publish into a claim, which the partition decides, and an id for each message.

Keys are scoped by principal and queue: the same key of two principals does not collide. A claim contains hashes, not
the key. The payload's tag and the ids are keyed with it, so that the disk reveals nothing about a payload but what the
ids tell; and another payload gets other ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backend_store.client import NumberedNames
from backend_store.model import Claim
from push.operations.checks import checked_idempotency_key, field
from push.ports import KeyOf, Target

HEADER: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotency-replayed", b"true")

_POINTER: Final = "/headers/idempotency-key"
_HASH_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_NONCE: Final = bytes(12)
_NAME_BYTES: Final = 12
_BYTES_BESIDE_BODY_MAX: Final = 6
"""Bytes of a body's head in MessagePack, and of its kind."""
_NO_FIELDS: Final = b"{}"
_QUOTED: Final = re.compile(r'"(?:[ !#-\[\]-~]|\\["\\])*"')
_ESCAPED: Final = re.compile(r"\\(.)")
_pack_into: Final = msgspec.msgpack.Encoder().encode_into
_write: Final = msgspec.json.Encoder().encode
_write_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Named(NamedTuple):
    """The claim and message ids of a call under an idempotency key."""

    claim: Claim
    ids: NumberedNames
    """An id for each message; a message with its own id keeps that."""


def key_of_headers(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The key of a request that has the header: a structured-field string (RFC 9651), or the same without quotes.
    Raises `InvalidRequest`."""
    values = [value for name, value in headers if name == HEADER]
    if len(values) != 1:
        raise field(_POINTER, "Idempotency-Key is given more than once; send one key per request")
    text = values[0].decode("latin-1").strip(" ")
    if text.startswith('"'):
        if _QUOTED.fullmatch(text) is None:
            detail = 'invalid Idempotency-Key: use a string such as "8e03978e-40d5-43dd-bc93-6894a57f9324"'
            raise field(_POINTER, detail)
        text = _ESCAPED.sub(r"\1", text[1:-1])
    return checked_idempotency_key(text, name="Idempotency-Key", pointer=_POINTER)


def named(
    queue: Target,
    key_of: KeyOf,
    kind: int | bytes,
    bodies: Sequence[bytes],
    lengths: Sequence[int],
    fields: dict[str, Sequence[Any]],
) -> Named:
    """Makes the claim and ids of a call. `lengths`: of the bodies. `fields`: the messages' other columns, as sent."""
    whose = _write((queue.uid, queue.name, key_of.principal, key_of.key))
    known = blake2b(whose, person=b"pushq-key").digest()
    key, secret = known[:_HASH_BYTES], known[_HASH_BYTES:]
    kinds = bytes([kind]) * len(bodies) if isinstance(kind, int) else kind
    # GMAC, for which processors have instructions: a sixth of the time of SHA-256. The secret is derived from this key,
    # so a fixed nonce is safe. A caller that knows it could make a second payload with the same tag, and would be
    # answered as for the first. A reader that guesses the key could compute a part of the payload from the tag, so only
    # a hash of the tag is stored.
    said = bytearray(sum(lengths) + _BYTES_BESIDE_BODY_MAX * (len(bodies) + 1))  # room for all, in one piece
    _pack_into(bodies, said)
    said += kinds
    said += _write_sorted(fields) if fields else _NO_FIELDS
    tag = AESGCM(secret[:_SECRET_BYTES]).encrypt(_NONCE, b"", said)
    payload = blake2b(tag, digest_size=_HASH_BYTES, key=secret, person=b"pushq-tag").digest()
    name = blake2b(payload, digest_size=_NAME_BYTES, key=secret, person=b"pushq-id").hexdigest()
    return Named(Claim(key, payload), NumberedNames(f"{name}-", len(bodies)))
