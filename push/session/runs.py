"""Handles consecutive frames of one session, of one kind and for one queue, together at the end of the loop's turn.

A producer that sends each message in a frame of its own, or a consumer that acks so, would otherwise cost a look-up, an
inbox entry, a sealed block and a count each. The answers stay the same: every frame has its own, and if one of the
frames might be refused, all are handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from backend_store.model import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    MESSAGES_PER_REQUEST_MAX,
    Overloaded,
    Published,
    PushqError,
    QueueConfig,
)
from push.encoding.publish_reply import parts, published_oks, refusal
from push.limits import RUN_BYTES_MAX
from push.operations.checks import check_id
from push.protocol import REQUESTS_IN_PROGRESS_MAX, Ack, PlainBytesPublish, PlainPublish
from push.session.pending_request import PendingRequest

if TYPE_CHECKING:
    from push.ports import Prepared
    from push.session.session import Session

Frame = PlainPublish | PlainBytesPublish | Ack
Handle = Callable[["Session", Sequence[Any]], bool]
"""Handles frames together. False if nothing was done, and each has to be handled by itself."""

_NOTHING: Final = (0, 0)


class Run:
    """The frames of one session that wait for the end of the turn, or for a frame of another kind."""

    __slots__ = ("_bytes", "_frames", "_frames_max", "_full", "_handle", "_messages", "_queue", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frames: list[Frame] = []
        self._frames_max = 0
        self._handle: Handle = publish
        self._queue = ""
        self._messages = 0
        self._bytes = 0
        self._full: set[str] = set()
        """Queues whose inbox was full and refused a whole run; cleared once no publishes are refused any more."""

    def add(self, handle: Handle, frame: Frame, messages: int, size: int) -> None:
        """Adds a frame with so many messages and bytes; handles those before it if it cannot join them."""
        self._messages += messages
        self._bytes += size
        is_more = self._frames and handle is self._handle and frame.queue == self._queue
        if not is_more or self._messages > MESSAGES_PER_REQUEST_MAX or self._bytes > RUN_BYTES_MAX:
            self.end()
            self._handle, self._queue, self._messages, self._bytes = handle, frame.queue, messages, size
            self._frames_max = REQUESTS_IN_PROGRESS_MAX - self._session.in_progress
        self._frames.append(frame)
        if len(self._frames) >= self._frames_max:
            self.end()  # with these the session has as many requests in progress as it may, and reads no further

    def end(self) -> None:
        """Handles the frames that wait."""
        frames, session = self._frames, self._session
        if not frames:
            return
        self._frames = []
        may_join = len(frames) > 1 and not session.closed and session.gate.held is None and not self._is_full()
        if may_join and self._handle(session, frames):
            return
        for frame in frames:
            session.handle(frame)

    def met_end(self, queue: str) -> None:
        """Notes that a queue's inbox was full where this process could not know it, and all frames of a run were
        refused though some might have found room: from now on each goes by itself, until no publishes are refused any
        more."""
        self._full.add(queue)

    def _is_full(self) -> bool:
        """Whether some of the waiting frames would be refused only because they go together."""
        if self._full and not self._session.hub.intake.is_tight:
            self._full.clear()
        return self._handle is publish and self._queue in self._full

    def waiting(self, queue: str) -> tuple[int, int]:
        """Messages and bytes for a queue that wait here to be published."""
        is_its = self._frames and self._handle is publish and self._queue == queue
        return (self._messages, self._bytes) if is_its else _NOTHING


# --------------------------------------------------------------------------------------------------- publish


def is_small(messages: int, size: int) -> bool:
    """Whether a publish fits into one block. A bigger one gains nothing from joining others."""
    return 0 < messages <= BLOCK_MESSAGES_MAX and size <= BLOCK_BYTES_MAX


def publish(session: Session, frames: Sequence[PlainPublish | PlainBytesPublish]) -> bool:
    """Stores the messages of small frames as one call, whose blocks they share. False if nothing was done."""
    hub, principal, name = session.hub, session.principal, frames[0].queue
    assert principal is not None
    if hub.draining:
        return False
    try:
        queue = hub.desk.publish_to(principal, name)
        for frame in frames:
            check_id(frame.id)
        calls = [[message.body for message in frame.messages] for frame in frames]
        together = hub.desk.prepare_together(queue, calls, session.encoding)
    except PushqError:
        return False
    if together is None:
        return False
    prepared, size = together
    counts = list(map(len, calls))
    messages = sum(counts)
    if queue.why_full(messages, size) is not None or not hub.intake.room.take(principal.tenant, size):
        return False
    if not hub.throttle.publish_together(session.who, name, requests=len(frames), messages=messages, size=size):
        hub.intake.room.give(principal.tenant, size)
        return False
    session.gate.passed(len(frames))
    asked = PendingRequest(session, "publish", name, messages=messages, bytes_in=size, requests=len(frames))
    ids = [frame.id for frame in frames]
    done = partial(_published, asked, ids, counts, queue.config, prepared, principal.tenant)
    queue.publish(prepared.blocks, done, until_ms=hub.until_ms(hub.waits_until(None)))
    return True


def _published(
    asked: PendingRequest,
    ids: Sequence[int | str | None],
    counts: Sequence[int],
    config: QueueConfig,
    prepared: Prepared,
    tenant: str,
    result: Published | PushqError,
) -> None:
    session = asked.session
    session.hub.intake.room.give(tenant, asked.bytes_in)
    if isinstance(result, PushqError):
        asked.ended(result)
        if isinstance(result, Overloaded):
            session.hub.intake.met_end()
            session.run.met_end(asked.queue)
        for request_id in ids:
            session.error(request_id, result)
    elif result.others:
        _published_apart(asked, ids, counts, config, prepared, result)
    else:
        asked.ended(None)
        session.replies(published_oks(ids, counts, result, prepared, config, session.encoding))


def _published_apart(
    asked: PendingRequest,
    ids: Sequence[int | str | None],
    counts: Sequence[int],
    config: QueueConfig,
    prepared: Prepared,
    result: Published,
) -> None:
    """Answers each frame by itself: the queue was reconfigured to check each message, and some were refused."""
    session, owns = asked.session, parts(result, prepared, counts)
    errors = [refusal(own) for own in owns]
    asked.ended_apart(counts, errors)
    for request_id, count, own, error in zip(ids, counts, owns, errors, strict=True):
        if error is not None:
            session.error(request_id, error)
        else:
            session.replies(published_oks([request_id], [count], own, prepared, config, session.encoding))


# ------------------------------------------------------------------------------------------------------- ack


def is_quiet(frame: Ack) -> bool:
    """Whether it is an ack that wants no answer."""
    return frame.id is None and not frame.publish


def ack(session: Session, frames: Sequence[Ack]) -> bool:
    """Settles the receipts of frames that want no answer. False if nothing was done."""
    assert session.principal is not None
    try:
        queue = session.hub.desk.queue(session.principal, frames[0].queue, "consume")
    except PushqError:
        return False
    receipts = list(chain.from_iterable([frame.receipts for frame in frames]))
    queue.settle_quietly(receipts)
    session.count("ack", frames[0].queue, messages=len(receipts), requests=len(frames))
    return True
