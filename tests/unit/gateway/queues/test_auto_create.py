"""Queues that make themselves: which config a name gets, and what a wrong entry is told."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.model import COMPANION, InvalidRequest
from gateway.config.settings import Queues, Settings
from gateway.limits import AUTO_CREATE_ENTRIES_MAX
from gateway.queues.auto_create import AutoCreate, auto_config, auto_create_entries


def with_entries(*entries: tuple[str, dict[str, Any]]) -> Settings:
    return Settings(queues=Queues(auto_create=tuple(AutoCreate(pattern, config) for pattern, config in entries)))


def wrong(value: Any) -> str:
    with pytest.raises(ValueError) as error:
        auto_create_entries(value)
    return str(error.value)


def test_by_default_no_queue_makes_itself() -> None:
    assert auto_config(Settings(), "orders") is None


def test_the_first_pattern_that_fits_counts() -> None:
    settings = with_entries(("jobs.urgent.*", {"priorities": 3}), ("jobs.*", {"max_attempts": 5}), ("news", {}))
    urgent, job, news = (auto_config(settings, name) for name in ("jobs.urgent.1", "jobs.1", "news"))
    assert urgent and (urgent.priorities, urgent.max_attempts) == (3, 10)
    assert job and (job.priorities, job.max_attempts) == (1, 5)
    assert news and news.dead_letter_queue == COMPANION
    assert auto_config(settings, "newspaper") is None


@pytest.mark.parametrize("name", ["jobs.dead", "jobs.late", "-jobs", "", "a" * 129, "a/b"])
def test_a_name_that_no_new_queue_may_have_makes_none(name: str) -> None:
    assert auto_config(with_entries(("*", {})), name) is None


def test_an_entry_is_completed_like_any_config() -> None:
    config = auto_config(with_entries(("*", {"delivery": "exactly_once"})), "pay")
    assert config and (config.dedupe, config.lease_mode) == ("id", "replicated")


def test_a_queue_is_not_made_as_its_own_dead_letter_queue() -> None:
    settings = with_entries(("*", {"dead_letter_queue": "errors"}))
    assert auto_config(settings, "orders")
    with pytest.raises(InvalidRequest, match="this queue itself"):
        auto_config(settings, "errors")


def test_a_stars_run_may_be_empty_and_other_signs_are_themselves() -> None:
    settings = with_entries(("a.*b", {}))
    assert [name for name in ("a.b", "a.xb", "axb", "a.bc") if auto_config(settings, name)] == ["a.b", "a.xb"]


def test_entries_come_as_a_list_or_as_its_json() -> None:
    entries = (AutoCreate("jobs.*", {"dead_letter_queue": None}), AutoCreate("news", {}))
    assert auto_create_entries(
        [{"pattern": "jobs.*", "config": '{"dead_letter_queue": null}'}, {"pattern": "news"}]
    ) == (entries)
    assert auto_create_entries(
        '[{"pattern": "jobs.*", "config": {"dead_letter_queue": null}}, {"pattern": "news"}]'
    ) == (entries)
    assert auto_create_entries([]) == ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"pattern": "a"}, "queues.auto_create must be a list"),
        ("[", "queues.auto_create is not valid JSON"),
        (["a"], "queues.auto_create[0]: Expected `object`"),
        ([{"config": {}}], "queues.auto_create[0]: Object missing required field `pattern`"),
        ([{"pattern": "a", "confg": {}}], "unknown field `confg`"),
        ([{"pattern": "a", "config": "{"}], "queues.auto_create[0].config is not valid JSON"),
        ([{"pattern": "a", "config": 5}], "queues.auto_create[0]: Expected `object`"),
        ([{"pattern": "a b"}], "queues.auto_create[0].pattern: 'a b' cannot match any name"),
        ([{"pattern": ""}], "queues.auto_create[0].pattern"),
        ([{"pattern": "a"}, {"pattern": "b", "config": {"priorites": 2}}], "[1].config.priorites: unknown setting"),
        ([{"pattern": "b", "config": {"priorities": 11}}], "[0].config.priorities: priorities must be between 1"),
        (
            [{"pattern": "b", "config": {"replication": {"factor": 0}}}],
            "config.replication.factor: factor must be between 1",
        ),
        ([{"pattern": "b", "config": {"ordering": "strict", "priorities": 2}}], "overtake"),
        ([{"pattern": "b", "config": {"dead_letter_queue": "b.dead"}}], "omit it to use <queue>.dead"),
        ([{"pattern": "a"}, {"pattern": "a"}], "[1].pattern: 'a' is already used by queues.auto_create[0]"),
        ([{"pattern": "a"}] * (AUTO_CREATE_ENTRIES_MAX + 1), "the maximum is 100"),
    ],
)
def test_a_wrong_entry_is_named_with_its_field(value: Any, says: str) -> None:
    assert says in wrong(value)
