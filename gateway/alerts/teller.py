"""Decides which of several gateways evaluates the rules and notifies: the one that holds a lease, the duty.

A gateway on its own always has it. Several ask for it at each evaluation. A holder that is silent for some seconds
loses the duty to the next gateway that asks, and has stopped by then: it counts from when it asked, not from when it
was answered.
"""

from __future__ import annotations

import asyncio
import enum
import time
from typing import Final

import structlog

from backend_store.client import Documents, Duty
from backend_store.model import InvalidRequest, PushqError
from gateway.alerts.limits import (
    DUTY_ASK_SECONDS_MAX,
    DUTY_HOLD_MS_MAX,
    DUTY_HOLD_MS_MIN,
    DUTY_LOOKS_BEFORE,
    DUTY_MARGIN_MS,
)

log = structlog.get_logger("pushq.alerts")

TELLER: Final = "alerts"
_LOOKS_HELD: Final = 3
"""A holder whose evaluations take long keeps the duty for this many of them."""


def _now() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heard(enum.Enum):
    """How the last answer changed the duty."""

    NOTHING_NEW = enum.auto()
    TAKEN = enum.auto()
    """This gateway got the duty: it has to read the alerts anew."""
    KEPT = enum.auto()
    """This gateway's lease had lapsed and no other took the duty meanwhile: its state of the alerts is current."""


class Teller:
    """The duty of this gateway. `Alerts` calls `ask` at each evaluation; `is_ours` is as of now."""

    def __init__(self, documents: Documents) -> None:
        self.is_shared = documents.are_shared
        self.duty: Duty | None = None
        """The duty as of the last answer; None for a gateway on its own, and while another gateway has it."""
        self._documents = documents
        self._looks = 0
        self._asked_at = 0.0
        self._until = 0.0
        """On this process's clock: no other gateway gets the duty earlier."""
        self._are_older = False
        """The backends are of a version without duties."""
        self._is_lapse_said = False

    @property
    def is_ours(self) -> bool:
        return not self.is_shared or (self.duty is not None and _now() < self._until)

    @property
    def has_lapsed(self) -> bool:
        """This gateway had the duty, and the backends have not answered for so long that another may have it by now."""
        return self.duty is not None and not self.is_ours

    async def ask(self) -> Heard:
        """Asks for the duty. Without an answer a held duty stays until its time is over: others may get answers."""
        if not self.is_shared:
            return Heard.NOTHING_NEW
        self._looks += 1
        if self._looks <= DUTY_LOOKS_BEFORE:
            return Heard.NOTHING_NEW  # a gateway that has just begun has not sampled the queues yet
        hold_ms = self._hold_ms()
        until = self._asked_at + (hold_ms - DUTY_MARGIN_MS) / 1000
        had_lapsed, self._until = self.has_lapsed, min(self._until, until)  # it may arrive, and the answer be lost
        try:
            async with asyncio.timeout(DUTY_ASK_SECONDS_MAX):
                duty = await self._documents.take_duty(TELLER, hold_ms)
        except InvalidRequest as error:
            if not self._are_older:  # logged once, not at each evaluation
                log.warning("no gateway sends alerts: upgrade the backends", error=error.detail)
            self._are_older = True
            return Heard.NOTHING_NEW
        except (PushqError, TimeoutError) as error:
            log.info("the alert leader could not be determined", error=str(error))
            if self.has_lapsed and not self._is_lapse_said:
                self._is_lapse_said = True
                log.warning("this gateway stops sending alerts until the backends answer")
            return Heard.NOTHING_NEW
        self._are_older = self._is_lapse_said = False
        had_lapsed = had_lapsed or self.has_lapsed  # it may have lapsed during the request
        self._until = until
        return self._take(duty, had_lapsed=had_lapsed)

    def _take(self, duty: Duty, *, had_lapsed: bool) -> Heard:
        before, self.duty = self.duty, duty if duty.holder == self._documents.holder else None
        if self.duty is None:
            if before is not None:
                log.warning("another gateway sends alerts now", holder=duty.holder, term=duty.term)
            return Heard.NOTHING_NEW
        if before != duty:
            log.info("this gateway sends alerts now", term=duty.term)
            return Heard.TAKEN
        if had_lapsed:
            log.info("this gateway sends alerts again", term=duty.term)
        return Heard.KEPT if had_lapsed else Heard.NOTHING_NEW

    def lost(self) -> None:
        """The backends refused a write: another gateway has the duty."""
        self.duty = None

    async def leave(self) -> None:
        """Gives the duty up, so that another gateway need not wait for it to lapse."""
        if self.duty is None:
            return
        self.lost()
        try:
            async with asyncio.timeout(DUTY_ASK_SECONDS_MAX):
                await self._documents.take_duty(TELLER, 0)
        except (PushqError, TimeoutError):
            log.info("the backends could not be told that this gateway stopped sending alerts")

    def _hold_ms(self) -> int:
        now = _now()
        since, self._asked_at = now - self._asked_at if self._asked_at else 0.0, now
        return min(max(DUTY_HOLD_MS_MIN, round(since * 1000) * _LOOKS_HELD), DUTY_HOLD_MS_MAX)
