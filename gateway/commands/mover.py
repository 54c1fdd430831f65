"""The work of `pushq move`: receives messages from one queue and publishes them to another, a batch at a time.

If the queues share a transaction ("common step"), a batch is acked and published atomically: whatever is interrupted,
each message is in exactly one of the two queues. Otherwise a message is published first, with an idempotency key or id
by which the other queue recognises a repeat, and acked then.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from gateway.commands.output import tell
from gateway.commands.session_events import said
from push.client import Admin, ApiError, PushqError
from push.client.errors import api_error, problem_from_frame
from web_console.wording import counted

STEP_MESSAGES_MAX: Final = 100
ALONE_MESSAGES_MAX: Final = 20
"""The batch size where messages go one by one: the leases must outlast the last ack."""
HOLD_MS: Final = 60_000
WAIT_MS: Final = 200
"""Ready messages arrive within this time."""
PATIENCE_S: Final = 15.0
PAUSE_S: Final = 0.5
OUTCOME_UNKNOWN: Final = "outcome-unknown"
_MADE_BY_SERVER: Final = re.compile(r"[0-9]{1,5}-[0-9a-f]{12,16}")
"""An id that the server generated, from the message's place in its queue."""

T = TypeVar("T")


class Taken(msgspec.Struct, frozen=True):
    """A message as received; a JSON body is not decoded."""

    id: str
    seq: int
    partition: int
    receipt: str
    body: msgspec.Raw = msgspec.Raw()
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0
    expires_at: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None


class _Received(msgspec.Struct, frozen=True):
    messages: list[Taken]


class ServerClock:
    """The time on the server's clock, by which the server expires messages: the local clock may be wrong by hours.

    It is taken from the Date header of answers, which is cut to whole seconds and at most about one second old: so it
    is up to two seconds behind and never ahead, and no message gets less than its remaining time to live.
    """

    def __init__(self) -> None:
        self._told: datetime | None = None
        self._at = 0.0

    def hear(self, date: str | None, at: float) -> None:
        """`date`: the Date header of an answer that came at this monotonic time."""
        try:
            told = None if date is None else parsedate_to_datetime(date)
        except ValueError:
            told = None
        if told is not None:
            self._told, self._at = told.replace(tzinfo=UTC), at  # HTTP has no other zone

    def now(self, at: float) -> datetime:
        """The server's time; the local one if no answer had the header: a proxy may remove it."""
        return datetime.now(UTC) if self._told is None else self._told + timedelta(seconds=at - self._at)


