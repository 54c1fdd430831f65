"""Queues with several partitions on the real server: what one partition does, several do together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.calls import Client, pointers, publish, receive, refused
from tests.integration.partition_calls import (
    all_received,
    change,
    drained,
    in_order_by_key,
    is_resized,
    keyed,
    made,
    paged,
    partitions,
    resize,
    settle,
    shown,
    stats,
    stored,
)
from tests.support.patience import FAR, until
from tests.support.server import PushqServer

STRICT = {"ordering": "strict"}
GROWS: dict[str, Any] = {"of": "partition_messages", "limit": 100}


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=30) as client:
        yield client


# ------------------------------------------------------------------------------------------------ where messages go


def test_messages_of_a_key_are_in_one_partition_and_keys_are_in_all_of_them(http: Client) -> None:
    queue = made(http, partitions=4)
    rows = stored(http, queue, *keyed(400))
    by_key: dict[int, set[int]] = {}
    for number, row in enumerate(rows):
        by_key.setdefault(number % 40, set()).add(row["partition"])
    assert all(len(found) == 1 for found in by_key.values())
    assert {row["partition"] for row in rows} == {0, 1, 2, 3}


def test_an_answer_has_the_place_of_each_message_in_the_order_of_the_call(http: Client) -> None:
    queue = made(http, partitions=4, priorities=2)
    given = [{"body": n, "key": f"k{n % 7}", "priority": n % 2, "id": f"id{n}"} for n in range(50)]
    rows = stored(http, queue, *given)
    assert [row["id"] for row in rows] == [message["id"] for message in given]
    found = {item["id"]: item for item in paged(http, queue)}
    for row, message in zip(rows, given, strict=True):
        there = found[row["id"]]
        assert (there["partition"], there["seq"], there["body"]) == (row["partition"], row["seq"], message["body"])


def test_the_id_of_a_message_without_one_is_its_place(http: Client) -> None:
    queue = made(http, partitions=64)
    rows = stored(http, queue, *keyed(200, keys=200))
    assert len({row["partition"] for row in rows}) > 40
    assert all(row["id"] == f"{row['partition']}-{row['seq']:012x}" for row in rows)
    assert {item["id"] for item in paged(http, queue, limit=1000)} == {row["id"] for row in rows}


def test_messages_without_a_key_take_turns_from_call_to_call(http: Client) -> None:
    queue = made(http, partitions=3)
    calls = [{row["partition"] for row in stored(http, queue, {"body": 1}, {"body": 2})} for _ in range(6)]
    assert all(len(found) == 1 for found in calls)
    assert set().union(*calls) == {0, 1, 2}


def test_a_strict_queue_without_keys_has_one_order(http: Client) -> None:
    queue = made(http, partitions=4, **STRICT)
    for n in range(20):
        stored(http, queue, {"body": n})
    assert [message["body"] for message in drained(http, queue, 20)] == list(range(20))


# ------------------------------------------------------------------------------------------------ what is told


def test_a_queue_tells_what_each_of_its_partitions_holds(http: Client) -> None:
    queue = made(http, partitions=4, max_attempts=1)
    stored(http, queue, *keyed(100), *keyed(20, delay_ms=3_600_000))
    held = all_received(http, queue, 30)
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [message["receipt"] for message in held[:10]]})
    told, total = partitions(http, queue), stats(http, queue)
    assert (told["open"], told["draining"], told["slots_moving"]) == (4, 0, 0)
    assert [row["partition"] for row in told["items"]] == [0, 1, 2, 3]
    assert {(row["state"], row["slots"], row["slots_arriving"]) for row in told["items"]} == {("open", 64, 0)}
    for number in ("ready", "in_flight", "delayed", "dead", "bytes"):
        assert sum(row[number] for row in told["items"]) == total[number]
    assert (total["ready"], total["in_flight"], total["delayed"], total["dead"]) == (70, 20, 20, 10)
    assert (total["published_total"], total["acked_total"]) == (120, 0)


def test_a_list_of_queues_tells_how_many_partitions_they_have(http: Client) -> None:
    queue = made(http, partitions=3)
    items = {item["name"]: item for item in http.get("/v1/queues", params={"limit": 1000}).json()["items"]}
    assert items[queue]["partitions"] == {"open": 3, "draining": 0, "slots_moving": 0}


def test_a_queue_that_has_one_partition_for_good_tells_of_none(http: Client) -> None:
    plain, grows = made(http), made(http, auto_expand=GROWS)
    assert "partitions" not in shown(http, plain)
    assert partitions(http, grows)["open"] == 1 and partitions(http, grows)["items"][0]["slots"] == 256


def test_metrics_tell_how_many_partitions_are_open_and_drain(http: Client) -> None:
    queue = made(http, partitions=4, **STRICT)
    stored(http, queue, *keyed(40))
    resize(http, queue, 1)
    text = http.get("/metrics").text
    labels = f'queue="{queue}",state="%s",tenant="default"'
    assert f"pushq_queue_partitions{{{labels % 'open'}}} 1.0" in text
    assert f"pushq_queue_partitions{{{labels % 'draining'}}} 3.0" in text
    assert f'pushq_queue_slots_moving{{queue="{queue}",tenant="default"}} 0.0' in text


# ---------------------------------------------------------------------------------------------- growing and shrinking


@pytest.mark.parametrize("config", [{}, STRICT, {"delivery": "exactly_once"}, {"delivery": "at_most_once"}])
def test_a_queue_grows_and_shrinks_and_delivers_what_lay_in_it_before(http: Client, config: dict[str, Any]) -> None:
    queue = made(http, **config)
    given = [message | {"id": f"{number}"} for number, message in enumerate(keyed(400))]
    for first, number in ((0, 4), (100, 7), (200, 2), (300, 1)):
        stored(http, queue, *given[first : first + 100])
        resize(http, queue, number)
    found = all_received(http, queue, 400) if "delivery" in config else drained(http, queue, 400)
    assert sorted(message["id"] for message in found) == sorted(message["id"] for message in given)
    if config == STRICT:
        assert in_order_by_key(found)


def test_a_partition_that_drains_takes_nothing_new_and_goes_when_it_is_empty(http: Client) -> None:
    queue = made(http, partitions=3)
    stored(http, queue, *keyed(90))
    resize(http, queue, 1)
    told = partitions(http, queue)
    assert (told["open"], told["draining"]) == (1, 2)
    assert {row["partition"] for row in stored(http, queue, *keyed(90))} == {0}
    drained(http, queue, 180)
    until(lambda: not partitions(http, queue)["draining"], "the end of the old ones")
    assert [row["partition"] for row in partitions(http, queue)["items"]] == [0]


def test_a_place_is_not_given_out_again_when_a_partition_comes_back(http: Client) -> None:
    queue, ids = made(http), set()
    for number in (4, 1, 4):
        resize(http, queue, number)
        rows = stored(http, queue, *keyed(100))
        assert not ids & {row["id"] for row in rows}
        ids |= {row["id"] for row in rows}
        drained(http, queue, 100)
        until(lambda: not partitions(http, queue)["draining"], "the end of the old ones")
    assert len(ids) == 300


def test_a_change_is_refused_that_asks_for_what_there_cannot_be(http: Client) -> None:
    queue = made(http, partitions=2)
    etag = http.get(f"/v1/queues/{queue}").headers["etag"]
    for wrong, pointer in (
        ({"partitions": 65}, "/partitions"),
        ({"partitions": 0}, "/partitions"),
        ({"auto_expand": {"of": "partition_messages"}}, "/auto_expand/limit"),
        ({"auto_expand": GROWS | {"max_partitions": 65}}, "/auto_expand/max_partitions"),
        ({"auto_expand": GROWS | {"shrink_percent": 80}}, "/auto_expand"),
    ):
        answer = http.patch(f"/v1/queues/{queue}", json=wrong, headers={"If-Match": etag})
        assert pointers(refused(answer, 400, "invalid-request")) == [pointer]
    refused(http.put(f"/v1/queues/{queue}", json={"partitions": 3}), 409, "conflict")


def test_a_queue_grows_by_itself_when_it_is_four_fifths_full(http: Client) -> None:
    queue = made(http, auto_expand=GROWS | {"max_partitions": 3})
    stored(http, queue, *keyed(79))
    time.sleep(1.5)  # it looks once a second
    assert partitions(http, queue)["open"] == 1
    stored(http, queue, {"body": 0})
    until(lambda: is_resized(http, queue, 2), "a second partition")
    stored(http, queue, *keyed(1000))
    until(lambda: is_resized(http, queue, 3), "the last partition that it may have")
    change(http, queue, auto_expand=None)
    until(lambda: is_resized(http, queue, 1), "what partitions says")
    assert stats(http, queue)["ready"] == 1080


def test_a_queue_grows_by_the_bytes_in_it(http: Client) -> None:
    queue = made(http, auto_expand={"of": "partition_bytes", "limit": 100_000, "at_percent": 50})
    stored(http, queue, *[{"body": "x" * 10_000, "key": f"k{n}"} for n in range(12)])
    until(lambda: is_resized(http, queue, 3), "three partitions")


# ------------------------------------------------------------------------------------------------------------ dedupe


@pytest.mark.parametrize("dedupe", ["id", "content"])
@pytest.mark.parametrize("has_keys", [True, False])
def test_a_repeat_is_known_in_whichever_partition_the_first_one_lies(http: Client, dedupe: str, has_keys: bool) -> None:
    queue = made(http, dedupe=dedupe)
    given = [{"body": n, "id": f"id{n}"} | ({"key": f"k{n % 30}"} if has_keys else {}) for n in range(300)]
    rows: list[dict[str, Any]] = []
    for number, partitions_wanted in enumerate((4, 2, 5)):
        rows += stored(http, queue, *given[number * 100 : number * 100 + 100])
        resize(http, queue, partitions_wanted)
    again = stored(http, queue, *given)
    assert [row | {"duplicate": True} for row in rows] == again
    drained(http, queue, 300)
    assert stored(http, queue, *given) == again
    assert stats(http, queue)["ready"] == 0


def test_a_partition_that_drains_stays_for_as_long_as_its_ids_count(http: Client) -> None:
    queue = made(http, partitions=2, dedupe="id", dedupe_window_ms=1500)
    given = [message | {"id": f"{n}"} for n, message in enumerate(keyed(40))]
    stored(http, queue, *given)
    drained(http, queue, 40)
    resize(http, queue, 1)
    assert partitions(http, queue)["draining"] == 1
    assert all(row["duplicate"] for row in stored(http, queue, *given))
    until(lambda: not partitions(http, queue)["draining"], "the end of the window")
    assert not any(row["duplicate"] for row in stored(http, queue, *given))


# ----------------------------------------------------------------------------------------------------------- receipts


@pytest.mark.parametrize("config", [{}, STRICT, {"delivery": "exactly_once"}])
def test_receipts_are_good_after_a_resize(http: Client, config: dict[str, Any]) -> None:
    queue = made(http, partitions=3, **config)
    stored(http, queue, *[message | {"id": f"{n}"} for n, message in enumerate(keyed(120, keys=120))])
    held = all_received(http, queue, 120)
    resize(http, queue, 1)
    receipts = [message["receipt"] for message in held]
    extended = http.post(
        f"/v1/queues/{queue}/extend", json={"receipts": receipts, "visibility_timeout_ms": 60_000}
    ).json()
    assert all(row["ok"] for row in extended["results"])
    assert all(settle(http, queue, held[:80]))
    back = http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts[80:]}).json()
    assert [row["receipt"] for row in back["results"] if row["ok"]] == receipts[80:]
    again = all_received(http, queue, 40)
    assert {message["attempt"] for message in again} == {2}
    assert all(settle(http, queue, again))
    assert all(settle(http, queue, held[:80]))  # said twice
    assert stats(http, queue)["acked_total"] == 120


def test_receipts_of_partitions_that_are_gone_are_stale(http: Client) -> None:
    queue = made(http, partitions=2)
    rows = stored(http, queue, *keyed(40))
    held = all_received(http, queue, 40)
    assert all(settle(http, queue, held))
    resize(http, queue, 1)
    until(lambda: not partitions(http, queue)["draining"], "the end of the old one")
    for message, ok in zip(held, settle(http, queue, held), strict=True):
        assert ok or message["partition"] == 1
    assert {row["partition"] for row in rows} == {0, 1}


def test_a_message_that_nobody_acks_comes_again_from_whichever_partition(http: Client) -> None:
    queue = made(http, partitions=4, visibility_timeout_ms=300)
    stored(http, queue, *keyed(40))
    first = all_received(http, queue, 40)
    resize(http, queue, 2)
    again = all_received(http, queue, 40)
    assert sorted(m["id"] for m in first) == sorted(m["id"] for m in again)
    assert {message["attempt"] for message in again} == {2}


# -------------------------------------------------------------------------------------------------------------- peek


def test_peek_goes_through_all_partitions_page_by_page(http: Client) -> None:
    queue = made(http, partitions=4)
    rows = stored(http, queue, *keyed(100), *keyed(20, delay_ms=3_600_000))
    assert [item["body"] for item in paged(http, queue, key="k3", limit=2)] == [["k3", 0], ["k3", 1], ["k3", 2]]
    for limit in (1, 7, 100, 1000):
        items = paged(http, queue, limit=limit)
        assert sorted(item["id"] for item in items) == sorted(row["id"] for row in rows[:100])
    assert {item["id"] for item in paged(http, queue, state="delayed", limit=3)} == {row["id"] for row in rows[100:]}
    held = all_received(http, queue, 50)
    assert {item["id"] for item in paged(http, queue, state="in_flight", limit=9)} == {m["id"] for m in held}


def test_peek_may_look_into_one_partition(http: Client) -> None:
    queue = made(http, partitions=3)
    rows = stored(http, queue, *keyed(90))
    for number in range(3):
        own = [row["seq"] for row in rows if row["partition"] == number]
        assert [item["seq"] for item in paged(http, queue, partition=number, limit=7)] == own
        later = [item["seq"] for item in paged(http, queue, partition=number, from_seq=own[3])]
        assert later == own[3:]
    problem = refused(http.get(f"/v1/queues/{queue}/messages?partition=3"), 400, "invalid-request")
    assert pointers(problem) == ["/query/partition"] and "only 0, 1, 2" in problem["detail"]


def test_peek_goes_on_where_it_was_though_partitions_went_meanwhile(http: Client) -> None:
    queue = made(http, partitions=4)
    stored(http, queue, *keyed(80))
    page = http.get(f"/v1/queues/{queue}/messages?limit=70").json()
    drained(http, queue, 80)
    resize(http, queue, 1)
    until(lambda: not partitions(http, queue)["draining"], "the end of the old ones")
    answer = http.get(f"/v1/queues/{queue}/messages", params={"cursor": page["next"]})
    assert answer.status_code == 200 and answer.json()["items"] == []


# ------------------------------------------------------------------------------------------ cancel, purge and limits


@pytest.mark.parametrize("more", [{}, {"delay_ms": 3_600_000}])
def test_a_message_is_cancelled_wherever_it_lies(http: Client, more: dict[str, Any]) -> None:
    queue = made(http, partitions=4)
    stored(http, queue, *[message | {"id": f"id{n}"} for n, message in enumerate(keyed(40, **more))])
    resize(http, queue, 2)
    for n in range(40):
        assert http.delete(f"/v1/queues/{queue}/messages/id{n}").status_code == 204
    refused(http.delete(f"/v1/queues/{queue}/messages/id3"), 404, "not-found")
    assert stats(http, queue)["ready"] == stats(http, queue)["delayed"] == 0


def test_a_purge_empties_all_partitions(http: Client) -> None:
    queue = made(http, partitions=4)
    stored(http, queue, *keyed(100), *keyed(20, delay_ms=3_600_000))
    resize(http, queue, 2)
    answer = http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue})
    assert answer.status_code == 202 and answer.json()["total"] == 120
    assert paged(http, queue) == [] and stats(http, queue)["delayed"] == 0
    until(lambda: not partitions(http, queue)["draining"], "the end of the old ones")


def test_a_limit_counts_what_lies_in_all_partitions(http: Client) -> None:
    queue = made(http, partitions=4, max_messages=50)
    rows = stored(http, queue, *keyed(80))
    errors = [row["error"]["code"] for row in rows if "error" in row]
    assert errors == ["queue-full"] * 30 and len([row for row in rows if "seq" in row]) == 50
    assert refused(publish(http, queue, *keyed(5)), 507, "queue-full")
    drained(http, queue, 20)
    assert not [row for row in stored(http, queue, *keyed(20)) if "error" in row]
    assert stats(http, queue)["ready"] == 50


def test_what_overflows_is_dropped_from_all_partitions_together(http: Client) -> None:
    queue = made(http, partitions=4, max_messages=50, overflow="drop_oldest")
    for _ in range(4):
        stored(http, queue, *keyed(40))
    assert stats(http, queue)["ready"] <= 50


# ------------------------------------------------------------------------------------------------------------- times


def test_messages_for_later_come_in_time_though_their_keys_moved(http: Client) -> None:
    queue = made(http, partitions=2, **STRICT)
    began = time.monotonic()
    stored(http, queue, *keyed(80, delay_ms=4000))
    resize(http, queue, 4)
    resize(http, queue, 1)
    assert stats(http, queue)["delayed"] == 80
    found = drained(http, queue, 80)
    assert 3.9 < time.monotonic() - began < FAR * 4
    assert in_order_by_key(found)


def test_messages_expire_in_all_partitions(http: Client) -> None:
    queue = made(http, partitions=4)
    stored(http, queue, *keyed(40, ttl_ms=200), {"body": "stays"})
    until(lambda: stats(http, queue)["ready"] == 1, "the end of the others")
    assert [message["body"] for message in receive(http, queue, max=10)] == ["stays"]
