"""Redrives on the real server: dead letters go back exactly once, at the rate that was asked for, as if new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.cli import Cli
from tests.support.patience import FAR, PATIENCE_S, until
from tests.support.server import PushqServer

_numbers = count()
WAIT_S_MAX = PATIENCE_S


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def deleting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    """A server that lets queues be deleted over HTTP."""
    env = {"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
    with PushqServer(tmp_path_factory.mktemp("deleting") / "data", env=env) as server:
        yield server


def made(http: Client, **config: Any) -> str:
    name = f"redrive{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def died(http: Client, queue: str, *messages: dict[str, Any], reason: str | None = None) -> None:
    """Messages whose only attempt failed."""
    for first in range(0, len(messages), 500):
        publish(http, queue, *messages[first : first + 500])
        held = receive(http, queue, max=1000)
        while len(held) < len(messages[first : first + 500]):
            held += receive(http, queue, max=1000)
        http.post(f"/v1/queues/{queue}/nack", json={"receipts": [m["receipt"] for m in held], "reason": reason})


def start(http: Client, queue: str, **wanted: Any) -> httpx2.Response:
    return http.post(f"/v1/queues/{queue}/redrives", json=wanted)


def ended(http: Client, location: str) -> dict[str, Any]:
    """The job when it is over."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        job: dict[str, Any] = http.get(location).json()
        assert set(job) == {"id", "state", "done", "total", "rate_per_s", "error"}
        if job["state"] != "running":
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.02)


def redriven(http: Client, queue: str, **wanted: Any) -> dict[str, Any]:
    answer = start(http, queue, **wanted)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/queues/{queue}/redrives/{answer.json()['id']}"
    return ended(http, answer.headers["location"])


def dead(http: Client, queue: str) -> list[Any]:
    items = http.get(f"/v1/queues/{queue}/messages", params={"state": "dead", "limit": 1000}).json()["items"]
    return [item["body"] for item in items]


def ready(http: Client, queue: str) -> list[Any]:
    items = http.get(f"/v1/queues/{queue}/messages", params={"limit": 1000}).json()["items"]
    return [item["body"] for item in items]


# ------------------------------------------------------------------------------------------------- where to


@pytest.mark.parametrize("suffix", ["", ".dead"])
def test_dead_letters_go_back_to_where_they_came_from_as_if_new(http: Client, suffix: str) -> None:
    queue = made(http, max_attempts=1, priorities=3)
    died(
        http,
        queue,
        *({"body": n, "id": f"m{n}", "key": "k", "priority": n % 3, "headers": {"a": "b"}} for n in range(6)),
    )
    before = {m["id"]: m for m in http.get(f"/v1/queues/{queue}/messages?state=dead").json()["items"]}
    job = redriven(http, queue + suffix)
    assert (job["state"], job["done"], job["total"], job["error"]) == ("done", 6, 6, None)
    assert dead(http, queue) == []
    again = receive(http, queue, max=10)
    assert [m["body"] for m in again] == [2, 5, 1, 4, 0, 3], "their priorities came with them"
    for message in again:
        old = before[message["id"]]
        assert message["attempt"] == 1 and "dead_letter" not in message
        assert all(message[name] == old[name] for name in ("key", "priority", "headers", "published_at"))


