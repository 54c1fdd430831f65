"""The document of `queue export` and `import`: what is read, what is refused, and what differs."""

from __future__ import annotations

import io
import json
from typing import Any

import click
import msgspec
import pytest

from backend_store.model import ONE_NODE, Replication
from gateway.commands.queue_file import differences, in_order, portable, read
from gateway.queues.config import queue_config, shown_config


def there(name: str = "q", **given: Any) -> dict[str, Any]:
    """The config that a server shows."""
    return dict(msgspec.to_builtins(shown_config(queue_config(given, name), name, ONE_NODE)))


def document(*entries: dict[str, Any], **more: Any) -> io.BytesIO:
    return io.BytesIO(json.dumps({"queues": list(entries)} | more).encode())


def test_configs_are_read_by_queue() -> None:
    config = {"max_attempts": 3}
    assert read(document({"name": "q", "config": config}, {"name": "p", "config": {}})) == {"q": config, "p": {}}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"queues: []", "not valid JSON.*yq -o json"),
        (b"[]", "Expected `object`.*pushq queue export"),
        (b'{"queues": [{"name": "q"}]}', "missing required field `config`"),
        (b'{"queues": [], "version": 2}', "version 2, but this pushq reads version 1"),
        (b'{"queues": [{"name": "q", "config": {"max_atempts": 1}}]}', 'queue "q".*max_attempts'),
        (b'{"queues": [{"name": "q.dead", "config": {}}]}', "belong to the queue"),
        (b'{"queues": [{"name": "q", "config": {}}, {"name": "q", "config": {}}]}', "/queues/1: duplicate"),
        (b'{"queues": [{"name": "q", "config": {}, "uid": "x"}]}', "unknown field `uid`"),
    ],
)
def test_what_is_no_such_document_is_refused_with_its_place(raw: bytes, told: str) -> None:
    with pytest.raises(click.BadParameter, match=told):
        read(io.BytesIO(raw))


def test_only_what_is_given_is_held_against_what_is_there() -> None:
    queue = there(max_attempts=3, tags={"team": "a"})
    assert differences("q", {}, queue) == {}
    assert differences("q", queue, queue) == {}
    assert differences("q", {"max_attempts": 5, "tags": {"team": "a"}}, queue) == {
        "max_attempts": {"is": 3, "wanted": 5}
    }


def test_a_setting_that_is_said_otherwise_is_the_same() -> None:
    assert differences("q", {"dead_letter_queue": "q.dead", "replication": {"factor": 1}}, there()) == {}


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        (ONE_NODE, None),
        (Replication(3, "sync", 2, "leader_follower"), None),
        (Replication(3, "async", 2, "leader_follower"), {"mode": "async"}),
        (Replication(), None),
    ],
)
def test_of_copies_that_is_kept_which_a_queue_asks_for_wherever_it_is_made(
    place: Replication, kept: dict[str, Any] | None
) -> None:
    shown = msgspec.to_builtins(shown_config(queue_config({}, "q"), "q", place))
    assert portable(shown).get("replication") == kept
    assert differences("q", portable(shown), shown) == {}


def test_one_copy_which_earlier_versions_said_of_every_queue_is_not_asked_for() -> None:
    entry = {"name": "q", "config": {"max_attempts": 3, "replication": msgspec.to_builtins(ONE_NODE)}}
    assert read(document(entry)) == {"q": {"max_attempts": 3}}
    entry["config"] = {"replication": {"factor": 1}}
    assert read(document(entry)) == {"q": {"replication": {"factor": 1}}}


def test_a_queue_comes_after_those_that_it_names() -> None:
    configs = {
        "a": {"dead_letter_queue": "c"},
        "b": {"colocate_with": "a"},
        "c": {},
        "d": {"dead_letter_queue": "elsewhere"},
    }
    order = in_order(configs)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("c") < order.index("a") < order.index("b")


def test_queues_that_name_each_other_are_all_there() -> None:
    assert sorted(in_order({"a": {"colocate_with": "b"}, "b": {"colocate_with": "a"}})) == ["a", "b"]
