"""Waiting for what must come: it ends when it is so, and says what never came."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.patience import eventually, until

pytestmark = pytest.mark.anyio

SOON_S = 0.05


class Later:
    """So at the third look."""

    looks = 0

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks >= 3


async def test_it_ends_when_it_is_so_and_says_how_long_it_took() -> None:
    assert until(now := Later(), look_s=0) >= 0 and now.looks == 3
    assert await eventually(later := Later(), look_s=0) >= 0 and later.looks == 3


async def test_a_question_may_be_awaited() -> None:
    later = Later()

    async def is_so() -> bool:
        return later()

    await eventually(is_so)
    assert later.looks == 3


async def test_what_never_comes_is_named() -> None:
    for what in ("the rain", lambda: "the rain"):
        with pytest.raises(AssertionError, match=r"not within 0\.05 s: the rain"):
            until(lambda: False, what, within_s=SOON_S)
        with pytest.raises(AssertionError, match=r"not within 0\.05 s: the rain"):
            await eventually(lambda: False, what, within_s=SOON_S)


async def test_without_words_the_line_that_asks_is_shown() -> None:
    clouds = 0
    with pytest.raises(AssertionError, match="clouds > 3"):
        until(lambda: clouds > 3, within_s=SOON_S)
    with pytest.raises(AssertionError, match="not within"):
        until(bool, within_s=SOON_S)


async def test_a_question_that_hangs_is_given_up() -> None:
    with pytest.raises(AssertionError, match="an answer"):
        await eventually(asyncio.Event().wait, "an answer", within_s=SOON_S)


async def test_a_time_out_of_the_question_is_its_own() -> None:
    async def is_so() -> bool:
        raise TimeoutError("of the client")

    with pytest.raises(TimeoutError, match="of the client"):
        await eventually(is_so)


async def test_a_task_beside_it_that_fails_ends_the_wait() -> None:
    async def work() -> None:
        raise ValueError("broken")

    task = asyncio.create_task(work())
    with pytest.raises(ValueError, match="broken"):
        await eventually(lambda: False, beside=[task])
