"""Configs of queues: what is taken, what is put in, what is refused, and with which words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_store.model import COMPANION, AutoExpand, InvalidRequest, QueueConfig
from gateway.queues.config import changed_config, queue_config, shown_config
from gateway.queues.settings import FIXED, PART_RANGES, RANGES
from tests.support.seeds import examples

WEEK_MS = 7 * 24 * 3600 * 1000


def errors_of(config: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        queue_config(config, "orders")
    return {e.pointer: e.detail for e in refused.value.errors}


def change_errors(known: QueueConfig, changes: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        changed_config(known, changes, "orders")
    return {e.pointer: e.detail for e in refused.value.errors}


# --------------------------------------------------------------------------------------------- taken and put in


def test_an_empty_config_is_a_work_queue_that_shares_by_key() -> None:
    assert queue_config({}, "orders") == QueueConfig(fair_by="key")


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "stream", "visibility_timeout_ms": 0, "max_message_bytes": 1_048_576, "tags": {"team": "a"}},
        {"kind": "stream", "retention_ms": None, "retention_bytes": 10_000, "max_attempts": 3, "dedupe": "id"},
        {"kind": "stream", "max_messages": 5, "overflow": "drop_oldest", "ordering": "strict"},
        {"delay_ms": 5000, "message_ttl_ms": 5000, "priorities": 10, "max_attempts": 1, "fair_by": "none"},
        {"retry_backoff_ms": 100, "retry_backoff_ms_max": 100, "dead_letter_queue": None},
        {"max_bytes": 1000, "overflow": "dead_letter_newest", "durability": "relaxed"},
        {"ordering": "strict", "key_run_max": 1, "lease_mode": "memory", "dedupe": "content", "dedupe_window_ms": 100},
        {"sequencing": "producer", "late_messages": "head", "sort_window_ms": 0, "sort_held_messages_max": 1},
        {"delivery": "exactly_once", "dedupe": "content", "colocate_with": "bills", "lease_mode": "replicated"},
        {"delivery": "at_most_once", "sequencing": "producer", "dedupe": "id", "message_ttl_ms": 1},
        {"ordering": "strict", "durability": "relaxed", "max_messages": 1, "overflow": "drop_oldest"},
        {
            "partitions": 64,
            "ordering": "strict",
            "delivery": "exactly_once",
            "max_messages": 5,
            "colocate_with": "bills",
        },
        {"partitions": 4, "priorities": 3, "delivery": "at_most_once", "durability": "relaxed", "auto_expand": None},
    ],
)
def test_settings_that_go_together_are_kept(given: dict[str, Any]) -> None:
    config = queue_config(given, "orders")
    assert {name: getattr(config, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "put_in"),
    [
        ({}, {"dedupe": "none", "lease_mode": "memory", "fair_by": "key", "retention_ms": None}),
        ({"kind": "stream"}, {"fair_by": "none", "retention_ms": WEEK_MS, "lease_mode": "memory"}),
        ({"ordering": "strict"}, {"fair_by": "none", "lease_mode": "replicated", "dedupe": "none"}),
        ({"delivery": "exactly_once"}, {"dedupe": "id", "lease_mode": "replicated", "fair_by": "key"}),
        ({"delivery": "at_most_once"}, {"lease_mode": "memory"}),
        ({"ordering": "strict", "durability": "relaxed"}, {"lease_mode": "memory"}),
        ({"sequencing": "clock"}, {"fair_by": "none"}),
    ],
)
def test_a_default_that_hangs_on_other_settings_is_put_in(given: dict[str, Any], put_in: dict[str, Any]) -> None:
    config = queue_config(given, "orders")
    assert {name: getattr(config, name) for name in put_in} == put_in


def test_growing_by_itself_needs_only_what_is_measured_and_how_much_is_much() -> None:
    config = queue_config({"partitions": 2, "auto_expand": {"of": "partition_messages", "limit": 1000.0}}, "orders")
    assert config.auto_expand == AutoExpand("partition_messages", 1000, 80, 30, 64)
    assert queue_config(msgspec.to_builtins(shown_config(config, "orders")), "orders") == config


def test_null_is_a_value_where_the_default_is_none() -> None:
    assert queue_config({"kind": "stream", "retention_ms": None}).retention_ms is None


def test_the_own_companion_is_stored_without_the_name_and_shown_with_it() -> None:
    config = queue_config({"dead_letter_queue": "orders.dead"}, "orders")
    assert config == queue_config({}, "orders")
    assert config.dead_letter_queue == COMPANION
    assert shown_config(config, "orders").dead_letter_queue == "orders.dead"
    assert shown_config(config, "orders.dead").dead_letter_queue == "orders.dead"
    for other in ("errors", None):
        config = queue_config({"dead_letter_queue": other}, "orders")
        assert shown_config(config, "orders").dead_letter_queue == config.dead_letter_queue == other


def test_the_longest_name_has_a_companion_too() -> None:
    name = "q" * 128
    assert queue_config({"dead_letter_queue": f"{name}.dead"}, name).dead_letter_queue == COMPANION


# ------------------------------------------------------------------------------------------------------ refused


def test_a_setting_of_a_later_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.queues.config.LATER_SETTINGS", frozenset({"tags"}))
    assert "does not have the setting 'tags' yet" in errors_of({"tags": {}})["/tags"]


def test_parts_of_replication_that_there_are_not_are_refused_by_their_places() -> None:
    errors = errors_of({"replication": {"factor": 17, "mode": "slow", "model": "none", "factr": 1}})
    assert set(errors) == {f"/replication/{name}" for name in ("factor", "mode", "model", "factr")}
    assert errors["/replication/factor"] == "factor must be between 1 and 16, not 17"
    assert "must be one of 'sync', 'async'" in errors["/replication/mode"]
    assert "did you mean 'factor'?" in errors["/replication/factr"]


@pytest.mark.parametrize("missing", ["of", "limit"])
def test_growing_by_itself_without_a_part_that_it_needs_is_refused_by_that_part(missing: str) -> None:
    given: dict[str, Any] = {"of": "partition_bytes", "limit": 5}
    del given[missing]
    assert errors_of({"auto_expand": given}) == {f"/auto_expand/{missing}": f"auto_expand requires {missing!r}"}


@pytest.mark.parametrize("name", PART_RANGES)
def test_a_part_of_growing_by_itself_beyond_its_range_is_refused_with_the_range(name: str) -> None:
    low, high = PART_RANGES[name]
    for value in (low - 1, high + 1):
        errors = errors_of({"auto_expand": {"of": "partition_bytes", "limit": 5, name: value}})
        assert errors == {f"/auto_expand/{name}": f"{name} must be between {low} and {high}, not {value}"}


def test_all_mistakes_in_growing_by_itself_are_told_by_their_places() -> None:
    errors = errors_of({"auto_expand": {"of": "messages", "limit": "5", "max_partition": 3, "at_percent": None}})
    assert set(errors) == {f"/auto_expand/{name}" for name in ("of", "limit", "max_partition", "at_percent")}
    assert "must be one of 'partition_messages', 'partition_bytes'" in errors["/auto_expand/of"]
    assert "did you mean 'max_partitions'?" in errors["/auto_expand/max_partition"]
    assert "Expected `object | null`" in errors_of({"auto_expand": [1]})["/auto_expand"]


def test_more_settings_than_there_are_are_refused_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.queues.config.nearest", lambda *args: pytest.fail("it was looked for"))
    many = {f"setting_{number}": 1 for number in range(40_000)}
    for asked, pointer in ((many, ""), ({"replication": many}, "/replication")):
        with pytest.raises(InvalidRequest) as refused:
            queue_config(asked)
        (error,) = refused.value.errors
        assert error.pointer == pointer and error.detail.startswith("the config has 40000 settings; there are only ")


def test_an_unknown_setting_is_told_the_nearest_one() -> None:
    assert "did you mean 'visibility_timeout_ms'?" in errors_of({"visibilty_timeout_ms": 5})["/visibilty_timeout_ms"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "topic"}, "must be one of 'work', 'stream'"),
        ({"delivery": "never"}, "must be one of 'at_least_once', 'at_most_once', 'exactly_once'"),
        ({"overflow": None}, "must be one of 'reject'"),
        ({"visibility_timeout_ms": "30"}, "Expected `int`"),
        ({"visibility_timeout_ms": None}, "Expected `int`"),
        ({"retention_ms": "7d"}, "Expected `int | null`"),
        ({"max_messages": 1.5}, "Expected `int | null`"),
        ({"tags": {"a": 1}}, "Expected `str`"),
        ({"tags": []}, "Expected `object`"),
        ({"tags": {str(n): "" for n in range(65)}}, "at most 64"),
        ({"tags": {"a": "x" * 20_000}}, "tags must have at most"),
        ({"encrypted": 0}, "Expected `bool`"),
        ({"priorities": True}, "Expected `int`"),
        ({"replication": 3}, "Expected `object`"),
        ({"dead_letter_queue": 5}, "Expected `str | null`"),
        ({"dead_letter_queue": "a b"}, "invalid queue name"),
        ({"dead_letter_queue": ""}, "invalid queue name"),
        ({"dead_letter_queue": ".dead"}, "invalid queue name"),
        ({"dead_letter_queue": "orders"}, "'orders' is this queue itself"),
        ({"dead_letter_queue": "other.dead"}, "a companion of the queue 'other'"),
        ({"dead_letter_queue": "orders.late"}, "a companion of the queue 'orders'"),
        ({"colocate_with": "orders"}, "'orders' is this queue itself"),
        ({"colocate_with": "orders.dead"}, "a companion of the queue 'orders'"),
        ({"colocate_with": "-"}, "invalid queue name"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_right(given: dict[str, Any], says: str) -> None:
    assert says in errors_of(given)[f"/{next(iter(given))}"]


@pytest.mark.parametrize("name", RANGES)
def test_a_number_beyond_its_range_is_refused_with_the_range(name: str) -> None:
    low, high = RANGES[name]
    for value in (low - 1, high + 1):
        assert f"{name} must be between {low} and {high}, not {value}" in errors_of({name: value})[f"/{name}"]


def test_a_template_has_no_companion_to_write() -> None:
    for other in ("orders.dead", "<queue>.dead", ".dead"):
        with pytest.raises(InvalidRequest):
            queue_config({"dead_letter_queue": other})
    assert queue_config({"dead_letter_queue": "errors"}).dead_letter_queue == "errors"


def test_all_mistakes_are_told_at_once() -> None:
    assert set(errors_of({"kind": 1, "tagz": {}, "encrypted": "yes"})) == {"/kind", "/tagz", "/encrypted"}


def test_settings_that_do_not_go_together_are_refused_at_each_of_them() -> None:
    errors = errors_of({"ordering": "strict", "priorities": 3})
    assert set(errors) == {"/ordering", "/priorities"}
    assert 'ordering "strict" and priorities 3' in errors["/priorities"]


# ------------------------------------------------------------------------------------------------------ changes


def test_a_change_keeps_what_it_does_not_name() -> None:
    known = queue_config({"kind": "stream", "tags": {"a": "b"}, "retention_ms": None})
    changed = changed_config(known, {"max_message_bytes": 10.0}, "orders")
    assert changed == msgspec.structs.replace(known, max_message_bytes=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "stream"), ("delivery", "exactly_once"), ("ordering", "strict"), ("sequencing", "clock"),
        ("lease_mode", "replicated"), ("fair_by", "none"),
    ],
)  # fmt: skip
def test_what_a_queue_is_cannot_change(name: str, value: str) -> None:
    detail = change_errors(queue_config({}, "orders"), {name: value})[f"/{name}"]
    assert f"{name} is " in detail and "cannot change" in detail and FIXED[name] in detail


def test_what_a_queue_is_may_be_repeated_in_a_change() -> None:
    known = queue_config({}, "orders")
    changes = {name: getattr(known, name) for name in FIXED} | {"tags": {"a": "b"}}
    assert changed_config(known, changes, "orders").tags == {"a": "b"}


def test_partitions_and_growing_by_itself_may_change_both_ways() -> None:
    config = queue_config({}, "orders")
    for partitions in (4, 64, 1):
        config = changed_config(config, {"partitions": partitions}, "orders")
        assert config.partitions == partitions
    grows = changed_config(config, {"auto_expand": {"of": "partition_bytes", "limit": 7, "at_percent": 90}}, "orders")
    again = changed_config(grows, {"auto_expand": {"of": "partition_messages", "limit": 8}}, "orders")
    assert again.auto_expand == AutoExpand("partition_messages", 8, at_percent=80)  # as a whole, not part by part
    assert changed_config(again, {"auto_expand": None}, "orders") == config
    assert list(change_errors(again, {"auto_expand": {"limit": 9}})) == ["/auto_expand/of"]


def test_priorities_may_grow_and_not_shrink() -> None:
    known = queue_config({"priorities": 3}, "orders")
    assert changed_config(known, {"priorities": 5}, "orders").priorities == 5
    assert "cannot be lowered from 3" in change_errors(known, {"priorities": 2})["/priorities"]
    assert "must be between 1 and 10" in change_errors(known, {"priorities": 0})["/priorities"]


def test_a_change_is_held_against_the_rules_with_all_that_stays() -> None:
    known = queue_config({"max_messages": 5, "overflow": "drop_oldest"}, "orders")
    errors = change_errors(known, {"max_messages": None})
    assert list(errors) == ["/overflow"] and "without a limit, nothing overflows" in errors["/overflow"]
    assert list(change_errors(queue_config({"ordering": "strict"}, "orders"), {"priorities": 2})) == ["/priorities"]


def test_the_dead_letter_queue_may_change_to_another_to_none_and_back() -> None:
    config = queue_config({}, "orders")
    for target, stored in (("errors", "errors"), (None, None), ("orders.dead", COMPANION)):
        config = changed_config(config, {"dead_letter_queue": target}, "orders")
        assert config.dead_letter_queue == stored
    assert "this queue itself" in change_errors(config, {"dead_letter_queue": "orders"})["/dead_letter_queue"]


def test_a_queue_from_before_these_settings_takes_changes() -> None:
    stored = msgspec.convert({"kind": "stream", "dead_letter_queue": None, "retention_ms": None}, QueueConfig)
    changed = changed_config(stored, {"tags": {"a": "b"}}, "orders")
    assert (changed.dead_letter_queue, changed.retention_ms, changed.fair_by) == (None, None, "none")


# -------------------------------------------------------------------------------------------- any config at all


def values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if name in RANGES:
        low, high = RANGES[name]
        numbers: st.SearchStrategy[Any] = st.sampled_from([low, low + 1, 1000, high]).filter(lambda n: low <= n <= high)
        return numbers | st.none() if type(None) in get_args(kind) else numbers
    if name == "auto_expand":
        return st.none() | st.fixed_dictionaries(
            {"of": st.sampled_from(["partition_messages", "partition_bytes"]), "limit": st.sampled_from([1, 1000])},
            optional={"max_partitions": st.sampled_from([2, 64]), "at_percent": st.sampled_from([2, 80, 100])},
        )
    return st.sampled_from([None, "errors"] if type(None) in get_args(kind) else [getattr(QueueConfig(), name)])


CONFIGS = st.fixed_dictionaries(
    {}, optional={name: values(name, kind) for name, kind in get_type_hints(QueueConfig).items()}
)


@given(CONFIGS, CONFIGS)
@settings(max_examples=examples(80, exploring=300), deadline=None)
def test_a_config_that_was_taken_is_taken_again_as_it_is_shown(first: dict[str, Any], changes: dict[str, Any]) -> None:
    with suppress(InvalidRequest):
        config = queue_config(first, "orders")
        shown = msgspec.to_builtins(shown_config(config, "orders"))
        assert queue_config(shown, "orders") == config
        assert changed_config(config, {}, "orders") == config
        with suppress(InvalidRequest):
            changed = changed_config(config, changes, "orders")
            assert all(getattr(changed, name) == getattr(config, name) for name in FIXED)
            assert queue_config(msgspec.to_builtins(shown_config(changed, "orders")), "orders") == changed
