"""Sends webhooks: signed, to a checked address, a bounded number at a time, with retries.

Each tenant and each receiver has a share of the waiting webhooks and of those in flight, so a receiver that never
answers delays only its own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import structlog

from gateway.alerts.core.addresses import Network, refused
from gateway.alerts.core.signing import headers, retry_after_s
from gateway.alerts.limits import (
    WEBHOOK_RETRY_SECONDS,
    WEBHOOK_RETRY_SECONDS_MAX,
    WEBHOOK_SECONDS_MAX,
    WEBHOOK_TRIES_MAX,
    WEBHOOKS_AT_ONCE_MAX,
    WEBHOOKS_PER_RECEIVER_AT_ONCE_MAX,
    WEBHOOKS_PER_RECEIVER_WAITING_MAX,
    WEBHOOKS_PER_TENANT_AT_ONCE_MAX,
    WEBHOOKS_PER_TENANT_WAITING_MAX,
    WEBHOOKS_WAITING_MAX,
)
from gateway.alerts.posting import AnswerTooLong, post
from gateway.version import VERSION

log = structlog.get_logger("pushq.alerts")

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Outcome(NamedTuple):
    """The result of one try. `error`: a sentence, if the try failed."""

    ok: bool
    status: int | None
    error: str | None
    ms: int
    is_final: bool = False
    """A further try would not help."""


class Note(NamedTuple):
    """A message to send. A repeat has the same id."""

    tenant: str
    receiver: str
    url: str
    id: str
    body: bytes


Secret = Callable[[str], Awaitable[bytes]]
"""Returns a receiver's secret. Raises `PushqError` while it cannot be opened, `LookupError` if the receiver is gone."""
Ended = Callable[[Note, Outcome], None]
Done = Callable[[str], None]


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host name. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class _Share:
    """The waiting count and the in-flight slots of a receiver, a tenant or the whole process."""

    __slots__ = ("places", "waiting", "waiting_max")

    def __init__(self, at_once_max: int, waiting_max: int) -> None:
        self.places = asyncio.Semaphore(at_once_max)
        self.waiting = 0
        self.waiting_max = waiting_max


Shares = dict[tuple[str, str], _Share]
"""By tenant and receiver; without a receiver the tenant's, without both the process's."""


