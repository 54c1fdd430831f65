"""The console's door against a real server: cookies, foreign forms, roles, tenants, revoked keys, the audit of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx2
import pytest

from tests.support.patience import PATIENCE_S, until
from tests.support.server import PushqServer
from web_console.limits import STREAMS_PER_SESSION_MAX, STREAMS_PER_TENANT_MAX

WAIT_S_MAX = PATIENCE_S
SCOPES = {
    "viewer": ["view:*"],
    "operator": ["view:*", "consume:*", "publish:*", "manage:*"],
    "customer": ["admin"],
    "admin": ["admin", "operator"],
}
EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("console") / "data") as running:
        api(running, "PUT", "/v1/queues/orders", {})
        message = {"body": EVIL, "headers": {"x-note": EVIL}, "id": "evil-1"}
        api(running, "POST", "/v1/queues/orders/messages", {"messages": [message]})
        yield running


def api(server: PushqServer, method: str, path: str, body: object = None) -> httpx2.Response:
    answer = httpx2.request(method, server.url + path, json=body, headers=server.headers)
    assert answer.status_code < 300, answer.text
    return answer


def make_key(server: PushqServer, role: str, **more: object) -> dict[str, str]:
    made: dict[str, str] = api(server, "POST", "/v1/keys", {"name": f"{role}'s", "scopes": SCOPES[role], **more}).json()
    return made


def sign_in(server: PushqServer, credential: str) -> httpx2.Client:
    client = httpx2.Client(base_url=server.url, headers={"Origin": server.url})
    answer = client.post("/console/login", data={"credential": credential})
    assert answer.status_code == 303, answer.text
    return client


@pytest.fixture
def clients(server: PushqServer) -> Iterator[dict[str, httpx2.Client]]:
    """One signed in for each role."""
    made = {role: sign_in(server, make_key(server, role)["key"]) for role in SCOPES}
    yield made
    for client in made.values():
        client.close()


def form_token(client: httpx2.Client) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', client.get("/console/queues/orders/publish").text)
    assert found is not None
    return found[1]


def test_without_a_session_every_page_leads_to_the_sign_in(server: PushqServer) -> None:
    for path in ("/console", "/console/queues/orders/messages?state=ready", "/console/keys"):
        answer = httpx2.get(server.url + path)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/console/login?next=%2Fconsole")
    assert httpx2.get(server.url + "/console/live?page=/console").status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(server: PushqServer) -> None:
    origin = {"Origin": server.url}
    answer = httpx2.post(server.url + "/console/login", data={"credential": server.key}, headers=origin)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Max-Age=28800" in cookie
    assert server.key not in cookie
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("credential", ["", "pushq_0_wrong", "x" * 20_000, "a.b.c"])
def test_a_wrong_credential_lets_nobody_in(server: PushqServer, credential: str) -> None:
    origin = {"Origin": server.url}
    answer = httpx2.post(server.url + "/console/login", data={"credential": credential}, headers=origin)
    assert answer.status_code == 401 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("headers", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
def test_a_form_of_another_site_is_refused(server: PushqServer, headers: dict[str, str]) -> None:
    answer = httpx2.post(server.url + "/console/login", data={"credential": server.key}, headers=headers)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_a_form_without_the_token_of_its_session_does_nothing(
    server: PushqServer, clients: dict[str, httpx2.Client]
) -> None:
    stolen = form_token(clients["operator"])
    for token in ("", stolen):
        form = {"queue": "orders", "typed": "orders", "form_token": token}
        assert clients["admin"].post("/console/do/purge", data=form).status_code == 403
    assert api(server, "GET", "/v1/queues/orders").json()["stats"]["ready"] == 1


SEEN = {
    "viewer": ("", "/queues", "/queues/orders", "/queues/orders/messages", "/alerts"),
    "operator": ("/queues/orders/dead", "/queues/orders/publish"),
    "customer": ("/connections", "/keys", "/usage", "/audit"),
    "admin": ("/tenants", "/settings", "/node"),
}


def test_each_role_sees_its_pages_and_no_others(clients: dict[str, httpx2.Client]) -> None:
    roles = list(SEEN)
    for lowest, paths in SEEN.items():
        for path in paths:
            for role in roles:
                wanted = 200 if roles.index(role) >= roles.index(lowest) else 403
                assert clients[role].get(f"/console{path}").status_code == wanted, (role, path)


def test_a_viewer_sees_no_payload(clients: dict[str, httpx2.Client]) -> None:
    page = clients["viewer"].get("/console/queues/orders/messages").text
    assert "requires consume" in page and "onerror" not in page
    page = clients["viewer"].get("/console/queues/orders/message?id=evil-1").text
    assert "cannot see payloads" in page and '<pre class="payload"' not in page


def test_a_viewer_may_not_act_whatever_it_sends(clients: dict[str, httpx2.Client]) -> None:
    viewer = clients["viewer"]
    page = viewer.get("/console/help").text
    assert "form_token" not in page
    answer = viewer.post("/console/do/publish", data={"queue": "orders", "body": "1", "form_token": ""})
    assert answer.status_code == 403


def test_what_others_wrote_stays_text(clients: dict[str, httpx2.Client]) -> None:
    for path in ("messages", "message?id=evil-1", "message?id=evil-1&form=text"):
        page = clients["operator"].get(f"/console/queues/orders/{path}").text
        assert "<img src=x" not in page
        assert "&lt;img src=x" in page, path
    page = clients["operator"].get("/console/queues", params={"q": f'">{EVIL}'}).text
    assert "<img src=x" not in page


def test_another_tenant_sees_no_queue_key_or_row_of_ours(server: PushqServer) -> None:
    api(server, "PUT", "/v1/tenants/acme", {})
    key = make_key(server, "customer", tenant="acme")
    with closing(sign_in(server, server.key)) as ours:
        form = {"name": "ours", "queues": "orders", "form_token": form_token(ours)}
        assert ours.post("/console/do/save-dashboard", data=form).headers["location"] == "/console/dashboards/ours"
        assert "orders" in ours.get("/console/dashboards/ours").text
    with closing(sign_in(server, key["key"])) as client:
        assert client.get("/console/dashboards/ours").status_code == 404
        assert "ours" not in client.get("/console/dashboards?format=json").text
        assert "orders" not in client.get("/console/queues?format=json").text
        assert client.get("/console/queues/orders").status_code == 404
        rows = client.get("/console/keys?format=json").json()["items"]
        assert [row["tenant"] for row in rows] == ["acme"]
        rows = client.get("/console/audit?format=json").json()["items"]
        assert {row["tenant"] for row in rows} == {"acme"} and rows[0]["action"] == "console.login"


def test_a_form_publishes_and_the_audit_has_what_was_administered(
    server: PushqServer, clients: dict[str, httpx2.Client]
) -> None:
    client = clients["admin"]
    token = form_token(client)
    made = client.post("/console/do/create-queue", data={"name": "mail", "kind": "work", "form_token": token})
    assert made.headers["location"] == "/console/queues/mail"
    form = {"queue": "mail", "body": '{"n": 1}', "as": "json", "headers": "a: b", "form_token": token}
    assert client.post("/console/do/publish", data=form).status_code == 303
    assert api(server, "GET", "/v1/queues/mail").json()["stats"]["ready"] == 1
    client.post("/console/do/purge", data={"queue": "mail", "typed": "wrong", "form_token": token})
    assert api(server, "GET", "/v1/queues/mail").json()["stats"]["ready"] == 1
    client.post("/console/do/purge", data={"queue": "mail", "typed": "mail", "form_token": token})
    assert api(server, "GET", "/v1/queues/mail").json()["stats"]["ready"] == 0
    actions = [row["action"] for row in client.get("/console/audit?format=json").json()["items"]]
    assert actions[:2] == ["purges.start", "queues.put"] and "console.login" in actions


def test_a_session_ends_with_its_key(server: PushqServer) -> None:
    key = make_key(server, "operator")
    with closing(sign_in(server, key["key"])) as client:
        assert client.get("/console").status_code == 200
        api(server, "DELETE", f"/v1/keys/{key['id']}")
        began = time.monotonic()
        while client.get("/console").status_code == 200:
            assert time.monotonic() - began < WAIT_S_MAX
            time.sleep(0.05)
        assert client.get("/console").status_code == 303


def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(server: PushqServer) -> None:
    with closing(sign_in(server, server.key)) as client:
        cookies = dict(client.cookies)
        assert client.post("/console/logout").status_code == 303
        assert httpx2.get(server.url + "/console", cookies=cookies).status_code == 303


def test_live_pages_of_one_tenant_leave_room_for_the_others(server: PushqServer) -> None:
    api(server, "PUT", "/v1/tenants/busy", {})
    viewer = make_key(server, "viewer", tenant="busy")["key"]
    address = "/console/live?page=/console/alerts"
    with ExitStack() as left, closing(sign_in(server, server.key)) as ours:
        for number in range(STREAMS_PER_TENANT_MAX + 1):
            if number % STREAMS_PER_SESSION_MAX == 0:
                client = left.enter_context(closing(sign_in(server, viewer)))
            last = left.enter_context(client.stream("GET", address, timeout=WAIT_S_MAX))
            assert last.status_code == (200 if number < STREAMS_PER_TENANT_MAX else 429)
        assert left.enter_context(ours.stream("GET", address, timeout=WAIT_S_MAX)).status_code == 200

    def may_look() -> bool:
        with client.stream("GET", address, timeout=WAIT_S_MAX) as again:
            return again.status_code == 200

    with closing(sign_in(server, viewer)) as client:
        until(may_look, "pages that were left do not count any more")


def test_a_live_page_tells_of_a_new_message_and_leaves_when_the_server_does(server: PushqServer) -> None:
    with closing(sign_in(server, server.key)) as client:
        address = "/console/live?page=/console/queues/live"
        api(server, "PUT", "/v1/queues/live", {})
        with client.stream("GET", address, timeout=WAIT_S_MAX) as stream:
            lines = stream.iter_lines()
            assert any("Ready" in line for line in lines)
            api(server, "POST", "/v1/queues/live/messages", {"messages": [{"body": 1}] * 7})
            assert any("<dd>7</dd>" in line for line in lines)
            stopped = server.stop()
        assert stopped.exit_code == 0 and stopped.seconds < WAIT_S_MAX
    server.start()
