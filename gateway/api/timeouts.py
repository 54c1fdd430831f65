"""Request deadlines: reads how long a caller waits for its answer, and answers by then.

A caller states it in `Pushq-Timeout-Ms`; the settings have a default for publishes. Calls to other nodes see the
deadline in the request's context. Publish and receive apply it themselves, because the partition knows what became of a
message, and a receive has its `wait_ms`. This module answers any other request when its time is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from math import inf
from typing import Any, Final, TypeVar

import structlog

from backend_store.client import ASKED
from backend_store.model import OutcomeUnknown, Overloaded, PushqError, Unavailable
from gateway.api.http import ClientGone
from gateway.limits import LATE_CHANGES_PER_CALLER_MAX
from push.limits import PUBLISH_MS_MAX
from push.operations.checks import checked_timeout
from push.operations.checks import field as invalid_field

log = structlog.get_logger("pushq.gateway")

T = TypeVar("T")

HEADER: Final = b"pushq-timeout-ms"
READS: Final = frozenset({"GET", "HEAD"})
_TOLD_SECONDS: Final = 0.02
"""Extra time for a change whose look-up timed out to report by itself that nothing was done."""


def stated_ms(headers: dict[bytes, bytes]) -> int | None:
    """How long the caller waits, in ms; None if it did not say. Raises `InvalidRequest`."""
    stated = headers.get(HEADER)
    if stated is None:
        return None
    if not _is_whole(stated):
        shown = stated[:50].decode("latin-1")
        raise invalid_field("/headers/pushq-timeout-ms", f"Pushq-Timeout-Ms must be a whole number, not {shown!r}")
    return checked_timeout(int(stated), name="Pushq-Timeout-Ms", pointer="/headers/pushq-timeout-ms")


def wait_s(headers: dict[bytes, bytes], *, publish_ms: int | None) -> float:
    """The same in seconds, before the caller is authenticated: a wrong header is reported later. `publish_ms`: the
    default for a publish; None for other requests, whose calls to other nodes each have their own bound."""
    stated = headers.get(HEADER)
    if stated is not None and _is_whole(stated) and 1 <= int(stated) <= PUBLISH_MS_MAX:
        return int(stated) / 1000
    return inf if publish_ms is None else publish_ms / 1000


async def in_time(method: str, doing: asyncio.Task[T], until: float) -> T:
    """The result of the task, at the latest at `until` by the loop's clock. Raises what the task raises.

    Then a read is cancelled and `Unavailable` raised; a change continues, because how far it came is unknown, and
    `OutcomeUnknown` is raised.
    """
    left_s = max(0.0, until - asyncio.get_running_loop().time())
    left_s += 0.0 if method in READS else _TOLD_SECONDS
    try:
        done, _ = await asyncio.wait({doing}, timeout=left_s)
    except asyncio.CancelledError:
        doing.cancel()
        raise
    if done:
        return _told(doing, until)
    if method in READS:
        doing.cancel()
        raise Unavailable("no response within Pushq-Timeout-Ms; nothing was changed", retry_after_ms=100)
    raise OutcomeUnknown("not finished within Pushq-Timeout-Ms, and still running; check its outcome, or retry")


def _told(doing: asyncio.Task[T], until: float) -> T:
    """The task's result. `Unavailable` after the deadline becomes `OutcomeUnknown` if a change was made: only the
    look-up for its answer came too late."""
    try:
        return doing.result()
    except Unavailable as error:
        asked = ASKED.get()
        if asked is None or not asked.has_changed or asyncio.get_running_loop().time() < until:
            raise
        raise OutcomeUnknown(f"the change was made, but: {error.detail}; check its outcome") from None


class Late:
    """Counts changes that continue though their callers were answered, by caller. Their next request may come on the
    same connection, so neither connections nor requests bound them."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raises `Overloaded` if too many changes of one caller continue."""
        if self._of[caller] >= LATE_CHANGES_PER_CALLER_MAX:
            detail = f"{self._of[caller]} timed-out changes of this caller are still running; nothing was done"
            raise Overloaded(detail, retry_after_ms=1000)

    async def over(self, doing: asyncio.Task[Any], caller: str) -> None:
        """Waits until the task has ended. Its caller was answered already, so an error that refuses it is dropped."""
        self._of[caller] += 1
        try:
            await asyncio.wait({doing})
        finally:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]
        error = None if doing.cancelled() else doing.exception()
        if error is not None and not isinstance(error, (PushqError, ClientGone)):
            log.error("request failed after its time", exc_info=error)


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work, name="timed request")


def _is_whole(stated: bytes) -> bool:
    return stated.isdigit() and len(stated) <= 9