class Stopped(Exception):
    """A message was not moved, because of `error`. Held ones went back, untried, if the server could be reached."""

    def __init__(self, error: PushqError, message_id: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.message_id = message_id


class Mover:
    """Moves batches, and counts the outcomes."""

    def __init__(
        self,
        admin: Admin,
        source: Mapping[str, Any],
        to: Mapping[str, Any],
        *,
        is_one_step: bool,
        must_be_one_step: bool,
        new_ids: bool,
    ) -> None:
        self._admin = admin
        self._from = f"/v1/queues/{quote(source['name'], safe='')}"
        self._to = f"/v1/queues/{quote(to['name'], safe='')}"
        self._to_name = to["name"]
        self._origin = f"{source['name']} {source['created_at']}"
        self._new_ids = new_ids
        self._knows_ids = to["config"]["dedupe"] == "id" and not new_ids
        self.knows_content = to["config"]["dedupe"] == "content"
        self.is_one_step = is_one_step
        self._must_be_one_step = must_be_one_step
        self._clock = ServerClock()
        self.moved = 0
        self.repeats = 0
        """Of the moved: the other queue knew these already, and did not store them again."""
        self.dropped = 0
        """Of the repeats: recognised by an id or content that another message may have had, so they may be in neither
        queue.

        The others are recognised by a key or id that only a move generates: an earlier run stored them.
        """
        self.lapsed = 0
        """Their leases ended before the ack, so another consumer may have them. They stay in the source."""
        self.in_both = 0
        """Stored in the other queue, and not acked."""
        self.in_doubt = 0
        """No answer came: each is in one of the queues."""

    @property
    def done(self) -> int:
        """How many messages have an outcome."""
        return self.moved + self.lapsed + self.in_both + self.in_doubt

    async def batch(self, most: int) -> bool:
        """Moves up to `most` messages; False if none was ready. Raises `Stopped`, or why the server did not answer."""
        at_once = STEP_MESSAGES_MAX if self.is_one_step or self._knows_ids else ALONE_MESSAGES_MAX
        body = {"max": min(most, at_once), "wait_ms": WAIT_MS, "visibility_timeout_ms": HOLD_MS}
        answer = await _patiently(lambda: self._admin.request("POST", f"{self._from}/receive", json=body))
        self._clock.hear(answer.headers.get("date"), time.monotonic())
        taken = msgspec.json.decode(answer.content, type=_Received).messages
        if taken:
            await (self._together(taken) if self.is_one_step else self._one_after_the_other(taken))
        return bool(taken)

    async def _together(self, taken: Sequence[Taken]) -> None:
        """Acks and publishes in one transaction. If that is refused nothing was done, and each message goes by
        itself."""
        try:
            if await self._step(taken):
                return
        except ApiError as error:
            if _has_no_step(error) and not self._must_be_one_step:
                self.is_one_step = False
                await self._one_after_the_other(taken)
                return
            if len(taken) == 1 or error.code == OUTCOME_UNKNOWN:
                await self._stop(taken, error)
        except PushqError as error:
            await self._stop(taken, error)
        for number, each in enumerate(taken if len(taken) > 1 else ()):
            try:
                await self._step([each])
            except PushqError as error:
                await self._stop(taken[number:], error)

    async def _step(self, taken: Sequence[Taken]) -> bool:
        """Acks and publishes atomically. True: the outcome is counted. False: a lease had ended, and nothing was
        done."""
        body = {"receipts": [each.receipt for each in taken], "publish": [self._publish(taken)]}
        tried = _Tries()
        try:
            answer = await _patiently(lambda: self._admin.ask("POST", f"{self._from}/ack", json=body), tried)
        except PushqError as error:
            self.in_doubt += len(taken) if error.code == OUTCOME_UNKNOWN else 0
            raise
        if all(result["ok"] for result in answer["results"]):
            self._count(len(taken), taken, [row for one in answer.get("published") or () for row in one["messages"]])
        elif tried.count > 1:
            self.in_doubt += len(taken)  # an earlier try may have moved them: then these receipts are spent
        elif len(taken) == 1:
            self.lapsed += 1
        else:
            return False
        return True

    async def _one_after_the_other(self, taken: Sequence[Taken]) -> None:
        """Publishes, then acks, in order, up to the first refusal."""
        for part in [taken] if self._knows_ids else [[each] for each in taken]:
            try:
                rows = await self._store(part)
            except PushqError as error:
                await self._stop(taken[taken.index(part[0]) :], error)
            stored = [each for each, row in zip(part, rows, strict=True) if not row.get("error")]
            try:
                results = await _patiently(partial(self._ack, stored)) if stored else []
            except PushqError as error:
                self.in_both += len(stored)
                await self._stop(taken[taken.index(part[0]) + len(stored) :], error)
            self._count(sum(result["ok"] for result in results), part, rows)
            self.in_both += sum(not result["ok"] for result in results)
            if refused := [row["error"] for row in rows if row.get("error")]:
                left = [each for each in taken[taken.index(part[0]) :] if each not in stored]
                await self._stop(left, api_error(problem_from_frame(refused[0])))

    async def _store(self, part: Sequence[Taken]) -> list[Mapping[str, Any]]:
        """Publishes messages. Returns the server's result for each."""
        headers = {} if self._knows_ids else {"Idempotency-Key": self._name(part[0])}
        body = {"messages": self._publish(part)["messages"]}
        try:
            answer = await _patiently(
                lambda: self._admin.request("POST", f"{self._to}/messages", json=body, headers=headers)
            )
        except ApiError as error:
            if error.code != "idempotency-mismatch":
                raise
            # The key identifies this one message: an earlier run stored it, when it had longer to live.
            return [{"duplicate": True}]
        rows: list[Mapping[str, Any]] = msgspec.json.decode(answer.content)["messages"]
        return rows

    async def _stop(self, held: Sequence[Taken], error: PushqError) -> NoReturn:
        if held:
            await self._give_back(held)
        raise Stopped(error, held[0].id if held else "") from error

    async def _ack(self, taken: Sequence[Taken]) -> list[dict[str, Any]]:
        body = {"receipts": [each.receipt for each in taken]}
        results: list[dict[str, Any]] = (await self._admin.ask("POST", f"{self._from}/ack", json=body))["results"]
        return results

    async def _give_back(self, taken: Sequence[Taken]) -> None:
        body = {"receipts": [each.receipt for each in taken], "tried": False}
        try:
            await self._admin.ask("POST", f"{self._from}/nack", json=body)
        except PushqError as error:
            some = counted(len(taken), "message")
            tell(f"{some} could not be returned and will be redelivered in {HOLD_MS // 1000} s: {error}")

    def _publish(self, taken: Sequence[Taken]) -> dict[str, Any]:
        now = self._clock.now(time.monotonic())
        messages = [outgoing(each, now, new_id=self._new_ids) for each in taken]
        if self._knows_ids:
            for each, message in zip(taken, messages, strict=True):
                if self._is_named(each):
                    message["id"] = self._name(each)  # another message may have that id in the other queue
        return {"queue": self._to_name, "messages": messages}

    def _is_named(self, message: Taken) -> bool:
        """Whether the other queue recognises a repeat only by the name that we generate for it."""
        if self.knows_content:
            return False
        return not self._knows_ids or _MADE_BY_SERVER.fullmatch(message.id) is not None

    def _name(self, message: Taken) -> str:
        """A key that is the same whenever this message is moved, and no other's: the queue does not store a repeat."""
        place = f"{self._origin} {message.partition} {message.seq} {message.id} {self._to_name}"
        return "move-" + hashlib.sha256(place.encode()).hexdigest()[:40]

    def _count(self, moved: int, part: Sequence[Taken], rows: Sequence[Mapping[str, Any]]) -> None:
        self.moved += moved
        repeats = [each for each, row in zip(part, rows, strict=False) if row.get("duplicate")]
        self.repeats += len(repeats)
        self.dropped += sum(not self._is_named(each) for each in repeats)


def outgoing(message: Taken, now: datetime, *, new_id: bool = False) -> dict[str, Any]:
    """The message as it is published again: all fields that its producer set, and the rest of its time to live."""
    fields = {
        "id": None if new_id else message.id,
        "content_type": message.content_type,
        "headers": message.headers or None,
        "key": message.key,
        "priority": message.priority or None,
        "ttl_ms": None if message.expires_at is None else _left_ms(message.expires_at, now),
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
    }
    body = {"body": message.body} if message.body_base64 is None else {"body_base64": message.body_base64}
    return body | {name: value for name, value in fields.items() if value is not None}


def _left_ms(expires_at: str, now: datetime) -> int:
    left = datetime.fromisoformat(expires_at) - now
    return max(1, int(left.total_seconds() * 1000))


def _has_no_step(error: ApiError) -> bool:
    return error.code == "invalid-request" and any(
        one.pointer.startswith("/publish/0/queue") for one in error.problem.errors or ()
    )


class _Tries:
    """Counts the tries of a request."""

    count = 0


async def _patiently(ask: Callable[[], Awaitable[T]], tried: _Tries | None = None) -> T:
    """Retries while the server asks to come back later, as long as a person waits; our requests may be repeated."""
    tried = tried or _Tries()
    until = time.monotonic() + PATIENCE_S
    while True:
        tried.count += 1
        try:
            return await ask()
        except PushqError as error:
            wait_s = getattr(error, "retry_after_s", None) or PAUSE_S
            if not error.retryable or time.monotonic() + wait_s > until:
                raise
            if isinstance(error, ApiError):
                tell(f"{said(error.problem)}; retrying in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
