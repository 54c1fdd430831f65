from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from push.client.discover import find_key, find_url, reason, resolve_key

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PUSHQ_URL", raising=False)
    monkeypatch.delenv("PUSHQ_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_argument_beats_the_environment_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_url() == "http://127.0.0.1:8080"
    monkeypatch.setenv("PUSHQ_URL", "https://q.example/")
    assert find_url() == "https://q.example"
    assert find_url("http://here:1") == "http://here:1"


@pytest.mark.parametrize(("given", "found"), [("ws://h:1", "http://h:1"), ("wss://h", "https://h")])
def test_a_websocket_url_means_its_http_one(given: str, found: str) -> None:
    assert find_url(given) == found


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http://"):
        find_url("localhost:8080")


def test_the_key_is_in_the_environment_else_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_key() is None
    (tmp_path / "pushq-data").mkdir()
    (tmp_path / "pushq-data" / "admin.key").write_text("pushq_a_b\n")
    assert find_key() == "pushq_a_b"
    assert find_key(data=tmp_path) is None
    monkeypatch.setenv("PUSHQ_KEY", "pushq_c_d")
    assert find_key() == "pushq_c_d"


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_of_a_file_with_several_keys_the_first_line_is_taken(tmp_path: Path, end: str) -> None:
    (tmp_path / "admin.key").write_bytes(f"pushq_a_b{end}pushq_c_d\nmade by hand\n".encode())
    assert find_key(data=tmp_path) == "pushq_a_b"


async def test_a_key_may_be_a_value_a_function_or_a_coroutine_function() -> None:
    async def fetch() -> str:
        return "three"

    assert await resolve_key("one") == "one"
    assert await resolve_key(lambda: "two") == "two"
    assert await resolve_key(fetch) == "three"
    assert await resolve_key(None) is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            RuntimeError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
            "it does not speak TLS; use http://",
        ),
        (
            ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed (_ssl.c:1006)"),
            "certificate verify failed: self-signed",
        ),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_why_a_connection_failed_is_told_without_what_belongs_to_a_traceback(error: Exception, said: str) -> None:
    assert reason(error) == said
