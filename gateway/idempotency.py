"""What an idempotency key makes of a publish: a claim for the partition to decide, and a name for each message.

The key is its principal's and its queue's: two principals that choose the same key do not meet. A claim has hashes, not
the key. The hash of the payload and the names are keyed by it, so who reads the disk learns nothing about a payload
that the names did not tell; and another payload gets other names.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, NamedTuple

import msgspec

from backend_store.client import NumberedNames
from backend_store.model import Claim
from push.checks import checked_idempotency_key, field
from push.ports import KeyOf, Target

HEADER: Final = b"idempotency-key"
REPLAYED: Final = (b"idempotency-replayed", b"true")

_POINTER: Final = "/headers/idempotency-key"
_HASH_BYTES: Final = 16
_NAME_BYTES: Final = 12
_QUOTED: Final = re.compile(r'"(?:[ !#-\[\]-~]|\\["\\])*"')
_ESCAPED: Final = re.compile(r"\\(.)")
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
    queue: Target, key_of: KeyOf, kind: int | bytes, bodies: Sequence[bytes], fields: dict[str, Sequence[Any]]
) -> Named:
    """`fields`: the columns of what the messages have beside their bodies, as they were given."""
    whose = msgspec.json.encode((queue.uid, queue.name, key_of.principal, key_of.key))
    secret = blake2b(whose, person=b"pushq-secret").digest()
    count = len(bodies)
    payload = sha256(secret)  # begins with what nobody else knows; processors do this one themselves
    payload.update(bytes([kind]) * count if isinstance(kind, int) else kind)
    payload.update(array("Q", map(len, bodies)).tobytes())
    payload.update(b"".join(bodies))
    payload.update(_write_sorted(fields))
    digest = payload.digest()[:_HASH_BYTES]
    name = blake2b(digest, digest_size=_NAME_BYTES, key=secret, person=b"pushq-id").hexdigest()
    claim = Claim(blake2b(whose, digest_size=_HASH_BYTES, person=b"pushq-key").digest(), digest)
    return Named(claim, NumberedNames(f"{name}-", count))
