"""What a call under a known key is answered."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from backend_store.model import Claim, Offset, Original, Published, PushqError, QueueConfig
from gateway.admission.dependency_guard import Guards
from gateway.admission.setup import NoRedisLibrary
from gateway.publishing.idempotent_publish import IdempotentPublish, is_replay, replayed
from gateway.publishing.reply_cache import Reply
from gateway.publishing.shared_reply_cache import RedisReplies
from push.encoding.publish_reply import Run, repeated_call, runs_of_call
from push.ports import Prepared

MINE = Claim(b"k" * 16, b"a" * 16)
RUNS = (Run(0, 7, 1), Run(1, 3, 1))


def code(answer: Published | PushqError) -> str:
    return answer.code if isinstance(answer, PushqError) else "answered"


def test_another_payload_is_refused_once_the_first_one_is_answered() -> None:
    assert code(replayed(Reply(b"a" * 16, RUNS), Prepared([]), MINE)) == "answered"
    assert code(replayed(Reply(b"b" * 16, RUNS), Prepared([]), MINE)) == "idempotency-mismatch"


def test_a_request_under_way_does_not_say_yet_whose_the_key_is() -> None:
    """It may itself be the one with another payload, and be refused."""
    for payload in (b"a" * 16, b"b" * 16):
        assert code(replayed(Reply(payload), Prepared([]), MINE)) == "request-in-progress"


def test_places_are_those_of_the_call_however_its_blocks_are_grouped_now() -> None:
    answer = replayed(Reply(b"a" * 16, RUNS), Prepared([], order=[1, 0]), MINE)
    assert isinstance(answer, Published) and is_replay(answer)
    assert answer.others == {0: Original(3, 1), 1: Original(7, 0)}


def test_a_reply_keeps_messages_that_lie_together_as_one_run() -> None:
    together = Published(2, Offset(40), 5)
    assert runs_of_call(together, Prepared([])) == (Run(2, 40, 5),)
    split = Published(2, Offset(40), 3, others={1: Original(7)})
    assert runs_of_call(split, Prepared([])) == (Run(2, 40, 1), Run(2, 7, 1), Run(2, 42, 1))
    scattered = Published(0, Offset(1), 4, places=[(0, 1), (0, 2), (1, 2), (1, 3)])
    assert runs_of_call(scattered, Prepared([])) == (Run(0, 1, 2), Run(1, 2, 2))


def test_a_reply_of_several_runs_says_every_place_again() -> None:
    runs = (Run(2, 40, 1), Run(2, 7, 1), Run(2, 42, 1))
    answer = repeated_call(runs, Prepared([]), fsynced=True, replicas=3)
    assert runs_of_call(answer, Prepared([])) == runs
    one = repeated_call(runs[:1], Prepared([]), fsynced=True, replicas=3)
    assert is_replay(one) and runs_of_call(one, Prepared([])) == runs[:1]


class Slow:
    """A queue that answers when it is told to."""

    config = QueueConfig()

    def __init__(self) -> None:
        self.replies: list[Callable[[Published | PushqError], None]] = []

    def publish(
        self, blocks: list[Any], reply: Callable[[Published | PushqError], None], claim: Claim, until_ms: int
    ) -> None:
        self.replies.append(reply)


def redis_replies(script: Callable[..., Awaitable[list[Any]]]) -> RedisReplies:
    shared = RedisReplies("redis://127.0.0.1:1", Guards(), identity=b"me")
    shared._script = script
    return shared


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_whatever_is_wrong_with_shared_replies_the_partition_answers() -> None:
    asked: list[int] = []

    async def unforeseen(*, keys: list[bytes], args: list[Any]) -> list[Any]:
        asked.append(len(keys))
        raise ValueError("not foreseen")

    queue, answers = Slow(), list[Published | PushqError]()
    once = IdempotentPublish(redis_replies(unforeseen), ask_seconds=0)
    once.publish(cast(Any, queue), Prepared([], claim=MINE), answers.append)
    await turns()
    assert asked == [1] and not answers
    refusal = PushqError("full", code="queue-full")
    queue.replies[0](refusal)
    assert answers == [refusal]


@pytest.mark.anyio
async def test_who_answers_first_answers_once() -> None:
    async def known(*, keys: list[bytes], args: list[Any]) -> list[Any]:
        return [msgspec.msgpack.encode(Reply(MINE.payload, (Run(0, 7, 2),)))] * args[0]

    queue, answers = Slow(), list[Published | PushqError]()
    once = IdempotentPublish(redis_replies(known), ask_seconds=0)
    once.publish(cast(Any, queue), Prepared([], claim=MINE), answers.append)
    await turns()
    assert [(one.base, one.is_repeat) for one in answers if isinstance(one, Published)] == [(7, True)]
    queue.replies[0](Published(0, Offset(7), 2, is_repeat=True))
    assert len(answers) == 1
    once.publish(cast(Any, queue), Prepared([], claim=MINE), answers.append)
    assert len(answers) == 2 and len(queue.replies) == 1  # from memory


@pytest.mark.anyio
async def test_a_partition_that_answers_soon_is_the_only_one_that_is_asked() -> None:
    trips: list[int] = []

    async def counted(*, keys: list[bytes], args: list[Any]) -> list[Any]:
        trips.append(args[0])
        return [None] * args[0]

    queue, answers = Slow(), list[Published | PushqError]()
    once = IdempotentPublish(redis_replies(counted), ask_seconds=30)
    for number in range(5):
        claim = Claim(b"%016d" % number, b"a" * 16)
        once.publish(cast(Any, queue), Prepared([], claim=claim), answers.append)
        queue.replies[-1](Published(0, Offset(number), 1))
    assert len(answers) == 5
    async with asyncio.timeout(5):
        while not trips:  # noqa: ASYNC110 - the task that writes has no other end to wait for
            await asyncio.sleep(0.001)
    assert trips == [0]  # all five replies with one trip, and no question


def test_replies_without_the_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(NoRedisLibrary, match=r"pip install 'pushq\[redis\]'"):
        RedisReplies("redis://127.0.0.1:1", Guards(), identity=b"me")
