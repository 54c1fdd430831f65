"""Replies in memory: what is under way, what is kept, and for how long."""

from __future__ import annotations

from backend_store.model import Claim
from gateway.publishing.reply_cache import MemoryReplies, Reply
from push.encoding.publish_reply import Run


def claim(number: int, payload: bytes = b"p" * 16) -> Claim:
    return Claim(number.to_bytes(16, "big"), payload)


def reply(runs: int = 1) -> Reply:
    return Reply(b"p" * 16, tuple(Run(0, 2 * n, 1) for n in range(runs)))


def test_the_first_is_under_way_until_it_is_finished() -> None:
    replies = MemoryReplies()
    assert replies.begin(claim(1)) is None
    assert replies.begin(claim(1)) == Reply(b"p" * 16, None)
    replies.finish(claim(1), reply(), 60_000)
    assert replies.begin(claim(1)) == reply()


def test_after_a_failure_the_next_one_is_the_first() -> None:
    replies = MemoryReplies()
    assert replies.begin(claim(1)) is None
    replies.drop(claim(1))
    assert replies.begin(claim(1)) is None


def test_a_reply_goes_with_its_window() -> None:
    replies = MemoryReplies()
    replies.begin(claim(1))
    replies.finish(claim(1), reply(), 0)
    assert replies.begin(claim(1)) is None


def test_many_runs_make_the_least_used_replies_leave() -> None:
    replies = MemoryReplies(runs_max=10)
    for number in range(4):
        replies.begin(claim(number))
        replies.finish(claim(number), reply(3), 60_000)
    assert replies.begin(claim(0)) is None
    assert replies.begin(claim(3)) == reply(3)


def test_a_reply_that_is_too_big_is_not_kept() -> None:
    replies = MemoryReplies(runs_max=10)
    replies.begin(claim(1))
    replies.finish(claim(1), reply(11), 60_000)
    assert replies.begin(claim(1)) is None
