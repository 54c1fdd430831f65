"""Alert rules that several people change: nobody's change is overwritten unseen, where that is asked for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gateway.app import Application
from tests.unit.gateway.conftest import Person

pytestmark = pytest.mark.anyio

BODY = {"name": "deep", "kind": "depth", "limit": 5}
STALE = (412, "precondition-failed", "alert rule 'deep' has been changed since you read it; read it again and retry")


async def made(person: Person) -> tuple[str, str]:
    """A rule's path and state."""
    answer = await person.client.post("/v1/alert-rules", json=BODY, headers=person.bearer)
    return f"/v1/alert-rules/{answer.json()['id']}", answer.headers["etag"]


async def put(person: Person, path: str, **headers: str) -> Any:
    return await person.client.put(path, json=BODY | {"limit": 6}, headers=person.bearer | headers)


async def test_the_state_of_a_rule_is_another_after_each_change_and_says_nothing_of_what_it_finds(
    app: Application, person: Person
) -> None:
    path, first = await made(person)
    assert (await person.client.get(path, headers=person.bearer)).headers["etag"] == first
    await person.api("PUT", "/v1/queues/orders", {})
    await person.api("POST", "/v1/queues/orders/messages", {"messages": [{"body": n} for n in range(9)]})
    await app.gateway.sampler.look()
    await app.gateway.watching.alerts.evaluate(app.gateway.clock_ms())
    found = await person.client.get(path, headers=person.bearer)
    assert found.json()["state"]["firing"] == 1 and found.headers["etag"] == first
    changed = await put(person, path)
    assert changed.headers["etag"] not in (first, "")
    assert (await person.client.get(path, headers=person.bearer)).headers["etag"] == changed.headers["etag"]


async def test_a_change_on_condition_passes_only_where_the_rule_is_as_it_was_read(person: Person) -> None:
    path, first = await made(person)
    changed = await put(person, path, **{"If-Match": first})
    assert changed.status_code == 200
    assert await person.refused("PUT", path, BODY, **{"If-Match": first}) == STALE
    assert await person.refused("DELETE", path, **{"If-Match": f'"x", {first}'}) == STALE
    assert (await person.api("GET", path))["limit"] == 6
    for tags in (f'"x", {changed.headers["etag"]}', "*"):
        again = await put(person, path, **{"If-Match": tags})
        assert again.status_code == 200
        changed = again
    gone = await person.client.delete(path, headers=person.bearer | {"If-Match": changed.headers["etag"]})
    assert gone.status_code == 204


async def test_what_a_condition_excludes_is_left_as_it_is(person: Person) -> None:
    path, first = await made(person)
    for tags in ("*", first, f"W/{first}"):
        for method in ("PUT", "DELETE"):
            status, code, detail = await person.refused(method, path, BODY, **{"If-None-Match": tags})
            assert (status, code) == (412, "precondition-failed") and "If-None-Match" in detail
    assert (await put(person, path, **{"If-None-Match": '"other"'})).status_code == 200


async def test_of_two_changes_at_once_one_passes(person: Person) -> None:
    path, first = await made(person)
    answers = await asyncio.gather(*(put(person, path, **{"If-Match": first}) for _ in range(2)))
    assert sorted(answer.status_code for answer in answers) == [200, 412]


async def test_the_form_of_a_rule_overwrites_nobodys_change(person: Person) -> None:
    path, _ = await made(person)
    form_page = f"/console/alerts/rules?edit={path.rpartition('/')[2]}"
    etag = re.search(r'name="etag" value="([^>]+)">', await person.look(form_page))
    assert etag is not None
    form = {"item": path.rpartition("/")[2], "name": "deep", "kind": "depth", "limit": "7", "etag": etag[1]}
    await put(person, path)
    assert "has been changed since you read it" in await person.act("change-rule", form_page, **form)
    assert "open its page again" in await person.act("change-rule", form_page, **form | {"etag": "*"})
    assert (await person.api("GET", path))["limit"] == 6


async def test_what_a_rule_does_not_find_is_told_where_it_is(person: Person) -> None:
    await made(person)
    for path, body in (("/v1/alert-rules/deep", None), ("/v1/alert-rules/deep/test", {})):
        method = "GET" if body is None else "POST"
        told = (
            404,
            "not-found",
            "unknown alert rule 'deep'; use a rule id from GET /v1/alert-rules",
        )
        assert await person.refused(method, path, body) == told
    for wrong, detail in (
        ({"kind": "backlog"}, "unknown kind 'backlog'; use one of depth, growth, oldest_age_ms, "),
        ({"kind": "deapth"}, "unknown kind 'deapth'; did you mean 'depth'?"),
        (
            {"receivers": ["ops"]},
            "unknown receiver 'ops'; use a receiver id from GET /v1/alert-receivers",
        ),
    ):
        status, code, said = await person.refused("POST", "/v1/alert-rules", BODY | wrong)
        assert (status, code) == (400, "invalid-request") and said.startswith(detail)
