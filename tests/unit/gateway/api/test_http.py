"""Requests and answers: bodies have a limit that holds while they arrive, and every error is a problem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from backend_store.model import (
    FieldError,
    InvalidRequest,
    MessageTooLarge,
    Overloaded,
    PushqError,
    Unauthenticated,
    Unavailable,
)
from gateway.admission.request_bodies import RequestBodies
from gateway.api import http
from gateway.api.http import Call, ClientGone, decode, integer, problem_answer
from gateway.identity.authentication import NEVER_MS, Principal
from gateway.identity.authorization import compile_scopes
from push.intake import Intake

pytestmark = pytest.mark.anyio

SOMEBODY = Principal("k", "default", "k", compile_scopes(["admin"]), NEVER_MS, b"")


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    colour: str = ""


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    inner: list[Inner] = []


NOBODY_PAYS: Any = None


def call(*parts: bytes, headers: dict[bytes, bytes] | None = None, query: bytes = b"", end: bool = True) -> Call:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": p, "more_body": True} for p in parts]
    if end:
        messages[-1]["more_body"] = False
    else:
        messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    return Call(
        {"query_string": query}, receive, headers or {}, SOMEBODY, [], body_bytes_max=10, is_local=False,
        account=NOBODY_PAYS,
        held=RequestBodies(Intake(), "t", is_settling=False),
    )  # fmt: skip


@pytest.mark.parametrize("parts", [[b"0123456789"], [b"01234", b"56789"], [b"", b"0123456789", b""]])
async def test_a_body_up_to_the_limit_is_whole(parts: Sequence[bytes]) -> None:
    assert await call(*parts).body() == b"0123456789"


@pytest.mark.parametrize("parts", [[b"0123456789x"], [b"012345", b"678901"], [b"01234567890123", b""]])
async def test_a_longer_body_is_refused_as_soon_as_it_is_too_long(parts: Sequence[bytes]) -> None:
    with pytest.raises(MessageTooLarge):
        await call(*parts, end=False).body()


async def test_a_declared_length_is_refused_before_anything_is_asked_for() -> None:
    asked = call(b"0", b"1", headers={b"content-length": b"11"})

    async def never() -> Any:
        raise AssertionError("the body was asked for")

    asked.receive = never
    with pytest.raises(MessageTooLarge):
        await asked.body()


async def test_a_body_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_BODY_SECONDS_MAX", 0)
    slow = call(b"1", b"2")

    async def never() -> Any:
        await asyncio.Event().wait()

    first = await slow.receive()

    async def one_part_and_no_more() -> Any:
        slow.receive = never
        return first

    for receive in (one_part_and_no_more, never):
        slow.receive = receive
        with pytest.raises(InvalidRequest, match="did not arrive") as refused:
            await slow.body()
        assert ("Connection", "close") in refused.value.headers


async def test_a_body_that_does_not_come_within_the_time_of_its_request_is_not_waited_for() -> None:
    slow = call(b"1", b"2")

    async def never() -> Any:
        await asyncio.Event().wait()

    slow.receive = never
    slow.until = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(Unavailable, match="nothing was done") as refused:
        await asyncio.wait_for(slow.body(), 5)
    assert ("Connection", "close") in refused.value.headers


async def test_a_client_that_leaves_amid_its_body_is_no_error_of_anybody() -> None:
    with pytest.raises(ClientGone):
        await call(b"01", end=False).body()


async def test_compressed_bodies_are_refused_by_name() -> None:
    with pytest.raises(PushqError, match="gzip") as refused:
        await call(b"x", headers={b"content-encoding": b"gzip"}).body()
    assert refused.value.code == "unsupported-media-type"


@pytest.mark.parametrize(
    "content_type", [b"application/json", b"Application/JSON; charset=utf-8", b"application/x+json"]
)
async def test_json_is_taken_under_its_names(content_type: bytes) -> None:
    assert (await call(b"{}", headers={b"content-type": content_type}).fields(Body)).name == ""


async def test_a_form_is_not_json() -> None:
    with pytest.raises(PushqError) as refused:
        await call(b"{}", headers={b"content-type": b"application/x-www-form-urlencoded"}).fields(Body)
    assert refused.value.code == "unsupported-media-type"


async def test_no_body_is_an_object_without_fields() -> None:
    assert (await call(b"", headers={b"content-type": b"text/plain"}).fields(Body)) == Body()


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        (b'{"nme": 1}', "/nme", "did you mean 'name'?"),
        (b'{"inner": [{}, {"color": 1}]}', "/inner/1/color", "did you mean 'colour'?"),
        (b'{"colour": 1}', "/colour", "unknown field 'colour' here; it belongs inside `inner`"),
        (b'{"inner": [{"name": 1}]}', "/inner/0/name", "it belongs at the top level"),
        (b'{"name": 1}', "/name", "Expected `str`"),
        (b'[]', "", "Expected `object`"),
        (b'null', "", "Expected `object`"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_told_with_its_place(body: bytes, pointer: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(body, Body)
    (error,) = refused.value.errors
    assert error.pointer == pointer and says in error.detail


@pytest.mark.parametrize("body", [b"", b"{", b"{]", b'{"name": "\xff"}', b"\xff", b'{"x": ' + b"[" * 100_000, b"{} {}"])
def test_what_does_not_parse_is_told_so(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(body, Body)


def test_a_query_has_known_names_once() -> None:
    assert call(b"", query=b"limit=5&cursor=").query("limit", "cursor") == {"limit": "5", "cursor": ""}
    for wrong in (b"limt=5", b"limit=5&limit=6", b"limit=%ff", b"&".join(b"a%d=1" % n for n in range(200))):
        with pytest.raises(InvalidRequest):
            call(b"", query=wrong).query("limit")


def test_a_parameter_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="does not have peek by header yet"):
        call(b"", query=b"header.colour=red").query("limit", later={"header": "peek by header"})


@pytest.mark.parametrize("text", ["", "0", "101", "-1", "1.5", "x", "٣", "1" * 30])
def test_a_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        integer({"limit": text}, "limit", 1, low=1, high=100)


def test_a_problem_says_what_when_and_how() -> None:
    answer = problem_answer(Overloaded("full", retry_after_ms=1500), "abc")
    assert (answer.status, answer.content_type) == (503, b"application/problem+json")
    assert (b"retry-after", b"2") in answer.headers
    assert json.loads(answer.body) == {
        "type": "/docs/reference/errors#overloaded", "title": "Overloaded", "status": 503, "detail": "full",
        "code": "overloaded", "retry_after_ms": 1500, "trace_id": "abc",
    }  # fmt: skip


def test_a_refused_credential_names_the_scheme() -> None:
    assert (b"www-authenticate", b"Bearer") in problem_answer(Unauthenticated("who?")).headers


def test_a_problem_lists_every_field() -> None:
    errors = (FieldError("/a", "one"), FieldError("/b/0", "two"))
    assert json.loads(problem_answer(InvalidRequest("x", errors=errors)).body)["errors"] == [
        {"pointer": "/a", "detail": "one"},
        {"pointer": "/b/0", "detail": "two"},
    ]
