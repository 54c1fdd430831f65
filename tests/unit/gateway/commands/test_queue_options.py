"""`pushq queue create` and `update` have an option for every setting, and say what was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.commands.queue_options import settings_options
from gateway.commands.queue_set import create, update
from gateway.queues.settings import FIXED, RANGES, SETTINGS


@click.command()
@settings_options()
def show(config: dict[str, Any]) -> None:
    """Show what a command gets."""
    click.echo(json.dumps(config))


def config_of(*arguments: str) -> Any:
    ran = CliRunner().invoke(show, arguments)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def refused(*arguments: str) -> str:
    ran = CliRunner().invoke(show, arguments)
    assert ran.exit_code == 2
    return ran.stderr


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {option.name or "": option for option in command.params if isinstance(option, click.Option)}


def test_create_has_an_option_for_every_setting_with_its_range_and_default() -> None:
    options = options_of(create)
    assert SETTINGS.keys() <= options.keys()
    for name in SETTINGS:
        words = options[name].help or ""
        assert "--" + name.replace("_", "-") in options[name].opts and "[default: " in words
        assert name not in RANGES or f"{RANGES[name][1]:,}" in words


def test_update_has_those_that_may_change() -> None:
    options = options_of(update)
    assert SETTINGS.keys() & options.keys() == SETTINGS.keys() - FIXED.keys()
    assert not any("[default: " in (options[name].help or "") for name in SETTINGS.keys() - FIXED.keys())


def test_what_is_not_given_is_not_said() -> None:
    assert config_of() == {}


def test_options_have_the_type_of_their_setting() -> None:
    assert config_of(
        *("--kind", "stream", "--max-attempts", "3", "--max-messages", "5", "--encrypted", "false"),
        *("--dead-letter-queue", "errors", "--tags", '{"team": "a"}', "--dedupe", "none", "--colocate-with", "bills"),
        *("--partitions", "4", "--auto-expand", '{"of": "partition_bytes", "limit": 9}'),
    ) == {
        "kind": "stream",
        "max_attempts": 3,
        "max_messages": 5,
        "encrypted": False,
        "dead_letter_queue": "errors",
        "tags": {"team": "a"},
        "dedupe": "none",
        "colocate_with": "bills",
        "partitions": 4,
        "auto_expand": {"of": "partition_bytes", "limit": 9},
    }


def test_times_are_durations_and_need_no_ms_in_their_name() -> None:
    assert config_of(
        *(
            "--message-ttl",
            "7d",
            "--visibility-timeout-ms",
            "30s",
            "--retry-backoff-ms",
            "5",
            "--retry-backoff-max",
            "2h",
        ),
        *("--set", "delay_ms=1m", "--set", "dedupe_window_ms=500", "--set", "dead_letter_queue=1m"),
    ) == {
        "message_ttl_ms": 604_800_000,
        "visibility_timeout_ms": 30_000,
        "retry_backoff_ms": 5,
        "retry_backoff_ms_max": 7_200_000,
        "delay_ms": 60_000,
        "dedupe_window_ms": 500,
        "dead_letter_queue": "1m",
    }
    assert "invalid duration" in refused("--delay", "soon")


@pytest.mark.parametrize("word", ["none", "null"])
def test_none_is_null_where_null_may_be(word: str) -> None:
    given = config_of("--dead-letter-queue", word, "--max-bytes", word, "--retention-ms", word, "--auto-expand", word)
    assert given == {"dead_letter_queue": None, "max_bytes": None, "retention_ms": None, "auto_expand": None}


def test_a_config_is_json_or_a_file_and_options_and_set_win(tmp_path: Path) -> None:
    text = '{"max_attempts": 1, "delay_ms": 1, "priorities": 1}'
    (tmp_path / "config.json").write_text(text)
    for option, given in (("--config", text), ("--config", str(tmp_path / "config.json")), ("--config-file", text)):
        config = config_of(option, given, "--delay-ms", "2", "--priorities", "2", "--set", "priorities=3")
        assert config == {"max_attempts": 1, "delay_ms": 2, "priorities": 3}


def test_set_takes_json_else_text() -> None:
    assert config_of("--set", "tags={}", "--set", "kind=stream", "--set", "max_bytes=null") == {
        "tags": {},
        "kind": "stream",
        "max_bytes": None,
    }


def test_set_takes_what_the_option_of_the_setting_takes() -> None:
    wanted = ("max_messages=none", "max_attempts=null", "encrypted=no", "message_ttl_ms=2h", "unknown=abc")
    assert config_of(*(word for setting in wanted for word in ("--set", setting))) == {
        "max_messages": None,
        "max_attempts": None,
        "encrypted": False,
        "message_ttl_ms": 7_200_000,
        "unknown": "abc",
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "partitions=abc"), "--set: partitions: 'abc' is not a whole number such as 1000"),
        (("--set", "partitions=1.5"), "partitions: '1.5' is not a whole number"),
        (("--set", "max_messages=abc"), "max_messages: 'abc' is not a whole number"),
        (("--set", "delay_ms=soon"), "delay_ms: invalid duration 'soon': use 500"),
        (("--set", "encrypted=maybe"), "encrypted: 'maybe' is not a valid boolean"),
        (("--set", "tags=[1]"), "tags: not a JSON object"),
        (("--max-attempts", "many"), "not a whole number such as 1000"),
        (("--max-messages", "many"), "not a whole number such as 1000"),
        (("--kind", "heap"), "'work', 'stream'"),
        (("--tags", "a=b"), "not valid JSON"),
        (("--tags", "[]"), "not a JSON object"),
        (("--auto-expand", "always"), "not valid JSON"),
        (("--config", "{"), "not valid JSON"),
        (("--config", "missing.json"), "cannot read 'missing.json': No such file"),
        (("--set", "kind"), "FIELD=VALUE"),
    ],
)
def test_what_is_not_meant_is_told(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)
