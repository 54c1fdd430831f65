"""What `/v1/cluster/recovery` answers."""

from __future__ import annotations

import msgspec


class RecoveryPiece(msgspec.Struct, frozen=True):
    """Confirmed messages of one queue that the leader which came after lacks."""

    name: str
    """SHARD-EPOCH-QUEUE, by their numbers: what one leadership of a shard confirmed."""
    shard: str
    epoch: int
    tenant: str
    queue: str
    """Empty where nobody knows any more which it was."""
    queue_exists: bool
    """False: it was deleted since, and they cannot be published again."""
    messages: int
    """Where several backends keep it, those of the one with most."""
    bytes: int
    in_doubt: int
    """How many of them may be in the queue already."""
    confirmed_from: str
    confirmed_until: str
    set_aside_at: str
    backends: list[str]
    """Who keeps it."""


class RecoveryPieces(msgspec.Struct, frozen=True):
    pieces: list[RecoveryPiece]
    unreachable: list[str]
    """Backends that could not be asked: what they keep is not in the list."""


class RecoveryMessage(msgspec.Struct, frozen=True):
    """One message, without its body: that is its consumers' business."""

    id: str
    key: str | None
    confirmed_at: str
    expires_at: str | None
    in_doubt: bool


class RecoveryShown(msgspec.Struct, frozen=True):
    piece: RecoveryPiece
    items: list[RecoveryMessage]
    """The first of them."""
    more: int
    """How many are not shown."""


class RecoveryPublish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Publishes a piece again, each message once."""

    dry_run: bool = False
    """Only say what would be published."""
    in_doubt: bool = False
    """Also what may be in the queue already: consumers may get it twice."""
    partial: bool = False
    """Although not every backend of the cluster answers: one that is away may keep copies of the same messages."""


class RecoveryPublished(msgspec.Struct, frozen=True):
    """What one request did. Ask again while `left` is above 0 and it gets on."""

    published: int
    already_there: int
    """The queue knew them: they were published again before, or by their producer."""
    expired: int
    """Their time to live is over: they are let go of."""
    in_doubt: int
    """Left alone, since they may be in the queue already."""
    left: int
    """Still in quarantine when it ended, those in doubt among them."""
    problems: list[str]
    """Why some were not published."""
    dry_run: bool


class RecoveryDrop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deletes a piece for good. `messages`: how many it has, so that nobody drops what he has not seen."""

    messages: int


class RecoveryDropped(msgspec.Struct, frozen=True):
    dropped: int
    unreachable: list[str]
    """Backends that could not be asked, and may keep copies."""
