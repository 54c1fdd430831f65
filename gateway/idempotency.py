"""What an idempotency key makes of a publish: a claim for the partition to decide, and a name for each message.

The key is its principal's and its queue's: two principals that choose the same key do not meet. A claim has hashes, not
the key. The tag of the payload and the names are keyed by it, so who reads the disk learns nothing about a payload
that the names did not tell; and another payload gets other names.
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
from push.checks import checked_idempotency_key, field
from push.ports import KeyOf, Target

HEADER: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotency-replayed", b"true")

_POINTER: Final = "/headers/idempotency-key"
_HASH_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_NONCE: Final = bytes(12)
_NAME_BYTES: Final = 12
_BYTES_BESIDE_BODY_MAX: Final = 6
"""A body's head in MessagePack, and its kind."""
_NO_FIELDS: Final = b"{}"
_QUOTED: Final = re.compile(r'"(?:[ !#-\[\]-~]|\\["\\])*"')
_ESCAPED: Final = re.compile(r"\\(.)")
_pack_into: Final = msgspec.msgpack.Encoder().encode_into
_write: Final = msgspec.json.Encoder().encode
_write_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Named(NamedTuple):
    """A call under a key."""

    claim: Claim
    ids: NumberedNames
    """A name for each message; one that has an id of its own keeps that."""


def key_of_headers(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The key of a request that has the header: a structured-field string (RFC 9651), or the same without quotes."""
    values = [value for name, value in headers if name == HEADER]
    if len(values) != 1:
        raise field(_POINTER, "Idempotency-Key is given more than once; send one key a request")
    text = values[0].decode("latin-1").strip(" ")
    if text.startswith('"'):
        if _QUOTED.fullmatch(text) is None:
            detail = (
                'Idempotency-Key is no string of a structured field, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"'
            )
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
    """`lengths`: of the bodies. `fields`: the columns of what the messages have beside, as they were given."""
    whose = _write((queue.uid, queue.name, key_of.principal, key_of.key))
    known = blake2b(whose, person=b"pushq-key").digest()
    key, secret = known[:_HASH_BYTES], known[_HASH_BYTES:]
    kinds = bytes([kind]) * len(bodies) if isinstance(kind, int) else kind
    # GMAC, which processors do themselves: a sixth of what SHA-256 takes. The secret is this key's own, so a nonce says
    # nothing. Who knows it could make a second payload of the same tag, and would be answered as for the first. And who
    # guesses the key could compute a part of the payload from the tag: so what is kept is a hash of that.
    said = bytearray(sum(lengths) + _BYTES_BESIDE_BODY_MAX * (len(bodies) + 1))  # room for all, in one piece
    _pack_into(bodies, said)
    said += kinds
    said += _write_sorted(fields) if fields else _NO_FIELDS
    tag = AESGCM(secret[:_SECRET_BYTES]).encrypt(_NONCE, b"", said)
    payload = blake2b(tag, digest_size=_HASH_BYTES, key=secret, person=b"pushq-tag").digest()
    name = blake2b(payload, digest_size=_NAME_BYTES, key=secret, person=b"pushq-id").hexdigest()
    return Named(Claim(key, payload), NumberedNames(f"{name}-", len(bodies)))
