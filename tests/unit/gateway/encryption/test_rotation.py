"""Rotations while something is away, and what else than data keys a master key seals."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.model import OutcomeUnknown, PushqError, Unavailable
from gateway.alerts.alerts import Alerts
from gateway.alerts.secrets import Renewal, Secrets
from gateway.alerts.stored import Receiver
from gateway.encryption import rotation as rotating
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import FileMasters, MasterError, master_id
from gateway.encryption.rotation import Rotation, Rotations
from gateway.encryption.setup import Encrypting
from tests.support.patience import eventually
from tests.support.sealed import MASTER, FlakyMasters, Sealed, opened_sealed, sealed_again
from tests.support.stores import made

pytestmark = pytest.mark.anyio
NEW = b"n" * 32


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating, "DATA_KEY_RETRY_SECONDS", 0.01)


def failing(times: int, do: Callable[..., Awaitable[Any]], error: PushqError | None = None) -> Callable[..., Any]:
    """As `do`, after so many failures."""
    left = [error or Unavailable("nobody leads")] * times

    async def failed(*given: Any) -> Any:
        if left:
            raise left.pop()
        return await do(*given)

    return failed


async def ended(job: Rotation) -> Rotation:
    await asyncio.wait_for(job.ended.wait(), 30)
    return job


def rotations(vault: Vault) -> Rotations:
    return Rotations(vault, lambda: 1 << 50)


class Receivers:
    """The receivers of a process, without all that is around them. `secrets` seals and opens what they sign with."""

    def __init__(self, vault: Vault) -> None:
        self.receivers: dict[str, Receiver] = {}
        self.secrets = Secrets(cast(Encrypting, SimpleNamespace(vault=vault)))
        self.renewal = Renewal(cast(Alerts, self), self.secrets)
        vault.others.append(self.renewal)

    async def put_receiver(self, receiver: Receiver, known: Receiver | None = None) -> None:
        self.receivers[receiver.id] = receiver

    async def add(self, receiver_id: str) -> bytes:
        secret, master, sealed = await self.secrets.sealed(receiver_id)
        await self.put_receiver(Receiver(receiver_id, "default", "hook", "webhook", "http://x", master, sealed, 5))
        return secret


class InFile:
    """A store whose master keys lie in a file, and the rotations that follow it."""

    def __init__(self, file: Path, sealed: Sealed) -> None:
        self.file = file
        self.sealed = sealed
        self.masters = cast(FileMasters, sealed.vault.masters)
        self.rotations = rotations(sealed.vault)
        self.receivers = Receivers(sealed.vault)

    def write(self, *keys: bytes) -> None:
        write(self.file, *keys)

    @property
    def lines(self) -> int:
        return len(self.file.read_text().splitlines())

    async def look(self) -> list[Rotation]:
        """What one look at the file began, at its end."""
        before = set(self.rotations._jobs)
        await self.rotations._look(self.masters)
        return [await ended(job) for name, job in self.rotations._jobs.items() if name not in before]


def write(file: Path, *keys: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_text("".join(b64encode(key).decode() + "\n" for key in keys))
    new.rename(file)


async def in_file(tmp_path: Path, *keys: bytes) -> InFile:
    file = tmp_path / "master.key"
    write(file, *keys)
    return InFile(file, await opened_sealed(masters=FileMasters(file)))


# ------------------------------------------------------------------------------------------- what begins, or does not


async def test_a_file_of_master_keys_that_could_not_be_read_is_taken_up_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was written first, and given to our user then: that changes nothing of what is in it."""
    here = await in_file(tmp_path, MASTER)
    here.write(NEW, MASTER)

    def read(file: Path) -> list[bytes]:
        raise MasterError(f"{file} cannot be read: Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("gateway.encryption.master_keys._read_masters", read)
        with pytest.raises(MasterError, match="denied"):
            await here.look()
    await here.look()
    assert here.masters.active == master_id(NEW)
    await here.sealed.store.close()


async def test_a_rotation_that_could_not_begin_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = await opened_sealed()
    await made(sealed.store, "q")
    metadata = sealed.store.metadata
    monkeypatch.setattr(metadata, "put_rotation", failing(1, metadata.put_rotation))
    jobs = rotations(sealed.vault)
    with pytest.raises(Unavailable):
        await jobs.start(master_file=None, queues=None, all_queues=True)
    (first,) = jobs._jobs.values()
    await asyncio.wait_for(first.cancel(), 30)
    assert first.state == "failed"
    job = await jobs.start(master_file=None, queues=None, all_queues=True)
    assert (await ended(job)).state == "done"
    await sealed.store.close()


async def test_keys_are_made_while_a_rotation_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = await opened_sealed()
    await made(sealed.store, "old")
    masters = FlakyMasters(NEW, MASTER)
    again = await sealed_again(sealed, masters)
    metadata = again.store.metadata
    put_rotation = metadata.put_rotation
    monkeypatch.setattr(metadata, "put_rotation", failing(1 << 20, put_rotation))
    running = asyncio.ensure_future(Encrypting(again.vault, jobs := rotations(again.vault)).run())
    masters.is_away = True
    queue = await made(again.store, "new")
    await eventually(lambda: len(jobs._jobs) > 1, within_s=30)
    masters.is_away = False
    await eventually(lambda: again.vault.of(queue.definition).current is not None, within_s=30)
    monkeypatch.setattr(metadata, "put_rotation", put_rotation)
    await eventually(lambda: any(job.state == "done" for job in jobs._jobs.values()), within_s=30)
    assert {key.master for key in metadata.data_keys.by_id.values()} == {master_id(NEW)}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await again.store.close()


async def test_a_changed_file_is_looked_at_again_when_its_rotation_could_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await in_file(tmp_path, MASTER)
    await made(here.sealed.store, "q")
    metadata = here.sealed.store.metadata
    monkeypatch.setattr(metadata, "put_rotation", failing(1, metadata.put_rotation))
    here.write(NEW, MASTER)
    with pytest.raises(Unavailable):
        await here.look()
    assert [job.state for job in await here.look()] == ["done"]
    assert here.lines == 1 and {key.master for key in metadata.data_keys.by_id.values()} == {master_id(NEW)}
    assert await here.look() == [], "once is enough"
    await here.sealed.store.close()


@pytest.mark.parametrize("error", [Unavailable("nobody leads"), OutcomeUnknown("it may be stored")])
@pytest.mark.parametrize("step", ["rewrap", "renew", "forget"])
async def test_a_rotation_outlasts_what_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, error: PushqError
) -> None:
    here = await in_file(tmp_path, MASTER)
    vault, metadata = here.sealed.vault, here.sealed.store.metadata
    await made(here.sealed.store, "q")
    await here.receivers.add("r1")
    job = None
    if step == "rewrap":
        monkeypatch.setattr(vault, "rewrap", failing(1, vault.rewrap, error))
    elif step == "renew":
        monkeypatch.setattr(here.receivers, "put_receiver", failing(1, here.receivers.put_receiver, error))
    here.write(NEW, MASTER)
    await here.rotations._look(here.masters)
    if step == "forget":
        monkeypatch.setattr(metadata, "put_rotation", failing(1, metadata.put_rotation, error))
    (job,) = here.rotations._jobs.values()
    assert ((await ended(job)).state, job.error) == ("done", None)
    assert here.lines == 1 and here.receivers.renewal.masters() == {master_id(NEW)}
    assert metadata.data_keys.rotation is None
    await here.sealed.store.close()


