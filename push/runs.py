"""Frames of one turn of the loop that ask the same of one queue, one behind the other, are handled together.

A producer that sends each message in a frame of its own, or a consumer that acks so, would else cost a look-up, a place
in the line, a sealed block and a count each. What it is told stays the same: every frame has its own answer, and where
one of them might be refused, all are handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from backend_store.model import MESSAGES_PER_REQUEST_MAX, Overloaded, Published, PushqError, QueueConfig
from push.asked import Asked
from push.checks import check_id
from push.limits import RUN_BYTES_MAX
from push.protocol import Ack, PlainBytesPublish, PlainPublish
from push.published import part, published_ok, refusal

if TYPE_CHECKING:
    from push.ports import Prepared, Target
    from push.session import Session

Frame = PlainPublish | PlainBytesPublish | Ack
Handle = Callable[["Session", Sequence[Any]], bool]
"""Handles frames together. False where nothing was done, and each has to be handled by itself."""


class Run:
    """The frames of one session that wait for the end of their turn, or for one that is not of their kind."""

    __slots__ = ("_bytes", "_frames", "_handle", "_messages", "_queue", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frames: list[Frame] = []
        self._handle: Handle = publish
        self._queue = ""
        self._messages = 0
        self._bytes = 0

    def add(self, handle: Handle, frame: Frame, messages: int, size: int) -> None:
        """A frame about so many messages, of so many bytes."""
        self._messages += messages
        self._bytes += size
        is_more = handle is self._handle and frame.queue == self._queue
        if not is_more or self._messages > MESSAGES_PER_REQUEST_MAX or self._bytes > RUN_BYTES_MAX:
            self.end()
            self._handle, self._queue, self._messages, self._bytes = handle, frame.queue, messages, size
        self._frames.append(frame)

    def end(self) -> None:
        """Handles what waits."""
        frames, self._frames, self._messages, self._bytes = self._frames, [], 0, 0
        if len(frames) > 1 and not self._session.closed and self._handle(self._session, frames):
            return
        for frame in frames:
            self._session.handle(frame)


# --------------------------------------------------------------------------------------------------- publish


def publish(session: Session, frames: Sequence[PlainPublish | PlainBytesPublish]) -> bool:
    """Stores the frames' messages as one call, whose blocks they share."""
    hub, principal = session.hub, session.principal
    assert principal is not None
    if hub.draining or hub.intake.publishes:
        return False
    try:
        queue = hub.desk.publish_to(principal, frames[0].queue)
        if not hub.desk.may_join(queue):
            return False
        for frame in frames:
            check_id(frame.id)
            if not frame.messages:
                return False
        bodies = [message.body for frame in frames for message in frame.messages]
        prepared = hub.desk.prepare_plain(queue, bodies, session.encoding)
    except PushqError:
        return False
    size = prepared.size
    if not hub.intake.room.take(principal.tenant, size):
        return False
    if not hub.throttle.publish_together(session.who, (frames[0].queue, prepared.blocks), len(frames)):
        hub.intake.room.give(principal.tenant, size)
        return False
    session.gate.passed(len(frames))
    _store(session, frames, queue, prepared, principal.tenant)
    return True


def _store(session: Session, frames: Sequence[Any], queue: Target, prepared: Prepared, tenant: str) -> None:
    asked = Asked(
        session,
        "publish",
        frames[0].queue,
        messages=sum([len(frame.messages) for frame in frames]),
        bytes_in=prepared.size,
        requests=len(frames),
    )
    done = partial(_published, asked, frames, queue.config, prepared, tenant)
    queue.publish(prepared.blocks, done, until_ms=session.hub.until_ms(None))


def _published(
    asked: Asked,
    frames: Sequence[Any],
    config: QueueConfig,
    prepared: Prepared,
    tenant: str,
    result: Published | PushqError,
) -> None:
    session = asked.session
    session.hub.intake.room.give(tenant, prepared.size)
    if isinstance(result, PushqError):
        asked.ended(result)
        if isinstance(result, Overloaded):
            session.hub.intake.met_end()
        for frame in frames:
            session.error(frame.id, result)
        return
    asked.ended(refusal(result))
    first = 0
    for frame in frames:
        count = len(frame.messages)
        own = part(result, prepared, first, count)
        first += count
        if (error := refusal(own)) is not None:
            session.error(frame.id, error)
        elif frame.id is not None:
            session.reply(published_ok(frame.id, own, prepared, config, session.encoding))


# ------------------------------------------------------------------------------------------------------- ack


def ack(session: Session, frames: Sequence[Ack]) -> bool:
    """Settles the receipts of frames that want no answer."""
    assert session.principal is not None
    try:
        queue = session.hub.desk.queue(session.principal, frames[0].queue, "consume")
    except PushqError:
        return False
    receipts = list(chain.from_iterable([frame.receipts for frame in frames]))
    queue.settle_quietly(receipts)
    session.count("ack", frames[0].queue, messages=len(receipts), requests=len(frames))
    return True