def test_a_named_dead_letter_queue_gives_back_what_others_sent_to_it(http: Client) -> None:
    graveyard = made(http, max_attempts=1)
    queues = [made(http, max_attempts=1, dead_letter_queue=graveyard) for _ in range(2)]
    died(http, graveyard, {"body": "its own"})
    for queue in queues:
        died(http, queue, {"body": queue})
    deadline = time.monotonic() + WAIT_S_MAX
    while len(ready(http, graveyard)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    publish(http, graveyard, {"body": "no dead letter"})
    assert start(http, graveyard, dry_run=True).json() == {"total": 3}
    assert redriven(http, graveyard)["done"] == 3
    assert [ready(http, queue) for queue in queues] == [[queue] for queue in queues]
    assert sorted(ready(http, graveyard)) == ["its own", "no dead letter"]


def buried(http: Client, grave: str, *bodies: int, **config: Any) -> str:
    """A queue whose messages died, and lie in the queue that it names for that."""
    before = len(ready(http, grave))
    queue = made(http, max_attempts=1, dead_letter_queue=grave, **config)
    died(http, queue, *({"body": body} for body in bodies))
    until(lambda: len(ready(http, grave)) == before + len(bodies), "the letters lie there")
    return queue


def renamed(http: Client, queue: str, grave: str) -> None:
    """From now on another queue has its dead letters."""
    etag = http.get(f"/v1/queues/{queue}").headers["etag"]
    answer = http.patch(f"/v1/queues/{queue}", json={"dead_letter_queue": grave}, headers={"If-Match": etag})
    assert answer.status_code == 200, answer.text


def test_letters_of_a_queue_that_names_another_one_now_go_back_all_the_same(http: Client) -> None:
    grave, other = made(http), made(http)
    queue = buried(http, grave, 1, 2)
    renamed(http, queue, other)
    publish(http, grave, {"body": "work of its own"})
    assert start(http, grave, dry_run=True).json() == {"total": 2}
    job = redriven(http, grave)
    assert (job["state"], job["done"], job["total"]) == ("done", 2, 2)
    assert ready(http, queue) == [1, 2] and ready(http, grave) == ["work of its own"]


def test_letters_whose_queue_is_gone_are_told_of_and_go_where_the_redrive_says(deleting: PushqServer) -> None:
    with Client(base_url=deleting.url, headers=deleting.headers, timeout=30) as http:
        grave, rescue = made(http), made(http)
        queue = buried(http, grave, 1, 2)
        assert http.delete(f"/v1/queues/{queue}?confirm={queue}&discard=true").status_code == 200
        for dry_run in (True, False):
            problem = refused(start(http, grave, dry_run=dry_run), 400, "invalid-request")
            assert (
                pointers(problem) == ["/to"]
                and queue in problem["detail"]
                and "set another target" in problem["detail"]
            )
        told = Cli(deleting).any("queue", "redrive", grave)
        assert told.code == 1 and queue in told.err
        job = redriven(http, grave, to=rescue)
        assert (job["state"], job["done"], job["total"]) == ("done", 2, 2)
        assert ready(http, rescue) == [1, 2] and ready(http, grave) == []


def test_what_a_deleted_queue_left_to_another_one_is_work_there_until_it_is_asked_for(deleting: PushqServer) -> None:
    with Client(base_url=deleting.url, headers=deleting.headers, timeout=30) as http:
        heir, rescue, queue = made(http, max_attempts=1), made(http), made(http)
        died(http, heir, {"body": "its own"})
        publish(http, queue, {"body": 1})
        assert http.delete(f"/v1/queues/{queue}?confirm={queue}&move_to={heir}").status_code == 200
        until(lambda: ready(http, heir) == [1], "the letters lie there")
        assert redriven(http, heir)["done"] == 1 and ready(http, heir) == [1, "its own"]
        job = redriven(http, heir, to=rescue, filter={"reason": "queue_deleted"})
        assert (job["done"], job["total"]) == (1, 1) and ready(http, rescue) == [1]


def test_a_stream_that_has_dead_letters_of_others_says_that_they_stay(http: Client) -> None:
    grave = made(http, kind="stream")
    queue = made(http, max_attempts=1, dead_letter_queue=grave)
    died(http, queue, {"body": 1})
    until(lambda: http.get(f"/v1/queues/{grave}").json()["stats"]["published_total"] == 1, "the letters lie there")
    problem = refused(start(http, grave), 400, "invalid-request")
    assert (
        "is a stream" in problem["detail"] and "is a stream, so dead letters in it cannot be moved" in problem["detail"]
    )


def test_dead_letters_go_to_another_queue_where_that_is_named(http: Client) -> None:
    queue, other = made(http, max_attempts=1, priorities=5), made(http, priorities=2)
    died(http, queue, {"body": "high", "priority": 4}, {"body": "low"})
    assert redriven(http, queue, to=other)["done"] == 2
    assert [(m["body"], m["priority"]) for m in receive(http, other)] == [("high", 1), ("low", 0)]


def shown(messages: list[dict[str, Any]]) -> list[tuple[Any, int]]:
    return [(message["body"], message["priority"]) for message in messages]


def peeked(http: Client, queue: str, **query: Any) -> list[tuple[Any, int]]:
    return shown(http.get(f"/v1/queues/{queue}/messages", params=query).json()["items"])


def given_back(http: Client, queue: str, count: int) -> list[tuple[Any, int]]:
    """Receives so many, in one attempt each that fails. What they were."""
    held: list[dict[str, Any]] = []
    while len(held) < count:
        some = receive(http, queue, max=count - len(held), wait_ms=5000)
        assert some, f"{len(held)} of {count} came from {queue}"
        held += some
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [m["receipt"] for m in held], "delay_ms": 0})
    return shown(held)


