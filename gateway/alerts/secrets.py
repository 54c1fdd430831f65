"""Signing secrets of webhook receivers: generated here, shown once, stored sealed by the master key, opened to sign."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import msgspec

from backend_store.client import DataKey
from backend_store.model import Conflict, InvalidRequest, NotFound
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.signing import SECRET_BYTES
from gateway.alerts.stored import Receiver
from gateway.encryption.master_keys import Context, Masters
from gateway.encryption.setup import Encrypting

_UID = 0
"""No queue has this uid: a receiver's secret cannot be opened as anything else."""


class Secrets:
    def __init__(self, encryption: Encrypting | None) -> None:
        self._encryption = encryption
        self._known: dict[str, tuple[bytes, bytes]] = {}
        """By receiver: the sealed secret as stored, and the secret."""

    @property
    def masters(self) -> Masters:
        if self._encryption is None:
            raise InvalidRequest("this server has no master key to encrypt a secret with")
        return self._encryption.vault.masters

    async def sealed(self, receiver_id: str) -> tuple[bytes, str, bytes]:
        """A new secret, the name of the master key that seals it, and its sealed form. Raises `Unavailable`."""
        secret = os.urandom(SECRET_BYTES)
        (wrapped,) = await self.masters.wrap([(_context(receiver_id), secret)])
        return secret, wrapped.master, wrapped.data

    async def open(self, receiver: Receiver) -> bytes:
        """The receiver's secret. Raises `MasterError` and `Unavailable`."""
        known = self._known.get(receiver.id)
        if known is None or known[0] != receiver.sealed:
            context = _context(receiver.id)
            key = DataKey(0, context.tenant, context.uid, receiver.master, receiver.sealed, receiver.created_at_ms, 0)
            (secret,) = await self.masters.unwrap([key])
            known = self._known[receiver.id] = (receiver.sealed, secret)
        return known[1]

    async def sealed_anew(self, receiver: Receiver) -> tuple[str, bytes]:
        """Seals the secret with the active master key; returns the key's name and the sealed form. Raises as `open`."""
        (wrapped,) = await self.masters.wrap([(_context(receiver.id), await self.open(receiver))])
        return wrapped.master, wrapped.data

    def forget(self, receiver_id: str) -> None:
        self._known.pop(receiver_id, None)


class Renewal:
    """Reseals all receivers' secrets when another master key becomes active. Implements `data_keys.OtherSecrets`."""

    def __init__(self, alerts: Alerts, secrets: Secrets) -> None:
        self._alerts = alerts
        self._secrets = secrets

    def masters(self) -> set[str]:
        return {receiver.master for receiver in self._alerts.receivers.values() if receiver.sealed}

    async def renew(self) -> None:
        while old := [one for one in self._alerts.receivers.values() if self._is_old(one)]:
            for receiver in old:
                master, sealed = await self._secrets.sealed_anew(receiver)
                anew = msgspec.structs.replace(receiver, master=master, sealed=sealed)
                with suppress(Conflict, NotFound):  # changed or deleted meanwhile: the loop looks again
                    await self._alerts.put_receiver(anew, receiver)
                await asyncio.sleep(0)

    def _is_old(self, receiver: Receiver) -> bool:
        return bool(receiver.sealed) and receiver.master != self._secrets.masters.active


def _context(receiver_id: str) -> Context:
    return Context(f"alerts/{receiver_id}", _UID, 0)
