"""Webhooks: signed as Standard Webhooks, sent to the address that was judged, tried again, some at a time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.alerts import webhooks
from gateway.alerts.core.addresses import parse_networks
from gateway.alerts.core.signing import headers, retry_after_s, secret_text
from gateway.alerts.limits import (
    WEBHOOK_ANSWER_BYTES_MAX,
    WEBHOOKS_PER_RECEIVER_WAITING_MAX,
    WEBHOOKS_PER_TENANT_WAITING_MAX,
    WEBHOOKS_WAITING_MAX,
)
from gateway.alerts.webhooks import Note, Outcome, Webhooks
from tests.support.patience import eventually
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
HERE = parse_networks(["127.0.0.0/8"])


class Seen:
    """What a server on this machine was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0
        self.at_once = self.most_at_once = 0


@asynccontextmanager
async def receiver(answer: Callable[[int], bytes], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Seen]:
    """Answers the n-th request with `answer(n)`: a real socket, and nothing of ours behind it."""
    seen = Seen()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.at_once += 1
        seen.most_at_once = max(seen.most_at_once, seen.at_once)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(found["content-length"]))
            seen.requests.append((first, found, body))
            await asyncio.sleep(0.02)
            writer.write(answer(len(seen.requests)))
            await writer.drain()
        finally:
            seen.at_once -= 1
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        await server.wait_closed()


def status(code: int, *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} said", "content-length: 0", "connection: close", *more, "", ""]).encode()


def sender(networks: object = HERE, *, leads_to: list[str] | Exception | None = None) -> tuple[Webhooks, list[Outcome]]:
    outcomes: list[Outcome] = []

    async def secret(_: str) -> bytes:
        return SECRET

    async def resolve(host: str, port: int) -> list[str]:
        if isinstance(leads_to, Exception):
            raise leads_to
        return ["127.0.0.1"] if leads_to is None else leads_to

    made = Webhooks(
        secret, lambda _, outcome: outcomes.append(outcome), lambda _: None, networks=networks, resolve=resolve
    )  # type: ignore[arg-type]
    return made, outcomes


async def settled(made: Webhooks) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*made._tasks)


async def test_the_signature_is_that_of_standard_webhooks() -> None:
    made, _ = sender()
    async with receiver(lambda _: status(204)) as seen:
        outcome = await made.attempt(
            Note("shop", "r", f"http://hooks.example:{seen.port}/in?a=1", "msg_1", b'{"type":"x"}')
        )
    assert outcome.ok and outcome.status == 204
    ((first, found, body),) = seen.requests
    assert first == "POST /in?a=1 HTTP/1.1" and found["host"] == f"hooks.example:{seen.port}"
    assert found["webhook-id"] == "msg_1" and found["content-type"] == "application/json"
    key = base64.b64decode(secret_text(SECRET).removeprefix("whsec_"))
    signed = f"msg_1.{found['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert found["webhook-signature"] == f"v1,{expected}"


def test_the_signature_of_the_specifications_example() -> None:
    """The values that the specification's libraries are tested with."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_name_is_resolved_once_and_all_its_addresses_are_judged() -> None:
    for addresses in (["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["169.254.169.254"]):
        made, _ = sender((), leads_to=addresses)
        async with receiver(lambda _: status(204)) as seen:
            outcome = await made.attempt(Note("shop", "r", f"http://rebound.example:{seen.port}/", "m", b"{}"))
        assert (
            not outcome.ok and outcome.is_final and "does not resolve to public addresses only" in (outcome.error or "")
        )
        assert seen.requests == []


async def test_nobody_learns_what_names_of_ours_lead_to() -> None:
    errors = set()
    for leads_to in (["10.2.3.4"], ["10.2.3.4", "93.184.216.34"], ["fd00::7"], [], socket.gaierror(-2, "not known")):
        made, _ = sender((), leads_to=leads_to)
        outcome = await made.attempt(Note("shop", "r", "http://db.internal/", "m", b"{}"))
        assert not outcome.ok and outcome.status is None
        errors.add(outcome.error)
    assert len(errors) == 1 and "db.internal" in (error := errors.pop() or "")
    assert "10.2" not in error and "fd00" not in error


async def test_a_certificate_has_to_name_the_host_that_the_address_came_from(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("hooks.example")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(pair.certificate, pair.key)
    made, _ = sender()
    made._authorities = authority.context()
    async with receiver(lambda _: status(204), tls=server_side) as seen:
        outcome = await made.attempt(Note("shop", "r", f"https://hooks.example:{seen.port}/", "m", b"{}"))
        assert outcome.ok and len(seen.requests) == 1
        asyncio.get_running_loop().set_exception_handler(None)  # the server is told of a handshake that was broken off
        outcome = await made.attempt(Note("shop", "r", f"https://other.example:{seen.port}/", "m", b"{}"))
        assert not outcome.ok and "other.example" in (outcome.error or "") and len(seen.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    made, _ = sender()
    async with receiver(lambda _: status(302, "location: http://127.0.0.1:1/")) as seen:
        outcome = await made.attempt(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m", b"{}"))
    assert not outcome.ok and outcome.status == 302 and len(seen.requests) == 1


async def test_of_an_answer_that_goes_on_with_interim_ones_a_bound_is_read() -> None:
    """Or one receiver has a core to itself for as long as it may take to answer."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    sent = ended = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent, ended
        await reader.readuntil(b"\r\n\r\n")
        try:
            while True:
                writer.write(interim * 1000)
                await writer.drain()
                sent += len(interim) * 1000
        except ConnectionError:
            ended += 1
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made, _ = sender()
    note = Note("shop", "r", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "m", b"{}")
    outcome = await made.attempt(note)
    await eventually(lambda: ended == 1, "the connection is closed")
    server.close()
    await server.wait_closed()
    assert (outcome.ok, outcome.status, outcome.is_final) == (False, None, False)
    assert outcome.error == f"no HTTP status in the first {WEBHOOK_ANSWER_BYTES_MAX} bytes of the response"
    assert outcome.ms < webhooks.WEBHOOK_SECONDS_MAX * 1000, "it was not waited for"


