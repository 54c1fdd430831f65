"""Errors as the caller sees them: stable codes, a sentence with the facts, a pointer to the fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from backend_store.model import FieldError, InvalidRequest, Overloaded, PushqError, QueueNotFound
from push.limits import FINDINGS_MAX
from push.problems import KINDS, invalid, nearest, problem, retry_after
from push.protocol import ClientFrame, Publish, Subscribe

CODES = {
    400: {"invalid-request"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"queue-not-found", "not-found"},
    405: {"method-not-allowed"},
    409: {"conflict", "stale-receipt", "request-in-progress"},
    412: {"precondition-failed"},
    413: {"message-too-large"},
    415: {"unsupported-media-type"},
    422: {"idempotency-mismatch"},
    428: {"precondition-required"},
    429: {"rate-limited", "too-many-connections"},
    500: {"internal"},
    503: {"not-leader", "unavailable", "overloaded", "draining", "not-durable"},
    504: {"outcome-unknown"},
    507: {"queue-full", "storage-full", "dedupe-full"},
}


def test_every_code_of_the_protocol_has_its_status() -> None:
    assert {status: {c for c, kind in KINDS.items() if kind.status == status} for status in CODES} == CODES
    assert sum(map(len, CODES.values())) == len(KINDS)


def test_an_answer_names_a_bounded_number_of_findings_and_says_how_many_more_there_were() -> None:
    errors = tuple(FieldError(f"/{number}", "wrong") for number in range(FINDINGS_MAX + 5))
    told = problem(InvalidRequest("/0: wrong", errors=errors))
    assert [each["pointer"] for each in told["errors"]] == [f"/{number}" for number in range(FINDINGS_MAX)]
    assert told["detail"] == "/0: wrong (5 more errors are not shown)"
    assert problem(InvalidRequest("/0: wrong", errors=errors[:FINDINGS_MAX]))["detail"] == "/0: wrong"


def test_every_error_of_ours_has_a_code_of_the_protocol() -> None:
    assert {kind.code for kind in PushqError.__subclasses__()} <= set(KINDS)


def test_a_problem_has_the_shape_of_rfc_9457() -> None:
    error = InvalidRequest("two faults", errors=(FieldError("/a", "one"), FieldError("/b", "two")))
    assert problem(error, trace_id="t") == {
        "type": "/docs/reference/errors#invalid-request",
        "title": "The request is not valid",
        "status": 400,
        "detail": "two faults",
        "code": "invalid-request",
        "errors": [{"pointer": "/a", "detail": "one"}, {"pointer": "/b", "detail": "two"}],
        "trace_id": "t",
    }
    assert set(problem(QueueNotFound("no"))) == {"type", "title", "status", "detail", "code"}


@pytest.mark.parametrize("code", sorted(KINDS))
def test_429_503_and_507_always_say_when_to_try_again(code: str) -> None:
    found = problem(PushqError("x", code=code))
    assert ("retry_after_ms" in found) == (KINDS[code].status in (429, 503, 507))
    assert retry_after(Overloaded("x", retry_after_ms=7)) == 7


def refused(data: Any, kind: Any, known: Mapping[str, str] = {}) -> InvalidRequest:
    with pytest.raises(msgspec.ValidationError) as fault:
        msgspec.json.decode(json.dumps(data), type=kind)
    return invalid(fault.value, known)


@pytest.mark.parametrize(
    ("frame", "kind", "pointer"),
    [
        ({"type": "publish", "queue": 1, "messages": []}, Publish, "/queue"),
        ({"type": "publish", "queue": "q", "messages": [{"body": 1, "key": 5}]}, Publish, "/messages/0/key"),
        ({"type": "publish", "queue": "q", "messages": [1]}, Publish, "/messages/0"),
        ({"type": "publish", "queue": "q", "messages": [{"body": 1, "bodi": 1}]}, Publish, "/messages/0/bodi"),
        ({"type": "subscribe", "queue": "q", "a/b~c": 1}, Subscribe, "/a~1b~0c"),
        ({"type": "subscribe"}, Subscribe, "/queue"),
        ({"type": "nope"}, ClientFrame, "/type"),
    ],
)
def test_the_pointer_leads_to_the_fault(frame: Any, kind: Any, pointer: str) -> None:
    error = refused(frame, kind)
    assert [found.pointer for found in error.errors] == [pointer]
    assert error.errors[0].detail in error.detail or error.detail


def test_an_unknown_field_is_named_with_the_nearest_known_one() -> None:
    error = refused({"type": "subscribe", "queue": "q", "credits": 1}, Subscribe, {"credit": "", "queue": ""})
    assert error.detail == "unknown field 'credits'; did you mean 'credit'?"


def test_a_field_in_the_wrong_place_is_told_where_it_belongs() -> None:
    known = {"messages": "", "body": "messages"}
    frame = {"type": "publish", "queue": "q", "messages": [{"body": 1}], "body": 2}
    assert refused(frame, Publish, known).detail == "unknown field 'body' here; it belongs inside `messages`"
    frame = {"type": "publish", "queue": "q", "messages": [{"body": 1, "messages": []}]}
    assert refused(frame, Publish, known).detail.endswith("'messages' here; it belongs at the top level")


def test_a_name_like_none_is_not_guessed_at() -> None:
    assert nearest("zzz", ["credit", "queue"]) == ""


def test_names_from_outside_are_shown_in_part_only() -> None:
    error = refused({"type": "subscribe", "queue": "q", "x" * 10_000: 1}, Subscribe)
    assert len(error.detail) < 400


def test_what_does_not_parse_says_so() -> None:
    with pytest.raises(msgspec.DecodeError) as fault:
        msgspec.json.decode(b"{")
    assert invalid(fault.value).detail.startswith("cannot parse the body")
    with pytest.raises(UnicodeDecodeError) as broken:
        b"ab\xff".decode()
    assert invalid(broken.value).detail == "the text is not UTF-8: byte 2 is 0xff"
