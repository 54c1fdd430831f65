"""Usage and audit of a real server: what `/v1/usage`, `/v1/audit`, the files and the command line say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.limits import REFUSED_ACTS_PER_MINUTE_MAX, USAGE_LIVE_STALE_MS
from gateway.usage.files import found, read
from gateway.usage.verify import verify
from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.server import PushqServer
from tests.support.usage import live_minute, live_queue, write_live

MINUTE = "2026-11-20T22:00:00.000Z"


@pytest.fixture(scope="module")
def live_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, live_dir: Path) -> Iterator[PushqServer]:
    folder = tmp_path_factory.mktemp("usage") / "data"
    env = {"PUSHQ_USAGE__PERIOD_SECONDS": "1", "PUSHQ_USAGE__LIVE_DIR": str(live_dir)}
    with PushqServer(folder, env=env) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: PushqServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        yield http


def made(http: httpx2.Client, name: str, **config: Any) -> str:
    http.put(f"/v1/queues/{name}", json=config).raise_for_status()
    return name


def publish(http: httpx2.Client, queue: str, messages: int) -> None:
    body = {"messages": [{"body": n} for n in range(messages)]}
    http.post(f"/v1/queues/{queue}/messages", json=body).raise_for_status()


def usage(http: httpx2.Client, queue: str, **query: str) -> dict[str, Any]:
    (item,) = http.get("/v1/usage", params={"queue": queue, **query}).raise_for_status().json()["items"]
    found: dict[str, Any] = item
    return found


def acts(http: httpx2.Client, target: str, **query: Any) -> list[dict[str, Any]]:
    page = http.get("/v1/audit", params={"limit": 1000, **query}).raise_for_status().json()
    return [act for act in page["items"] if act["target"] == target]


def of_another_tenant(http: httpx2.Client, server: PushqServer, tenant: str) -> httpx2.Client:
    http.put(f"/v1/tenants/{tenant}", json={}).raise_for_status()
    key = http.post("/v1/keys", json={"name": "boss", "tenant": tenant, "scopes": ["admin"]}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {key['key']}"}
    return httpx2.Client(base_url=server.url, headers=headers, trust_env=False)


def test_counts_are_exact_as_soon_as_the_answer_is_there(http: httpx2.Client) -> None:
    queue = made(http, "exact")
    publish(http, queue, 7)
    received = http.post(f"/v1/queues/{queue}/receive", json={"max": 3}).json()["messages"]
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [m["receipt"] for m in received]}).raise_for_status()
    found = usage(http, queue)
    assert (found["published"], found["delivered"], found["counts"]) == (7, 3, {"published": 7, "settled": 3})
    assert found["published_bytes"] > 7


def test_another_day_has_none_of_it(http: httpx2.Client) -> None:
    queue = made(http, "today")
    publish(http, queue, 1)
    page = http.get("/v1/usage", params={"from": "2020-01-01", "to": "2020-12-31"}).raise_for_status().json()
    assert page["items"] == [] and (page["from"], page["to"]) == ("2020-01-01", "2020-12-31")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"from": "yesterday"}, "must be a day in UTC, such as 2026-11-22, not"),
        ({"from": "2026-11-22", "to": "2026-11-21"}, "is after"),
        ({"from": "2020-01-01", "to": "2022-01-01"}, "366 days"),
        ({"since": "2020-01-01"}, "since"),
        ({"queue": "no/name"}, "queue"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(http: httpx2.Client, query: dict[str, str], says: str) -> None:
    answer = http.get("/v1/usage", params=query)
    assert answer.status_code == 400 and says in answer.json()["detail"]


def test_usage_pages_in_the_order_of_names(http: httpx2.Client) -> None:
    names = [made(http, f"page-{n}") for n in range(5)]
    for name in names:
        publish(http, name, 1)
    seen, query = [], {"limit": "2"}
    for _ in range(50):
        page = http.get("/v1/usage", params=query).raise_for_status().json()
        seen += [item["queue"] for item in page["items"]]
        if page["next"] is None:
            break
        query = {"limit": "2", "cursor": page["next"]}
    assert [name for name in seen if name in names] == names and seen == sorted(seen)


def test_a_tenant_sees_its_own_usage_and_acts_only(http: httpx2.Client, server: PushqServer) -> None:
    made(http, "not-theirs")
    publish(http, "not-theirs", 1)
    with of_another_tenant(http, server, "acme") as theirs:
        publish(theirs, made(theirs, "theirs"), 2)
        items = theirs.get("/v1/usage").raise_for_status().json()["items"]
        assert [item["queue"] for item in items] == ["theirs"]
        mine = theirs.get("/v1/audit").raise_for_status().json()["items"]
        assert {act["tenant"] for act in mine} == {"acme"}
        assert theirs.get("/v1/usage", params={"tenant": "default"}).status_code == 404
        assert theirs.get("/v1/audit", params={"tenant": "default"}).status_code == 404
    assert usage(http, "theirs", tenant="acme")["published"] == 2
    assert acts(http, "/v1/queues/theirs", tenant="acme")


def test_usage_and_audit_need_an_administrator(http: httpx2.Client, server: PushqServer) -> None:
    key = http.post("/v1/keys", json={"name": "shop", "scopes": ["publish:*", "view:*"]}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {key['key']}"}
    for path in ("/v1/usage", "/v1/usage/live", "/v1/audit"):
        assert httpx2.get(server.url + path, headers=headers, trust_env=False).status_code == 403


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_tenants_last_hour_is_its_own_and_what_the_job_has_of_others_is_for_operators(
    http: httpx2.Client, server: PushqServer, live_dir: Path
) -> None:
    assert http.get("/v1/usage/live").json()["state"] == "absent"
    tenants = {
        "default": [live_queue("ours", 5), live_minute(MINUTE, 5)],
        "livid": [live_queue("theirs", 2, rows=300), live_minute(MINUTE, 2)],
    }
    write_live(live_dir, tenants, last_minute=MINUTE, at_ms=now_ms())
    with of_another_tenant(http, server, "livid") as theirs:
        seen = theirs.get("/v1/usage/live").raise_for_status().json()
        assert (seen["tenant"], seen["state"], seen["last_minute"]) == ("livid", "live", MINUTE)
        assert [(one["queue"], one["messages"], one["rows"]) for one in seen["queues"]] == [("theirs", 2, 300)]
        assert [(one["minute"], one["messages"]) for one in seen["minutes"]] == [(MINUTE, 2)]
        assert theirs.get("/v1/usage/live", params={"tenant": "default"}).status_code == 404
    others = http.get("/v1/usage/live", params={"tenant": "livid"}).raise_for_status().json()
    assert [one["queue"] for one in others["queues"]] == ["theirs"]
    said = Cli(server)("usage", "live")
    assert MINUTE in said.out and "live; last updated by the job: 20" in said.err
    told = Cli(server)("usage", "live", "--tenant", "livid", "--json").json()
    assert [one["queue"] for one in told["queues"]] == ["theirs"]
    write_live(live_dir, tenants, last_minute=MINUTE, at_ms=now_ms() - USAGE_LIVE_STALE_MS - 1_000)
    stale = http.get("/v1/usage/live").json()
    assert stale["state"] == "stale" and [one["queue"] for one in stale["queues"]] == ["ours"]


def test_nothing_live_is_there_where_no_folder_is_named(shared_server: PushqServer) -> None:
    url = f"{shared_server.url}/v1/usage/live"
    answer = httpx2.get(url, headers=shared_server.headers, trust_env=False)
    assert answer.status_code == 404 and "usage.live_dir" in answer.json()["detail"]


def test_an_act_is_written_down_with_what_it_changed(http: httpx2.Client) -> None:
    queue = made(http, "changed", max_attempts=5)
    etag = http.get(f"/v1/queues/{queue}").headers["etag"]
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"If-Match": etag, "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    http.patch(f"/v1/queues/{queue}", json={"max_attempts": 9}, headers=headers).raise_for_status()
    patched, created = acts(http, f"/v1/queues/{queue}")
    assert (created["action"], patched["action"]) == ("queues.put", "queues.patch")
    assert patched["changes"] == [{"field": "max_attempts", "before": "5", "after": "9"}]
    assert (patched["outcome"], patched["status"], patched["trace_id"]) == ("ok", 200, trace)
    assert (patched["name"], patched["address"]) == ("admin", "127.0.0.1")


def test_a_new_key_is_written_down_without_its_secret(http: httpx2.Client) -> None:
    key = http.post("/v1/keys", json={"name": "secret", "scopes": ["view:*"]}).raise_for_status().json()
    http.post(f"/v1/keys/{key['id']}/rotate", json={"grace_ms": 0}).raise_for_status()
    http.delete(f"/v1/keys/{key['id']}").raise_for_status()
    (rotated,) = acts(http, f"/v1/keys/{key['id']}/rotate")
    (revoked,) = acts(http, f"/v1/keys/{key['id']}")
    made_now = [act for act in acts(http, "/v1/keys") if json.dumps(key["id"]) in str(act["changes"])]
    assert len(made_now) == 1 and rotated["outcome"] == revoked["outcome"] == "ok"
    text = json.dumps([made_now, rotated, revoked])
    assert key["key"] not in text and key["key"].split("_", 2)[2] not in text and "sha256" not in text


def test_what_somebody_had_no_right_to_is_written_down_and_cannot_fill_the_audit(
    http: httpx2.Client, server: PushqServer
) -> None:
    queue = made(http, "guarded")
    key = http.post("/v1/keys", json={"name": "curious", "scopes": ["view:*"]}).raise_for_status().json()
    with httpx2.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {key['key']}"}, trust_env=False
    ) as curious:
        for _ in range(REFUSED_ACTS_PER_MINUTE_MAX + 5):
            assert curious.post(f"/v1/queues/{queue}/purge").status_code == 403
    found = acts(http, f"/v1/queues/{queue}/purge")
    assert {(act["name"], act["outcome"], act["status"], *act["changes"]) for act in found} == {
        ("curious", "forbidden", 403)
    }
    assert 5 <= len(found) <= 2 * REFUSED_ACTS_PER_MINUTE_MAX
    stale = http.patch(f"/v1/queues/{queue}", json={"max_attempts": 9}, headers={"If-Match": '"0"'})
    assert stale.status_code == 412
    newest = acts(http, f"/v1/queues/{queue}")[0]
    assert (newest["outcome"], newest["changes"]) == (stale.json()["code"], [])


def test_an_act_on_a_backend_names_its_cluster(http: httpx2.Client, server: PushqServer) -> None:
    """Backends of two clusters may have one name."""
    with of_another_tenant(http, server, "nosy") as theirs:
        for query in ("", "?cluster=eu%26west"):
            assert theirs.put(f"/v1/cluster/nodes/a/removal{query}").status_code == 403
        for target in ("/v1/cluster/nodes/a/removal", "/v1/cluster/nodes/a/removal?cluster=eu%26west"):
            assert [act["outcome"] for act in acts(theirs, target)] == ["forbidden"]


def test_a_mistake_is_no_act(http: httpx2.Client) -> None:
    assert http.put("/v1/queues/refused", json={"kind": "pile"}).status_code == 400
    assert http.delete("/v1/keys/nobody").status_code == 404
    assert not acts(http, "/v1/queues/refused") and not acts(http, "/v1/keys/nobody")


def test_messages_are_no_acts(http: httpx2.Client) -> None:
    queue = made(http, "messages")
    publish(http, queue, 3)
    http.post(f"/v1/queues/{queue}/receive", json={}).raise_for_status()
    assert not acts(http, f"/v1/queues/{queue}/messages") and not acts(http, f"/v1/queues/{queue}/receive")


def test_a_purge_is_an_act(http: httpx2.Client) -> None:
    queue = made(http, "purged")
    publish(http, queue, 3)
    http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue}).raise_for_status()
    assert [act["action"] for act in acts(http, f"/v1/queues/{queue}/purge")] == ["purges.start"]


def test_the_command_line_shows_collects_and_verifies(http: httpx2.Client, server: PushqServer, tmp_path: Path) -> None:
    queue, cli = made(http, "told"), Cli(server)
    publish(http, queue, 4)
    assert json.loads(cli("usage", "show", "--queue", queue, "--json").out)["items"][0]["published"] == 4
    assert json.loads(cli("usage", "audit", "--json").out)["items"]

    def collected() -> bool:
        assert cli("usage", "collect", "--to", str(tmp_path), "--data", str(server.data)).code == 0
        return any("/told/" in log.name for log in verify(tmp_path).logs.values())

    until(collected, "the ledger's files never had the queue")
    checked = cli("usage", "verify", str(tmp_path), "--json")
    assert checked.code == 0, checked.err
    (mine,) = [log for log in json.loads(checked.out)["partitions"] if "/told/" in log["partition"]]
    assert (mine["published"], mine["held"]) == (4, 4)
    first = min(file.path for file in found(tmp_path) if file.kind == "ledger")
    first.write_bytes(first.read_bytes()[:30])
    broken = cli.any("usage", "verify", str(tmp_path))
    assert broken.code == 1 and first.name in broken.err


def test_minutes_say_who_did_what_and_how_it_went(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data") as server:
        with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
            queue = made(http, "minutes")
            publish(http, queue, 5)
            http.post(f"/v1/queues/{queue}/receive", json={"max": 2}).raise_for_status()
            assert http.post(f"/v1/queues/{queue}/messages", json={"messages": []}).status_code == 400
            assert http.get("/v1/queues/nobody-made-this").status_code == 404
        server.stop()
        rows = [row for file in found(server.data / "usage") if file.kind == "minutes" for row in read(file)]
    done = {(row.operation, row.outcome, row.queue): (row.requests, row.messages) for row in rows}
    assert done["publish", "ok", queue] == (1, 5) and done["receive", "ok", queue] == (1, 2)
    assert done["publish", "invalid-request", queue] == (1, 0)
    assert done["queues.get", "queue-not-found", ""] == (1, 0), "names of what is not there are no rows"
    assert [row.lossy for row in rows if row.operation == "start"] == [False]
