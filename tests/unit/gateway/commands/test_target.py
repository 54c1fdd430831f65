"""Which server and which key: an option before the environment, the environment before the folder."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from gateway.commands.exits import Exit, Failure
from gateway.commands.target import Target


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PUSHQ_KEY", raising=False)
    monkeypatch.delenv("PUSHQ_URL", raising=False)
    monkeypatch.delenv("PUSHQ_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "admin.key").write_text("key-of-the-folder\n")
    (tmp_path / "mine").write_text("key-of-mine\nand a note\n")
    return tmp_path


def test_key_file_comes_before_environment_before_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Target(None, None, folder).key() == "key-of-the-folder"
    monkeypatch.setenv("PUSHQ_KEY", "key-of-the-environment")
    assert Target(None, None, folder).key() == "key-of-the-environment"
    assert Target(None, folder / "mine", folder).key() == "key-of-mine"


def test_where_the_key_came_from_is_noted_for_the_refusal(folder: Path) -> None:
    with click.Context(click.Command("any")) as ctx:
        Target(None, None, folder).key()
    assert ctx.meta == {"pushq.key_origin": str(folder / "admin.key")}


def test_unreadable_key_is_a_matter_of_authentication(folder: Path) -> None:
    for name, content in {
        "binary": b"\xff\xfe",
        "empty": b"",
        "words": b"two words",
        "letters": "schlüssel".encode(),
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(Failure, match=f"{name} has no valid key") as failed:
            Target(None, folder / name, folder).key()
        assert failed.value.exit_code == Exit.AUTH


def test_url_comes_before_environment_before_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Target(None, None, folder).base_url == "http://127.0.0.1:8080"
    monkeypatch.setenv("PUSHQ_URL", "https://queue.example/")
    assert Target(None, None, folder).base_url == "https://queue.example"
    assert Target("ws://other.example", None, folder).base_url == "http://other.example"


def test_wrong_url_is_told_with_where_it_came_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError, match=r"not 'queue.example'$"):
        assert Target("queue.example", None, folder).base_url
    for wrong in ("queue.example", "http://a:b", "http://"):
        monkeypatch.setenv("PUSHQ_URL", wrong)
        with pytest.raises(click.UsageError, match=r"; it came from PUSHQ_URL$"):
            assert Target(None, None, folder).base_url


def test_absent_context_is_told_with_what_named_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHQ_CONTEXT", "absent")
    with pytest.raises(Failure, match='PUSHQ_CONTEXT: no context "absent"'):
        assert Target(None, None, folder).base_url


@pytest.mark.parametrize(
    "url",
    ["queue.example", "http://", "http://[::1", "http://a:99999", "http://a:b", "http://a:0", "http://a b", "ftp://a"],
)
def test_wrong_url_is_a_usage_error(url: str, folder: Path) -> None:
    with pytest.raises(click.UsageError, match="the server's URL"):
        assert Target(url, None, folder).base_url
