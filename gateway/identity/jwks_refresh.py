"""Keeps the keys of JWT issuers fresh: reads them before they are needed, so that no request waits for another server.

Each issuer with a key set has one task. It reads the set when it has reached its maximum age and, at most every few
seconds, when a token names a key that the set lacks. While the issuer's server does not answer, the last set stays
valid for a day.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import httpx2
import structlog

from backend_store.model import Unauthenticated, Unavailable
from gateway.identity.issuers import Issuer, Jwt, wrong_secret
from gateway.identity.jwks import BadKeys, KeySet, VerifyingKey, parse_set, pem_key, secret_key
from gateway.limits import (
    JWKS_BYTES_MAX,
    JWKS_FETCH_SECONDS_MAX,
    JWKS_FETCHES_AT_ONCE_MAX,
    JWKS_REFRESH_SECONDS_MIN,
    JWKS_STALE_SECONDS_MAX,
    JWKS_START_SECONDS_MAX,
    KEY_IDS_MISSED_MAX,
)

log = structlog.get_logger("pushq.auth")

Read = Callable[[], Awaitable[bytes]]
Steady = Callable[[], float]


class Keys(Protocol):
    """The keys of one issuer."""

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey:
        """The key that verifies a token. Raises `Unauthenticated`, or `Unavailable` while it is not known yet."""

    def has(self, fingerprint: bytes) -> bool:
        """Whether tokens signed with that key are still valid."""


class OneKey:
    """A secret or a public key from the settings; the key id in a token does not matter."""

    def __init__(self, key: VerifyingKey) -> None:
        self._key = key

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey:
        if algorithm != self._key.algorithm:
            raise Unauthenticated(f"the token is not signed with {self._key.algorithm}, the algorithm of its key")
        return self._key

    def has(self, fingerprint: bytes) -> bool:
        return fingerprint == self._key.fingerprint


class FreshKeys:
    """An issuer's key set and when it was read. Only its task changes it."""

    def __init__(self, issuer: str, read: Read, *, max_age_s: float, steady_s: Steady = time.monotonic) -> None:
        self.issuer = issuer
        self.is_first_read_over = asyncio.Event()
        self.reads: Counter[str] = Counter()
        """Reads of the set, by `ok` and `failed`."""
        self._read = read
        self._max_age_s = max_age_s
        self._steady_s = steady_s
        self._keys: KeySet | None = None
        self._read_at_s = 0.0
        self._wanted = asyncio.Event()
        self._missed: dict[str, float] = {}
        """Ids of keys that were not in the set → when a token first named it."""

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey:
        if self._keys is None:
            self._wanted.set()
            raise Unavailable("the issuer's keys could not be loaded yet", retry_after_ms=1000)
        key = self._keys.find(key_id, algorithm)
        if key is not None:
            return key
        if key_id is None:
            raise Unauthenticated("the token has no `kid`, and its issuer has several matching keys or none")
        raise self._missing(key_id)

    def _missing(self, key_id: str) -> Unauthenticated | Unavailable:
        """The error for a key that the set lacks. `Unavailable` until the set was read again, because the key may have
        been published just now; then `Unauthenticated`."""
        now_s = self._steady_s()
        asked_s = self._missed.get(key_id)
        next_look_s = self._read_at_s + JWKS_REFRESH_SECONDS_MIN
        if asked_s is not None and asked_s < self._read_at_s and now_s < next_look_s:
            return Unauthenticated("the token's `kid` does not match any key of its issuer")
        if asked_s is None or asked_s < self._read_at_s:
            if len(self._missed) >= KEY_IDS_MISSED_MAX:
                del self._missed[next(iter(self._missed))]
            self._missed[key_id] = now_s
        self._wanted.set()
        wait_ms = 1000 + max(0, int((next_look_s - now_s) * 1000))
        return Unavailable(
            "the token's key is not known yet; the issuer's keys are being loaded", retry_after_ms=wait_ms
        )

    def has(self, fingerprint: bytes) -> bool:
        return self._keys is not None and any(key.fingerprint == fingerprint for key in self._keys.keys)

    @property
    def age_s(self) -> float | None:
        """Seconds since the set was read; None without one."""
        return None if self._keys is None else self._steady_s() - self._read_at_s

    async def keep(self) -> None:
        """Reads the set when it is old or a key is missing. Runs until cancelled."""
        while True:
            is_read = await self.look()
            self.is_first_read_over.set()
            await asyncio.sleep(JWKS_REFRESH_SECONDS_MIN)
            if is_read:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), max(0, self._max_age_s - JWKS_REFRESH_SECONDS_MIN))

    async def look(self) -> bool:
        """Reads the set once. False if that failed; the set read before stays until it is too old."""
        self._wanted.clear()
        began_s = self._steady_s()
        try:
            self.take(parse_set(await self._read()), began_s)
        except (BadKeys, OSError, TimeoutError, httpx2.HTTPError) as error:
            self.reads["failed"] += 1
            log.warning("cannot load an issuer's keys", issuer=self.issuer, error=str(error) or repr(error))
            if self._keys is not None and began_s - self._read_at_s > JWKS_STALE_SECONDS_MAX:
                log.error("an issuer's keys are too old and no longer used", issuer=self.issuer)
                self._keys = None
            return False
        self.reads["ok"] += 1
        return True

    def take(self, keys: KeySet, began_s: float | None = None) -> None:
        before = frozenset(key.fingerprint for key in self._keys.keys) if self._keys is not None else frozenset()
        after = frozenset(key.fingerprint for key in keys.keys)
        if before != after:
            log.info("keys of an issuer", issuer=self.issuer, keys=len(after), new=len(after - before))
            for reason in keys.left_out:
                log.warning("an issuer's key was skipped", issuer=self.issuer, reason=reason)
        self._keys = keys
        self._read_at_s = self._steady_s() if began_s is None else began_s