RANKED = [("low", 0), ("high", 4), ("middle", 2), ("high again", 4)]
IN_FORCE = [("high", 4), ("high again", 4), ("middle", 2), ("low", 0)]


def ranked(http: Client, queue: str) -> None:
    """Messages of several priorities whose only attempt failed, the lowest first."""
    for body, priority in RANKED:
        died(http, queue, {"body": body, "priority": priority})


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_dead_letter_keeps_its_priority_and_has_it_again_where_it_goes(
    http: Client, is_named: bool, encrypted: bool
) -> None:
    grave = made(http, encrypted=encrypted) if is_named else None
    named = {"dead_letter_queue": grave} if grave else {}
    queue = made(http, max_attempts=1, priorities=5, encrypted=encrypted, **named)
    grave = grave or f"{queue}.dead"
    ranked(http, queue)
    until(lambda: peeked(http, grave) == RANKED, "the letters say what they were")
    assert given_back(http, grave, 4) == RANKED, "and lie in the order in which they died"
    assert redriven(http, grave)["done"] == 4
    assert peeked(http, queue) == IN_FORCE and given_back(http, queue, 4) == IN_FORCE
    until(lambda: len(peeked(http, grave)) == 4, "they are there once more")
    other = made(http, priorities=9, max_attempts=1)
    assert redriven(http, grave, to=other)["done"] == 4
    assert given_back(http, other, 4) == IN_FORCE
    few = made(http, priorities=3, max_attempts=1)
    assert redriven(http, other, to=few)["done"] == 4
    assert given_back(http, few, 4) == [("high", 2), ("high again", 2), ("middle", 2), ("low", 0)]
    none = made(http)
    assert redriven(http, few, to=none)["done"] == 4
    assert sorted(peeked(http, none)) == sorted((body, 0) for body, _ in RANKED), "nothing is lost, and nothing refused"


def test_a_named_queue_with_priorities_hands_out_the_letters_by_theirs(http: Client) -> None:
    grave = made(http, priorities=5)
    ranked(http, made(http, max_attempts=1, priorities=5, dead_letter_queue=grave))
    until(lambda: len(peeked(http, grave)) == 4, "the letters lie there")
    assert peeked(http, grave) == IN_FORCE
    assert shown(receive(http, grave, max=10)) == IN_FORCE


def test_a_letter_that_dies_again_is_still_of_its_priority(http: Client) -> None:
    grave = made(http, max_attempts=1)
    queue = made(http, max_attempts=1, priorities=5, dead_letter_queue=grave)
    ranked(http, queue)
    until(lambda: len(peeked(http, grave)) == 4, "the letters lie there")
    given_back(http, grave, 4)
    assert peeked(http, f"{grave}.dead") == RANKED
    assert redriven(http, f"{grave}.dead", to=queue)["done"] == 4
    assert given_back(http, queue, 4) == IN_FORCE


