"""Asks a former place of a queue what it remembers of a call's messages, before the call is sent to their present
place.

A publish with an id waits for the answer, so there may be as many questions as publishes. They are batched: questions
that come during a request wait, and leave with the next one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from backend_store.client.queue import PublishReply
from backend_store.model import Block, Claim, Overloaded, Published, PushqError
from backend_store.remote.limits import LINE_CALLS_MAX, RECALL_CALLS_MAX, RECALL_MESSAGES_SOFT_MAX
from backend_store.service.recalling import Answer, FindKnown, Recall
from backend_store.wire.store_frames import SentBlock, error_of, of_bits, published

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue

log = structlog.get_logger("pushq.remote")

_answers = msgspec.msgpack.Decoder(list[Answer]).decode


class _Waiting(NamedTuple):
    blocks: list[Block]
    claim: Claim | None
    reply: PublishReply


class Recalls:
    """The questions about one queue to one shard, one request at a time; the `RemoteQueue` owns it."""

    def __init__(self, queue: RemoteQueue) -> None:
        self._queue = queue
        self._waiting: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        """The questions of the request in flight."""
        self._is_asking = False

    def add(self, blocks: list[Block], claim: Claim | None, reply: PublishReply) -> None:
        """Adds a question; `reply` runs later, with `Overloaded` if too many wait."""
        if len(self._waiting) >= LINE_CALLS_MAX:
            error = Overloaded(f"{LINE_CALLS_MAX} requests are already waiting for the backend", retry_after_ms=500)
            self._queue.soon(partial(reply, error))
            return
        self._waiting.append(_Waiting(blocks, claim, reply))
        if not self._is_asking:
            self._is_asking = True
            self._queue.background(self._ask_on())

    async def _ask_on(self) -> None:
        try:
            while self._waiting:
                async with self._queue.home.recalling:
                    self._asked = self._take()
                    results = await self._results()
                self._tell(results)
        finally:
            self._is_asking = False
            if left := len(self._asked) + len(self._waiting):  # the store is closing
                self._asked, self._waiting = [*self._asked, *self._waiting], []
                self._tell([self._queue.home.line.unavailable()] * left)

    def _take(self) -> list[_Waiting]:
        """Takes the waiting questions that fit into one request."""
        calls = messages = 0
        for one in self._waiting[:RECALL_CALLS_MAX]:
            calls += 1
            messages += sum(block.count for block in one.blocks)
            if messages >= RECALL_MESSAGES_SOFT_MAX:
                break
        taken, self._waiting = self._waiting[:calls], self._waiting[calls:]
        return taken

    async def _results(self) -> list[Published | PushqError]:
        queue, definition = self._queue, self._queue.definition
        calls = [Recall(_without_bodies(one.blocks), one.claim) for one in self._asked]
        try:
            if not queue.home.adopted.knows(definition):
                await queue.home.adopted.tell([definition])
            asked = FindKnown(queue.tenant, queue.name, queue.uid, definition.version, calls)
            answers = _answers(await queue.home.ask(asked, may_repeat=True))
        except PushqError as error:
            return [error] * len(calls)
        return [_result(answer) for answer in answers]

    def _tell(self, results: list[Published | PushqError]) -> None:
        asked, self._asked = self._asked, []
        for one, result in zip(asked, results, strict=True):
            try:
                one.reply(result)
            except Exception:  # the other calls must still be answered
                log.exception("a call that was asked about failed", queue=self._queue.name)


def _result(answer: Answer) -> Published | PushqError:
    found, wrong = answer
    if wrong is not None:
        return error_of(wrong)
    assert found is not None, "an answer is one of both"
    return published(found)


def _without_bodies(blocks: list[Block]) -> list[SentBlock]:
    return [SentBlock(b"", one.count, one.priority, one.due_ms, one.traits, of_bits(one.slots)) for one in blocks]
