"""Receivers and silences that several people change: nobody's change is overwritten unseen, where that is asked for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from gateway.app import Application
from tests.unit.gateway.conftest import Person

pytestmark = pytest.mark.anyio

BODY = {"name": "ops", "type": "log"}
STALE = (412, "precondition-failed", "receiver 'b' has been changed since you read it; read it again and retry")
SILENCE = {"queue": "orders*", "reason": "the month's end", "duration_ms": 3_600_000}


async def made(person: Person, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """Its path and state."""
    answer = await person.client.post(path, json=body, headers=person.bearer)
    assert answer.status_code == 201, answer.text
    return f"{path}/{answer.json()['id']}", answer.headers["etag"]


async def asked(person: Person, method: str, path: str, body: Any = None, **headers: str) -> Any:
    return await person.client.request(method, path, json=body, headers=person.bearer | headers)


async def test_a_receiver_changes_only_as_it_was_read(person: Person) -> None:
    path, first = await made(person, "/v1/alert-receivers", BODY)
    assert (await asked(person, "GET", path)).headers["etag"] == first
    changed = await asked(person, "PUT", path, BODY | {"name": "b"}, **{"If-Match": first})
    assert changed.status_code == 200 and changed.headers["etag"] not in (first, "")
    for method in ("PUT", "DELETE"):
        assert await person.refused(method, path, BODY, **{"If-Match": first}) == STALE
        excluded = await asked(person, method, path, BODY, **{"If-None-Match": "*"})
        assert excluded.status_code == 412
    assert (await person.api("GET", path))["name"] == "b"
    answers = await asyncio.gather(
        *(asked(person, "PUT", path, BODY, **{"If-Match": changed.headers["etag"]}) for _ in range(2))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412]
    last = (await asked(person, "GET", path)).headers["etag"]
    assert (await asked(person, "DELETE", path, **{"If-Match": last})).status_code == 204


async def test_a_secret_that_is_sealed_anew_is_no_change_of_a_receiver(app: Application, person: Person) -> None:
    path, first = await made(person, "/v1/alert-receivers", BODY)
    alerts = app.gateway.watching.alerts
    known = alerts.receivers[path.rpartition("/")[2]]
    await alerts.put_receiver(msgspec.structs.replace(known, master="another", sealed=b"anew"), known)
    assert (await asked(person, "GET", path)).headers["etag"] == first


async def test_the_form_of_a_receiver_overwrites_nobodys_change(person: Person) -> None:
    path, _ = await made(person, "/v1/alert-receivers", BODY)
    item = path.rpartition("/")[2]
    page = f"/console/alerts/receivers?edit={item}"
    etag = re.search(r'name="etag" value="([^>]+)">', await person.look(page))
    assert etag is not None
    form = {"item": item, "type": "log", "name": "c", "etag": etag[1]}
    await person.api("PUT", path, BODY | {"name": "b"})
    assert "has been changed since you read it" in await person.act("change-receiver", page, **form)
    assert (await person.api("GET", path))["name"] == "b"
    etag = re.search(r'name="etag" value="([^>]+)">', await person.look(page))
    assert etag is not None
    said = await person.act("change-receiver", page, **form | {"etag": etag[1]})
    assert said == "Receiver c updated; the secret is unchanged"
    assert (await person.api("GET", path))["name"] == "c"


async def test_a_silence_is_ended_only_as_it_was_read(person: Person, app: Application) -> None:
    path, first = await made(person, "/v1/silences", SILENCE)
    assert (await asked(person, "GET", path)).headers["etag"] == first
    told = await person.refused("DELETE", path, None, **{"If-Match": '"another"'})
    assert told == (
        412,
        "precondition-failed",
        "the silence has been changed since you read it; read it again and retry",
    )
    assert (await person.api("GET", path))["state"] == "active"
    assert (await asked(person, "DELETE", path, **{"If-Match": first})).status_code == 204
    ended = await asked(person, "GET", path)
    assert ended.json()["state"] == "expired" and ended.headers["etag"] != first
    assert (await asked(person, "DELETE", path, **{"If-Match": first})).status_code == 412


@pytest.mark.parametrize(
    ("kind", "field"),
    [("depth", "limit"), ("consumer_absence", "clear_at"), ("disk_used_percent", "limit"), ("key_days", "limit")],
)
async def test_a_limit_that_nothing_can_be_below_is_refused(person: Person, kind: str, field: str) -> None:
    body = {"name": "deep", "kind": kind, "limit": 5, field: -3}
    answer = await asked(person, "POST", "/v1/alert-rules", body)
    assert answer.status_code == 400
    assert {"pointer": f"/{field}", "detail": f"{field} must not be negative for {kind}, but is -3"} in answer.json()[
        "errors"
    ]


async def test_growth_may_have_a_limit_below_0_and_two_rules_one_name(person: Person) -> None:
    body = {"name": "deep", "kind": "growth", "limit": -3}
    paths = {(await made(person, "/v1/alert-rules", body))[0] for _ in range(2)}
    items = (await person.api("GET", "/v1/alert-rules"))["items"]
    assert {one["name"] for one in items} == {"deep"} and len(paths) == 2
