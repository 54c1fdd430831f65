"""Alerts of a real server: a rule fires, a real receiver is told and verifies it, and another tenant sees nothing."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.alerts.limits import LISTENERS_PER_TENANT_MAX
from tests.support.patience import until
from tests.support.receiver import Receiver
from tests.support.server import PushqServer

LATE_S_MAX = 5.0
"""From the message that brings a queue past its limit, and the rule's `for_ms` behind it, to the alert: by the server's
own word on both, however late a busy test asks for it."""
FOR_MS = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    env = {"PUSHQ_ALERTS__WEBHOOK_NETWORKS": "127.0.0.0/8"}
    with PushqServer(tmp_path_factory.mktemp("alerts") / "data", env=env) as server:
        yield server


def client(server: PushqServer, key: str | None = None) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {key or server.key}"}
    return httpx2.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20)


@pytest.fixture
def http(server: PushqServer) -> Iterator[httpx2.Client]:
    with client(server) as http:
        yield http


def key_of(http: httpx2.Client, tenant: str, *scopes: str) -> str:
    http.put(f"/v1/tenants/{tenant}", json={}).raise_for_status()
    body = {"name": "someone", "tenant": tenant, "scopes": list(scopes)}
    key: str = http.post("/v1/keys", json=body).raise_for_status().json()["key"]
    return key


def made(http: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def filled(http: httpx2.Client, queue: str, messages: int) -> None:
    http.put(f"/v1/queues/{queue}", json={}).raise_for_status()
    body = {"messages": [{"body": n} for n in range(messages)]}
    http.post(f"/v1/queues/{queue}/messages", json=body).raise_for_status()


def emptied(http: httpx2.Client, queue: str) -> None:
    http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue}).raise_for_status()


def alerts(http: httpx2.Client, **query: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = http.get("/v1/alerts", params=query).raise_for_status().json()["items"]
    return items


def has(http: httpx2.Client, rule: str, state: str) -> bool:
    return any(alert["state"] == state for alert in alerts(http, rule=rule))


def took_s(http: httpx2.Client, rule: str, queue: str) -> float:
    """From the newest message of a queue to the alert about it."""
    (fired,) = [one["fired_at"] for one in alerts(http, rule=rule, state="firing")]
    stored = http.get(f"/v1/queues/{queue}/messages").raise_for_status().json()["items"]
    newest = max(datetime.fromisoformat(one["published_at"]) for one in stored)
    return (datetime.fromisoformat(fired) - newest).total_seconds()


def problem(answer: httpx2.Response, status: int) -> tuple[str, str]:
    assert answer.status_code == status, answer.text
    body = answer.json()
    return body["detail"], body["errors"][0]["pointer"] if "errors" in body else ""


def test_a_queue_past_its_limit_is_told_silenced_and_resolved(
    server: PushqServer, http: httpx2.Client, tmp_path: Path
) -> None:
    with Receiver(tmp_path) as receiver, client(server, key_of(http, "shop", "admin")) as shop:
        hook = made(shop, "/v1/alert-receivers", name="ops", type="webhook", url=receiver.url)
        receiver.knows(hook["secret"])
        assert "secret" not in shop.get(f"/v1/alert-receivers/{hook['id']}").json()
        rule = made(
            shop, "/v1/alert-rules", name="too deep", kind="depth", queue="orders*", limit=5, receivers=[hook["id"]]
        )
        lasting = made(shop, "/v1/alert-rules", name="for long", kind="depth", queue="orders*", limit=5, for_ms=FOR_MS)
        filled(shop, "orders.eu", 9)
        until(lambda: all(has(shop, one["id"], "firing") for one in (rule, lasting)), "the rules fire")
        for one, for_s in ((rule, 0.0), (lasting, FOR_MS / 1000)):
            assert took_s(shop, one["id"], "orders.eu") <= for_s + LATE_S_MAX
        shop.delete(f"/v1/alert-rules/{lasting['id']}").raise_for_status()
        (alert,) = alerts(shop, state="firing")
        assert alert["subject"] == alert["queue"] == "orders.eu" and alert["value"] == 9 and alert["limit"] == 5
        until(lambda: len(receiver.told) == 1, "the receiver is told")
        (told,) = receiver.told
        assert told["genuine"] and told["body"]["type"] == "alert.firing"
        assert told["body"]["data"]["id"] == alert["id"] and told["body"]["data"]["tenant"] == "shop"
        # Another tenant sees neither rule nor alert, whatever it asks for.
        with client(server, key_of(http, "other", "admin")) as other:
            assert alerts(other) == [] and other.get("/v1/alert-rules").json()["items"] == []
            assert other.get("/v1/alerts/history").json()["items"] == []
            assert other.get(f"/v1/alert-rules/{rule['id']}").status_code == 404
            assert other.delete(f"/v1/alert-rules/{rule['id']}").status_code == 404
            assert other.get(f"/v1/alert-receivers/{hook['id']}").status_code == 404
            assert other.post(f"/v1/alert-receivers/{hook['id']}/test").status_code == 404
            assert other.get("/v1/alerts", params={"tenant": "shop"}).status_code == 404
            stolen = {"name": "x", "kind": "depth", "limit": 1, "receivers": [hook["id"]]}
            assert problem(other.post("/v1/alert-rules", json=stolen), 400)[1] == "/receivers/0"
        # A key with a part of the queues sees alerts of that part, and makes no rules.
        with client(server, key_of(http, "shop", "view:orders*")) as viewer:
            assert [a["id"] for a in alerts(viewer)] == [alert["id"]]
            assert viewer.post("/v1/alert-rules", json=stolen).status_code == 403
        with client(server, key_of(http, "shop", "view:news*")) as viewer:
            assert alerts(viewer) == []
        # Silenced: it goes on, and its end is told to nobody.
        silence = {"queue": "orders*", "reason": "we know", "duration_ms": 3_600_000}
        assert shop.post("/v1/silences/preview", json=silence).raise_for_status().json()["mutes"] == 1
        muted = made(shop, "/v1/silences", **silence)
        assert muted["author"] == "someone" and muted["state"] == "active" and muted["mutes"] == 1
        assert alerts(shop, state="firing")[0]["silenced_by"] == muted["id"]
        emptied(shop, "orders.eu")
        until(lambda: has(shop, rule["id"], "resolved"), "the alert is over")
        lines = shop.get("/v1/alerts/history", params={"rule": rule["id"]}).json()["items"]
        states = [line["state"] for line in lines]
        assert states == ["resolved", "firing"] and len(receiver.told) == 1
        # The silence ends, and the next alert says that there was one.
        assert shop.delete(f"/v1/silences/{muted['id']}").status_code == 204
        filled(shop, "orders.eu", 7)
        until(lambda: has(shop, rule["id"], "firing"), "the rule fires again")
        assert alerts(shop, state="firing")[0]["silence_expired"] == muted["id"]
        until(lambda: len(receiver.told) == 2, "the receiver is told again")
        test = shop.post(f"/v1/alert-rules/{rule['id']}/test").raise_for_status().json()["items"]
        assert [(one["ok"], one["status"]) for one in test] == [(True, 204)]
        assert receiver.told[2]["body"]["type"] == "alert.test"


def test_rules_alerts_and_secrets_survive_a_crash(server: PushqServer, http: httpx2.Client, tmp_path: Path) -> None:
    with Receiver(tmp_path) as receiver:
        hook = made(http, "/v1/alert-receivers", name="ops", url=receiver.url)
        receiver.knows(hook["secret"])
        rule = made(http, "/v1/alert-rules", name="crash", kind="depth", queue="kept", limit=1, receivers=[hook["id"]])
        filled(http, "kept", 3)
        until(lambda: len(receiver.told) == 1, "the receiver is told")
        (before,) = alerts(http, rule=rule["id"])
        server.kill()
        server.start()
        with client(server) as again:
            until(lambda: has(again, rule["id"], "firing"), "the alert is there")
            assert alerts(again, rule=rule["id"])[0]["id"] == before["id"]
            emptied(again, "kept")
            # Killed before it had written down that the webhook arrived, it sends it again under the same id.
            until(lambda: len({one["id"] for one in receiver.told}) == 2, "its end is told, and its begin not anew")
            assert receiver.told[-1]["genuine"] and receiver.told[-1]["body"]["type"] == "alert.resolved"
        # The secret stands nowhere on the disk.
        for secret in (hook["secret"].removeprefix("whsec_"), hook["id"]):
            found = subprocess.run(
                ["grep", "-rlaF", "--exclude=ballast", secret, str(server.data)], capture_output=True, text=True
            )
            # The id is there, so the search finds what is on the disk.
            assert bool(found.stdout) == (secret == hook["id"])


def test_a_webhook_that_had_not_arrived_is_sent_after_a_crash_under_the_same_id(
    server: PushqServer, http: httpx2.Client, tmp_path: Path
) -> None:
    with Receiver(tmp_path) as receiver:
        hook = made(http, "/v1/alert-receivers", name="ops", url=receiver.url)
        made(http, "/v1/alert-rules", name="late", kind="depth", queue="late", limit=1, receivers=[hook["id"]])
        filled(http, "late", 3)
        until(lambda: len(receiver.told) >= 1, "the receiver is told, and takes nothing: it does not know the secret")
        server.kill()
        tried = {one["id"] for one in receiver.told}
        receiver.knows(hook["secret"])
        server.start()
        until(lambda: any(one["genuine"] for one in receiver.told), "the next process goes on")
        assert {one["id"] for one in receiver.told} == tried and len(tried) == 1
        assert all(one["body"] == receiver.told[0]["body"] for one in receiver.told), "and says the same"


def test_streams_of_one_tenant_leave_room_for_others_and_count_as_its_connections(
    server: PushqServer, http: httpx2.Client
) -> None:
    def status(who: httpx2.Client) -> int:
        with who.stream("GET", "/v1/alerts/events") as answer:
            return answer.status_code

    def key(tenant: str) -> str:
        return key_of(http, tenant, "admin")

    with client(server, key("loud")) as loud, client(server, key("calm")) as calm, ExitStack() as streams:
        for _ in range(LISTENERS_PER_TENANT_MAX):
            assert streams.enter_context(loud.stream("GET", "/v1/alerts/events")).status_code == 200
        assert status(loud) == 429 and status(calm) == 200
    small_key = key("small")
    http.put("/v1/tenants/small", json={"quotas": {"connections": 1}}).raise_for_status()
    with client(server, small_key) as small:
        with small.stream("GET", "/v1/alerts/events") as only:
            assert (only.status_code, status(small)) == (200, 429)
        until(lambda: status(small) == 200, "a stream that was closed does not count any more")


def test_a_stream_of_events_tells_each_change(server: PushqServer, http: httpx2.Client) -> None:
    rule = made(http, "/v1/alert-rules", name="live", kind="depth", queue="live", limit=1)
    seen: list[dict[str, Any]] = []
    is_open = threading.Event()

    def read() -> None:
        with client(server) as mine, mine.stream("GET", "/v1/alerts/events") as answer:
            for line in answer.iter_lines():
                is_open.set()
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if event["rule"] == rule["id"]:
                        seen.append(event)
                        if event["state"] == "resolved":
                            return

    reader = threading.Thread(target=read)
    reader.start()
    assert is_open.wait(20)
    filled(http, "live", 2)
    until(lambda: has(http, rule["id"], "firing"), "the rule fires")
    emptied(http, "live")
    reader.join(30)
    assert [event["state"] for event in seen] == ["firing", "resolved"]


def test_a_webhook_to_a_neighbour_is_refused(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data") as plain, client(plain) as http:
        for url in ("http://127.0.0.1:9/x", "http://[::1]/x", "http://169.254.169.254/latest", "http://10.0.0.1/"):
            detail, pointer = problem(http.post("/v1/alert-receivers", json={"name": "n", "url": url}), 400)
            assert pointer == "/url" and "not a public address" in detail
        hook = made(http, "/v1/alert-receivers", name="n", url="http://localhost:9/x")
        outcome = http.post(f"/v1/alert-receivers/{hook['id']}/test").raise_for_status().json()
        assert not outcome["ok"] and "does not resolve to public addresses" in outcome["error"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "deep", "limit": 1}, "/kind"),
        ({"kind": "replica_lag", "limit": 1}, "/kind"),
        ({"kind": "out_of_sync", "limit": 0}, "/kind"),
        ({"kind": "depth"}, "/limit"),
        ({"kind": "depth", "limit": 10, "clear_at": 11}, "/clear_at"),
        ({"kind": "depth", "limit": 10, "for_ms": -1}, "/for_ms"),
        ({"kind": "depth", "limit": 10, "objective": 99}, "/objective"),
        ({"kind": "loop_lag_ms", "limit": 10, "queue": "orders"}, "/queue"),
        ({"kind": "growth", "limit": 10, "window_ms": 5}, "/window_ms"),
        ({"kind": "slo_availability"}, "/objective"),
        ({"kind": "slo_latency", "objective": 99.0, "latency_ms": 7}, "/latency_ms"),
        ({"kind": "depth", "limit": 10, "queue": "a b"}, "/queue"),
        ({"kind": "depth", "limit": 10, "receivers": ["receiver_0"]}, "/receivers/0"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named(http: httpx2.Client, body: dict[str, Any], pointer: str) -> None:
    assert problem(http.post("/v1/alert-rules", json={"name": "n", **body}), 400)[1] == pointer
    assert problem(http.post("/v1/alert-rules/preview", json={"name": "n", **body}), 400)[1] == pointer


def test_a_preview_says_what_a_rule_would_find(http: httpx2.Client) -> None:
    filled(http, "seen.a", 4)
    filled(http, "seen.b", 1)
    body = {"name": "n", "kind": "depth", "queue": "seen.*", "limit": 2}

    def looks() -> dict[str, Any]:
        found: dict[str, Any] = http.post("/v1/alert-rules/preview", json=body).raise_for_status().json()
        return found

    until(lambda: looks()["firing"] == 1, "the preview finds the deep queue")
    assert looks()["matched"] == 2
    assert looks()["items"][0] == {"subject": "seen.a", "value": 4, "would": "firing"}
    assert http.get("/v1/alerts/kinds").raise_for_status().json()["items"][0]["kind"] == "depth"


def test_rules_about_the_process_are_for_operators(server: PushqServer, http: httpx2.Client) -> None:
    body = {"name": "lag", "kind": "memory_used_percent", "limit": 0.000001}
    with client(server, key_of(http, "shop", "admin")) as shop:
        assert shop.post("/v1/alert-rules", json=body).status_code == 403
        refused = shop.post("/v1/alert-rules", json={"name": "s", "kind": "out_of_sync", "limit": 0})
        assert (
            refused.status_code == 403
            and "they affect every tenant, so only operators may create" in refused.json()["detail"]
        )
    said = http.post("/v1/alert-rules", json={"name": "s", "kind": "out_of_sync", "limit": 0}).json()["detail"]
    assert "cluster.coordinator" in said
    rule = made(http, "/v1/alert-rules", **body)
    until(lambda: has(http, rule["id"], "firing"), "the rule about memory fires")
    with client(server, key_of(http, "default", "admin")) as administrator:
        assert not has(administrator, rule["id"], "firing")
        assert administrator.delete(f"/v1/alert-rules/{rule['id']}").status_code == 403
    assert http.delete(f"/v1/alert-rules/{rule['id']}").status_code == 204


def test_what_two_queues_have_together_is_told_in_the_servers_log(server: PushqServer, http: httpx2.Client) -> None:
    receiver = made(http, "/v1/alert-receivers", name="the book", type="log")
    rule = made(
        http, "/v1/alert-rules", name="full", kind="total_depth", queue="sum.*", limit=10, receivers=[receiver["id"]]
    )
    (tried,) = http.post(f"/v1/alert-rules/{rule['id']}/test").raise_for_status().json()["items"]
    assert tried["ok"]
    for queue in ("sum.a", "sum.b"):
        filled(http, queue, 6)
    until(lambda: has(http, rule["id"], "firing"), "the rule fires")
    (alert,) = alerts(http, rule=rule["id"], state="firing")
    assert (alert["subject"], alert["queue"], alert["value"]) == ("sum.*", None, 12)
    emptied(http, "sum.a")
    until(lambda: has(http, rule["id"], "resolved"), "the alert is over")

    def told() -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in server.log().splitlines() if "the book" in line]
        return [(line["event"], line.get("subject", "")) for line in lines if line.get("receiver") == "the book"]

    until(lambda: len(told()) == 3, "all of it stands in the log")
    assert told() == [("alert test", ""), ("alert firing", "sum.*"), ("alert resolved", "sum.*")]
    http.delete(f"/v1/alert-rules/{rule['id']}").raise_for_status()