class KeySets:
    """The keys of all issuers, and the tasks that keep them fresh. `serve` starts and closes it."""

    def __init__(self, jwt: Jwt) -> None:
        """Reads the keys in files. Raises `BadKeys`, which names the issuer and its source."""
        self._client: httpx2.AsyncClient | None = None
        self._turns = asyncio.Semaphore(JWKS_FETCHES_AT_ONCE_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self.of: dict[str, Keys] = {}
        for issuer in jwt.issuers:
            try:
                self.of[issuer.issuer] = self._keys_of(issuer, jwt.jwks_max_age_s)
            except (BadKeys, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise BadKeys(f"issuer {issuer.issuer!r}, {issuer.source}: {why}") from None

    def _keys_of(self, issuer: Issuer, max_age_s: float) -> Keys:
        if issuer.secret is not None:
            return OneKey(secret_key(issuer.secret.encode()))
        if issuer.secret_file is not None:
            secret = Path(issuer.secret_file).read_bytes().rstrip(b"\r\n")
            if (wrong := wrong_secret(secret)) is not None:
                raise BadKeys(wrong)
            return OneKey(secret_key(secret))
        if issuer.public_key_file is not None:
            return OneKey(pem_key(Path(issuer.public_key_file).read_bytes()))
        if issuer.jwks_file is not None:
            file = Path(issuer.jwks_file)
            keys = FreshKeys(issuer.issuer, lambda: asyncio.to_thread(_read_file, file), max_age_s=max_age_s)
            keys.take(parse_set(_read_file(file)))
            return keys
        assert issuer.jwks_url is not None
        url = issuer.jwks_url
        return FreshKeys(issuer.issuer, lambda: self._fetch(url), max_age_s=max_age_s)

    @property
    def fresh(self) -> Iterable[FreshKeys]:
        return [keys for keys in self.of.values() if isinstance(keys, FreshKeys)]

    async def start(self) -> None:
        """Starts the tasks, and waits up to `JWKS_START_SECONDS_MAX` for the first reads."""
        self._tasks = [asyncio.create_task(keys.keep(), name="key set") for keys in self.fresh]
        if self._tasks:
            first = [asyncio.create_task(keys.is_first_read_over.wait(), name="first keys") for keys in self.fresh]
            _, late = await asyncio.wait(first, timeout=JWKS_START_SECONDS_MAX)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _fetch(self, url: str) -> bytes:
        """The document at a URL. Redirects are not followed: the operator alone decides where keys are."""
        if self._client is None:
            # One client for all: making one reads the certificates of all authorities. Proxy variables are ignored.
            self._client = httpx2.AsyncClient(verify=ssl.create_default_context(), trust_env=False)
        headers = {"accept": "application/jwk-set+json, application/json", "accept-encoding": "identity"}
        async with (
            self._turns,
            asyncio.timeout(JWKS_FETCH_SECONDS_MAX),
            self._client.stream("GET", url, headers=headers, timeout=JWKS_FETCH_SECONDS_MAX) as response,
        ):
            if response.status_code != 200:
                raise BadKeys(f"the key server returned {response.status_code}")
            if "content-encoding" in response.headers:
                raise BadKeys("the key server sent a compressed response, which was not requested")
            return await _bounded(response)


async def _bounded(response: httpx2.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > JWKS_BYTES_MAX:
            raise BadKeys(f"the response is larger than {JWKS_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _read_file(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(JWKS_BYTES_MAX + 1)