def test_what_a_deleted_queue_left_keeps_its_priority(deleting: PushqServer) -> None:
    with Client(base_url=deleting.url, headers=deleting.headers, timeout=30) as http:
        heir, plain = made(http, priorities=5), made(http)
        for target in (heir, plain):
            queue = made(http, priorities=5)
            publish(http, queue, *({"body": body, "priority": priority} for body, priority in RANKED))
            answer = http.delete(f"/v1/queues/{queue}?confirm={queue}&move_to={target}")
            assert answer.status_code == 200, answer.text
            until(lambda target=target: len(peeked(http, target)) == 4, "they have moved")  # type: ignore[misc]
        assert peeked(http, heir) == IN_FORCE and shown(receive(http, heir, max=10)) == IN_FORCE
        assert sorted(peeked(http, plain)) == sorted(RANKED), "they say what they were"
        rescue = made(http, priorities=5)
        assert redriven(http, plain, to=rescue, filter={"reason": "queue_deleted"})["done"] == 4
        assert shown(receive(http, rescue, max=10)) == IN_FORCE
        publish(http, queue, {"body": "afterwards"})
        gone = made(http, priorities=5)
        assert http.delete(f"/v1/queues/{gone}?confirm={gone}&move_to={rescue}").status_code == 200
        publish(http, gone, {"body": "later", "priority": 3})
        assert shown(receive(http, rescue, wait_ms=5000)) == [("later", 3)]


def test_a_target_that_is_not_there_is_refused_and_nothing_is_moved(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, {"body": 1})
    for to in ("absent", f"{queue}.dead", f"{queue}.late"):
        assert pointers(refused(start(http, queue, to=to), 400, "invalid-request")) == ["/to"]
    assert dead(http, queue) == [1]


def test_messages_whose_queue_is_gone_stay_and_the_job_says_why(deleting: PushqServer) -> None:
    with Client(base_url=deleting.url, headers=deleting.headers, timeout=30) as http:
        graveyard = made(http)
        gone, there = (made(http, max_attempts=1, dead_letter_queue=graveyard) for _ in range(2))
        died(http, gone, {"body": "gone"})
        died(http, there, {"body": "there"})
        assert http.delete(f"/v1/queues/{gone}?confirm={gone}&discard=true").status_code == 200
        job = redriven(http, graveyard)
        assert (job["state"], job["done"], job["total"]) == ("failed", 1, 2)
        assert f"there is no queue '{gone}'" in job["error"] and "1 stay" in job["error"]
        assert ready(http, there) == ["there"] and ready(http, graveyard) == ["gone"]
        problem = refused(start(http, graveyard, dry_run=True), 400, "invalid-request")
        assert pointers(problem) == ["/to"] and gone in problem["detail"]
        assert redriven(http, graveyard, to=there)["done"] == 1


def test_a_moved_message_lives_as_long_as_one_that_is_published_now(http: Client) -> None:
    queue = made(http, max_attempts=1, message_ttl_ms=60_000)
    died(http, queue, {"body": 1})
    redriven(http, queue)
    (message,) = receive(http, queue)
    assert datetime.fromisoformat(message["expires_at"]) > datetime.now(UTC) + timedelta(seconds=50)


# ------------------------------------------------------------------------------------------------------ filter


def test_only_what_the_filter_wants_goes_back(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n, "id": f"m{n}", "headers": {"shop": "ab"[n % 2], "n": str(n)}} for n in range(6)))
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    sooner = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for wanted, total in (
        ({"reason": "max_attempts"}, 6),
        ({"reason": "expired"}, 0),
        ({"ids": ["m1", "m4", "nobody's"]}, 2),
        ({"ids": []}, 0),
        ({"header": {"shop": "a"}}, 3),
        ({"header": {"shop": "a", "n": "4"}}, 1),
        ({"older_than": later}, 6),
        ({"older_than": sooner}, 0),
        ({"reason": "max_attempts", "ids": ["m1", "m2"], "header": {"shop": "b"}}, 1),
        ({}, 6),
    ):
        assert start(http, queue, filter=wanted, dry_run=True).json() == {"total": total}, wanted
    assert len(dead(http, queue)) == 6 and ready(http, queue) == [], "a dry run moves nothing"
    assert redriven(http, queue, filter={"header": {"shop": "b"}})["done"] == 3
    assert (ready(http, queue), dead(http, queue)) == ([1, 3, 5], [0, 2, 4])


