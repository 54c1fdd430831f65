"""What people do on pages, over the application in this process: forms, pages of tables, and what they are refused."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from gateway.app import Application
from tests.unit.gateway.conftest import Clock, Person

pytestmark = pytest.mark.anyio


async def test_dead_letters_beyond_the_first_page_are_on_the_next(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {"max_attempts": 1})
    messages = [{"id": f"m{number:03}", "body": number} for number in range(120)]
    await person.api("POST", "/v1/queues/orders/messages", {"messages": messages})
    while leased := (await person.api("POST", "/v1/queues/orders/receive", {"max": 100}))["messages"]:
        await person.api("POST", "/v1/queues/orders/nack", {"receipts": [message["receipt"] for message in leased]})
    seen, address = [], "/console/queues/orders/dead"
    for _ in range(3):
        page = await person.look(address)
        assert "<strong>max_attempts</strong> 120" in page, "groups are of all"
        seen += re.findall(r"message\?id=(m\d+)", page)
        following = re.search(r'<a rel="next" href="([^"]+)"', page)
        address = following[1] if following is not None else ""
    assert not address and seen == [message["id"] for message in messages]


SETTINGS = "/console/queues/orders/settings"


class _Fields(HTMLParser):
    """The fields of the form that changes a queue, as a browser sends them back untouched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._select, self._is_selected = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        name = of.get("name") or ""
        if tag == "input" and (name.startswith("set.") or name == "etag"):
            self.found[name] = of["value"] or ""
        self._select = name if tag == "select" else self._select
        self._is_selected = tag == "option" and "selected" in of

    def handle_data(self, data: str) -> None:
        if self._select.startswith("set.") and self._is_selected and data.strip():
            self.found[self._select] = data.strip()


async def form_of(person: Person) -> dict[str, str]:
    fields = _Fields()
    fields.feed((await person.client.get(SETTINGS)).text)
    return fields.found


async def test_a_settings_form_changes_what_was_changed_in_it(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {"tags": {"team": "a & b"}, "message_ttl_ms": 5_000})
    before = (await person.api("GET", "/v1/queues/orders"))["config"]
    form = await form_of(person)
    assert {f"set.{name}" for name in before} - set(form) == {
        f"set.{name}" for name in ("kind", "delivery", "ordering", "sequencing", "lease_mode", "fair_by", "replication")
    }, "what a living queue keeps has no field"
    assert "No differences" in await person.act("change-queue", SETTINGS, queue="orders", **form)
    form |= {"set.max_attempts": "3", "set.message_ttl_ms": "", "set.encrypted": "false", "set.overflow": "drop_oldest"}
    form["set.max_messages"] = "500"
    said = await person.act("change-queue", SETTINGS, queue="orders", **form)
    assert said == "Changed max_attempts, message_ttl_ms, max_messages, overflow, encrypted of orders"
    changes = {"max_attempts": 3, "message_ttl_ms": None, "overflow": "drop_oldest", "encrypted": False}
    changes["max_messages"] = 500
    assert (await person.api("GET", "/v1/queues/orders"))["config"] == before | changes


