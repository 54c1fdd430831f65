"""Publishing: messages gather into batches, wait for their confirmation, and are sent again after a cut.

A message leaves the publisher once: confirmed, refused for good, or given up after its time. Until then it keeps its
encoded form, its id and its number, so that a repeat is the same message to the server.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from push.client.config import Limits
from push.client.core.backoff import asked_wait_s, delay_s
from push.client.core.numbering import OWN_FIELDS, Numbered, Numbering
from push.client.errors import (
    ApiError,
    FieldError,
    OutcomeUnknown,
    Problem,
    PushqError,
    Unavailable,
    api_error,
    is_definite,
)
from push.client.frames import Ok, Publish, PublishedItem
from push.client.model import Published, TraceContext

_ONE_MESSAGE_STATUSES = frozenset({400, 413, 422})
"""Refusals caused by one message: if the answer does not name it, each message is sent again in a frame of its own."""


_NO_TRACE = None, None


class Entry(Numbered):
    """One unconfirmed message; `ticket` is the caller's, and comes back with the result."""

    __slots__ = (
        "deadline",
        "goes_alone",
        "idempotency_key",
        "last_error",
        "ticket",
        "timeout_s",
        "trace",
        "tries",
        "was_sent",
    )

    def __init__(
        self,
        message: msgspec.Raw,
        ticket: object,
        deadline: float,
        idempotency_key: str | None = None,
        trace: TraceContext | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.timeout_s = timeout_s
        """The caller's timeout; the server is told the time that is left."""
        self.trace = trace
        """All messages of one frame have the same."""
        self.idempotency_key = idempotency_key
        self.ticket = ticket
        self.deadline = deadline
        self.tries = 0
        self.was_sent = False
        self.goes_alone = idempotency_key is not None
        """An idempotency key covers a whole frame."""
        self.last_error: ApiError | None = None


class Batch(NamedTuple):
    """The messages of one `publish` frame."""

    queue: str
    entries: Sequence[Entry]
    deadline: float
    """When no answer is expected any more."""


_NOTHING = Batch("", (), math.inf)
"""The batch of an answer whose batch was given up before."""


class Outcome(NamedTuple):
    """How one message ended."""

    ticket: object
    result: Published | PushqError


class _Lane:
    """One queue's messages that are not in flight, oldest first."""

    __slots__ = ("bytes", "hold_until", "pending")

    def __init__(self) -> None:
        self.pending: deque[Entry] = deque()
        self.hold_until = -math.inf


class Publisher:
    """The publishing half of a session."""

    def __init__(self, limits: Limits, chance: Callable[[], float], numbering: Numbering) -> None:
        self._limits = limits
        self._chance = chance
        self._numbering = numbering
        self._lanes: dict[str, _Lane] = {}
        self._in_flight: dict[int, Batch] = {}
        self.unconfirmed = 0
        self._earliest_deadline = math.inf

    @property
    def window_left(self) -> int:
        """How many messages may be added before the caller has to wait."""
        return self._limits.publish_window_messages - self.unconfirmed

    def owns(self, request_id: int | str | None) -> bool:
        """Whether this is the id of an unanswered frame of ours."""
        return request_id in self._in_flight

    def add(
        self,
        queue: str,
        message: msgspec.Raw,
        ticket: object,
        now: float,
        idempotency_key: str | None = None,
        trace: TraceContext | None = None,
        timeout_s: float | None = None,
    ) -> Entry:
        """Add a message; it is sent with the next `take`."""
        if queue not in self._lanes:
            self._numbering.open(queue)
        deadline = now + (self._limits.publish_timeout_s if timeout_s is None else timeout_s)
        entry = Entry(message, ticket, deadline, idempotency_key, trace, timeout_s)
        self._lane(queue).pending.append(entry)
        self.unconfirmed += 1
        if entry.deadline < self._earliest_deadline:
            self._earliest_deadline = entry.deadline
        return entry

    def give_up(self, queue: str, entry: Entry) -> None:
        """The caller does not wait any more. A message that was not sent yet never will be, and makes room."""
        lane = self._lanes.get(queue)
        if lane is not None and not entry.was_sent and entry in lane.pending:
            lane.pending.remove(entry)
            self.unconfirmed -= 1

    def take(self, now: float, next_id: Callable[[], int]) -> list[Publish]:
        """The frames to send now. While several are unanswered only full ones are sent, so that small ones gather."""
        frames: list[Publish] = []
        for queue, lane in self._lanes.items():
            while lane.pending and lane.hold_until <= now:
                entries, is_full = self._next_batch(lane)
                if not is_full and len(self._in_flight) >= self._limits.publish_frames_in_flight_max:
                    lane.pending.extendleft(reversed(entries))
                    break
                frames.append(self._send(queue, entries, next_id(), now))
        if frames:
            self._lanes = {queue: lane for queue, lane in self._lanes.items() if lane.pending}
        return frames

    def answered(self, request_id: int, ok: Ok, now: float) -> list[Outcome]:
        """The server took the batch; each message has its own result."""
        queue, entries, _ = self._in_flight.pop(request_id, _NOTHING)
        items = ok.messages or []
        if len(items) != len(entries):
            problem = Problem(detail=f"sent {len(entries)} messages but received {len(items)} results")
            return [self._done(entry, api_error(problem)) for entry in entries]
        self._numbering.learned(queue, ok.sequencing, ok.dedupe)
        outcomes: list[Outcome] = []
        refused: list[tuple[Entry, ApiError]] = []
        for entry, item in zip(entries, items, strict=True):
            if item.error is None and (item.seq is not None or item.duplicate):
                result = Published(item.id or "", item.seq, item.partition, item.duplicate)
                outcomes.append(self._done(entry, result))
            else:
                refused.append((entry, _error_of(item)))
        if not refused:
            self._numbering.stored(queue, entries)
            return outcomes
        failed = {id(entry) for entry, _ in refused}
        self._numbering.stored(queue, [entry for entry in entries if id(entry) not in failed])
        return outcomes + self._refused(queue, refused, now)

    def refused(self, request_id: int, problem: Problem, now: float) -> list[Outcome]:
        """The server refused the batch: the messages at fault fail, the others are sent again."""
        queue, entries, _ = self._in_flight.pop(request_id, _NOTHING)
        error = api_error(problem)
        if at_fault := _pointed_at(problem, len(entries)):
            if _are_ours(problem) and self._numbering.unknown_to_server(queue, entries):
                self._requeue(queue, entries)
                return []
            others = [entry for index, entry in enumerate(entries) if index not in at_fault]
            self._numbering.refused(queue, [entries[index] for index in at_fault], others)
            self._requeue(queue, others)
            return [self._done(entries[index], own) for index, own in at_fault.items()]
        if len(entries) > 1 and problem.status in _ONE_MESSAGE_STATUSES:
            for entry in entries:
                entry.goes_alone = True
            self._requeue(queue, entries)
            return []
        return self._refused(queue, [(entry, error) for entry in entries], now)

    def disconnected(self) -> None:
        """The connection was lost: unanswered messages are sent again, before newer ones."""
        for queue, entries, _ in reversed(self._in_flight.values()):
            self._numbering.uncertain(entries)
            self._requeue(queue, entries)
        self._in_flight.clear()

    def expire(self, now: float) -> list[Outcome]:
        """Give up messages past their deadline; one that was sent may have been stored, and its error says so."""
        if now < self._earliest_deadline:
            return []
        outcomes: list[Outcome] = []
        for request_id, batch in list(self._in_flight.items()):
            if batch.deadline <= now:
                del self._in_flight[request_id]
                self._numbering.uncertain(batch.entries)
                outcomes += [self._done(entry, self._late(entry)) for entry in batch.entries]
        for queue, lane in self._lanes.items():
            if late := [entry for entry in lane.pending if entry.deadline <= now]:
                lane.pending = deque(entry for entry in lane.pending if entry.deadline > now)
                self._numbering.refused(queue, late)
                outcomes += [self._done(entry, self._late(entry)) for entry in late]
        self._earliest_deadline = self._find_deadline()
        return outcomes

    def fail_all(self, error: PushqError) -> list[Outcome]:
        """End every message with `error`: the session is over."""
        entries = [entry for batch in self._in_flight.values() for entry in batch.entries]
        entries += [entry for lane in self._lanes.values() for entry in lane.pending]
        self._in_flight.clear()
        self._lanes.clear()
        return [self._done(entry, error) for entry in entries]

    def next_wakeup(self, now: float) -> float:
        """When `take` or `expire` next has something to do by itself."""
        held = (lane.hold_until for lane in self._lanes.values() if lane.pending and lane.hold_until > now)
        return min(self._earliest_deadline, *held, math.inf)

    def _next_batch(self, lane: _Lane) -> tuple[list[Entry], bool]:
        """Up to a frame's worth from the front, and whether the frame is full."""
        entries: list[Entry] = []
        size = 0
        while lane.pending:
            entry = lane.pending[0]
            length = len(memoryview(entry.message))
            if entries and (
                entry.goes_alone
                or entry.trace != entries[0].trace
                or not self._end_together(entry, entries[0])
                or size + length > self._limits.publish_frame_bytes_max
            ):
                return entries, True
            entries.append(lane.pending.popleft())
            size += length
            if entry.goes_alone or len(entries) == self._limits.publish_frame_messages_max:
                return entries, True
        return entries, False

    def _end_together(self, one: Entry, other: Entry) -> bool:
        """Whether these may share a frame, which has one deadline: no message may lose much of its own time."""
        if one.timeout_s is None or one.timeout_s != other.timeout_s:
            return one.timeout_s == other.timeout_s
        return abs(one.deadline - other.deadline) <= self._limits.publish_apart_s

    def _send(self, queue: str, entries: list[Entry], request_id: int, now: float) -> Publish:
        self._numbering.assign(queue, entries)
        for entry in entries:
            entry.was_sent = True
        deadline, timeout_ms = entries[0].deadline, None
        if entries[0].timeout_s is not None:
            deadline = min(entry.deadline for entry in entries)
            timeout_ms = max(1, round((deadline - now) * 1000))
            deadline += self._limits.publish_grace_s
        self._in_flight[request_id] = Batch(queue, entries, deadline)
        traceparent, tracestate = entries[0].trace or _NO_TRACE
        return Publish(
            id=request_id,
            queue=queue,
            messages=[entry.wire for entry in entries],
            idempotency_key=entries[0].idempotency_key,
            timeout_ms=timeout_ms,
            traceparent=traceparent,
            tracestate=tracestate,
        )

    def _refused(self, queue: str, refused: Sequence[tuple[Entry, ApiError]], now: float) -> list[Outcome]:
        """Each of these has its own error: some are sent again after a while, the others end here."""
        again: list[Entry] = []
        ended: list[tuple[Entry, ApiError]] = []
        for entry, error in refused:
            entry.is_uncertain |= not is_definite(error)
            if self._may_repeat(entry, error, now):
                again.append(entry)
            else:
                ended.append((entry, error))
        self._numbering.refused(queue, [entry for entry, _ in ended], again)
        self._repeat(queue, again, now)
        return [self._done(entry, _end_of(entry, error)) for entry, error in ended]

    def _may_repeat(self, entry: Entry, error: ApiError, now: float) -> bool:
        entry.last_error = error
        entry.tries += 1
        return error.retryable and entry.tries <= self._limits.publish_retries_max and now < entry.deadline

    def _repeat(self, queue: str, entries: list[Entry], now: float) -> None:
        if not entries:
            return
        error = entries[0].last_error
        asked_s = error.retry_after_s if error is not None else None
        if asked_s is None:
            wait = delay_s(entries[0].tries - 1, 0.0, self._chance(), self._limits)
        else:
            wait = asked_wait_s(asked_s, self._chance(), self._limits)
        self._requeue(queue, entries)
        self._lane(queue).hold_until = now + wait

    def _requeue(self, queue: str, entries: Sequence[Entry]) -> None:
        self._lane(queue).pending.extendleft(reversed(entries))
        for entry in entries:  # a waiting message has no grace: it ends before its frame would have
            self._earliest_deadline = min(self._earliest_deadline, entry.deadline)

    def _lane(self, queue: str) -> _Lane:
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane()
        return lane

    def _done(self, entry: Entry, result: Published | PushqError) -> Outcome:
        self.unconfirmed -= 1
        return Outcome(entry.ticket, result)

    def _late(self, entry: Entry) -> PushqError:
        if entry.last_error is not None:
            return _end_of(entry, entry.last_error)
        seconds = self._limits.publish_timeout_s if entry.timeout_s is None else entry.timeout_s
        if entry.was_sent:
            return OutcomeUnknown(f"not confirmed within {seconds:g} s: the message may have been stored")
        return Unavailable(f"no connection, or no free capacity on it, for {seconds:g} s: the message was not sent")

    def _find_deadline(self) -> float:
        in_flight = (batch.deadline for batch in self._in_flight.values())
        pending = (entry.deadline for lane in self._lanes.values() for entry in lane.pending)
        return min(*in_flight, *pending, math.inf, math.inf)


def _end_of(entry: Entry, error: ApiError) -> PushqError:
    """The error of a message that ends with this refusal. If one of its tries was not answered, it may be stored all
    the same."""
    if not (entry.is_uncertain and error.retryable):
        return error
    unknown = OutcomeUnknown(f"the message may have been stored; the server's last error: {error}")
    unknown.__cause__ = error
    return unknown


def _error_of(item: PublishedItem) -> ApiError:
    return api_error(item.error or Problem(detail="the server returned neither a seq nor an error for the message"))


def _pointed_at(problem: Problem, count: int) -> dict[int, ApiError]:
    """Each message that `errors[].pointer` (`/messages/3/key`) names, with its own part of the problem."""
    found: dict[int, list[FieldError]] = {}
    for error in problem.errors:
        parts = error.pointer.split("/")
        if len(parts) > 2 and parts[1] == "messages" and parts[2].isdigit() and int(parts[2]) < count:
            found.setdefault(int(parts[2]), []).append(error)
    # The problem's own sentence counts the frame's messages, of which the producer knows nothing.
    return {index: api_error(_part(problem, own)) for index, own in found.items()}


def _are_ours(problem: Problem) -> bool:
    """Whether all fields at fault are those that the client added by itself, the producer's name among them."""
    names = {error.pointer.rpartition("/")[2] for error in problem.errors}
    return "producer" in names and names <= OWN_FIELDS


def _part(problem: Problem, own: list[FieldError]) -> Problem:
    errors = [FieldError("/" + "/".join(error.pointer.split("/")[3:]), error.detail) for error in own]
    return msgspec.structs.replace(problem, detail="the message was refused", errors=tuple(errors))