class Webhooks:
    """Delivers webhooks in background tasks; owned by `Notifier`, which calls `close`."""

    def __init__(
        self,
        secret: Secret,
        ended: Ended,
        done: Done,
        *,
        may_try: Callable[[], bool] = lambda: True,
        networks: Sequence[Network],
        resolve: Resolve = resolve,
    ) -> None:
        """`ended` is called after each try; `done` with the id of each webhook that arrived, was given up or dropped.
        Once `may_try` returns False a webhook is left to the gateway that has the duty."""
        self._secret = secret
        self._ended = ended
        self._done = done
        self._may_try = may_try
        self._networks = tuple(networks)
        self._resolve = resolve
        self._shares: Shares = {}
        """Shares that have something waiting."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By id: webhooks that wait or are being tried."""
        self._authorities: ssl.SSLContext | None = None
        self.dropped = 0
        self.sent = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def send(self, note: Note) -> None:
        """Sends a webhook, with retries, unless its id is already under way. Beyond a bound it is dropped."""
        if note.id in self._under_way:
            return
        shares = self._shares_of(note)
        full = next((share for share in shares.values() if share.waiting >= share.waiting_max), None)
        if full is not None:
            self.dropped += 1
            log.warning(
                "webhook dropped: too many are pending",
                tenant=note.tenant,
                receiver=note.receiver,
                waiting=full.waiting,
            )
            self._done(note.id)
            return
        self._shares |= shares
        for share in shares.values():
            share.waiting += 1
        task = asyncio.get_running_loop().create_task(self._deliver(note, shares), name="webhook")
        self._tasks.add(task)
        self._under_way[note.id] = task
        task.add_done_callback(partial(self._left, note, shares))

    def _shares_of(self, note: Note) -> Shares:
        """The shares of the receiver, its tenant and the process; slots are taken in this order."""
        bounds = {
            (note.tenant, note.receiver): (WEBHOOKS_PER_RECEIVER_AT_ONCE_MAX, WEBHOOKS_PER_RECEIVER_WAITING_MAX),
            (note.tenant, ""): (WEBHOOKS_PER_TENANT_AT_ONCE_MAX, WEBHOOKS_PER_TENANT_WAITING_MAX),
            ("", ""): (WEBHOOKS_AT_ONCE_MAX, WEBHOOKS_WAITING_MAX),
        }
        return {of: self._shares.get(of) or _Share(*most) for of, most in bounds.items()}

    def _left(self, note: Note, shares: Shares, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._under_way.get(note.id) is task:
            del self._under_way[note.id]
        for of, share in shares.items():
            share.waiting -= 1
            if not share.waiting:
                del self._shares[of]

    async def _deliver(self, note: Note, shares: Shares) -> None:
        for tries in range(1, WEBHOOK_TRIES_MAX + 1):
            async with AsyncExitStack() as places:
                for share in shares.values():
                    await places.enter_async_context(share.places)
                if not self._may_try():
                    return
                outcome = await self.attempt(note)
            self._ended(note, outcome)
            if outcome.ok:
                self.sent += 1
                self._done(note.id)
                return
            self.failed += 1
            is_last = outcome.is_final or tries == WEBHOOK_TRIES_MAX
            log.log(
                30 if is_last else 20,
                "webhook delivery failed" if not is_last else "webhook given up",
                receiver=note.receiver,
                tries=tries,
                status=outcome.status,
                error=outcome.error,
            )
            if is_last:
                self._done(note.id)
                return
            pause = retry_after_s(tries, first_s=WEBHOOK_RETRY_SECONDS, most_s=WEBHOOK_RETRY_SECONDS_MAX)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))

    async def attempt(self, note: Note) -> Outcome:
        """One try, with its own time limit and signature."""
        began = time.monotonic()

        def outcome(
            *, ok: bool = False, status: int | None = None, error: str | None = None, is_final: bool = False
        ) -> Outcome:
            return Outcome(ok, status, error, round((time.monotonic() - began) * 1000), is_final)

        try:
            async with asyncio.timeout(WEBHOOK_SECONDS_MAX):
                status = await self._post(note)
        except LookupError:
            return outcome(error="the receiver was deleted", is_final=True)
        except TimeoutError:
            return outcome(error=f"no response within {WEBHOOK_SECONDS_MAX:g} s")
        except NoPublicAddress as error:
            log.info("webhook target not allowed", tenant=note.tenant, receiver=note.receiver, reason=error.reason)
            return outcome(error=str(error), is_final=error.is_final)
        except AnswerTooLong as error:
            return outcome(error=str(error))
        except Exception as error:
            return outcome(error=f"{type(error).__name__}: {error}"[:300])
        is_ok = 200 <= status < 300
        return outcome(
            ok=is_ok, status=status, error=None if is_ok else f"the receiver returned {status}", is_final=status == 410
        )

    async def _post(self, note: Note) -> int:
        parts = urlsplit(note.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        secret = await self._secret(note.receiver)
        address = await self._judged(host, port)
        signed = headers(secret, note.id, int(time.time()), note.body)
        shown = f"[{address}]" if ":" in address else address
        # The name was resolved once, here: the client gets the address, and the name only to check the certificate.
        url = urlunsplit((parts.scheme, f"{shown}:{port}", parts.path or "/", parts.query, ""))
        sent = {
            **signed,
            "host": parts.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "user-agent": f"pushq/{VERSION}",
            "accept": "*/*",
            "connection": "close",
        }
        trusted = await self._trusted()
        return await post(url, note.body, sent, trusted=trusted, server_name=host, seconds_max=WEBHOOK_SECONDS_MAX)

    async def _trusted(self) -> ssl.SSLContext:
        """The machine's certificate authorities, read once and in a thread: that takes 40 ms."""
        if self._authorities is None:
            self._authorities = await asyncio.to_thread(ssl.create_default_context)
        return self._authorities

    async def _judged(self, host: str, port: int) -> str:
        """The address to connect to. Raises `NoPublicAddress` where one of the name's addresses is not allowed."""
        try:
            addresses = await self._resolve(host, port)
        except socket.gaierror as error:
            raise NoPublicAddress(host, str(error), is_final=False) from None
        for address in addresses:
            reason = refused(address, self._networks)
            if reason is not None:
                raise NoPublicAddress(host, reason, is_final=True)
        if not addresses:
            raise NoPublicAddress(host, "the host has no address", is_final=False)
        return addresses[0]

    def cut(self) -> None:
        """Cancels what waits or is in flight: another gateway sends it, or this one sends it anew."""
        self._under_way.clear()
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancels what is in flight and waits for the tasks to end."""
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class NoPublicAddress(Exception):
    """A host name resolves to an address that webhooks may not go to, or to none. `reason` is for the log.

    The tenant gets one fixed sentence, whatever the name resolves to: it must not learn which names and addresses there
    are in the server's own network.
    """

    def __init__(self, host: str, reason: str, *, is_final: bool) -> None:
        super().__init__(f"{host} does not resolve to public addresses only")
        self.reason = f"{host}: {reason}"
        self.is_final = is_final