def test_what_a_consumer_looks_into_stays(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(3)))
    (held,) = receive(http, f"{queue}.dead", max=1)
    assert redriven(http, queue)["done"] == 2
    assert dead(http, queue) == [held["body"]]


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({"rate_per_s": 0}, "/rate_per_s"),
        ({"rate_per_s": -1}, "/rate_per_s"),
        ({"filter": {"reason": "boredom"}}, "/filter/reason"),
        ({"filter": {"older_than": "yesterday"}}, "/filter/older_than"),
        ({"filter": {"id": "x"}}, "/filter/id"),
        ({"filter": {"ids": "x"}}, "/filter/ids"),
        ({"dryrun": True}, "/dryrun"),
    ],
)
def test_a_wrong_redrive_is_refused_by_name(http: Client, wanted: dict[str, Any], pointer: str) -> None:
    queue = made(http)
    problem = refused(start(http, queue, **wanted), 400, "invalid-request")
    assert [p.rstrip("/") for p in pointers(problem)] == [pointer]


def test_a_redrive_needs_manage_and_publish_where_the_messages_go(http: Client) -> None:
    queue, other = made(http, max_attempts=1), made(http)
    died(http, queue, {"body": 1})
    for scopes, to, status in (
        ([f"publish:{queue}"], None, 403),
        ([f"manage:{queue}"], None, 403),
        ([f"manage:{queue}", f"publish:{queue}"], other, 403),
        ([f"manage:{queue}", f"publish:{queue}"], None, 200),
        ([f"manage:{queue}", f"publish:{other}"], other, 200),
    ):
        with with_key(http, make_key(http, *scopes)["key"]) as limited:
            wanted = {"dry_run": True} | ({"to": to} if to else {})
            assert start(limited, f"{queue}.dead", **wanted).status_code == status, (scopes, to)
    refused(start(http, "absent"), 404, "queue-not-found")


def test_what_may_go_back_does_and_the_job_says_why_the_rest_stays(http: Client) -> None:
    graves = made(http)
    mine, theirs = [made(http, max_attempts=1, dead_letter_queue=graves) for _ in range(2)]
    for queue in (mine, theirs):
        died(http, queue, {"body": queue})
    deadline = time.monotonic() + WAIT_S_MAX
    while len(ready(http, graves)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    with with_key(http, make_key(http, f"manage:{graves}", f"publish:{mine}")["key"]) as limited:
        answer = start(limited, graves)
        assert answer.status_code == 202, answer.text
        job = ended(limited, answer.headers["location"])
    assert (job["state"], job["done"]) == ("failed", 1) and f"publish:{theirs}" in job["error"]
    assert [message["body"] for message in receive(http, mine)] == [mine]


# ------------------------------------------------------------------------------------------------------- jobs


def test_a_redrive_is_no_faster_than_its_rate(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(100)))
    began = time.monotonic()
    job = redriven(http, queue, rate_per_s=50)
    seconds = time.monotonic() - began
    assert job["done"] == 100 and job["rate_per_s"] == 50
    assert 100 / 55 <= seconds < FAR * 2


def test_a_cancelled_redrive_leaves_what_it_has_not_moved(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(30)))
    location = start(http, queue, rate_per_s=20).headers["location"]
    deadline = time.monotonic() + WAIT_S_MAX
    while http.get(location).json()["done"] < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    job = http.delete(location).json()
    assert job["state"] == "cancelled" and 5 <= job["done"] < 30
    assert len(ready(http, queue)) == job["done"] and len(dead(http, queue)) == 30 - job["done"]
    assert http.get(location).json() == job
    assert http.delete(location).json() == job, "cancelling again changes nothing"


@pytest.mark.parametrize("how", ["revoked", "rotated"])
def test_a_redrive_ends_with_the_key_that_it_was_begun_with(http: Client, how: str) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(30)))
    key = make_key(http, f"manage:{queue}", f"publish:{queue}")
    with with_key(http, key["key"]) as client:
        location = start(client, queue, rate_per_s=20).headers["location"]
    at = f"/v1/keys/{key['id']}"
    answer = http.delete(at) if how == "revoked" else http.post(f"{at}/rotate", json={"grace_ms": 0})
    assert answer.is_success
    job = http.get(location).json()
    assert job["state"] == "failed" and job["error"].startswith(f"the API key was {how}; what was moved stays moved")
    assert len(ready(http, queue)) == job["done"] < 30 == job["done"] + len(dead(http, queue))


