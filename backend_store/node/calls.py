"""A publish call as it waits for its cycle, and what its blocks say of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from backend_store.model import Block, Claim, Original, Published, PushqError, Stamp

PublishReply = Callable[[Published | PushqError], None]


class Call(msgspec.Struct, frozen=True):
    """One publish call that waits. `is_plain`: its messages are bodies for the log and nothing else, though
    the call may have a claim.

    `must_fit`: it was promised room. `dedupes`: by the ids it brings, whatever the queue's config says. `moves`: its
    messages were in a queue before. `stays`: in this very queue, so that its limits say nothing about them. `slots` are
    those of its messages, as bits, and `version` is the slot table's by which it came here; 0 where there is none.
    `came_ms` is when, by the steady clock. `claim` is bound with the same commit; a call that is refused for it stores
    nothing. `others`: what is known of some of its messages before, none of which is stored. Where a claim comes by
    itself, `follows` are the slots of the messages that come behind it. After `until_ms`, by
    the same clock, the call is not begun any more; 0 for one that waits as long as it takes.
    """

    blocks: list[Block]
    messages: int
    size: int
    is_plain: bool
    must_fit: bool
    dedupes: bool
    reply: PublishReply
    slots: int = 0
    version: int = 0
    came_ms: int = 0
    claim: Claim | None = None
    moves: bool = False
    stays: bool = False
    until_ms: int = 0
    follows: int = 0
    others: Mapping[int, Original | PushqError] | None = None


def is_plain(blocks: Sequence[Block]) -> bool:
    """Whether blocks are for the log and nothing else."""
    for block in blocks:  # noqa: SIM110 - a generator would cost as much as the rest of a publish
        if block.traits is not None or block.priority or block.due_ms:
            return False
    return True


def ids_of(call: Call) -> list[bytes | None]:
    ids: list[bytes | None] = []
    for block in call.blocks:
        traits = block.traits
        ids += traits.ids if traits is not None and traits.ids is not None else [None] * block.count
    return ids


def stamps_of(call: Call) -> list[Stamp | None]:
    stamps: list[Stamp | None] = []
    for block in call.blocks:
        traits = block.traits
        stamps += traits.stamps if traits is not None and traits.stamps is not None else [None] * block.count
    return stamps
