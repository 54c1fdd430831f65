"""Queues that name each other: the other one is there, and dead letters come to an end."""

from __future__ import annotations

import pytest

from backend_store.model import InvalidRequest, QueueConfig
from gateway.queues.links import Find, check_links


def queues(**dead_letter_queues: str | None) -> Find:
    configs = {name: QueueConfig(dead_letter_queue=target) for name, target in dead_letter_queues.items()}
    return configs.get


def refused(name: str, config: QueueConfig, find: Find, known: QueueConfig | None = None) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as error:
        check_links(name, config, find, known=known)
    return error.value.errors[0].pointer, error.value.detail


def to(target: str | None) -> QueueConfig:
    return QueueConfig(dead_letter_queue=target)


@pytest.mark.parametrize("target", [".dead", None])
def test_the_own_companion_and_none_need_no_other_queue(target: str | None) -> None:
    check_links("orders", to(target), queues())


def test_a_named_dead_letter_queue_must_be_there() -> None:
    pointer, detail = refused("orders", to("errors"), queues())
    assert pointer == "/dead_letter_queue" and "there is no queue 'errors'" in detail
    check_links("orders", to("errors"), queues(errors=".dead"))


def test_a_stream_may_keep_dead_letters() -> None:
    check_links("orders", to("errors"), {"errors": QueueConfig(kind="stream")}.get)


@pytest.mark.parametrize("sequencing", ["producer", "clock"])
def test_a_queue_that_sorts_takes_no_dead_letters(sequencing: str) -> None:
    sorts = {"errors": QueueConfig(sequencing=sequencing)}  # type: ignore[arg-type]
    assert f"is sorted by {sequencing}" in refused("orders", to("errors"), sorts.get)[1]


def test_dead_letters_may_go_on_from_queue_to_queue() -> None:
    check_links("orders", to("errors"), queues(orders=".dead", errors="rest", rest=None))


@pytest.mark.parametrize(
    ("find", "path"),
    [
        (queues(errors="orders"), "orders → errors → orders"),
        (queues(orders=".dead", errors="rest", rest="orders"), "orders → errors → rest → orders"),
    ],
)
def test_dead_letters_do_not_go_round(find: Find, path: str) -> None:
    assert path in refused("orders", to("errors"), find)[1]


def test_a_circle_of_others_is_none_of_this_queues_business() -> None:
    check_links("orders", to("errors"), queues(errors="rest", rest="errors"))


def test_a_neighbour_must_be_there() -> None:
    beside = QueueConfig(colocate_with="bills")
    assert refused("orders", beside, queues())[0] == "/colocate_with"
    check_links("orders", beside, queues(bills=None))


def test_links_that_a_queue_has_already_are_not_asked_for_again() -> None:
    known = QueueConfig(dead_letter_queue="gone", colocate_with="gone-too")
    check_links("orders", known, queues(), known=known)
    assert refused("orders", to("lost"), queues(), known)[0] == "/dead_letter_queue"
