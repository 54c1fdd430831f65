"""Assembles the encryption of one process: the master key, the vault of data keys, and the rotations of both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from backend_store.client import Metadata
from gateway.admission.dependency_guard import Guards
from gateway.config.settings import Settings
from gateway.encryption.data_keys import Vault
from gateway.encryption.master_keys import MASTER_FILE, open_masters
from gateway.encryption.rotation import Rotations


@dataclass(slots=True)
class Encrypting:
    """The encryption of one process. Made before the store opens its queues; `serve` runs `run` beside the server."""

    vault: Vault
    rotations: Rotations
    is_new: bool = False
    """Whether this start created the master key."""

    async def run(self) -> None:
        rotating = asyncio.get_running_loop().create_task(self._rotate(), name="rotations of keys")
        try:
            await self.vault.run()
        finally:
            rotating.cancel()
            await asyncio.gather(rotating, return_exceptions=True)
            await self.rotations.end()

    async def _rotate(self) -> None:
        """Runs beside the vault's own task, so that wanted keys are made while a rotation cannot begin."""
        await self.rotations.resume()
        await self.rotations.follow()


async def encrypting(
    metadata: Metadata, settings: Settings, guards: Guards, *, clock_ms: Callable[[], int]
) -> Encrypting:
    """Opens the master key and unwraps all data keys. Raises `MasterError` and `Unavailable`."""
    is_new = not metadata.data_keys.by_id
    had_file = (settings.directory / MASTER_FILE).exists()
    guard = guards.guard("master-key")
    masters = await asyncio.to_thread(
        open_masters, settings.encryption, settings.directory, os.environ, guard, is_new=is_new
    )
    vault = Vault(metadata, masters, data_key_days=settings.encryption.data_key_days, clock_ms=clock_ms)
    await vault.open()
    made = settings.encryption.master == "file" and not had_file
    return Encrypting(vault, Rotations(vault, clock_ms, is_alone=settings.gateways == 1), is_new=made)