# ------------------------------------------------------------------------------------------------ secrets of receivers


async def test_a_file_that_drops_the_key_of_a_receivers_secret_is_not_taken_up(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    await here.receivers.add("r1")
    here.write(NEW)
    with pytest.raises(MasterError, match=master_id(MASTER)):
        await here.look()
    assert here.masters.active == master_id(MASTER)
    await here.sealed.store.close()


async def test_a_new_key_in_front_seals_the_secrets_of_receivers_where_no_queue_is_encrypted(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    secret = await here.receivers.add("r1")
    here.write(NEW, MASTER)
    assert [job.state for job in await here.look()] == ["done"]
    assert here.receivers.receivers["r1"].master == master_id(NEW) and here.lines == 1
    here.receivers.secrets.forget("r1")
    assert await here.receivers.secrets.open(here.receivers.receivers["r1"]) == secret
    await here.sealed.store.close()


async def test_a_new_key_in_front_drops_the_old_one_where_nothing_is_sealed_yet(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    here.write(NEW, MASTER)
    assert [job.state for job in await here.look()] == ["done"]
    assert here.lines == 1 and here.masters.active == master_id(NEW)
    await here.sealed.store.close()


async def test_the_old_key_stays_where_other_processes_wrap_with_the_file(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    here.rotations._is_alone = False
    here.write(NEW, MASTER)
    assert [job.state for job in await here.look()] == ["done"]
    assert here.lines == 2 and here.masters.active == master_id(NEW)
    await here.sealed.store.close()


async def test_a_further_key_is_kept_for_what_other_gateways_wrap_with_it(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    await made(here.sealed.store, "q")
    here.write(MASTER, NEW)
    assert await here.look() == []
    assert here.lines == 2 and here.masters.ids == {master_id(MASTER), master_id(NEW)}
    await here.sealed.store.close()


async def test_a_receivers_secret_is_sealed_anew_by_a_start_with_another_key_in_front(tmp_path: Path) -> None:
    here = await in_file(tmp_path, MASTER)
    await here.receivers.add("r1")
    here.write(NEW, MASTER)
    here.masters.take([NEW, MASTER])  # as the next process reads it
    await here.rotations.resume()
    (job,) = here.rotations._jobs.values()
    assert (await ended(job)).state == "done"
    assert here.receivers.renewal.masters() == {master_id(NEW)} and here.lines == 1
    await here.sealed.store.close()


async def test_a_key_that_is_wrapped_and_not_stored_yet_still_needs_its_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await in_file(tmp_path, MASTER)
    metadata, may_store, stored = here.sealed.store.metadata, asyncio.Event(), asyncio.Event()
    add = metadata.add_data_keys

    async def later(keys: Sequence[Any]) -> set[int]:
        stored.set()
        await may_store.wait()
        return await add(keys)

    monkeypatch.setattr(metadata, "add_data_keys", later)
    making = asyncio.ensure_future(made(here.sealed.store, "q"))
    await asyncio.wait_for(stored.wait(), 30)
    here.write(NEW)
    looking = asyncio.ensure_future(here.look())
    await asyncio.sleep(0)
    may_store.set()
    with pytest.raises(MasterError, match=master_id(MASTER)):
        await asyncio.wait_for(looking, 30)
    await making
    await here.sealed.store.close()
