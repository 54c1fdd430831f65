"""Decides when `consume --until-empty` ends: no message came for a while, and none is ready in the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.commands.session_events import Teller
from gateway.commands.target import Target
from push.client import Connected, Disconnected, PushqError

if TYPE_CHECKING:
    from push.client import Message, SessionEvent, Subscription

QUIET_S = 0.5
"""Messages that the server has sent arrive within this time. It passes before the server is asked, and again after it
said that nothing is ready: messages that were ready before its answer may be on their way."""


class Emptiness:
    """Reads from the subscription, and records for how long there has been nothing to read."""

    def __init__(self, queue: str, group: str | None) -> None:
        self._queue = queue
        self._group = group
        self._waits_since: float | None = None
        self._is_connected = False
        self._tell = Teller()

    def heard(self, event: SessionEvent) -> None:
        """Handles session events: silence of a lost connection says nothing about the queue."""
        self._tell(event)
        if isinstance(event, Connected | Disconnected):
            self._is_connected = isinstance(event, Connected)
            if self._waits_since is not None:
                self._waits_since = _now()

    async def get(self, subscription: Subscription) -> Message:
        """The next message. The queue can be found empty only while this waits."""
        self._waits_since = _now()
        try:
            return await subscription.get()
        finally:
            self._waits_since = None

    async def reached(self, target: Target) -> None:
        """Returns when the queue has nothing for this consumer. Raises permanent errors, such as `forbidden`."""
        async with target.admin() as admin:
            while True:
                began = self._waits_since
                await asyncio.sleep(QUIET_S)
                if began is None or not self._is_still(began):
                    continue
                try:
                    if self._group is None:
                        left = int((await admin.get_queue(self._queue))["stats"]["ready"])
                    else:
                        left = await admin.group_lag(self._queue, self._group)
                except PushqError as error:
                    if not error.retryable:
                        raise
                    continue
                if left == 0:
                    await asyncio.sleep(QUIET_S)
                    if self._is_still(began):
                        return

    def _is_still(self, began: float) -> bool:
        return self._is_connected and self._waits_since == began


def _now() -> float:
    return asyncio.get_running_loop().time()
