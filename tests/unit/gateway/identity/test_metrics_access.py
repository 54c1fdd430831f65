"""Who reads `/metrics` without a key: a process of this machine that speaks for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import Http, MetricsSettings, Settings
from gateway.identity.metrics_access import OPEN, needs_key


def asks(client: str | None = "127.0.0.1", host: str = "127.0.0.1:8080", **headers: str) -> dict[str, Any]:
    given = [(b"host", host.encode()), *((name.replace("_", "-").encode(), b"x") for name in headers)]
    return {"client": None if client is None else (client, 1234), "headers": given}


def settings(open_to: Any = "local", listen: str = "127.0.0.1:8080") -> Settings:
    return Settings(http=Http(listen=listen), metrics=MetricsSettings(open_to=open_to))


@pytest.mark.parametrize("client", ["127.0.0.1", "127.0.0.9", "::1", None])
@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]:8080"])
def test_a_process_of_this_machine_needs_no_key(client: str | None, host: str) -> None:
    assert not needs_key(settings(), asks(client, host))


@pytest.mark.parametrize(
    ("scope", "listen"),
    [
        (asks("192.0.2.7"), "127.0.0.1:8080"),  # as a balancer's PROXY header says
        (asks("::ffff:127.0.0.1"), "127.0.0.1:8080"),
        (asks(), "0.0.0.0:8080"),
        (asks(), "[::]:8080"),
        (asks(host="pushq.example"), "127.0.0.1:8080"),  # a proxy that leaves the name, or a name that was rebound
        (asks(host="127.0.0.1.evil.example"), "127.0.0.1:8080"),
        (asks(host=""), "127.0.0.1:8080"),
        (asks(x_forwarded_for="1"), "127.0.0.1:8080"),
        (asks(forwarded="1"), "127.0.0.1:8080"),
        (asks(via="1"), "127.0.0.1:8080"),
    ],
)
def test_whoever_may_speak_for_others_does(scope: dict[str, Any], listen: str) -> None:
    assert needs_key(settings(listen=listen), scope)


def test_the_settings_have_the_last_word() -> None:
    assert needs_key(settings("nobody"), asks())
    assert not needs_key(settings("nobody"), asks(None)), "the folder's owner"
    assert not needs_key(settings("nobody"), {**asks("192.0.2.7"), OPEN: True})
    assert not needs_key(settings("everybody", "0.0.0.0:8080"), asks("192.0.2.7"))
