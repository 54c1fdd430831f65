"""What a call under a known key is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.model import Claim, Original, Published, PushqError
from gateway.once import Once, is_replay, replayed
from gateway.replies import RedisReplies, Reply
from push.ports import Prepared

MINE = Claim(b"k" * 16, b"a" * 16)
PLACES = ((0, 7), (1, 3))


def code(answer: Published | PushqError) -> str:
    return answer.code if isinstance(answer, PushqError) else "answered"


def test_another_payload_is_refused_once_the_first_one_is_answered() -> None:
    assert code(replayed(Reply(b"a" * 16, PLACES), Prepared([]), MINE)) == "answered"
    assert code(replayed(Reply(b"b" * 16, PLACES), Prepared([]), MINE)) == "idempotency-mismatch"


def test_a_request_under_way_does_not_say_yet_whose_the_key_is() -> None:
    """It may itself be the one with another payload, and be refused."""
    for payload in (b"a" * 16, b"b" * 16):
        assert code(replayed(Reply(payload), Prepared([]), MINE)) == "request-in-progress"


def test_places_are_those_of_the_call_however_its_blocks_are_grouped_now() -> None:
    answer = replayed(Reply(b"a" * 16, PLACES), Prepared([], order=[1, 0]), MINE)
    assert isinstance(answer, Published) and is_replay(answer)
    assert answer.others == {0: Original(3, 1), 1: Original(7, 0)}


class Broken:
    """Shared replies that fail in a way nobody thought of."""

    async def begin(self, claim: Claim) -> None:
        raise ValueError("not foreseen")

    async def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        raise AssertionError("what was not stored is not kept")

    async def drop(self, claim: Claim) -> None: ...


@pytest.mark.anyio
async def test_whatever_is_wrong_with_shared_replies_the_partition_answers() -> None:
    refusal = PushqError("full", code="queue-full")

    def publish(blocks: list[Any], reply: Callable[[PushqError], None], claim: Claim, until_ms: int) -> None:
        reply(refusal)

    queue = cast(Any, SimpleNamespace(publish=publish))
    answers: list[Published | PushqError] = []
    once = Once(cast(RedisReplies, Broken()))
    once.publish(queue, Prepared([], claim=MINE), answers.append)
    async with asyncio.timeout(5):
        while not answers:  # noqa: ASYNC110 - the task that asks has no other end to wait for
            await asyncio.sleep(0)
    assert answers == [refusal]
