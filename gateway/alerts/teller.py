"""Which of several gateways asks the rules and tells what they find: the one that has the duty.

One that is alone has it always. Among several it is asked for with each look; whoever has it and is silent for some
seconds loses it to the next one that asks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from backend_store.client import Documents, Duty
from backend_store.model import InvalidRequest, PushqError
from gateway.alerts.limits import DUTY_ASK_SECONDS_MAX, DUTY_HOLD_MS_MAX, DUTY_HOLD_MS_MIN, DUTY_LOOKS_BEFORE

log = structlog.get_logger("pushq.alerts")

TELLER: Final = "alerts"
_LOOKS_HELD: Final = 3
"""A gateway that takes long for its looks keeps the duty for so many of them."""


class Teller:
    """Ask with each look; `is_ours` and `duty` are as of the last answer."""

    def __init__(self, documents: Documents) -> None:
        self.is_shared = documents.are_shared
        self.is_ours = not self.is_shared
        self.duty: Duty | None = None
        """Ours; None for one that is alone, and while it is another's."""
        self._documents = documents
        self._looks = 0
        self._asked_at = 0.0
        self._are_older = False
        """The backends know of no duties."""

    async def ask(self) -> bool:
        """Whether the duty is new to us: what we know of the alerts is to be read anew.

        While the backends do not answer, it stays as it was: nobody else can get the duty from them either, and that
        they are away is what somebody may have to be told about.
        """
        if not self.is_shared:
            return False
        self._looks += 1
        if self._looks <= DUTY_LOOKS_BEFORE:
            return False  # a gateway that has just begun does not know yet what there is
        try:
            async with asyncio.timeout(DUTY_ASK_SECONDS_MAX):
                duty = await self._documents.take_duty(TELLER, self._hold_ms())
        except InvalidRequest as error:
            if not self._are_older:  # said once: it is so with each look
                log.warning("no gateway tells of alerts: upgrade the backends", error=error.detail)
            self._are_older = True
            return False
        except (PushqError, TimeoutError) as error:
            log.info("who tells of alerts could not be asked", error=str(error))
            return False
        self._are_older = False
        before, self.is_ours = self.duty, duty.holder == self._documents.holder
        self.duty = duty if self.is_ours else None
        if self.duty is not None and before != duty:
            log.info("this gateway tells of alerts from now on", term=duty.term)
        if before is not None and self.duty is None:
            log.warning("another gateway tells of alerts now", holder=duty.holder, term=duty.term)
        return self.duty is not None and before != duty

    def lost(self) -> None:
        """The backends took nothing from us: it is another's."""
        self.is_ours, self.duty = not self.is_shared, None

    async def leave(self) -> None:
        """Another one need not wait until we were silent for long enough."""
        if self.duty is None:
            return
        self.lost()
        try:
            async with asyncio.timeout(DUTY_ASK_SECONDS_MAX):
                await self._documents.take_duty(TELLER, 0)
        except (PushqError, TimeoutError):
            log.info("the backends do not hear that this gateway stops telling of alerts")

    def _hold_ms(self) -> int:
        now = time.monotonic()
        since, self._asked_at = now - self._asked_at if self._asked_at else 0.0, now
        return min(max(DUTY_HOLD_MS_MIN, round(since * 1000) * _LOOKS_HELD), DUTY_HOLD_MS_MAX)