def test_one_redrive_of_a_queue_runs_at_a_time(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(5)))
    location = start(http, queue, rate_per_s=1).headers["location"]
    problem = refused(start(http, queue), 409, "conflict")
    assert location.rpartition("/")[2] in problem["detail"]
    http.delete(location)
    assert redriven(http, queue)["state"] == "done"
    jobs = http.get(f"/v1/queues/{queue}/redrives").json()
    assert [job["state"] for job in jobs["items"]] == ["cancelled", "done"] and jobs["next"] is None
    page = http.get(f"/v1/queues/{queue}/redrives?limit=1").json()
    assert [job["state"] for job in page["items"]] == ["cancelled"]
    rest = http.get(f"/v1/queues/{queue}/redrives", params={"cursor": page["next"]}).json()
    assert [job["state"] for job in rest["items"]] == ["done"]
    refused(http.get(f"/v1/queues/{queue}/redrives/absent"), 404, "not-found")


def test_a_target_that_is_full_is_waited_for(http: Client) -> None:
    queue, other = made(http, max_attempts=1), made(http, max_messages=1)
    publish(http, other, {"body": "first"})
    died(http, queue, {"body": "second"})
    location = start(http, queue, to=other).headers["location"]
    time.sleep(0.2)
    assert http.get(location).json()["state"] == "running" and dead(http, queue) == ["second"]
    http.post(f"/v1/queues/{other}/ack", json={"receipts": [receive(http, other)[0]["receipt"]]})
    assert ended(http, location)["done"] == 1
    assert ready(http, other) == ["second"]


def test_what_died_and_what_lies_there_are_series_of_their_own(http: Client) -> None:
    queue = made(http, max_attempts=1)
    died(http, queue, *({"body": n} for n in range(3)))
    publish(http, queue, {"body": "mine", "id": "mine"})
    assert http.delete(f"/v1/queues/{queue}/messages/mine").status_code == 204
    assert redriven(http, queue, filter={"ids": []})["done"] == 0

    def series() -> set[str]:
        lines = http.get("/metrics").text.splitlines()
        return {line for line in lines if f'queue="{queue}"' in line and ("_ended_" in line or "_dead_" in line)}

    labels = f'queue="{queue}"'
    ended = {
        f'pushq_messages_ended_total{{{labels},reason="max_attempts",tenant="default"}} 3.0',
        f'pushq_messages_ended_total{{{labels},reason="cancelled",tenant="default"}} 1.0',
    }
    assert series() == ended | {f'pushq_queue_dead_messages{{{labels},tenant="default"}} 3.0'}
    redriven(http, queue)
    assert series() == ended | {f'pushq_queue_dead_messages{{{labels},tenant="default"}} 0.0'}


# ------------------------------------------------------------------------------------------------ exactly once


@pytest.mark.parametrize("to_another", [False, True], ids=["back", "elsewhere"])
def test_a_redrive_that_is_killed_again_and_again_moves_every_message_once(
    server: PushqServer, to_another: bool
) -> None:
    messages = 2000
    with Client(base_url=server.url, headers=server.headers, timeout=30) as http:
        queue = made(http, max_attempts=1)
        target = made(http) if to_another else queue
        died(http, queue, *({"body": n} for n in range(messages)))
        assert http.get(f"/v1/queues/{queue}").json()["stats"]["dead"] == messages
        moved = [0]
        for rate in (400, 1500, 4000):
            start(http, queue, rate_per_s=rate, **({"to": target} if to_another else {}))
            until(lambda: http.get(f"/v1/queues/{target}").json()["stats"]["ready"] > moved[-1], "some have moved")
            server.kill()
            server.start()
            left = http.get(f"/v1/queues/{queue}").json()["stats"]["dead"]
            there = http.get(f"/v1/queues/{target}").json()["stats"]["ready"]
            assert left + there == messages
            moved.append(there)
        assert moved == sorted(moved)
        job = redriven(http, queue, **({"to": target} if to_another else {}))
        assert job["done"] == messages - moved[-1]
        found: list[int] = []
        while batch := receive(http, target, max=1000, wait_ms=100):
            found += [m["body"] for m in batch]
        assert sorted(found) == list(range(messages))