async def test_interim_answers_before_the_answer_are_passed_over() -> None:
    made, _ = sender()
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 100
    async with receiver(lambda _: early + status(204)) as seen:
        outcome = await made.attempt(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m", b"{}"))
    assert outcome.ok and outcome.status == 204


async def test_a_failure_is_tried_again_under_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOK_RETRY_SECONDS", 0.01)
    made, outcomes = sender()
    async with receiver(lambda n: status(500 if n < 3 else 200)) as seen:
        made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "msg_7", b"{}"))
        await settled(made)
    assert [o.status for o in outcomes] == [500, 500, 200]
    assert {found["webhook-id"] for _, found, _ in seen.requests} == {"msg_7"}
    assert made.sent == 1 and made.failed == 2


async def test_it_is_given_up_at_last_and_at_once_where_the_receiver_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOK_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(webhooks, "WEBHOOK_TRIES_MAX", 3)
    for code, tries in ((503, 3), (410, 1)):
        made, outcomes = sender()
        async with receiver(lambda _, code=code: status(code)) as seen:  # type: ignore[misc]
            made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m", b"{}"))
            await settled(made)
        assert len(outcomes) == tries


async def test_some_are_under_way_at_a_time_and_too_many_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOKS_PER_RECEIVER_WAITING_MAX", 30)
    made, _ = sender()
    async with receiver(lambda _: status(200)) as seen:
        for number in range(40):
            made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", f"m{number}", b"{}"))
        await settled(made)
    assert made.dropped == 10 and len(seen.requests) == 30
    assert seen.most_at_once == webhooks.WEBHOOKS_PER_RECEIVER_AT_ONCE_MAX


async def test_what_is_cut_is_not_tried_again_and_leaves_its_place() -> None:
    made, outcomes = sender()
    async with black_hole() as hole:
        for number in range(5):
            made.send(Note("shop", "r", hole, f"m{number}", b"{}"))
        await asyncio.sleep(0.05)
        made.cut()
        await asyncio.gather(*made._tasks, return_exceptions=True)
        await asyncio.sleep(0)
    assert (made.waiting, made._shares, made._under_way, outcomes) == (0, {}, {}, [])
    async with receiver(lambda _: status(200)) as seen:
        made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m0", b"{}"))
        await settled(made)
    assert len(seen.requests) == 1, "it may be given to this one again"


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Takes connections and never answers."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        for writer in held:
            writer.close()
        server.close()
        await server.wait_closed()


async def test_a_tenant_whose_receivers_never_answer_holds_up_nobody_else() -> None:
    made, outcomes = sender()
    async with black_hole() as hole, receiver(lambda _: status(200)) as seen:
        for number in range(WEBHOOKS_WAITING_MAX + 1):
            made.send(Note("noisy", f"hole {number % 20}", hole, f"m{number}", b"{}"))
        dropped = made.dropped
        assert made.waiting == WEBHOOKS_PER_TENANT_WAITING_MAX
        made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "ours", b"{}"))
        assert made.dropped == dropped
        await eventually(lambda: made.sent == 1, within_s=30)
        assert [found["webhook-id"] for _, found, _ in seen.requests] == ["ours"] and outcomes[-1].ok
        await made.close()
    assert made.waiting == 0 and not made._shares


async def test_a_receiver_that_never_answers_holds_up_no_other_of_its_tenant() -> None:
    made, _ = sender()
    async with black_hole() as hole, receiver(lambda _: status(200)) as seen:
        for number in range(WEBHOOKS_PER_TENANT_WAITING_MAX + 1):
            made.send(Note("shop", "hole", hole, f"m{number}", b"{}"))
        assert made.waiting == WEBHOOKS_PER_RECEIVER_WAITING_MAX
        made.send(Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "ours", b"{}"))
        await eventually(lambda: made.sent == 1, within_s=30)
        await made.close()


async def test_what_was_cut_may_be_sent_again_at_once() -> None:
    done: list[str] = []

    async def secret(_: str) -> bytes:
        return SECRET

    made = Webhooks(secret, lambda *_: None, done.append, networks=HERE)
    async with receiver(lambda _: status(200)) as seen:
        note = Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m", b"{}")
        made.send(note)
        made.cut()
        made.send(note)
        made.send(note)
        await asyncio.gather(*made._tasks, return_exceptions=True)
    assert len(seen.requests) == 1 and done == ["m"]


async def test_what_may_not_be_tried_any_more_is_left_to_whoever_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOK_RETRY_SECONDS", 0.01)
    may_try, done = [True], []

    async def secret(_: str) -> bytes:
        return SECRET

    def refuses(_: int) -> bytes:
        may_try[0] = False
        return status(500)

    made = Webhooks(secret, lambda *_: None, done.append, may_try=lambda: may_try[0], networks=HERE)
    async with receiver(refuses) as seen:
        note = Note("shop", "r", f"http://127.0.0.1:{seen.port}/", "m", b"{}")
        made.send(note)
        await settled(made)
        assert len(seen.requests) == 1 and done == [], "it has neither arrived nor been given up"
        made.send(note)
        await settled(made)
        assert len(seen.requests) == 1 and made.waiting == 0


def test_pauses_double_up_to_a_bound() -> None:
    assert [retry_after_s(n, first_s=1, most_s=60) for n in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]
