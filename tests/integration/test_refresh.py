"""A token that ends while its session lives: refreshed in time, refused for another caller, closed when it is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.integration.calls import make_key
from tests.support.issuers import SECRET, KeyServer, SigningKey, claims, issuers_env, key_server, with_secret
from tests.support.server import PushqServer

ACME = "https://id.acme.example"
OTHER = "https://id.other.example"
KEY = SigningKey("ES256", "first")


@pytest.fixture(scope="module")
def keys() -> Iterator[KeyServer]:
    with key_server(KEY) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: KeyServer) -> Iterator[PushqServer]:
    env = issuers_env(
        {"issuer": ACME, "tenant": "default", "jwks_url": keys.url},
        {"issuer": OTHER, "tenant": "default", "secret": SECRET},
        leeway_s=0,
        jwks_max_age_s=10,
    )
    with PushqServer(tmp_path_factory.mktemp("refresh") / "data", env=env) as running:
        for queue in ("q", "r"):
            httpx2.put(f"{running.url}/v1/queues/{queue}", headers=running.headers)
        yield running


class Socket:
    """A session opened with a token."""

    def __init__(self, server: PushqServer, token: str) -> None:
        self._opening = connect(server.ws_url)
        self._token = token
        self.frames: list[dict[str, Any]] = []

    def __enter__(self) -> Socket:
        self.ws: ClientConnection = self._opening.__enter__()
        self.say(type="connect", id="c", token=self._token)
        assert self.hear("connected")["id"] == "c"
        return self

    def __exit__(self, *_: object) -> None:
        self._opening.__exit__(None, None, None)

    def say(self, **frame: Any) -> None:
        self.ws.send(json.dumps(frame))

    def hear(self, kind: str, seconds: float = 5) -> dict[str, Any]:
        """The next frame of that type."""
        while True:
            heard = json.loads(self.ws.recv(seconds))
            for frame in heard if isinstance(heard, list) else [heard]:
                self.frames.append(frame)
            if self.frames[-1]["type"] == kind:
                return self.frames[-1]

    def ends(self, seconds: float = 5) -> tuple[str, int]:
        """The code of the last `error`, and that of the close."""
        with pytest.raises(ConnectionClosed) as closed:
            self._hear_to_the_end(seconds)
        errors = [frame["problem"]["code"] for frame in self.frames if frame["type"] == "error"]
        assert closed.value.rcvd is not None
        return errors[-1], closed.value.rcvd.code

    def _hear_to_the_end(self, seconds: float) -> None:
        while True:
            heard = json.loads(self.ws.recv(seconds))
            self.frames += heard if isinstance(heard, list) else [heard]


def publish(server: PushqServer, queue: str, body: Any) -> None:
    answer = httpx2.post(
        f"{server.url}/v1/queues/{queue}/messages", json={"messages": [{"body": body}]}, headers=server.headers
    )
    assert answer.status_code == 201


def test_a_session_outlives_its_token_by_a_newer_one(server: PushqServer) -> None:
    with Socket(server, KEY.sign(claims(ACME, "consume:*", lives_s=2))) as socket:
        socket.say(type="subscribe", id=1, queue="q", credit=5, ack="auto")
        socket.hear("ok")
        socket.say(type="refresh", id=2, token=KEY.sign(claims(ACME, "consume:*", lives_s=60)))
        assert socket.hear("ok")["id"] == 2
        time.sleep(4.5)  # the first token is over, and keys were checked since
        publish(server, "q", "still here")
        assert socket.hear("deliver")["messages"][0]["body"] == "still here"


def test_a_session_ends_with_its_token(server: PushqServer) -> None:
    with Socket(server, KEY.sign(claims(ACME, "consume:*", lives_s=2))) as socket:
        began = time.monotonic()
        assert socket.ends(8) == ("unauthenticated", 4401)
        assert 1 < time.monotonic() - began < 7


def test_a_session_ends_within_30_s_of_its_tokens_end(start_server: Callable[..., PushqServer]) -> None:
    """With the leeway that holds without a setting. The token was over before, so that the rest is short."""
    ended_s = 16
    server = start_server(env=issuers_env({"issuer": OTHER, "tenant": "default", "secret": SECRET}))
    with Socket(server, with_secret(claims(OTHER, "consume:*", lives_s=-ended_s))) as socket:
        began = time.monotonic()
        assert socket.ends(30) == ("unauthenticated", 4401)
        assert time.monotonic() - began < 28 - ended_s, "a token's times are whole seconds, and 2 s are to spare"


def test_another_callers_token_ends_the_session(server: PushqServer) -> None:
    for other in (
        KEY.sign(claims(ACME, "consume:*", sub="bob")),
        with_secret(claims(OTHER, "consume:*")),
        server.key,
    ):
        with Socket(server, KEY.sign(claims(ACME, "consume:*"))) as socket:
            socket.say(type="refresh", id=2, token=other)
            assert socket.ends() == ("forbidden", 4503)


def test_a_token_that_does_not_hold_ends_the_session(server: PushqServer) -> None:
    stranger = SigningKey("ES256", KEY.id)
    for wrong, code in (
        ("nonsense", 4501),
        (stranger.sign(claims(ACME, "consume:*")), 4501),
        (KEY.sign(claims(ACME, "consume:*", lives_s=-1)), 4401),
    ):
        with Socket(server, KEY.sign(claims(ACME, "consume:*"))) as socket:
            socket.say(type="refresh", id=2, token=wrong)
            assert socket.ends() == ("unauthenticated", code)


def test_a_newer_token_with_fewer_scopes_ends_what_they_do_not_allow(server: PushqServer) -> None:
    with Socket(server, KEY.sign(claims(ACME, "consume:*"))) as socket:
        for number, queue in enumerate(("q", "r")):
            socket.say(type="subscribe", id=number, queue=queue, credit=5)
            socket.hear("ok")
        socket.say(type="refresh", id=9, token=KEY.sign(claims(ACME, "consume:r")))
        ended = socket.hear("ended")
        assert ended["sub"] == 1 and ended["problem"]["code"] == "forbidden"
        publish(server, "r", "allowed")
        assert socket.hear("deliver")["sub"] == 2


def test_a_page_goes_on_with_the_next_key_of_its_name(server: PushqServer) -> None:
    with httpx2.Client(base_url=server.url, headers=server.headers) as admin:
        first, second = (make_key(admin, "consume:*", name="page of ann") for _ in range(2))
        other = make_key(admin, "consume:*", name="page of bob")
    with Socket(server, first["key"]) as socket:
        socket.say(type="refresh", id=1, token=second["key"])
        assert socket.hear("ok")["id"] == 1
        socket.say(type="refresh", id=2, token=other["key"])
        assert socket.ends() == ("forbidden", 4503)


def test_a_key_that_leaves_the_set_takes_sessions_and_tokens_along(server: PushqServer, keys: KeyServer) -> None:
    """At first the new key is unknown; the server looks for it, and finds the old one gone."""
    newer = SigningKey("ES256", "second")
    token = KEY.sign(claims(ACME, "view:*"))
    with Socket(server, token) as socket:
        keys.publish([newer])
        try:
            headers = {"Authorization": f"Bearer {newer.sign(claims(ACME, 'view:*'))}"}
            deadline = time.monotonic() + 25
            while (answer := httpx2.get(f"{server.url}/v1/queues", headers=headers)).status_code != 200:
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert answer.headers["retry-after"].isdigit() and time.monotonic() < deadline
                time.sleep(0.2)
            assert (
                httpx2.get(f"{server.url}/v1/queues", headers={"Authorization": f"Bearer {token}"}).status_code == 401
            )
            assert socket.ends(8) == ("unauthenticated", 4401)
        finally:
            keys.publish([KEY, newer])
