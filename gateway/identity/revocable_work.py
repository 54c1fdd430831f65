"""Ends jobs that continue after their answer, such as redrives, when the credential that started them is withdrawn.

A credential that merely expires does not end them: a token lives for minutes, and a redrive at a rate may take hours.
One that was revoked, rotated away, or signed by a key that its issuer withdrew may have been stolen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

import structlog

from backend_store.model import PushqError
from gateway.identity.authentication import Keyring, Principal
from gateway.limits import BEGUN_LOOK_SECONDS

log = structlog.get_logger("pushq.auth")


class Job(Protocol):
    """A background job, such as `client.Redrive`."""

    id: str

    @property
    def state(self) -> str: ...

    async def cancel(self, why: str | None = None) -> None:
        """Returns when the job does nothing more."""


class RevocableWork:
    """The jobs started at this gateway that may still run; at most one per queue, which bounds them."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._jobs: list[tuple[Principal, Job]] = []

    def add(self, principal: Principal, job: Job) -> None:
        self._jobs.append((principal, job))

    async def watch(self) -> None:
        """Checks periodically. Runs until cancelled."""
        while True:
            await asyncio.sleep(BEGUN_LOOK_SECONDS)
            await self.look()

    async def end_withdrawn(self) -> None:
        """Checks now, for a caller that waits; gives up after `BEGUN_LOOK_SECONDS` if a backend does not answer, as the
        next round tries again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGUN_LOOK_SECONDS):
                await self.look()

    async def look(self) -> None:
        """One round. Returns when each job that must end has ended, or cannot be reached now."""
        self._jobs = [(principal, job) for principal, job in self._jobs if job.state == "running"]
        await asyncio.gather(*(self._judge(principal, job) for principal, job in self._jobs))

    async def _judge(self, principal: Principal, job: Job) -> None:
        try:
            why = self._keyring.withdrawn(principal)
            if why is None:
                return
            await job.cancel(f"{why}; what was moved stays moved, start it again to move the rest")
        except PushqError as error:
            log.info("a job could not be stopped", job=job.id, error=error.detail)
        else:
            log.warning("job stopped with its credential", job=job.id, principal=principal.id, tenant=principal.tenant)
