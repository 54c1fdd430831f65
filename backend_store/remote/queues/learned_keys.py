"""Unwraps data keys that other gateways made, so that this gateway can open what is sealed with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

import structlog

from backend_store.metadata.data_keys import DataKey
from backend_store.remote.limits import LEARN_RETRY_SECONDS, LEARN_WAIT_SECONDS_MAX

log = structlog.get_logger("pushq.remote")

Learn = Callable[[list[DataKey]], Awaitable[None]]
Background = Callable[[Coroutine[Any, Any, None]], object]


class Learning:
    """The data keys that are not unwrapped yet. Unwrapping is tried again until it succeeds or the key is deleted."""

    def __init__(self, learn: Learn, background: Background) -> None:
        self._learn = learn
        self._background = background
        self._unlearnt: dict[int, DataKey] = {}
        self._is_running = False
        self._changed = asyncio.Event()

    def told(self, keys: Collection[DataKey], gone: Collection[int]) -> None:
        for key_id in gone:
            self._unlearnt.pop(key_id, None)
        self._unlearnt.update({key.id: key for key in keys})
        if self._unlearnt and not self._is_running:
            self._is_running = True
            self._background(self._run())

    @property
    def unlearnt(self) -> list[int]:
        return list(self._unlearnt)

    def lacks(self, ids: Collection[int]) -> bool:
        return any(key_id in self._unlearnt for key_id in ids)

    async def learnt(self, ids: Collection[int]) -> bool:
        """Waits up to `LEARN_WAIT_SECONDS_MAX` for keys. Returns whether all can be used now."""
        until = asyncio.get_running_loop().time() + LEARN_WAIT_SECONDS_MAX
        while self.lacks(ids):
            self._changed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True

    async def _run(self) -> None:
        try:
            while self._unlearnt:
                keys = list(self._unlearnt.values())
                if not await self._tried(keys) and not any([await self._tried([key]) for key in keys]):
                    await asyncio.sleep(LEARN_RETRY_SECONDS)
        finally:
            self._is_running = False

    async def _tried(self, keys: list[DataKey]) -> bool:
        try:
            await self._learn(keys)
        except Exception as error:  # any error of the service that keeps the master key
            log.warning("data keys of other gateways cannot be unwrapped now", keys=len(keys), reason=str(error))
            return False
        for key in keys:
            if self._unlearnt.get(key.id) is key:
                del self._unlearnt[key.id]
        self._changed.set()
        return True
