"""The command line parses, helps and refuses before it asks a server anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gateway.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {
    "httpx2",
    "websockets",
    "msgspec",
    "lmdb",
    "rich",
    "starlette",
    "uvicorn",
    "jinja2",
    "push",
    "backend_store.model",
}


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a data folder, in an environment that names neither server nor key."""
    monkeypatch.chdir(tmp_path)
    for name in ("PUSHQ_URL", "PUSHQ_KEY", "PUSHQ_CONTEXT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None, **options: bool) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin, prog_name="pushq", **options)


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    return command


def flags(path: tuple[str, ...]) -> set[str]:
    return {flag for parameter in found(path).params for flag in parameter.opts}


@pytest.mark.parametrize("path", list(every_command(cli)), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help")
    assert shown.exit_code == 0
    assert f"Usage: pushq {' '.join(path)}" in shown.stdout


WITHOUT_JSON = {
    *("serve", "demo", "gateway", "metadata", "backend", "manager", "dev-cluster demo", "dev-cluster provision"),
    *("alert export", "usage run", "completion"),
}
"""Servers, and what puts something else on stdout."""
DESTROYS = ("delete", "purge", "drop")
_COMMANDS = [path for path in every_command(cli) if not isinstance(found(path), click.Group)]


@pytest.mark.parametrize("path", _COMMANDS, ids=" ".join)
def test_every_command_puts_json_if_asked(path: tuple[str, ...]) -> None:
    assert ("--json" in flags(path)) is (" ".join(path) not in WITHOUT_JSON)


@pytest.mark.parametrize("path", [path for path in _COMMANDS if path[-1] in DESTROYS], ids=" ".join)
def test_what_destroys_asks_or_takes_yes(path: tuple[str, ...]) -> None:
    assert "--yes" in flags(path)


def test_an_alert_rule_goes_with_its_alerts_only_when_that_is_meant(empty_folder: Path) -> None:
    ran = run("alert", "remove", "r1", stdin="n\n")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "Delete alert rule r1 and its alerts?" in ran.stderr


def test_help_lists_all_commands_in_order_of_need() -> None:
    lines = run("--help").stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert not any(line.endswith("...") for line in lines)


def test_help_imports_nothing_heavy() -> None:
    program = "import sys; from gateway.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    shown = subprocess.run(
        [sys.executable, "-c", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(shown.stderr.split())


@pytest.mark.parametrize("arguments", [("--version",), ("queue", "--help"), ("config", "show"), ("completion", "bash")])
def test_a_stdout_that_takes_nothing_is_named(arguments: tuple[str, ...], empty_folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "gateway", *arguments]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=empty_folder, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (1, "pushq: stdout: No space left on device\n")


def test_version_is_told() -> None:
    assert run("--version").stdout.startswith("pushq ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "No such command"),
        (["publsh"], "Did you mean 'publish'?"),
        (["queue", "lst"], "Did you mean 'list'?"),
        (["queue", "create"], "Missing argument"),
        (["queue", "create", "q", "--set", "kind"], "FIELD=VALUE"),
        (["queue", "update", "q"], "nothing to change"),
        (["queue", "delete", "q"], "--discard"),
        (["queue", "create", "q", "--kind", "heap"], "heap"),
        (["publish", "q", "x", "--header", "a"], "NAME=VALUE"),
        (["publish", "q", "x", "--lines"], "--lines reads messages from stdin"),
        (["publish", "q", "--lines", "--id", "a"], "--id"),
        (["publish", "q", "x", "--url", "ftp://elsewhere"], "Error: the server's URL must start with http://"),
        (["publish", "q", "x", "--url", "http://here:99999"], "Error: the server's URL: Port out of range"),
        (["queue", "create", "q", "--config-file", "latin1"], "cannot read 'latin1': it is no text in UTF-8"),
        (["consume", "q", "--transport", "pigeon"], "pigeon"),
        (["consume", "q", "--count", "0"], "0 is not in the range"),
        (["consume", "q", "--raw", "--json"], "are mutually exclusive"),
        (["consume", "q", "--format", "{id} {atempt}"], "did you mean {attempt}?"),
        (["consume", "q", "--no-ack", "--ack", "auto"], "remove one of them"),
        (["consume", "q", "--no-ack", "--count", "11", "--credit", "10"], "raise --credit"),
        (["move", "q", "q"], "the same queue"),
        (["queue", "list", "--context", "a", "--url", "http://b"], "are mutually exclusive"),
        (["context", "add", "no/name", "--url", "http://a"], "invalid context name"),
        (["context", "add", "a", "--url", "queue.example"], "--url"),
        (["context", "add", "a", "--url", "http://me:secret@b"], "remove the user name and password"),
        (["context", "add", "a", "--url", "http://b", "--key-command", "'"], "--key-command"),
        (["context", "add", "a", "--url", "http://b", "--key-command", "x", "--key-stdin"], "are mutually exclusive"),
        (["context", "add", "a", "--url", "http://b", "--key-stdin"], "--key-stdin"),
        (["context", "use"], "--none"),
        (["move", "q"], "Missing argument 'TO'"),
        (["group", "set", "q", "g", "--position", "seq:x"], "seq:N or time:T"),
        (["consume", "q", "--from", "seq:x"], "seq:N"),
        (["key", "create", "k"], "--scope"),
        (["top"], "--once"),
        (["demo", "--listen", "127.0.0.1:0"], "a fixed port"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_wrong_command_line_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], told: str, empty_folder: Path
) -> None:
    (empty_folder / "pushq-data").mkdir()
    (empty_folder / "pushq-data/admin.key").write_text("pushq_id_secret\n")
    (empty_folder / "latin1").write_bytes(b"\xe4")
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert told in ran.stderr
    assert ran.stdout == ""


def test_forgotten_body_is_told_from_an_empty_message(empty_folder: Path) -> None:
    ran = run("publish", "q", stdin="")
    assert ran.exit_code == 2
    assert "stdin is empty" in ran.stderr


def test_missing_key_ends_with_4_and_names_the_places_it_may_be_in(empty_folder: Path) -> None:
    ran = run("queue", "list")
    assert ran.exit_code == 4
    assert "PUSHQ_KEY" in ran.stderr
    assert "pushq-data/admin.key" in ran.stderr


def test_error_under_json_is_one_json_object_on_stderr(empty_folder: Path) -> None:
    ran = run("queue", "list", "--json")
    assert ran.stdout == ""
    assert json.loads(ran.stderr)["code"] == "auth"


def test_missing_socket_ends_with_5(empty_folder: Path) -> None:
    ran = run("queue", "delete", "q", "--discard", "--yes")
    assert ran.exit_code == 5
    assert "admin.sock" in ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_for_the_shell(shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"{shell}_complete" in script
    assert "pushq" in script


def test_no_color_wins_over_a_terminal(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in run("queue", "list", color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("queue", "list", color=True).stderr


# Settings


def test_config_check_is_quiet_about_right_settings(empty_folder: Path) -> None:
    (empty_folder / "pushq.toml").write_text('resume_ms = 7000\n[http]\nlisten = "127.0.0.1:9000"\n')
    ran = run("config", "check")
    assert ran.exit_code == 0
    assert ran.stdout == ""


def test_config_check_ends_with_3_and_names_the_nearest_setting(empty_folder: Path) -> None:
    (empty_folder / "pushq.toml").write_text("resum_ms = 7000\n")
    ran = run("config", "check")
    assert ran.exit_code == 3
    assert "resume_ms" in ran.stderr


def test_config_show_tells_where_a_value_comes_from(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_folder / "mine.toml").write_text("resume_ms = 7000\n")
    monkeypatch.setenv("PUSHQ_HTTP__LISTEN", "127.0.0.1:9000")
    plain = run("config", "show", "--config", "mine.toml").stdout.splitlines()
    assert "resume_ms = 7000" in plain
    shown = json.loads(run("config", "show", "--config", "mine.toml", "--json").stdout)["items"]
    origins = {each["key"]: (each["value"], each["origin"]) for each in shown}
    assert origins["resume_ms"] == (7000, "mine.toml")
    assert origins["http.listen"] == ("127.0.0.1:9000", "PUSHQ_HTTP__LISTEN")
    table = run("config", "show", "--origin", "--config", "mine.toml").stdout
    assert table.splitlines()[0].split() == ["SETTING", "VALUE", "ORIGIN"]


def test_server_with_wrong_settings_does_not_start(empty_folder: Path) -> None:
    ran = run("serve", "--dev", "--listen", "0.0.0.0:8080")
    assert ran.exit_code == 3
    assert "--dev" in ran.stderr
    assert not (empty_folder / "pushq-data").exists()


def test_gateway_of_a_cluster_starts_in_front_of_backends_only(empty_folder: Path) -> None:
    ran = run("gateway", "--listen", "127.0.0.1:0")
    assert ran.exit_code == 3
    assert "store.backends" in ran.stderr and "`pushq serve`" in ran.stderr
    ran = run("gateway", "--backends", "127.0.0.1:1, 127.0.0.1:x")
    assert ran.exit_code == 3
    assert "127.0.0.1:x" in ran.stderr
    assert not (empty_folder / "pushq-data").exists()


@pytest.mark.parametrize("module", ["gateway", "gateway.cli", "pushq"])
def test_the_command_is_also_a_module(module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'push/import_name'}"},
        capture_output=True,
        text=True,
    )
    assert (shown.returncode, shown.stdout.split()[:1]) == (0, ["pushq"]), shown.stderr


# The reference page


def test_reference_page_is_what_the_commands_say() -> None:
    from gateway.commands.reference import reference

    page = ROOT / "docs/reference/cli.md"
    assert page.read_text() == reference(), "python -m gateway.commands.reference > docs/reference/cli.md"
