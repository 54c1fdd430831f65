"""What a caller is told whose time is over, and what became of the work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend_store.client import changed, waited_until
from backend_store.model import OutcomeUnknown, Overloaded, PushqError, Unavailable
from gateway.api.timeouts import Late, begin, in_time
from gateway.limits import LATE_CHANGES_PER_CALLER_MAX
from gateway.metadata.catalog import Flight
from push.delivery.lookup_retry import LookingUp, answered, asks, found

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("is_changed", "told"), [(False, Unavailable), (True, OutcomeUnknown)])
async def test_nobody_hears_that_nothing_was_done_when_the_look_up_behind_a_change_came_too_late(
    is_changed: bool, told: type[PushqError]
) -> None:
    def look() -> Any:
        raise LookingUp("queue 'q'", Flight())

    async def patch() -> Any:
        if is_changed:
            changed()
        return await found(look)

    asked = asks(0.001)
    assert asked is not None
    try:
        with pytest.raises(told, match="look"):
            await in_time("PATCH", begin(patch()), waited_until())
    finally:
        answered(asked)


async def test_of_one_caller_so_many_changes_go_on_past_their_time_and_no_more() -> None:
    late, end = Late(), asyncio.Event()
    going_on = [
        asyncio.create_task(late.over(asyncio.create_task(end.wait()), "hasty"))
        for _ in range(LATE_CHANGES_PER_CALLER_MAX)
    ]
    late.check("hasty")
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="nothing was done"):
        late.check("hasty")
    late.check("other")
    end.set()
    await asyncio.gather(*going_on)
    late.check("hasty")
