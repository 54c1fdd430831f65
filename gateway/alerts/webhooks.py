"""Sends webhooks: signed, to an address that was judged, some at a time, and again after a failure.

Each tenant and each receiver has its share of what waits and of what is under way, so one that never answers holds up
nobody else's.
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
    """How one try went. `error` is a sentence where no answer came."""

    ok: bool
    status: int | None
    error: str | None
    ms: int
    is_final: bool = False
    """Another try would not help."""


class Note(NamedTuple):
    """What is to be sent. A repeat has the same id."""

    tenant: str
    receiver: str
    url: str
    id: str
    body: bytes


Secret = Callable[[str], Awaitable[bytes]]
"""A receiver's secret by its id. Raises `PushqError` while it cannot be opened, `LookupError` where it has gone."""
Ended = Callable[[Note, Outcome], None]
Done = Callable[[str], None]


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class _Share:
    """What a receiver, a tenant or everybody has waiting, and the places for what is under way."""

    __slots__ = ("places", "waiting", "waiting_max")

    def __init__(self, at_once_max: int, waiting_max: int) -> None:
        self.places = asyncio.Semaphore(at_once_max)
        self.waiting = 0
        self.waiting_max = waiting_max


Shares = dict[tuple[str, str], _Share]
"""By tenant and receiver; without a receiver the tenant's, without both everybody's."""


class Webhooks:
    """See the file's first sentence. `run` goes beside the server."""

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
        """`ended` hears of each try; `done` of each webhook's id when it arrived, was given up or dropped. Where it may
        not be tried any more it is left to whoever goes on with it."""
        self._secret = secret
        self._ended = ended
        self._done = done
        self._may_try = may_try
        self._networks = tuple(networks)
        self._resolve = resolve
        self._shares: Shares = {}
        """Those that have something waiting."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By id: those that wait or are tried."""
        self._authorities: ssl.SSLContext | None = None
        self.dropped = 0
        self.sent = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def send(self, note: Note) -> None:
        """Sends it, and again after failures, unless it is under way. Beyond a bound it is dropped."""
        if note.id in self._under_way:
            return
        shares = self._shares_of(note)
        full = next((share for share in shares.values() if share.waiting >= share.waiting_max), None)
        if full is not None:
            self.dropped += 1
            log.warning(
                "a webhook is dropped: too many wait", tenant=note.tenant, receiver=note.receiver, waiting=full.waiting
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
        """The receiver's, its tenant's and everybody's; places are taken in this order."""
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
                "a webhook failed" if not is_last else "a webhook is given up",
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
        """One try, with its own time and signature."""
        began = time.monotonic()

        def outcome(
            *, ok: bool = False, status: int | None = None, error: str | None = None, is_final: bool = False
        ) -> Outcome:
            return Outcome(ok, status, error, round((time.monotonic() - began) * 1000), is_final)

        try:
            async with asyncio.timeout(WEBHOOK_SECONDS_MAX):
                status = await self._post(note)
        except LookupError:
            return outcome(error="the receiver was removed", is_final=True)
        except TimeoutError:
            return outcome(error=f"no answer within {WEBHOOK_SECONDS_MAX:g} s")
        except NoPublicAddress as error:
            log.info("a webhook goes nowhere", tenant=note.tenant, receiver=note.receiver, reason=error.reason)
            return outcome(error=str(error), is_final=error.is_final)
        except AnswerTooLong as error:
            return outcome(error=str(error))
        except Exception as error:
            return outcome(error=f"{type(error).__name__}: {error}"[:300])
        is_ok = 200 <= status < 300
        return outcome(
            ok=is_ok, status=status, error=None if is_ok else f"it answered {status}", is_final=status == 410
        )

    async def _post(self, note: Note) -> int:
        parts = urlsplit(note.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        secret = await self._secret(note.receiver)
        address = await self._judged(host, port)
        signed = headers(secret, note.id, int(time.time()), note.body)
        shown = f"[{address}]" if ":" in address else address
        # The name was resolved here and once: the client is given the address, and the name only to be checked.
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
        """The machine's authorities, read once, and not on the loop: to read them takes 40 ms."""
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
            raise NoPublicAddress(host, "it has no address", is_final=False)
        return addresses[0]

    def cut(self) -> None:
        """What waits or is under way is somebody else's to send, or to be sent anew."""
        self._under_way.clear()
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """What is under way is cut."""
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class NoPublicAddress(Exception):
    """A name leads nowhere that webhooks may go. `reason` is for the log.

    A tenant is told one sentence, whatever the name leads to: it must not learn what names there are in the server's
    own network, nor their addresses.
    """

    def __init__(self, host: str, reason: str, *, is_final: bool) -> None:
        super().__init__(f"{host} leads to no public address, or not to public ones alone")
        self.reason = f"{host}: {reason}"
        self.is_final = is_final
