"""Counts the bytes of request bodies from their reading to their answer, so that concurrent requests cannot fill the
memory."""

from __future__ import annotations

from gateway.limits import SETTLING_BODY_BYTES_SURE
from push.intake import Intake


class RequestBodies:
    """The bytes of one request's body, held in the room that all callers' unconfirmed publishes share."""

    __slots__ = ("_bytes", "_intake", "_sure_bytes", "_tenant")

    def __init__(self, intake: Intake, tenant: str, *, is_settling: bool) -> None:
        self._intake = intake
        self._tenant = tenant
        self._bytes = 0
        self._sure_bytes = SETTLING_BODY_BYTES_SURE if is_settling else 0

    def add(self, size: int) -> None:
        """Takes room for `size` more bytes. Raises `Overloaded` without room; acks and the like always get some."""
        if self._bytes + size <= self._sure_bytes:
            self._intake.room.hold(self._tenant, size)
        else:
            self._intake.take(self._tenant, size)
        self._bytes += size

    def release(self) -> None:
        if self._bytes:
            self._intake.room.give(self._tenant, self._bytes)
            self._bytes = 0
