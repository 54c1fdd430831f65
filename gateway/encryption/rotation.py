"""Rotates encryption keys online: makes new data keys, or rewraps all data keys with another master key.

One rotation runs at a time. It is stored before it begins, so that after a crash it continues with the next start under
the same id. Messages are not rewritten: older keys stay for what they sealed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import structlog

from backend_store.client import StoredRotation
from backend_store.model import Conflict, FieldError, InvalidRequest, OutcomeUnknown, PushqError, Unavailable
from gateway.encryption.cipher import QueueSeal
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import FileMasters, MasterError, master_id, parse_masters
from gateway.limits import (
    DATA_KEY_RETRY_SECONDS,
    DATA_KEYS_PER_REQUEST_MAX,
    MASTER_FILE_SECONDS,
    ROTATIONS_REMEMBERED_MAX,
)

log = structlog.get_logger("pushq.encryption")

T = TypeVar("T")
State = Literal["running", "done", "cancelled", "failed"]


@dataclass(slots=True)
class Rotation:
    """A rotation in progress, or how it ended."""

    id: str
    total: int
    done: int = 0
    state: State = "running"
    error: str | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def cancel(self) -> None:
        """Returns when the rotation has stopped; what it did stays."""
        self.stopping.set()
        await self.ended.wait()


class Rotations:
    """The running rotation, and the last ones for status requests."""

    def __init__(self, vault: Vault, clock_ms: Callable[[], int], *, is_alone: bool = True):
        """`is_alone`: no other process wraps with the keys of this process's file."""
        self._is_alone = is_alone
        self._vault = vault
        self._clock_ms = clock_ms
        self._jobs: dict[str, Rotation] = {}
        self._owes_rewrap = False
        """New master keys are in use, and the rewrap for them has not begun yet."""

    def get(self, rotation_id: str) -> Rotation | None:
        return self._jobs.get(rotation_id)

    async def resume(self) -> None:
        """At start: continues an interrupted rotation, or begins a rewrap if the active master key is a new one.

        Returns when it has begun or there is nothing to do; retries on any error of the store until then.
        """
        while self._running() is None:
            stored = self._vault.rows.data_keys.rotation
            if stored is None and self._vault.rests_on_others:
                stored = self._new_rewrap()
            if stored is None:
                return
            try:
                await self._begin(stored)
            except PushqError as error:
                log.warning("key rotation not started yet", reason=str(error))
                await asyncio.sleep(DATA_KEY_RETRY_SECONDS)

    def _new_rewrap(self) -> StoredRotation:
        return StoredRotation(secrets.token_hex(8), self._clock_ms(), rewraps=True)

    async def follow(self) -> None:
        """Watches the file of the master keys for changes, and rewraps when needed. Runs until cancelled; returns at
        once if master keys are not in a file."""
        told = ""
        while isinstance(self._vault.masters, FileMasters):
            await asyncio.sleep(MASTER_FILE_SECONDS)
            try:
                await self._look(self._vault.masters)
                told = ""
            except (MasterError, PushqError) as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("the changed master key file was rejected", error=told)
            except Exception:
                log.exception("cannot check the master key file")

    async def _look(self, masters: FileMasters) -> None:
        """Takes a changed file. Raises `MasterError` if it drops a key that is still needed: after a restart nothing
        sealed with that would open."""
        if self._running() is not None:
            return
        if (keys := masters.changed()) is not None:
            held = masters.ids & await self._vault.masters_needed()
            if missing := held - {master_id(key) for key in keys}:
                raise MasterError(
                    f"{masters.file} lacks the master key {', '.join(sorted(missing))}, which still encrypts data "
                    "keys or receiver secrets; add it on a line below the new one"
                )
            before = masters.active
            masters.take(keys)
            self._owes_rewrap = masters.active != before or self._vault.rests_on_others
            log.info("the master key file was reloaded", active=masters.active, keys=masters.count)
        if self._owes_rewrap and self._running() is None:
            await self._begin(self._new_rewrap())
            self._owes_rewrap = False

    def _running(self) -> Rotation | None:
        return next((one for one in self._jobs.values() if one.state == "running"), None)

    async def start(self, *, master_file: Path | None, queues: list[int] | None, all_queues: bool) -> Rotation:
        """Begins a rotation. Raises `Conflict` while another one runs, `InvalidRequest` for a master key that cannot be
        used."""
        running = self._running()
        if running is not None:
            raise Conflict(f"rotation {running.id} is already running: wait for it, or cancel it")
        if master_file is not None:
            self._put_first(master_file)
        wanted = tuple(queues) if queues is not None else None
        rewraps = master_file is not None
        return await self._begin(StoredRotation(secrets.token_hex(8), self._clock_ms(), rewraps, wanted, all_queues))

    def _put_first(self, file: Path) -> None:
        masters = self._vault.masters
        try:
            if not isinstance(masters, FileMasters):
                raise MasterError("this server's master key is not in a file; change it at its source and restart")
            masters.put_first(parse_masters(file.read_text(), str(file))[0])
        except (MasterError, OSError, UnicodeDecodeError) as error:
            why = f"{file} is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
            detail = f"invalid master key: {why}"
            raise InvalidRequest(detail, errors=(FieldError("/master_file", detail),)) from None

    async def _begin(self, stored: StoredRotation) -> Rotation:
        while len(self._jobs) >= ROTATIONS_REMEMBERED_MAX:
            self._jobs.pop(next(iter(self._jobs)))
        keys = self._vault.unwrapped_by_others() if stored.rewraps else []
        job = self._jobs[stored.id] = Rotation(stored.id, len(keys) + len(self._queues(stored)))
        try:
            await self._vault.rows.put_rotation(stored)
        except BaseException as error:
            # The job is entered before the await, so that only one begins; if it did not, it must not look running.
            job.state, job.error = "failed", str(error)
            job.ended.set()
            raise
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
        log.info("key rotation started", rotation=job.id, steps=job.total)
        try:
            if stored.rewraps:
                await self._rewrap(job)
            await self._renew(job, stored)
            await self._insist(job, partial(self._vault.rows.put_rotation, None))
            if job.stopping.is_set():
                await self._vault.rows.put_rotation(None)
            job.state = "cancelled" if job.stopping.is_set() else "done"
        except asyncio.CancelledError:
            job.state = "cancelled"  # the process ends; the next one continues the rotation
            raise
        except (PushqError, MasterError, OSError) as error:
            job.state, job.error = "failed", str(error)
        except Exception as error:
            job.state, job.error = "failed", "internal error; see the server log"
            log.exception("key rotation failed", rotation=job.id, error=str(error))
        finally:
            job.ended.set()
            log.info("key rotation finished", rotation=job.id, state=job.state, done=job.done, error=job.error)

    async def _rewrap(self, job: Rotation) -> None:
        vault = self._vault
        await vault.masters_needed()  # waits until all that the old master key wrapped is stored
        while (keys := vault.unwrapped_by_others()) and not job.stopping.is_set():
            job.done += await self._insist(job, partial(vault.rewrap, keys[:DATA_KEYS_PER_REQUEST_MAX])) or 0
            await asyncio.sleep(0)
        for other in vault.others:
            await self._insist(job, other.renew)
        masters = vault.masters
        # Another process may wrap a key with the old master key until it checks the file again.
        may_drop = self._is_alone and not vault.rests_on_others and not job.stopping.is_set()
        if may_drop and isinstance(masters, FileMasters):
            masters.keep_active()

    async def _renew(self, job: Rotation, stored: StoredRotation) -> None:
        """Makes new keys for queues whose newest key is older than the rotation: not those it made before a crash."""
        seals = self._queues(stored)
        for start in range(0, len(seals), DATA_KEYS_PER_REQUEST_MAX):
            some = seals[start : start + DATA_KEYS_PER_REQUEST_MAX]
            make = partial(self._vault.new_keys, some, unless_since_ms=stored.started_at_ms)
            if await self._insist(job, make) is not None:
                job.done += len(some)
            await asyncio.sleep(0)

    async def _insist(self, job: Rotation, do: Callable[[], Awaitable[T]]) -> T | None:
        """Repeats a step while a key server or the store does not answer. None: the rotation was cancelled."""
        while not job.stopping.is_set():
            try:
                return await do()
            except (Unavailable, OutcomeUnknown):
                await self._rest(job)
        return None

    async def _rest(self, job: Rotation) -> None:
        """Pauses before a retry. Returns early if the rotation is cancelled."""
        try:
            async with asyncio.timeout(DATA_KEY_RETRY_SECONDS):
                await job.stopping.wait()
        except TimeoutError:
            return

    async def end(self) -> None:
        """Stops the running rotation because the process ends; the next start continues it."""
        for job in list(self._jobs.values()):
            if job.task is not None and job.state == "running":
                job.task.cancel()
                await asyncio.gather(job.task, return_exceptions=True)
