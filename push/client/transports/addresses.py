"""Names with several addresses: which address to try first, and HTTP that fails over to the next one."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from push.client.config import Limits
from push.client.discover import reason

Result = TypeVar("Result")

HEALTH_PATH = "/lbz"
"""200 from a server that takes new connections, 404 from one that drains."""


class Addresses:
    """The addresses of one URL's host, resolved anew for each connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        self._turn = 0

    async def found(self) -> list[str]:
        """Every address; each call begins with the next one. Raises `OSError` for a name that has none."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        start = self._turn % len(addresses) if addresses else 0
        self._turn += 1
        return addresses[start:] + addresses[:start]


async def race(
    attempts: Sequence[Callable[[], Awaitable[Result]]],
    *,
    stagger_s: float,
    passing: type[Exception],
    drop: Callable[[Result], None],
) -> Result:
    """The result of the first attempt that succeeds; each begins when the one before failed, or took `stagger_s`.

    A slow attempt goes on beside the next. An error of type `passing` leads to the next attempt, and the last of them
    is raised if all fail; any other error is raised at once. A result that comes too late goes to `drop`.
    """
    waiting = list(reversed(attempts))
    running: set[asyncio.Future[Result]] = set()
    try:
        while True:
            if waiting:
                running.add(asyncio.ensure_future(waiting.pop()()))
            done, _ = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for ended in done:
                error = ended.exception()
                if error is None:
                    running.discard(ended)
                    return ended.result()
                if not isinstance(error, passing) or (len(running) == 1 and not waiting):
                    raise error
                running.discard(ended)
    finally:
        for late in running:
            late.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(result, BaseException):
                drop(result)


class NotNow(Exception):
    """The failed health check of one address."""

    def __init__(self, address: str, detail: str, rank: int) -> None:
        super().__init__(detail)
        self.address = address
        self.rank = rank
        """0: it answers and takes no new connections. 1: it did not answer in time. 2: no server is there."""


class AddressedTransport(httpx2.AsyncBaseTransport):
    """HTTP to one of a name's addresses: one that answers, until it no longer does.

    If there are several, the health of each is checked: the first that takes new connections is used, else one that
    answers at all, else one that is slow. A request that could not connect goes to the next address. A request that got
    no answer fails, as it would with a single address: it may have been carried out.
    """

    def __init__(
        self, addresses: Addresses, bounds: Limits, *, tls: ssl.SSLContext | bool, connections: httpx2.Limits
    ) -> None:
        self._addresses = addresses
        self._bounds = bounds
        self._http = httpx2.AsyncHTTPTransport(verify=tls, limits=connections)
        self._address: str | None = None
        self._choosing = asyncio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        address = await self._chosen(request.url)
        try:
            return await self._send(request, address)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            self._forget(address)
            return await self._send(request, await self._chosen(request.url))
        except httpx2.TransportError:
            self._forget(address)
            raise

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _chosen(self, url: httpx2.URL) -> str:
        """The address in use, or a new one."""
        async with self._choosing:
            if self._address is None:
                self._address = await self._choose(url)
            return self._address

    async def _choose(self, url: httpx2.URL) -> str:
        host = self._addresses.host
        try:
            found = await self._addresses.found()
        except OSError as error:
            raise httpx2.ConnectError(f"{host}: {error.strerror or error}") from error
        if len(found) == 1:
            return found[0]
        refusals: list[NotNow] = []
        attempts = [functools.partial(self._healthy, url, address, refusals) for address in found]
        try:
            return await race(
                attempts, stagger_s=self._bounds.address_stagger_s, passing=NotNow, drop=lambda address: None
            )
        except NotNow:
            best = min(refusals, key=lambda refusal: refusal.rank)
            if best.rank < 2:
                return best.address
            raise httpx2.ConnectError(f"none of {len(found)} addresses of {host} responds; {best}") from best

    async def _healthy(self, url: httpx2.URL, address: str, refusals: list[NotNow]) -> str:
        """The address, if it takes new connections; else raises its refusal, which is also appended to `refusals`."""
        try:
            async with asyncio.timeout(self._bounds.address_timeout_s):
                status = await self._health(url, address)
            if status == 200:
                return address
            refusal = NotNow(address, f"{address} returned {status}", 0)
        except (TimeoutError, httpx2.TimeoutException):
            refusal = NotNow(address, f"{address} does not respond", 1)
        except httpx2.TransportError as error:
            refusal = NotNow(address, f"{address}: {reason(error)}", 2)
        refusals.append(refusal)
        raise refusal

    async def _health(self, url: httpx2.URL, address: str) -> int:
        request = httpx2.Request("GET", url.copy_with(raw_path=HEALTH_PATH.encode()))
        response = await self._send(request, address)
        await response.aread()
        await response.aclose()
        return response.status_code

    async def _send(self, request: httpx2.Request, address: str) -> httpx2.Response:
        """Sends to the address. The name stays in the `Host` header, and is the one that the certificate must show."""
        extensions = request.extensions | {"sni_hostname": request.url.host}
        url = request.url.copy_with(host=address)
        return await self._http.handle_async_request(
            httpx2.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
        )

    def _forget(self, address: str) -> None:
        if self._address == address:
            self._address = None


def addressed(
    addresses: Addresses, url: str, bounds: Limits, *, tls: ssl.SSLContext | None, connections: httpx2.Limits
) -> httpx2.AsyncBaseTransport | None:
    """The transport for `url`; None for a proxy, which resolves the name itself."""
    proxies = getproxies()
    is_proxied = urlsplit(url).scheme in proxies or "all" in proxies
    if is_proxied and not proxy_bypass(addresses.host):
        return None
    return AddressedTransport(addresses, bounds, tls=trusted(url, tls), connections=connections)


def trusted(url: str, tls: ssl.SSLContext | None) -> ssl.SSLContext | bool:
    """What connections for `url` verify with. For http://, a context without authorities: reading those of the system
    takes longer than connecting."""
    if tls is None and urlsplit(url).scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True if tls is None else tls
