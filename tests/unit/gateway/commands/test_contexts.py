"""Contexts: what they say of a server, how they rank, and who may read them."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import cli
from gateway.commands.contexts import Contexts, Profile, load, path, save
from gateway.commands.exits import Exit, Failure
from gateway.commands.target import Target

SECRET = "pushq_ab12_s3cr3t"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own for contexts, in an environment that names no server."""
    for name in ("PUSHQ_URL", "PUSHQ_KEY", "PUSHQ_CONTEXT", "PUSHQ_CA_FILE", "PUSHQ_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "admin.key").write_text("key-of-the-folder\n")
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["context", *arguments], input=stdin, prog_name="pushq")


def target(home: Path, context: str | None = None, url: str | None = None, *, is_data_named: bool = False) -> Target:
    return Target(url, None, home, context=context, is_data_named=is_data_named)


def kept(current: str | None = "prod", **profile: str) -> None:
    fields = {"url": "https://prod.example", "key": SECRET} | profile
    save(Contexts({"prod": Profile(**fields), "test": Profile("http://test.example", key="key-of-test")}, current))


# How they rank


def test_the_context_in_use_says_where_and_who(home: Path) -> None:
    kept()
    assert (target(home).base_url, target(home).key()) == ("https://prod.example", SECRET)


def test_an_option_names_another_one_and_so_does_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    assert target(home, "test").base_url == "http://test.example"
    monkeypatch.setenv("PUSHQ_CONTEXT", "test")
    assert target(home).key() == "key-of-test"
    assert target(home, "prod").key() == SECRET


def test_the_environment_comes_before_the_context_in_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv("PUSHQ_KEY", "key-of-the-environment")
    assert (target(home).base_url, target(home).key()) == ("https://prod.example", "key-of-the-environment")


def test_an_option_comes_before_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv("PUSHQ_URL", "http://environment.example")
    monkeypatch.setenv("PUSHQ_KEY", "key-of-the-environment")
    assert (target(home, "test").base_url, target(home, "test").key()) == ("http://test.example", "key-of-test")


def test_the_key_of_a_context_goes_to_no_other_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tenant="acme")
    elsewhere = target(home, url="http://elsewhere.example")
    assert (elsewhere.key(), elsewhere.tenant(None)) == ("key-of-the-folder", None)
    here = target(home, is_data_named=True)
    assert (here.base_url, here.key()) == ("http://127.0.0.1:8080", "key-of-the-folder")
    monkeypatch.setenv("PUSHQ_URL", "http://environment.example")
    assert target(home).key() == "key-of-the-folder"


def test_the_key_of_the_folder_goes_to_no_server_of_a_context_unless_the_folder_is_named(home: Path) -> None:
    assert run("add", "prod", "--url", "https://prod.example").exit_code == 0
    with pytest.raises(Failure, match='context "prod" has none'):
        target(home).key()
    assert target(home, "prod", is_data_named=True).key() == "key-of-the-folder"


def test_a_context_gives_the_tenant_and_the_files_of_tls(home: Path) -> None:
    kept(tenant="acme", ca_file=str(home / "absent.crt"))
    assert (target(home).tenant(None), target(home).tenant("other")) == ("acme", "other")
    with pytest.raises(Exception, match=r"absent\.crt"):
        target(home).tls()


def test_local_administration_goes_elsewhere_only_when_a_server_is_named(home: Path) -> None:
    assert target(home).is_local
    kept()
    assert not target(home).is_local
    assert target(home, is_data_named=True).is_local


def test_a_url_of_the_environment_counts_where_the_folder_has_no_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHQ_URL", "http://elsewhere.example")
    assert not target(home).is_local
    assert target(home, is_data_named=True).is_local
    with socket.socket(socket.AF_UNIX) as here:
        monkeypatch.chdir(home)
        here.bind("admin.sock")
        assert target(home).is_local


# Where the key comes from


def test_a_command_gives_the_key_and_is_asked_once(home: Path) -> None:
    program = f"import pathlib; pathlib.Path({str(home / 'asked')!r}).open('a').write('x'); print('key-of-the-command')"
    kept(key_command=f'{sys.executable} -c "{program}"')
    save(Contexts({"prod": Profile("http://a", key_command=f'{sys.executable} -c "{program}"')}, "prod"))
    asking = target(home)
    assert (asking.key(), asking.key()) == ("key-of-the-command", "key-of-the-command")
    assert (home / "asked").read_text() == "x"


