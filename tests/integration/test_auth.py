"""Who may do what on the real server: keys, scopes, tenants, and the order in which a caller is refused."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from tests.conftest import StartServer
from tests.integration.calls import Client, codes, first_events, make_key, ticket_for, with_key
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def admin(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(admin: Client) -> str:
    name = f"q{next(_numbers)}"
    assert admin.put(f"/v1/queues/{name}").status_code == 201
    return name


# -------------------------------------------------------------------------------------------------- credentials


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer nonsense",
        "Bearer pushq_x_y",
        "Basic cHVzaHE6eA==",
        "pushq_x_y",
        "Bearer ü",
    ],
)
@pytest.mark.parametrize("path", ["/v1/queues", "/v1/nothing", "/v1", "/v1/queues/x/events"])
def test_without_a_good_key_everything_below_v1_is_401(
    shared_server: PushqServer, authorization: str | None, path: str
) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("utf-8")}
    answer = httpx2.get(shared_server.url + path, headers=headers)
    assert codes(answer) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_is_no_credential_in_an_address(shared_server: PushqServer) -> None:
    for name in ("token", "key", "access_token", "ticket"):
        assert codes(httpx2.get(f"{shared_server.url}/v1/queues?{name}={shared_server.key}"))[0] == 401


def test_the_scheme_is_known_in_any_spelling(shared_server: PushqServer) -> None:
    answer = httpx2.get(f"{shared_server.url}/v1/queues", headers={"Authorization": f"bearer {shared_server.key}"})
    assert answer.status_code == 200


def test_checks_come_in_the_order_of_the_protocol(admin: Client, queue: str) -> None:
    key = make_key(admin, "view:other")["key"]
    wrong_body = {"json": {"nonsense": 1}}
    with with_key(admin, key) as limited:
        assert codes(limited.post("/v1/queues/nowhere/messages", **wrong_body)) == (404, "queue-not-found")
        assert codes(limited.post(f"/v1/queues/{queue}/messages", **wrong_body)) == (403, "forbidden")
        assert codes(limited.patch(f"/v1/queues/{queue}", **wrong_body)) == (403, "forbidden")
        assert codes(limited.put("/v1/queues/-wrong-name", **wrong_body)) == (403, "forbidden")
        assert codes(limited.get(f"/v1/queues/{queue}?nonsense=1")) == (403, "forbidden")
        assert codes(limited.delete(f"/v1/queues/{queue}")) == (403, "forbidden")
        assert codes(limited.delete("/v1/queues/nowhere")) == (404, "queue-not-found")
    assert codes(admin.post(f"/v1/queues/{queue}/messages", **wrong_body)) == (400, "invalid-request")


# ------------------------------------------------------------------------------------------------------- scopes

CALLS = {
    "publish": [("POST", "/messages", {"messages": [{"body": 1}]})],
    "consume": [
        ("POST", "/receive", {}),
        ("POST", "/ack", {"receipts": []}),
        ("POST", "/nack", {"receipts": []}),
        ("POST", "/extend", {"receipts": [], "visibility_timeout_ms": 1}),
        ("GET", "/messages", None),
    ],
    "view": [("GET", "", None), ("GET", "/messages", None)],
    "manage": [("PUT", "", {})],
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_scope_opens_its_calls_and_no_others(admin: Client, queue: str, verb: str) -> None:
    with with_key(admin, make_key(admin, f"{verb}:q*")["key"]) as limited:
        for of, calls in CALLS.items():
            for method, path, body in calls:
                answer = limited.request(method, f"/v1/queues/{queue}{path}", json=body)
                is_peek = (method, path) == ("GET", "/messages")
                may = of == verb or (is_peek and verb in ("view", "consume"))
                assert (answer.status_code != 403) == may, (of, method, path, answer.text)
                assert answer.status_code in (200, 201, 403)
        assert codes(limited.get("/v1/keys")) == (403, "forbidden")
        assert codes(limited.get("/v1/tenants")) == (403, "forbidden")


def test_bodies_are_for_those_who_may_consume(admin: Client, queue: str) -> None:
    admin.post(
        f"/v1/queues/{queue}/messages", json={"messages": [{"body": "secret", "key": "k"}, {"body_base64": "AA=="}]}
    )
    with with_key(admin, make_key(admin, f"view:{queue}")["key"]) as viewer:
        items = viewer.get(f"/v1/queues/{queue}/messages").json()["items"]
    assert [item["key"] for item in items] == ["k", None]
    assert not any("body" in item or "body_base64" in item for item in items)
    with with_key(admin, make_key(admin, f"consume:{queue}")["key"]) as consumer:
        assert consumer.get(f"/v1/queues/{queue}/messages").json()["items"][0]["body"] == "secret"


def test_a_list_has_only_what_the_key_may_view(admin: Client) -> None:
    for name in ("seen-a", "seen-b", "hidden-a"):
        admin.put(f"/v1/queues/{name}")
    with with_key(admin, make_key(admin, "view:seen-*", "publish:*")["key"]) as viewer:
        assert [item["name"] for item in viewer.get("/v1/queues").json()["items"]] == ["seen-a", "seen-b"]
        page = viewer.get("/v1/queues?limit=1").json()
        assert page["next"] is not None
        last = viewer.get("/v1/queues", params={"limit": 1, "cursor": page["next"]}).json()
        assert ([item["name"] for item in last["items"]], last["next"]) == (["seen-b"], None)


def test_deleting_needs_an_administrator_even_where_it_is_allowed(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "1"})
    with Client(base_url=server.url, headers=server.headers) as admin:
        admin.put("/v1/queues/a")
        with with_key(admin, make_key(admin, "manage:*")["key"]) as manager:
            answer = manager.delete("/v1/queues/a?confirm=a&discard=true")
            assert codes(answer) == (403, "forbidden") and "pushq queue delete" in answer.json()["detail"]
        with with_key(admin, make_key(admin, "admin")["key"]) as other:
            assert other.delete("/v1/queues/a?confirm=a&discard=true").status_code == 200


# --------------------------------------------------------------------------------------------------------- keys


def test_the_first_start_makes_one_private_key_and_does_not_print_it(shared_server: PushqServer) -> None:
    file = shared_server.data / "admin.key"
    assert len(file.read_text().splitlines()) == 1
    assert str(file) in shared_server.log()
    assert shared_server.key not in shared_server.log()
    assert stat.S_IMODE(shared_server.data.stat().st_mode) == 0o700
    for each in shared_server.data.rglob("*"):
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each.name


def test_a_key_is_shown_once(admin: Client) -> None:
    made = make_key(admin, "publish:a", "view:*")
    assert set(made) == {"id", "key", "name", "tenant", "scopes", "created_at", "expires_at"}
    assert made["key"].startswith(f"pushq_{made['id']}_")
    items = admin.get("/v1/keys?limit=1000").json()["items"]
    (listed,) = [item for item in items if item["id"] == made["id"]]
    assert listed == {name: value for name, value in made.items() if name != "key"} | {"last_used_at": None}
    assert admin.get(f"/v1/keys/{made['id']}").json() == listed


def test_the_last_use_of_a_key_is_shown_and_outlives_a_restart(start_server: StartServer) -> None:
    server = start_server()
    with Client(base_url=server.url, headers=server.headers) as admin:
        made = make_key(admin, "view:*")
        before = datetime.now(UTC).replace(second=0, microsecond=0)
        with with_key(admin, made["key"]) as client:
            client.get("/v1/queues")
        used_at = admin.get(f"/v1/keys/{made['id']}").json()["last_used_at"]
        assert used_at.endswith(":00.000Z")
        assert before <= datetime.fromisoformat(used_at) <= datetime.now(UTC)
        server.restart()
        assert admin.get(f"/v1/keys/{made['id']}").json()["last_used_at"] == used_at


def test_a_revoked_key_ends_at_once(admin: Client) -> None:
    made = make_key(admin, "view:*")
    with with_key(admin, made["key"]) as client:
        assert client.get("/v1/queues").status_code == 200
        assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert codes(client.get("/v1/queues")) == (401, "unauthenticated")
    assert codes(admin.delete(f"/v1/keys/{made['id']}")) == (404, "not-found")


def test_a_key_ends_when_it_expires(admin: Client) -> None:
    ends = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)  # the server counts whole milliseconds
    made = make_key(admin, "view:*", expires_at=ends.isoformat())
    with with_key(admin, made["key"]) as client:
        while (answer := client.get("/v1/queues")).status_code == 200:
            assert datetime.now(UTC) < ends + timedelta(seconds=PATIENCE_S)
        assert codes(answer) == (401, "unauthenticated") and datetime.now(UTC) >= ends


def test_a_rotated_key_has_two_secrets_for_a_while(admin: Client) -> None:
    made, began = make_key(admin, "view:*"), datetime.now(UTC)
    rotated = admin.post(f"/v1/keys/{made['id']}/rotate", json={"grace_ms": 2_000}).json()
    assert rotated["id"] == made["id"] and rotated["key"] != made["key"]
    with with_key(admin, made["key"]) as old, with_key(admin, rotated["key"]) as new:
        deadline = time.monotonic() + PATIENCE_S
        while (answer := old.get("/v1/queues")).status_code == 200:
            assert new.get("/v1/queues").status_code == 200 and time.monotonic() < deadline
        assert codes(answer) == (401, "unauthenticated") and datetime.now(UTC) >= began + timedelta(seconds=2)
        assert new.get("/v1/queues").status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "", "scopes": ["admin"]}, "/name"),
        ({"name": "x" * 129, "scopes": ["admin"]}, "/name"),
        ({"name": "x", "scopes": []}, "/scopes"),
        ({"name": "x", "scopes": ["admin", "read:q"]}, "/scopes/1"),
        ({"name": "x", "scopes": ["admin"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"name": "x", "scopes": ["admin"], "expires_at": "tomorrow"}, "/expires_at"),
        ({"name": "x", "scopes": ["admin"], "expires": "x"}, "/expires"),
    ],
)
def test_a_wrong_key_is_refused_at_its_place(admin: Client, body: dict[str, Any], pointer: str) -> None:
    answer = admin.post("/v1/keys", json=body)
    assert codes(answer) == (400, "invalid-request")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_an_administrator_cannot_make_or_take_over_an_operator(admin: Client) -> None:
    operator = make_key(admin, "operator")
    with with_key(admin, make_key(admin, "admin")["key"]) as plain:
        assert codes(plain.post("/v1/keys", json={"name": "x", "scopes": ["operator"]})) == (403, "forbidden")
        assert codes(plain.post("/v1/keys", json={"name": "x", "scopes": ["admin"], "tenant": "other"}))[0] == 403
        assert codes(plain.post(f"/v1/keys/{operator['id']}/rotate", json={})) == (403, "forbidden")
        assert codes(plain.delete(f"/v1/keys/{operator['id']}")) == (403, "forbidden")
        assert codes(plain.put("/v1/tenants/mine")) == (403, "forbidden")


def test_the_last_operator_stays(start_server: StartServer) -> None:
    server = start_server()
    with Client(base_url=server.url, headers=server.headers) as admin:
        (first,) = admin.get("/v1/keys").json()["items"]
        assert codes(admin.delete(f"/v1/keys/{first['id']}")) == (409, "conflict")
        make_key(admin, "operator")
        assert admin.delete(f"/v1/keys/{first['id']}").status_code == 204


def test_keys_are_listed_in_pages(admin: Client) -> None:
    for _ in range(3):
        make_key(admin, "view:*")
    ids: list[str] = []
    path = "/v1/keys?limit=2"
    while path:
        answer = admin.get(path)
        ids += [item["id"] for item in answer.json()["items"]]
        path = answer.headers["link"].partition(">")[0][1:] if "link" in answer.headers else ""
    assert len(ids) == len(set(ids)) >= 4


def test_keys_and_queues_are_there_after_a_crash(start_server: StartServer) -> None:
    server = start_server()
    with Client(base_url=server.url, headers=server.headers) as admin:
        token = make_key(admin, "view:*", "manage:*")["key"]
        admin.put("/v1/queues/kept", json={"tags": {"a": "b"}})
        admin.put("/v1/tenants/kept")
        server.kill()
        server.start()
        with with_key(admin, token) as client:
            assert client.get("/v1/queues/kept").json()["config"]["tags"] == {"a": "b"}
        assert admin.get("/v1/tenants/kept").status_code == 200


# ------------------------------------------------------------------------------------------------------ tenants


def test_tenants_do_not_see_each_other(admin: Client) -> None:
    assert admin.put("/v1/tenants/acme").status_code == 201
    assert admin.put("/v1/tenants/acme", json={}).status_code == 200
    made = make_key(admin, "admin", tenant="acme")
    assert made["tenant"] == "acme"
    admin.put("/v1/queues/shared-name", json={"tags": {"of": "default"}})
    admin.put("/v1/queues/only-default")
    with with_key(admin, made["key"]) as acme:
        assert acme.get("/v1/queues").json()["items"] == []
        assert codes(acme.get("/v1/queues/only-default")) == (404, "queue-not-found")
        assert acme.put("/v1/queues/shared-name", json={"tags": {"of": "acme"}}).status_code == 201
        assert acme.get("/v1/queues/shared-name").json()["owner"] == "acme"
        acme.post("/v1/queues/shared-name/messages", json={"messages": [{"body": "acme's"}]})
        assert [key["id"] for key in acme.get("/v1/keys").json()["items"]] == [made["id"]]
        default_key = admin.get("/v1/keys").json()["items"][0]
        assert default_key["tenant"] == "default" or default_key["id"] == made["id"]
        others = [key["id"] for key in admin.get("/v1/keys?limit=1000").json()["items"] if key["tenant"] == "default"]
        assert codes(acme.delete(f"/v1/keys/{others[0]}")) == (404, "not-found")
        assert codes(acme.get("/v1/tenants/default")) == (404, "not-found")
        assert codes(acme.get("/v1/tenants/acme")) == (403, "forbidden")
        assert codes(admin.delete("/v1/tenants/acme")) == (409, "conflict")
    assert admin.post("/v1/queues/shared-name/receive", json={}).json()["messages"] == []


def test_a_tenant_goes_with_its_keys(admin: Client) -> None:
    admin.put("/v1/tenants/short-lived")
    token = make_key(admin, "admin", tenant="short-lived")["key"]
    with with_key(admin, token) as client:
        assert client.get("/v1/queues").status_code == 200
        assert admin.delete("/v1/tenants/short-lived").status_code == 204
        assert codes(client.get("/v1/queues")) == (401, "unauthenticated")
    assert codes(admin.get("/v1/tenants/short-lived")) == (404, "not-found")
    assert codes(admin.delete("/v1/tenants/default")) == (409, "conflict")


def test_quotas_are_stored_as_given_and_stay_when_none_are_named(start_server: StartServer) -> None:
    server = start_server()
    with Client(base_url=server.url, headers=server.headers) as admin:
        quotas = {"publish_bytes_per_s": 1_000_000, "queues": 3}
        assert admin.put("/v1/tenants/acme", json={"quotas": quotas}).json()["quotas"] == quotas
        assert admin.put("/v1/tenants/acme").json()["quotas"] == quotas
        server.restart()
        assert admin.get("/v1/tenants/acme").json()["quotas"] == quotas
        assert admin.put("/v1/tenants/acme", json={"quotas": {"queues": None}}).json()["quotas"] == {}


@pytest.mark.parametrize(
    ("quotas", "pointer"),
    [({"queue": 5}, "/quotas/queue"), ({"queues": 0}, "/quotas/queues"), ({"stored_bytes": 1 << 51}, "/quotas/stored")],
)
def test_a_wrong_quota_is_refused_by_its_name(admin: Client, quotas: dict[str, int], pointer: str) -> None:
    answer = admin.put("/v1/tenants/with-quotas", json={"quotas": quotas})
    assert codes(answer) == (400, "invalid-request")
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)
    assert codes(admin.get("/v1/tenants/with-quotas")) == (404, "not-found")


def test_a_tenant_makes_no_more_queues_than_its_quota(admin: Client) -> None:
    admin.put("/v1/tenants/small", json={"quotas": {"queues": 2}})
    with with_key(admin, make_key(admin, "admin", tenant="small")["key"]) as small:
        assert [small.put(f"/v1/queues/q{n}").status_code for n in (1, 2, 1)] == [201, 201, 200]
        refused = small.put("/v1/queues/q3")
        assert codes(refused) == (409, "conflict") and "its quota is 2" in refused.json()["detail"]
        admin.put("/v1/tenants/small", json={"quotas": {"queues": 3}})
        assert small.put("/v1/queues/q3").status_code == 201


def test_a_tenant_that_holds_its_quota_of_bytes_publishes_again_when_it_has_consumed(admin: Client) -> None:
    admin.put("/v1/tenants/bytes", json={"quotas": {"stored_bytes": 20_000}})
    body = {"messages": [{"body": "x" * 3000}] * 5}

    def refusals(client: Client) -> Iterator[tuple[int, str]]:
        """What publishes are answered that come a while after each other."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            answer = client.post("/v1/queues/q/messages", json=body)
            yield (201, "") if answer.status_code == 201 else codes(answer)
            time.sleep(0.1)

    with with_key(admin, make_key(admin, "admin", tenant="bytes")["key"]) as client:
        client.put("/v1/queues/q")
        assert (507, "storage-full") in refusals(client)
        ((leased,),) = [client.post("/v1/queues/q/receive", json={"max": 1}).json()["messages"]]
        step = {"receipts": [leased["receipt"]], "publish": [{"queue": "q", **body}]}
        full = client.post("/v1/queues/q/ack", json=step)
        assert codes(full) == (507, "storage-full")
        assert 1 <= int(full.headers["retry-after"]) <= 30
        assert client.post("/v1/queues/q/nack", json={"receipts": step["receipts"]}).json()["results"][0]["ok"]
        assert admin.post("/v1/queues/q/messages", json=body).status_code != 507
        while taken := client.post("/v1/queues/q/receive", json={"max": 1000}).json()["messages"]:
            client.post("/v1/queues/q/ack", json={"receipts": [message["receipt"] for message in taken]})
        assert (201, "") in refusals(client)


def test_a_tenant_has_a_name_like_a_queue(admin: Client) -> None:
    assert codes(admin.put("/v1/tenants/-x")) == (400, "invalid-request")


# --------------------------------------------------------------------------------------------------------- logs


def test_no_credential_is_ever_logged(start_server: StartServer) -> None:
    server = start_server()
    with Client(base_url=server.url, headers=server.headers) as admin:
        admin.put("/v1/queues/q")
        made, ticket = make_key(admin, "consume:*"), ticket_for(admin)
        wrong = "pushq_0123456789abcdef_not-a-real-secret"
        with with_key(admin, wrong) as stranger:
            stranger.get("/v1/queues")
        with Client(base_url=server.url) as browser:
            first_events(browser, f"/v1/queues/q/events?ticket={ticket}")
            browser.get(f"/v1/queues?ticket={ticket}")
        with connect(server.ws_url) as ws:
            ws.send(json.dumps({"type": "connect", "token": made["key"]}))
            ws.recv(5)
        admin.delete(f"/v1/keys/{made['id']}")
    server.stop()
    log = server.log()
    assert not [secret for secret in (server.key, made["key"], ticket, wrong) if secret in log]
    assert not list(Path(server.data).glob("*.part"))