async def test_a_settings_form_overwrites_nobodys_change_and_tells_what_is_wrong(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    form = await form_of(person) | {"set.max_attempts": "3"}
    said = await person.act("change-queue", SETTINGS, queue="orders", **form | {"set.max_attempts": "0"})
    assert "max_attempts must be between" in said
    said = await person.act("change-queue", SETTINGS, queue="orders", **form | {"set.max_attempts": "many"})
    assert "max_attempts is 'many'; use a whole number" in said
    for text in ("1e4", "1_000", "٣", "5.0"):
        said = await person.act("change-queue", SETTINGS, queue="orders", **form | {"set.max_attempts": text})
        assert f"max_attempts is '{text}'; use a whole number" in said
    for etag in ("*", "", "W/*"):
        said = await person.act("change-queue", SETTINGS, queue="orders", **form | {"etag": etag})
        assert "open its page again" in said
    meanwhile = await form_of(person) | {"set.delay_ms": "9"}
    assert "Changed delay_ms" in await person.act("change-queue", SETTINGS, queue="orders", **meanwhile)
    assert "has been changed since you read it" in await person.act("change-queue", SETTINGS, queue="orders", **form)
    config = (await person.api("GET", "/v1/queues/orders"))["config"]
    assert (config["max_attempts"], config["delay_ms"]) == (10, 9)


async def test_of_two_operators_with_one_tenants_quotas_the_second_is_told_and_keeps_what_was_typed(
    person: Person,
) -> None:
    page, path = "/console/tenants?edit=acme", "/v1/tenants/acme"
    await person.api("PUT", path, {"quotas": {"queues": 5, "connections": 9}})

    async def form() -> dict[str, str]:
        found = re.search(r'name="etag" value="([^"]*)"', (await person.client.get(page)).text)
        assert found is not None
        return {"item": "acme", "etag": html.unescape(found[1]), "queues": "5", "connections": "9"}

    one, two = await form() | {"queues": "6"}, await form() | {"connections": "10"}
    assert await person.act("change-tenant", page, **one) == "Quotas of acme updated"
    answer = await person.send("change-tenant", page, **two)
    told = html.unescape(answer.text)
    assert answer.status_code == 412 and "has been changed since" in told and 'name="connections"' in told
    assert re.search(r'name="connections" [^>]*value="10"', told), "what was typed stays"
    assert '<a href="/console/tenants?edit=acme">Open the current version</a>' in told and "Now: 6" in told
    quotas = (await person.api("GET", path))["quotas"]
    assert (quotas["queues"], quotas["connections"]) == (6, 9)
    said = await person.act("change-tenant", page, item="acme", queues="1")
    assert "open its page again" in said


async def test_a_tenant_is_changed_as_the_caller_knows_it_or_not_at_all(person: Person) -> None:
    made = await person.client.put("/v1/tenants/acme", json={}, headers=person.bearer)
    etag = made.headers["etag"]
    assert (await person.client.get("/v1/tenants/acme", headers=person.bearer)).headers["etag"] == etag
    body = {"quotas": {"queues": 5}}
    changed = await person.client.put("/v1/tenants/acme", json=body, headers=person.bearer | {"If-Match": etag})
    assert changed.status_code == 200 and changed.headers["etag"] != etag
    for name, headers in (("acme", {"If-Match": etag}), ("acme", {"If-None-Match": "*"}), ("gone", {"If-Match": "*"})):
        status, code, detail = await person.refused("PUT", f"/v1/tenants/{name}", body, **headers)
        assert (status, code) == (412, "precondition-failed") and name in detail
    assert (await person.api("PUT", "/v1/tenants/acme", {}))["quotas"]["queues"] == 5, "no condition needs to be given"


async def test_a_queue_is_deleted_by_its_name_and_its_messages_may_move(person: Person) -> None:
    for name in ("orders", "mail"):
        await person.api("PUT", f"/v1/queues/{name}", {})
    await person.api("POST", "/v1/queues/orders/messages", {"messages": [{"body": 1}, {"body": 2}]})
    said = await person.act("delete-queue", SETTINGS, queue="orders", typed="order")
    assert "nothing was changed" in said
    said = await person.act("delete-queue", SETTINGS, queue="orders", typed="orders", move_to="mail")
    assert said == "Queue orders deleted, its messages go to mail"
    said = await person.act("delete-queue", SETTINGS.replace("orders", "mail"), queue="mail", typed="mail")
    assert said.startswith("Queue mail deleted, ")
    assert (await person.api("GET", "/v1/queues"))["items"] == []


async def test_a_companion_has_no_settings_of_its_own(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    page = await person.look("/console/queues/orders.dead/settings")
    assert "Belongs to" in page and "set.max_attempts" not in page


async def test_a_rule_is_disabled_and_enabled_as_it_is(person: Person) -> None:
    rules = "/console/alerts/rules"
    made = []
    for kind, more in (
        ("growth", {"limit": 5, "window_ms": 120_000, "for_ms": 1_000, "queue": "orders*", "note": "n"}),
        ("slo_latency", {"objective": 99.5, "latency_ms": 100}),
        ("key_days", {"limit": 14}),
    ):
        made.append(await person.api("POST", "/v1/alert-rules", {"name": kind, "kind": kind, **more}))
    for rule in made:
        assert "disabled until you enable it" in await person.act("switch-rule", rules, item=rule["id"], wanted="off")
        off = await person.api("GET", f"/v1/alert-rules/{rule['id']}")
        assert {**off, "updated_at": ""} == {**rule, "enabled": False, "updated_at": ""}
        assert "enabled, notifies" in await person.act("switch-rule", rules, item=rule["id"], wanted="on")
    assert "has no receivers" in await person.act("test-rule", rules, item=made[0]["id"])


async def test_the_list_of_queues_draws_how_deep_each_was_and_exports_numbers(
    app: Application, person: Person, clock: Clock
) -> None:
    for number in range(60):
        await person.api("PUT", f"/v1/queues/q{number:02}", {})
    await person.api("POST", "/v1/queues/q59/messages", {"messages": [{"body": 1}] * 3})
    for _ in range(10):
        await app.gateway.sampler.look()
        clock.ms += 10_000
    asked = app.api.answers["GET", "/v1/series/queues", 200]
    page = await person.look("/console/queues")
    row = page[page.index('href="/console/queues/q59"') :].partition("</tr>")[0]
    assert "<polyline" in row and "60 rows" in page
    assert app.api.answers["GET", "/v1/series/queues", 200] == asked + 1, "one request for a page"
    exported = (await person.client.get("/console/queues?format=csv")).text.splitlines()
    assert exported[0].startswith("name,ready,in_flight") and len(exported) == 61
    assert app.api.answers["GET", "/v1/series/queues", 200] == asked + 1, "none for an export"


# ------------------------------------------------------------------------------------------- forms that are refused


async def test_a_refused_form_comes_back_as_it_was_typed_with_the_error_at_its_field(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    typed = {"queue": "orders", "body": '{"a": "<b>"', "as": "json", "key": "k & k", "priority": "3"}
    page = await person.send("publish", "/console/queues/orders/publish", **typed)
    assert page.status_code == 400 and page.headers["cache-control"] == "no-store"
    text = html.unescape(page.text)
    assert f'>\n{typed["body"]}</textarea><strong class="wrong"' in text and 'name="key" value="k & k"' in text
    assert "the body is not valid JSON" in text and 'data-here="/console/queues/orders/publish"' in text
    wrong = await person.send("publish", "/console/queues/orders/publish", **typed | {"body": "{}", "priority": "1e4"})
    assert re.search(r'name="priority" inputmode="numeric" aria-invalid="true" [^>]* value="1e4"', wrong.text)


async def test_what_the_api_refuses_stands_at_its_field_too(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    form = await form_of(person) | {"set.max_attempts": "0", "set.delay_ms": "7"}
    page = html.unescape((await person.send("change-queue", SETTINGS, queue="orders", **form)).text)
    assert re.search(
        r'name="set.max_attempts" [^>]*value="0"[^>]*><strong class="wrong" id="wrong-0">max_attempts must be between',
        page,
    )
    assert re.search(r'name="set.delay_ms" [^>]*value="7"', page)
    rule = {"name": "deep", "kind": "depth", "queue": "or ders", "limit": "5", "severity": "info"}
    page = html.unescape((await person.send("make-rule", "/console/alerts/rules", **rule)).text)
    assert re.search(r'name="queue" value="or ders"[^>]*><strong class="wrong"', page)
    assert "<option selected>info" in page and '<details class="act" open><summary>Create a rule' in page
    assert 'name="enabled" value="on">' in page, "it was not ticked"


async def test_a_refused_form_whose_page_has_gone_says_why_on_the_next_page(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    token = re.search(r'name="form_token" value="([^"]+)"', await person.look(SETTINGS))
    assert token is not None
    await person.api("DELETE", "/v1/queues/orders?confirm=orders&discard=true")
    form = {"queue": "orders", "form_token": token[1], "back": SETTINGS, "etag": '"1-1"'}
    answer = await person.client.post("/console/do/change-queue", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert "there is no queue 'orders'" in await person.look("/console")


async def test_a_filter_that_is_refused_stays_in_its_form_with_what_is_wrong(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    address = "/console/queues/orders/messages?state=dead&text=lamp&message=&key=k1&since=yesterday"
    answer = await person.client.get(address)
    page = html.unescape(answer.text)
    assert answer.status_code == 400 and "invalid time 'yesterday': use RFC 3339" in page
    assert "<option selected>dead" in page and 'name="text" value="lamp"' in page
    assert 'name="key" value="k1"' in page and 'name="since" value="yesterday"' in page
    assert page.count("aria-invalid") == 1 and re.search(r'name="since" [^>]*aria-invalid="true"', page)
    assert '<details class="more" open>' in page, "the field that is wrong is in sight"
    assert "Scanned" not in page and "matches" not in page
    assert (await person.client.get(f"{address}&format=csv")).status_code == 400
    assert (await person.client.get("/console/queues/gone/messages")).status_code == 404


async def test_a_list_without_queues_says_so(person: Person) -> None:
    assert "No queues yet." in await person.look("/console/queues?q=mail")


async def test_a_list_says_whether_nothing_matches(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    assert "No queues match the filter." in await person.look("/console/queues?q=mail")
    assert "No messages are in flight now." in await person.look("/console/queues/orders/messages?state=in_flight")
    assert "No messages match the filter." in await person.look("/console/queues/orders/messages?key=k")


async def test_an_old_secret_works_on_for_the_time_that_is_typed(person: Person) -> None:
    made = await person.api("POST", "/v1/keys", {"name": "ci", "scopes": ["view:*"]})
    bearer = {"Authorization": f"Bearer {made['key']}"}
    said = await person.act("rotate-key", "/console/keys", item=made["id"], grace_ms="soon")
    assert "a duration such as" in said
    rotated = await person.send("rotate-key", "/console/keys", item=made["id"], grace_ms="2h")
    assert rotated.status_code == 200
    assert (await person.client.get("/v1/queues", headers=bearer)).status_code == 200
    await person.send("rotate-key", "/console/keys", item=made["id"], grace_ms="0")
    assert (await person.client.get("/v1/queues", headers=bearer)).status_code == 401


async def test_times_say_that_they_are_in_utc(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    assert re.search(
        r"Created \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC by", await person.look("/console/queues/orders")
    )
    keys = await person.look("/console/keys")
    for label in ("Last used", "Expires"):
        assert re.search(rf">{label}</a> <small>UTC</small>\s*</th>", keys)
    assert not re.search(r">Name</a> <small>", keys)
    assert re.search(r"When <small>UTC</small>", await person.look("/console/audit"))


async def test_a_form_that_comes_after_its_session_is_shown_again_after_the_sign_in(person: Person) -> None:
    await person.api("PUT", "/v1/queues/orders", {})
    page = "/console/queues/orders/publish"
    cookies = dict(person.client.cookies)
    person.client.cookies.clear()
    typed = {
        "queue": "orders",
        "body": '{"a": "<b>"}',
        "as": "json",
        "key": "k & k",
        "back": page,
        "form_token": "0verdue",
    }
    asked = await person.client.post("/console/do/publish", data=typed)
    assert asked.status_code == 401 and "Your session expired" in asked.text and "0verdue" not in asked.text
    fields = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', asked.text)}
    assert fields["next"] == page
    wrong = await person.client.post("/console/login", data=fields | {"credential": "no"})
    assert wrong.status_code == 401 and f'name="held" value="{html.escape(fields["held"])}"' in wrong.text
    key = person.bearer["Authorization"].removeprefix("Bearer ")
    again = await person.client.post("/console/login", data=fields | {"credential": key})
    shown = html.unescape(again.text)
    assert f">\n{typed['body']}</textarea>" in shown and 'name="key" value="k & k"' in shown
    assert f'data-here="{page}"' in shown and "submit it again" in shown and dict(person.client.cookies) != cookies
    assert (await person.api("GET", "/v1/queues/orders"))["stats"]["ready"] == 0, "nothing was done"
    token = re.search(r'name="form_token" value="([^"]+)"', again.text)
    assert token is not None
    stale = await person.client.post("/console/do/publish", data=typed)
    assert stale.status_code == 403 and 'name="key" value="k & k"' in html.unescape(stale.text)
    assert (await person.client.post("/console/do/publish", data=typed | {"form_token": token[1]})).status_code == 303
    assert (await person.api("GET", "/v1/queues/orders"))["stats"]["ready"] == 1