@pytest.mark.parametrize(
    ("command", "told"),
    [("false", "failed with exit code 1"), ("/no/such/program", "cannot run"), ("true", "has no valid key")],
)
def test_a_command_that_gives_no_key_is_a_matter_of_authentication(command: str, told: str, home: Path) -> None:
    save(Contexts({"prod": Profile("http://a", key_command=command)}, "prod"))
    with pytest.raises(Failure, match=told) as failed:
        target(home).key()
    assert failed.value.exit_code == Exit.AUTH


def test_a_file_gives_the_key(home: Path) -> None:
    save(Contexts({"prod": Profile("http://a", key_file=str(home / "admin.key"))}, "prod"))
    assert target(home).key() == "key-of-the-folder"


# The file


def test_the_file_is_for_its_owner_only() -> None:
    kept()
    file = path()
    assert file is not None
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_change_is_refused_with_the_remedy(mode: int, home: Path) -> None:
    kept()
    file = path()
    assert file is not None
    file.chmod(mode)
    with pytest.raises(Failure, match="others may read or change it") as refused:
        target(home).key()
    assert refused.value.lines == (f"chmod 600 {file}",)
    assert target(home, url="http://elsewhere.example").key() == "key-of-the-folder", "nobody asked for it"


@pytest.mark.parametrize("text", ["{", '{"contexts": []}', '{"contexts": {"a": {"url": "http://a", "kee": "x"}}}'])
def test_a_broken_file_is_named_and_its_text_is_not(text: str) -> None:
    kept()
    file = path()
    assert file is not None
    file.write_text(text)
    with pytest.raises(Failure, match=r"contexts\.json is not a contexts file"):
        load()


def test_without_a_file_there_is_none_and_without_a_home_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() == Contexts()
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/nowhere")
    assert path() == Path("/nowhere/.config/pushq/contexts.json")
    assert load() == Contexts()


# The commands


def test_contexts_are_added_listed_used_and_removed(home: Path) -> None:
    assert (
        "it is now the current context"
        in run("add", "prod", "--url", "https://prod.example/", "--key-stdin", stdin=SECRET).stderr
    )
    assert run("add", "test", "--url", "http://test.example", "--key-file", str(home / "admin.key")).exit_code == 0
    rows = json.loads(run("list", "--json").stdout)["items"]
    assert [(row["name"], row["current"], row["url"]) for row in rows] == [
        ("prod", True, "https://prod.example"),
        ("test", False, "http://test.example"),
    ]
    assert run("use", "test").exit_code == 0 and load().current == "test"
    assert run("remove", "test", "--yes").exit_code == 0
    assert (load().current, list(load().contexts)) == (None, ["prod"])
    assert run("use", "--none").exit_code == 0


def test_secrets_are_never_printed(home: Path) -> None:
    run("add", "prod", "--url", "https://prod.example", "--key-stdin", stdin=SECRET)
    run("add", "other", "--url", "https://other.example", "--key-command", "echo s3cr3t")
    said = "".join(
        ran.output
        for name in ("prod", "other")
        for ran in (run("show", name), run("show", name, "--json"), run("list"), run("list", "--json"))
    )
    assert "s3cr3t" not in said
    assert "pushq_ab12_…" in said and "command echo …" in said


def test_a_context_is_replaced_only_when_asked() -> None:
    add = ("add", "prod", "--url", "https://prod.example")
    assert run(*add).exit_code == 0
    again = run(*add)
    assert again.exit_code == 1 and "--replace" in again.stderr
    assert run(*add, "--replace", "--tenant", "acme").exit_code == 0
    assert load().contexts["prod"].tenant == "acme"


def test_removal_asks_first() -> None:
    kept()
    assert run("remove", "prod", stdin="n\n").exit_code == 1
    assert "prod" in load().contexts


@pytest.mark.parametrize("arguments", [("show", "absent"), ("use", "absent"), ("remove", "absent", "--yes")])
def test_absent_context_ends_with_6_and_names_those_there_are(arguments: tuple[str, ...]) -> None:
    kept()
    ran = run(*arguments)
    assert ran.exit_code == Exit.NOT_FOUND
    assert "saved: prod, test" in ran.stderr and "pushq context add absent" in ran.stderr


@pytest.mark.parametrize("variable", ["PUSHQ_URL", "PUSHQ_CONTEXT", "PUSHQ_KEY"])
def test_what_comes_before_a_context_is_told_when_it_is_used(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv(variable, "http://environment.example")
    assert f"{variable} is set and takes precedence" in run("use", "test").stderr


def test_a_key_in_the_environment_is_no_matter_where_no_context_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv("PUSHQ_KEY", "key-of-the-environment")
    assert "warning" not in run("use", "--none").stderr


def test_nobody_elses_file_is_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(Failure, match="belongs to another user"):
        target(home).key()
