"""Combinations that make no sense: each is refused by its own rule, with a remedy that works."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from backend_store.model import InvalidRequest, QueueConfig
from gateway.queues.config import changed_config, queue_config
from gateway.queues.rules import RULES, broken_rules

STREAM = {"kind": "stream"}
STRICT = {"ordering": "strict"}
CLOCK = {"sequencing": "clock"}
PRODUCER = {"sequencing": "producer"}
ONCE = {"delivery": "at_most_once"}
EXACTLY = {"delivery": "exactly_once"}
GROWS = {"auto_expand": {"of": "partition_messages", "limit": 9}}
NO_DEAD = {"dead_letter_queue": None}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # the rule, a config that breaks it, and what mends it
    ("a stream with priorities above 1", STREAM | {"priorities": 2}, {"priorities": 1}),
    ("a stream with sequencing by producer or clock", STREAM | CLOCK, {"sequencing": "arrival"}),
    ("a stream with delay_ms", STREAM | {"delay_ms": 1}, {"kind": "work"}),
    ("a stream with delivery at_most_once or exactly_once", STREAM | ONCE, {"delivery": "at_least_once"}),
    (
        "a stream with delivery at_most_once or exactly_once",
        STREAM | EXACTLY,
        {"delivery": "at_least_once", "dedupe": "id"},
    ),
    ("a stream with fair_by: key", STREAM | {"fair_by": "key"}, {"fair_by": "none"}),
    ("a stream with message_ttl_ms", STREAM | {"message_ttl_ms": 5}, {"message_ttl_ms": None, "retention_ms": 5}),
    (
        "a stream with overflow dead_letter_oldest or dead_letter_newest",
        STREAM | {"overflow": "dead_letter_newest", "max_messages": 1},
        {"overflow": "drop_oldest"},
    ),
    ("a work queue with retention_ms or retention_bytes", {"retention_ms": 5}, STREAM),
    ("a work queue with retention_ms or retention_bytes", {"retention_bytes": 5}, {"retention_bytes": None}),
    (
        "sequencing: producer or clock with partitions above 1 or auto_expand",
        PRODUCER | {"partitions": 2},
        {"partitions": 1},
    ),
    (
        "sequencing: producer or clock with partitions above 1 or auto_expand",
        CLOCK | GROWS | {"partitions": 2},
        {"sequencing": "arrival"},
    ),
    (
        "auto_expand with max_partitions below partitions",
        {"partitions": 5, "auto_expand": {"of": "partition_bytes", "limit": 9, "max_partitions": 4}},
        {"auto_expand": {"of": "partition_bytes", "limit": 9, "max_partitions": 5}},
    ),
    (
        "auto_expand with shrink_percent from at_percent on",
        {"auto_expand": {"of": "partition_bytes", "limit": 9, "at_percent": 30}},
        {"auto_expand": {"of": "partition_bytes", "limit": 9, "at_percent": 31}},
    ),
    ("ordering: strict with priorities above 1", STRICT | {"priorities": 2}, {"ordering": "best_effort"}),
    ("ordering: strict with fair_by: key", STRICT | {"fair_by": "key"}, {"fair_by": "none"}),
    ("ordering: best_effort with key_run_max", {"key_run_max": 5}, STRICT),
    ("sequencing: producer or clock with priorities above 1", PRODUCER | {"priorities": 2}, {"sequencing": "arrival"}),
    ("sequencing: producer or clock with delay_ms", CLOCK | {"delay_ms": 2}, {"sequencing": "arrival"}),
    ("sequencing: producer or clock with fair_by: key", CLOCK | {"fair_by": "key"}, {"fair_by": "none"}),
    *(
        ("sequencing: arrival with sort_window_ms, late_messages or sort_held_messages_max", alone, PRODUCER)
        for alone in ({"sort_window_ms": 5}, {"late_messages": "head"}, {"sort_held_messages_max": 5})
    ),
    (
        "sequencing: clock with message_ttl_ms or retention_ms up to sort_window_ms",
        CLOCK | {"message_ttl_ms": 1000},
        {"message_ttl_ms": 1001},
    ),
    *(
        (
            "delivery: at_most_once with visibility_timeout_ms, max_attempts or a backoff",
            ONCE | attempts,
            {"delivery": "at_least_once"},
        )
        for attempts in (
            {"visibility_timeout_ms": 1000},
            {"max_attempts": 5},
            {"retry_backoff_ms": 5},
            {"retry_backoff_ms": 5, "retry_backoff_ms_max": 6},
        )
    ),
    (
        "delivery: at_most_once with lease_mode: replicated",
        ONCE | {"lease_mode": "replicated"},
        {"lease_mode": "memory"},
    ),
    ("delivery: at_most_once with ordering: strict", ONCE | STRICT, {"ordering": "best_effort"}),
    (
        "delivery: exactly_once with lease_mode: memory",
        EXACTLY | {"lease_mode": "memory"},
        {"lease_mode": "replicated"},
    ),
    ("delivery: exactly_once with dedupe: none", EXACTLY | {"dedupe": "none"}, {"dedupe": "content"}),
    ("delivery: exactly_once with durability: relaxed", EXACTLY | {"durability": "relaxed"}, {"durability": "fsync"}),
    (
        "delivery: exactly_once with overflow: drop_oldest",
        EXACTLY | {"overflow": "drop_oldest", "max_messages": 5},
        {"overflow": "dead_letter_oldest"},
    ),
    (
        "durability: relaxed with lease_mode: replicated",
        STRICT | {"durability": "relaxed", "lease_mode": "replicated"},
        {"lease_mode": "memory"},
    ),
    ("retry_backoff_ms: 0 with retry_backoff_ms_max", {"retry_backoff_ms_max": 5}, {"retry_backoff_ms": 5}),
    (
        "retry_backoff_ms_max below retry_backoff_ms",
        {"retry_backoff_ms": 6, "retry_backoff_ms_max": 5},
        {"retry_backoff_ms_max": 6},
    ),
    ("dead_letter_queue: null with max_attempts", NO_DEAD | {"max_attempts": 5}, {"max_attempts": 10}),
    (
        "dead_letter_queue: null with overflow dead_letter_oldest or dead_letter_newest",
        NO_DEAD | {"max_messages": 5, "overflow": "dead_letter_oldest"},
        {"dead_letter_queue": "errors"},
    ),
    (
        "overflow other than reject without max_messages and max_bytes",
        {"overflow": "drop_oldest"},
        {"max_bytes": 10_000},
    ),
    ("max_message_bytes above max_bytes", {"max_bytes": 10, "max_message_bytes": 11}, {"max_bytes": 11}),
]


def test_every_rule_is_tried() -> None:
    assert {title for title, *_ in CASES} == {rule.title for rule in RULES}
    assert len({rule.title for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(("title", "given", "mend"), CASES)
def test_a_combination_without_sense_is_refused_and_can_be_mended(
    title: str, given: dict[str, Any], mend: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        queue_config(given, "orders")
    rule = next(rule for rule in RULES if rule.title == title)
    assert {error.detail.partition(": ")[2] for error in refused.value.errors} == {f"{rule.why}; {rule.instead}"}
    assert {error.pointer for error in refused.value.errors} == {f"/{name}" for name in rule.settings if name in given}
    queue_config(given | mend, "orders")


@pytest.mark.parametrize("name", ["delivery", "ordering", "sequencing", "durability", "dedupe", "lease_mode"])
def test_a_choice_alone_breaks_no_rule_by_the_defaults_of_others(name: str) -> None:
    for value in get_args(get_type_hints(QueueConfig)[name]):
        assert getattr(queue_config({name: value}, "orders"), name) == value


def test_a_mix_from_before_its_rule_stands_in_the_way_of_no_other_change() -> None:
    known = QueueConfig(delivery="at_most_once", ordering="strict")
    assert changed_config(known, {"max_messages": 5}, "orders").max_messages == 5
    with pytest.raises(InvalidRequest):
        changed_config(known, {"max_messages": 5, "ordering": "strict"}, "orders")


def test_a_small_queue_may_have_the_usual_message_size() -> None:
    assert queue_config({"max_bytes": 1}, "orders").max_message_bytes == 262_144


def test_a_rule_speaks_of_all_its_settings_when_the_caller_named_none() -> None:
    config = QueueConfig(ordering="strict", priorities=2)
    assert [error.pointer for error in broken_rules(config, ())] == ["/ordering", "/priorities"]
