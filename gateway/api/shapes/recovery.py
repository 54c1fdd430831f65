"""Bodies of requests and answers of `/v1/cluster/recovery`."""

from __future__ import annotations

import msgspec


class RecoveryPiece(msgspec.Struct, frozen=True):
    """Confirmed messages of one queue that the next leader lacks."""

    name: str
    """SHARD-EPOCH-QUEUE, all numbers: messages of the queue that one leadership of a shard confirmed."""
    shard: str
    epoch: int
    tenant: str
    queue: str
    """Empty if the name is no longer known."""
    queue_exists: bool
    """False: the queue was deleted, so the messages cannot be published again."""
    messages: int
    """If several backends keep the piece, the number of the one with the most."""
    bytes: int
    in_doubt: int
    """Messages that may be in the queue already."""
    confirmed_from: str
    confirmed_until: str
    set_aside_at: str
    backends: list[str]
    """Backends that keep the piece."""


class RecoveryPieces(msgspec.Struct, frozen=True):
    pieces: list[RecoveryPiece]
    unreachable: list[str]
    """Backends that did not answer: what they keep is not in the list."""


class RecoveryMessage(msgspec.Struct, frozen=True):
    """One message without its body, which is for consumers only."""

    id: str
    key: str | None
    confirmed_at: str
    expires_at: str | None
    in_doubt: bool


class RecoveryShown(msgspec.Struct, frozen=True):
    piece: RecoveryPiece
    items: list[RecoveryMessage]
    """The first messages."""
    more: int
    """Number of messages not shown."""


class RecoveryPublish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Publishes a piece again, each message once."""

    dry_run: bool = False
    """Only report what would be published."""
    in_doubt: bool = False
    """Publish also what may be in the queue already: consumers may get it twice."""
    partial: bool = False
    """Publish even if a backend of the cluster does not answer, which may keep copies of the same messages."""


class RecoveryPublished(msgspec.Struct, frozen=True):
    """What one request did. Repeat it while `left` is above 0 and decreases."""

    published: int
    already_there: int
    """The queue recognized them: they were published again before, or by their producer."""
    expired: int
    """Their TTL is over: they are released."""
    in_doubt: int
    """Not published, because they may be in the queue already."""
    left: int
    """Still in quarantine at the end, including those in doubt."""
    problems: list[str]
    """Why some were not published."""
    dry_run: bool


class RecoveryDrop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deletes a piece for good. `messages`: its number of messages, so that no unseen message is dropped."""

    messages: int


class RecoveryDropped(msgspec.Struct, frozen=True):
    dropped: int
    unreachable: list[str]
    """Backends that did not answer, and may keep copies."""
