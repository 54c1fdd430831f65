"""A publish call that waits for its commit cycle, and helpers that read its blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from backend_store.model import Block, Claim, Original, Published, PushqError, Stamp

PublishReply = Callable[[Published | PushqError], None]


class Call(msgspec.Struct, frozen=True):
    """One waiting publish call. `is_plain`: its messages are bodies and need no checks, though the call may have a
    claim.

    `must_fit`: it was promised room. `dedupes`: by the ids it brings, whatever the queue's config says. `moves`: its
    messages were in a queue before. `stays`: they were in this same queue, so its limits do not apply. `slots`: the
    slots of its messages, as bits. `version`: of the slot table that routed it here; 0 if there is none. `came_ms`: its
    arrival by the steady clock. `claim`: bound with the same commit; a call whose claim is refused stores nothing.
    `others`: known answers for some of its messages, none of which is stored. `follows`: if a claim comes without
    messages, the slots of the messages that follow. `until_ms`, by the same clock: after it the call is not begun any
    more; 0 for no limit.
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
    """Whether blocks can be appended without any checks."""
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
