"""One name, several addresses: who is tried when, and what happens to those who come too late."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from push.client import Admin, Limits
from push.client.transports.addresses import AddressedTransport, Addresses, addressed, race, trusted
from push.client.transports.http import HttpDialer
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio

LIMITS = Limits(address_stagger_s=0.05, address_timeout_s=0.3)
NAME = "pushq.test"
SOON_S = 0.01
NEVER_S = 60.0


class Passing(Exception):
    """Try another."""


class Race:
    """Attempts that say when they began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.dropped: list[str] = []

    def attempt(self, name: str, ending: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            self.begun.append(name)
            return await ending()

        return run

    async def run(self, *attempts: Callable[[], Awaitable[str]], stagger_s: float = NEVER_S) -> str:
        return await race(attempts, stagger_s=stagger_s, passing=Passing, drop=self.dropped.append)


async def fails() -> str:
    raise Passing("no")


async def hangs() -> str:
    await asyncio.sleep(NEVER_S)
    raise AssertionError("it was never cancelled")


def wins(name: str) -> Callable[[], Awaitable[str]]:
    async def won() -> str:
        return name

    return won


async def test_the_second_begins_at_once_when_the_first_fails() -> None:
    here = Race()
    assert await here.run(here.attempt("a", fails), here.attempt("b", wins("b"))) == "b"
    assert here.begun == ["a", "b"]


async def test_the_second_is_not_asked_when_the_first_is_quick() -> None:
    here = Race()
    assert await here.run(here.attempt("a", wins("a")), here.attempt("b", wins("b"))) == "a"
    assert here.begun == ["a"]


async def test_the_second_begins_beside_a_silent_first() -> None:
    here = Race()
    assert await here.run(here.attempt("a", hangs), here.attempt("b", wins("b")), stagger_s=SOON_S) == "b"


async def test_the_last_refusal_is_raised_when_all_fail() -> None:
    async def last() -> str:
        raise Passing("the last")

    here = Race()
    with pytest.raises(Passing, match="the last"):
        await here.run(here.attempt("a", fails), here.attempt("b", last))


async def test_what_is_no_reason_to_try_another_is_raised_at_once() -> None:
    async def refused() -> str:
        raise ValueError("who are you")

    here = Race()
    with pytest.raises(ValueError, match="who are you"):
        await here.run(here.attempt("a", refused), here.attempt("b", wins("b")))
    assert here.begun == ["a"]


async def test_what_succeeds_too_late_is_dropped() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(NEVER_S)
        except asyncio.CancelledError:
            pass
        return "late"

    here = Race()
    assert await here.run(here.attempt("a", stubborn), here.attempt("b", wins("b")), stagger_s=SOON_S) == "b"
    assert here.dropped == ["late"]


class Fixed(Addresses):
    """A name whose addresses are known."""

    def __init__(self, url: str, *addresses: str) -> None:
        super().__init__(url)
        self._given = list(addresses)

    async def found(self) -> list[str]:
        return self._given


class Server:
    """Answers every request with its own address, and its health as it is told."""

    def __init__(self, address: str, health: int | None) -> None:
        """`health`: the status at `/lbz`; None for one that never answers anything."""
        self.address = address
        self._health = health
        self.hosts: list[str] = []
        self.paths: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                path = lines[0].split()[1]
                self.paths.append(path)
                self.hosts += [line[6:] for line in lines if line.lower().startswith("host: ")]
                if self._health is None:
                    continue
                status = self._health if path == "/lbz" else 200
                body = self.address.encode()
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*servers: Server, authority: Authority | None = None) -> AsyncIterator[int]:
    """All of them on one port, each at its address."""
    tls = None
    if authority is not None:
        pair = authority.issue(NAME)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.certificate, pair.key)
    async with AsyncExitStack() as stack:
        port = 0
        for server in servers:
            opened = await asyncio.start_server(server.serve, server.address, port, ssl=tls)
            stack.callback(opened.close)
            port = opened.sockets[0].getsockname()[1]
        yield port


