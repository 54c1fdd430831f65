"""What a call under a known key is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.model import Claim, Offset, Original, Published, PushqError
from gateway.guard import Guards
from gateway.once import Once, is_replay, replayed
from gateway.replies import Reply
from gateway.shared_replies import RedisReplies
from push.ports import Prepared
from push.published import Run, repeated_call, runs_of_call

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


async def unforeseen(*, keys: list[bytes], args: list[Any]) -> list[Any]:
    raise ValueError("not foreseen")


@pytest.mark.anyio
async def test_whatever_is_wrong_with_shared_replies_the_partition_answers() -> None:
    refusal = PushqError("full", code="queue-full")

    def publish(blocks: list[Any], reply: Callable[[PushqError], None], claim: Claim, until_ms: int) -> None:
        reply(refusal)

    shared = RedisReplies("redis://127.0.0.1:1", Guards(), identity=b"me")
    shared._script = unforeseen
    queue = cast(Any, SimpleNamespace(publish=publish))
    answers: list[Published | PushqError] = []
    once = Once(shared)
    once.publish(queue, Prepared([], claim=MINE), answers.append)
    async with asyncio.timeout(5):
        while not answers:  # noqa: ASYNC110 - the task that asks has no other end to wait for
            await asyncio.sleep(0)
    assert answers == [refusal]
