"""Queue names and configs: what is taken, what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend_store.model import InvalidRequest, QueueConfig
from gateway.validate import LATER_SETTINGS, changed_config, check_name, check_new_queue_name, queue_config, time_ms


def errors_of(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        queue_config(given)
    return {e.pointer: e.detail for e in refused.value.errors}


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "q" * 128, "orders.dead.letters"])
def test_a_name_of_the_protocol_is_taken(name: str) -> None:
    check_new_queue_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a b", "a/b", "ä", "q" * 129, "a\n", "a%", "orders\x00"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


@pytest.mark.parametrize("name", ["orders.dead", "orders.late"])
def test_a_companion_cannot_be_made(name: str) -> None:
    with pytest.raises(InvalidRequest, match="belong to the queue 'orders'"):
        check_new_queue_name(name)


def test_an_empty_config_is_the_defaults() -> None:
    assert queue_config({}) == QueueConfig()


def test_the_defaults_may_be_spelled_out() -> None:
    assert queue_config(msgspec.to_builtins(QueueConfig())) == QueueConfig()


def test_settings_that_work_are_kept() -> None:
    given = {"kind": "stream", "visibility_timeout_ms": 0, "max_message_bytes": 1_048_576, "tags": {"team": "a"}}
    config = queue_config(given)
    assert {name: getattr(config, name) for name in given} == given


@pytest.mark.parametrize("name", sorted(LATER_SETTINGS))
def test_a_setting_of_a_later_version_is_refused_by_name(name: str) -> None:
    assert f"does not have the setting {name!r} yet" in errors_of({name: 1})[f"/{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", 2), ("delivery", "at_most_once"), ("delivery", "exactly_once"), ("ordering", "strict"),
        ("sequencing", "clock"), ("dead_letter_queue", "x"), ("message_ttl_ms", 5), ("delay_ms", 1),
        ("retry_backoff_ms", 1), ("retention_ms", 1), ("retention_bytes", 1), ("max_messages", 1), ("max_bytes", 1),
        ("overflow", "drop_oldest"), ("priorities", 3), ("dedupe", "id"), ("durability", "relaxed"),
        ("lease_mode", "replicated"), ("encrypted", True), ("fair_by", "key"),
    ],
)  # fmt: skip
def test_a_value_of_a_later_version_is_refused_by_name(name: str, value: Any) -> None:
    detail = errors_of({name: value})[f"/{name}"]
    assert "this version does not have" in detail and name in detail


def test_replication_of_a_later_version_is_refused_by_its_fields() -> None:
    errors = errors_of({"replication": {"factor": 3, "mode": "async", "model": "independent_hosts", "factr": 1}})
    assert set(errors) == {f"/replication/{name}" for name in ("factor", "mode", "model", "factr")}
    assert "did you mean 'factor'?" in errors["/replication/factr"]


def test_an_unknown_setting_is_told_the_nearest_one() -> None:
    assert "did you mean 'visibility_timeout_ms'?" in errors_of({"visibilty_timeout_ms": 5})["/visibilty_timeout_ms"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "topic"}, "this is none of 'work', 'stream'"),
        ({"delivery": "never"}, "this is none of 'at_least_once'"),
        ({"visibility_timeout_ms": "30"}, "Expected `int`"),
        ({"visibility_timeout_ms": -1}, "it goes from 0 to 43200000"),
        ({"visibility_timeout_ms": 43_200_001}, "it goes from 0 to 43200000"),
        ({"max_message_bytes": 0}, "it goes from 1 to 1048576"),
        ({"max_message_bytes": 1_048_577}, "it goes from 1 to 1048576"),
        ({"tags": {"a": 1}}, "Expected `str`"),
        ({"tags": {str(n): "" for n in range(65)}}, "at most 64"),
        ({"tags": {"a": "x" * 20_000}}, "bytes of tags"),
        ({"encrypted": 0}, "Expected `bool`"),
        ({"partitions": True}, "Expected `int`"),
        ({"replication": 3}, "Expected `object`"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_right(given: dict[str, Any], says: str) -> None:
    assert says in errors_of(given)[f"/{next(iter(given))}"]


def test_all_mistakes_are_told_at_once() -> None:
    assert set(errors_of({"kind": 1, "tagz": {}, "encrypted": True})) == {"/kind", "/tagz", "/encrypted"}


def test_a_change_keeps_what_it_does_not_name() -> None:
    known = queue_config({"kind": "stream", "tags": {"a": "b"}})
    changed = changed_config(known, {"max_message_bytes": 10})
    assert (changed.kind, changed.tags, changed.max_message_bytes) == ("stream", {"a": "b"}, 10)


@pytest.mark.parametrize(("name", "value"), [("kind", "stream"), ("delivery", "exactly_once"), ("ordering", "strict")])
def test_what_a_queue_is_cannot_change(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} cannot change"):
        changed_config(QueueConfig(), {name: value})


def test_what_a_queue_is_may_be_repeated_in_a_change() -> None:
    assert changed_config(QueueConfig(), {"kind": "work", "tags": {"a": "b"}}).tags == {"a": "b"}


def test_times_have_a_zone() -> None:
    assert time_ms("2026-11-21T10:00:00.5Z", pointer="/t") == time_ms("2026-11-21T11:00:00.500+01:00", pointer="/t")
    for wrong in ("2026-11-21T10:00:00", "tomorrow", "", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-23:59"):
        with pytest.raises(InvalidRequest):
            time_ms(wrong, pointer="/t")