def client(url: str, *addresses: str, authority: Authority | None = None) -> httpx2.AsyncClient:
    tls = True if authority is None else authority.context()
    several = Fixed(url, *addresses)
    transport = AddressedTransport(several, LIMITS, tls=tls, connections=httpx2.Limits())
    return httpx2.AsyncClient(base_url=url, transport=transport, timeout=5)


async def test_a_request_goes_to_one_that_takes_new_connections() -> None:
    draining, silent, well = Server("127.0.0.3", 404), Server("127.0.0.4", None), Server("127.0.0.5", 200)
    several = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"
    async with serving(draining, silent, well) as port, client(f"http://{NAME}:{port}", *several) as http:
        assert [(await http.get("/v1/queues")).text for _ in range(2)] == ["127.0.0.5", "127.0.0.5"]
    assert well.paths == ["/lbz", "/v1/queues", "/v1/queues"]
    assert set(well.hosts) == {f"{NAME}:{port}"}


async def test_when_none_takes_new_connections_one_that_answers_is_asked() -> None:
    silent, draining = Server("127.0.0.4", None), Server("127.0.0.3", 404)
    async with serving(silent, draining) as port, client(f"http://{NAME}:{port}", "127.0.0.4", "127.0.0.3") as http:
        assert (await http.get("/v1/queues")).text == "127.0.0.3"


async def test_a_single_address_is_asked_nothing_beforehand() -> None:
    well = Server("127.0.0.5", 200)
    async with serving(well) as port, client(f"http://{NAME}:{port}", "127.0.0.5") as http:
        await http.get("/v1/queues")
    assert well.paths == ["/v1/queues"]


async def test_a_request_that_reached_nobody_goes_to_another_address() -> None:
    first, second = Server("127.0.0.3", 200), Server("127.0.0.5", 200)
    async with serving(second) as port:
        opened = await asyncio.start_server(first.serve, first.address, port)
        async with client(f"http://{NAME}:{port}", "127.0.0.3", "127.0.0.5") as http:
            assert (await http.get("/", headers={"Connection": "close"})).text == "127.0.0.3"
            opened.close()
            assert (await http.post("/", content=b"once")).text == "127.0.0.5"


async def test_nobody_there_is_a_connect_error_that_says_so() -> None:
    async with client(f"http://{NAME}:1", "127.0.0.2", "127.0.0.3") as http:
        with pytest.raises(httpx2.ConnectError, match=r"none of 2 addresses of pushq\.test responds"):
            await http.get("/")


async def test_the_certificate_must_show_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    well = Server("127.0.0.5", 200)
    async with serving(well, authority=authority) as port:
        async with client(f"https://{NAME}:{port}", "127.0.0.2", "127.0.0.5", authority=authority) as http:
            assert (await http.get("/")).text == "127.0.0.5"
        # The server's side of a handshake that the client breaks off is nobody's mistake.
        monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", lambda context: None)
        async with client(f"https://other.test:{port}", "127.0.0.2", "127.0.0.5", authority=authority) as http:
            with pytest.raises(httpx2.ConnectError, match=r"other\.test"):
                await http.get("/")


async def test_a_proxy_looks_the_name_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://{NAME}"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    assert addressed(Addresses(url), url, LIMITS, tls=None, connections=httpx2.Limits()) is None
    monkeypatch.setenv("no_proxy", NAME)
    assert addressed(Addresses(url), url, LIMITS, tls=None, connections=httpx2.Limits()) is not None


# ----------------------------------------------------------------------------------------------------- who is trusted


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
async def test_the_authorities_of_the_system_are_read_for_https_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(httpcore2, "default_ssl_context", httpcore2.default_ssl_context.__wrapped__)  # tests keep one
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda self, *args, **named: read.append(self))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, *args, **named: read.append(self))
    http = await HttpDialer(url, _no_stream, LIMITS)(None)
    admin = Admin(url, "key")
    assert bool(read) is url.startswith("https:")
    http.cut("over")
    await http.wait_closed()
    await admin.close()


def test_a_context_for_http_trusts_nobody() -> None:
    context = trusted("http://pushq.test", None)
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname and not context.get_ca_certs()
    assert trusted("https://pushq.test", None) is True and trusted("http://pushq.test", context) is context


def _no_stream(*_: object) -> Any:
    raise AssertionError("nothing is subscribed")
