"""Rotations: new data keys, or all data keys under another master key, while everything goes on.

One runs at a time. What it is about is on the disk before it begins, so one that a crash cut off goes on with the next
start under the same id. No message is written anew: older keys stay for what they sealed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from backend_store.client import StoredRotation
from backend_store.model import Conflict, FieldError, InvalidRequest, PushqError, Unavailable
from gateway.encrypt import QueueSeal
from gateway.keys import Vault
from gateway.limits import DATA_KEY_RETRY_SECONDS, DATA_KEYS_PER_REQUEST_MAX, ROTATIONS_REMEMBERED_MAX
from gateway.masters import FileMasters, MasterError, parse_masters

log = structlog.get_logger("pushq.encryption")

State = Literal["running", "done", "cancelled", "failed"]


@dataclass(slots=True)
class Rotation:
    """A rotation under way, or how it ended."""

    id: str
    total: int
    done: int = 0
    state: State = "running"
    error: str | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def cancel(self) -> None:
        """Returns when nothing more is done; what was done stays."""
        self.stopping.set()
        await self.ended.wait()


class Rotations:
    """The rotation that runs, and the last ones, which can still be asked about."""

    def __init__(self, vault: Vault, clock_ms: Callable[[], int]):
        self._vault = vault
        self._clock_ms = clock_ms
        self._jobs: dict[str, Rotation] = {}

    def get(self, rotation_id: str) -> Rotation | None:
        return self._jobs.get(rotation_id)

    async def resume(self) -> None:
        """At start: goes on with what was cut off, or takes up a master key that came first in the settings since."""
        stored = self._vault.rows.data_keys.rotation
        if stored is None and self._vault.unwrapped_by_others():
            stored = StoredRotation(secrets.token_hex(8), self._clock_ms(), rewraps=True)
        if stored is not None:
            await self._begin(stored)

    async def start(self, *, master_file: Path | None, queues: list[int] | None, all_queues: bool) -> Rotation:
        """Raises `Conflict` while another one runs, `InvalidRequest` for a master key that cannot be taken."""
        running = next((one for one in self._jobs.values() if one.state == "running"), None)
        if running is not None:
            raise Conflict(f"rotation {running.id} runs already: wait for it, or cancel it")
        if master_file is not None:
            self._put_first(master_file)
        wanted = tuple(queues) if queues is not None else None
        rewraps = master_file is not None
        return await self._begin(StoredRotation(secrets.token_hex(8), self._clock_ms(), rewraps, wanted, all_queues))

    def _put_first(self, file: Path) -> None:
        masters = self._vault.masters
        try:
            if not isinstance(masters, FileMasters):
                raise MasterError("this server's master key lies in no file; change it where it is and restart")
            masters.put_first(parse_masters(file.read_text(), str(file))[0])
        except (MasterError, OSError, UnicodeDecodeError) as error:
            detail = f"this master key cannot be taken: {error}"
            raise InvalidRequest(detail, errors=(FieldError("/master_file", detail),)) from None

    async def _begin(self, stored: StoredRotation) -> Rotation:
        while len(self._jobs) >= ROTATIONS_REMEMBERED_MAX:
            self._jobs.pop(next(iter(self._jobs)))
        keys = self._vault.unwrapped_by_others() if stored.rewraps else []
        job = self._jobs[stored.id] = Rotation(stored.id, len(keys) + len(self._queues(stored)))
        await self._vault.rows.put_rotation(stored)
        job.task = asyncio.get_running_loop().create_task(self._run(job, stored), name=f"rotation {job.id}")
        return job

    def _queues(self, stored: StoredRotation) -> list[QueueSeal]:
        wanted = set(stored.queues or ())
        return [
            seal
            for definition in list(self._vault.rows.queues.values())
            if (stored.all_queues or definition.uid in wanted) and (seal := self._vault.of(definition)).current
        ]

    async def _run(self, job: Rotation, stored: StoredRotation) -> None:
        log.info("rotation of keys begins", rotation=job.id, steps=job.total)
        try:
            if stored.rewraps:
                await self._rewrap(job)
            await self._renew(job, stored)
            job.state = "cancelled" if job.stopping.is_set() else "done"
            await self._vault.rows.put_rotation(None)
        except asyncio.CancelledError:
            job.state = "cancelled"  # the process ends; the next one goes on
            raise
        except (PushqError, MasterError, OSError) as error:
            job.state, job.error = "failed", str(error)
        except Exception as error:
            job.state, job.error = "failed", "internal error; the server's log has it"
            log.exception("a rotation failed", rotation=job.id, error=str(error))
        finally:
            job.ended.set()
            log.info("rotation of keys ended", rotation=job.id, state=job.state, done=job.done, error=job.error)

    async def _rewrap(self, job: Rotation) -> None:
        vault = self._vault
        while (keys := vault.unwrapped_by_others()) and not job.stopping.is_set():
            try:
                job.done += await vault.rewrap(keys[:DATA_KEYS_PER_REQUEST_MAX])
            except Unavailable:
                await self._rest(job)
            await asyncio.sleep(0)
        masters = vault.masters
        if isinstance(masters, FileMasters) and not vault.unwrapped_by_others():
            masters.keep_active()

    async def _renew(self, job: Rotation, stored: StoredRotation) -> None:
        """New keys where the newest is older than the rotation: those that it made before a crash are not."""
        seals = self._queues(stored)
        for start in range(0, len(seals), DATA_KEYS_PER_REQUEST_MAX):
            some = seals[start : start + DATA_KEYS_PER_REQUEST_MAX]
            while not job.stopping.is_set():
                try:
                    await self._vault.new_keys(some, unless_since_ms=stored.started_at_ms)
                    job.done += len(some)
                    break
                except Unavailable:
                    await self._rest(job)
            await asyncio.sleep(0)

    async def _rest(self, job: Rotation) -> None:
        """The master key is away. Ends early when the rotation is cancelled."""
        try:
            async with asyncio.timeout(DATA_KEY_RETRY_SECONDS):
                await job.stopping.wait()
        except TimeoutError:
            return

    async def end(self) -> None:
        """The process ends."""
        for job in list(self._jobs.values()):
            if job.task is not None and job.state == "running":
                job.task.cancel()
                await asyncio.gather(job.task, return_exceptions=True)
