"""Dead-letters messages that end without an ack: to the queue's own dead letters, to another queue, or only counted.

A message ends and is stored in its new place in one commit, so a crash finds it in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend_store.core.leases.leases import ChunkState
from backend_store.core.leases.leasing import Death
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, CorruptEntry, clear_column, moved_whole
from backend_store.core.log.log import Append
from backend_store.core.log.records import Ledger
from backend_store.core.log.sublogs import (
    DEAD,
    LATE,
    OUTBOX,
    SORTING,
    VIEW_GROUPS,
    VIEW_MAIN,
    VIEW_OUTBOX,
    own_priority,
)
from backend_store.core.ready.attempt_policy import Reason
from backend_store.model import COMPANION, Block, QueueConfig, Unavailable
from backend_store.node.transfer.reseal import resealed

if TYPE_CHECKING:
    from backend_store.node.views.view import View

_ALWAYS = frozenset({Reason.MAX_ATTEMPTS, Reason.UNDELIVERABLE, Reason.QUEUE_DELETED})
"""Reasons for which a message always goes to the queue's own dead letters; for others only if the config says so."""


def grave(config: QueueConfig, reason: Reason, view: int) -> int | None:
    """The shelf for messages of a queue that end for a reason; None if they are only counted."""
    target = config.dead_letter_queue
    if view != VIEW_MAIN and view < 16:
        return None  # a companion's messages were given up already
    if reason == Reason.CANCELLED:
        return None  # cancelled by its producer
    if reason == Reason.LATE:
        return LATE if config.late_messages == "late_queue" else SORTING
    if target is None:
        return DEAD if reason == Reason.UNDELIVERABLE else None  # never delivered, so never given up by a consumer
    if target != COMPANION:
        return None if reason == Reason.OVERFLOW and config.overflow == "drop_oldest" else OUTBOX
    if reason in _ALWAYS or (reason == Reason.OVERFLOW and config.overflow.startswith("dead_letter")):
        return DEAD
    return None


def bury(
    plan: Append, view: View, deaths: list[Death], *, label: str, config: QueueConfig, partition: int
) -> list[Chunk]:
    """Copies dead messages to their new place. Returns the chunks that hold them."""
    blocks: dict[int, list[Block]] = {}
    ledger = plan.state.ledger
    if view.number == VIEW_OUTBOX:
        return _stay(plan, view, deaths, partition)
    for death in deaths:
        messages = death.bits.bit_count()
        plan.state.count_ended(str(death.reason), messages)
        shelf = grave(config, death.reason, view.number)
        chunk = death.chunk or _chunk(view, death.state) if shelf is not None else None
        if shelf is None or chunk is None:
            _count_gone(ledger, view, death, is_lost=shelf is not None)
            continue
        before = origins(chunk)
        annexes = {
            index: _annex(death, index, own_priority(chunk.shelf, before.get(index)), label, shelf)
            for index in indexes(death.bits)
        }
        try:
            blocks.setdefault(shelf, []).extend(_copies(view, chunk, death.bits, annexes, partition))
        except CorruptEntry as error:
            # Unreadable, so it cannot be copied: quarantined as it is.
            view.partition.put_aside(chunk, str(error))
            _count_gone(ledger, view, death, is_lost=True)
            continue
        if shelf == LATE:
            ledger.late += messages
        elif shelf != SORTING:
            ledger.dead_lettered += messages
            ledger.copied += messages if view.number >= VIEW_GROUPS else 0
    return [chunk for shelf in sorted(blocks) for chunk in plan.add(blocks[shelf], shelf)]


def _count_gone(ledger: Ledger, view: View, death: Death, *, is_lost: bool) -> None:
    """Counts messages that are stored nowhere any more. A stream keeps what one of its groups gave up."""
    if view.number >= VIEW_GROUPS:
        return
    messages = death.bits.bit_count()
    if is_lost:
        ledger.lost += messages
    elif death.reason == Reason.EXPIRED:
        ledger.expired += messages
    elif death.reason == Reason.OVERFLOW:
        ledger.overflowed += messages
    elif death.reason == Reason.CANCELLED:
        ledger.cancelled += messages
    else:
        ledger.dropped += messages


def _stay(plan: Append, view: View, deaths: list[Death], partition: int) -> list[Chunk]:
    """The queue lost its dead-letter target: letters in its outbox become its own dead letters."""
    blocks: list[Block] = []
    for death in deaths:
        chunk = death.chunk or _chunk(view, death.state)
        if chunk is not None:
            blocks += _copies(view, chunk, death.bits, {}, partition)
        else:
            plan.state.ledger.lost += death.bits.bit_count()
    return plan.add(blocks, DEAD) if blocks else []


def _copies(
    view: View, chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], partition: int
) -> list[Block]:
    """Seals again what was sealed. What cannot be opened, or not sealed now, stays in its whole block."""
    unreadable = bits & chunk.unreadable
    copies = moved_whole(chunk, unreadable, annexes, partition=partition) if unreadable else []
    try:
        return resealed(chunk, bits ^ unreadable, annexes, partition=partition, seal=view.partition.seal) + copies
    except Unavailable:
        return moved_whole(chunk, bits, annexes, partition=partition)


def _chunk(view: View, state: ChunkState) -> Chunk | None:
    """The dead messages' chunk; it may have left memory while they were leased. None if it is gone."""
    if state.chunk is not None:
        return state.chunk
    chunk = view.partition.read(state.base, state.shelf)
    return chunk if chunk is not None and chunk.base == state.base else None


def _annex(death: Death, index: int, priority: int, label: str, shelf: int) -> dict[str, Any]:
    if death.reason == Reason.LATE:
        # Companions keep messages until they are acked; at the head of the queue, expiry continues.
        return {"late": True, "exp": None} if shelf == LATE else {"late": True}
    state = death.state
    started = state.started >> index & 1
    return {
        "dead": {
            "from": label,
            "reason": str(death.reason),
            "at": death.at_ms,
            "attempts": state.attempts.get(index, started),
            "history": [list(row) for row in state.history.get(index, ())],
            "priority": priority,
        },
        "exp": None,  # it would expire before an operator sees it
    }


def origins(chunk: Chunk) -> Mapping[int, dict[str, Any]]:
    """The recorded ends of a chunk's messages, by index."""
    rows = clear_column(chunk, "dead") or []
    return {index: row for index, row in enumerate(rows) if row}
