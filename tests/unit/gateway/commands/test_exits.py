"""Errors become sentences and exit codes at one place."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.model import FieldError as ServerFieldError
from backend_store.model import InvalidRequest
from gateway.commands.exits import EXIT_BY_CODE, MEANINGS, Exit, Failure, translate
from push.client import LeaseLost, Problem, Unavailable
from push.client.errors import RETRYABLE_CODES, FieldError, api_error
from push.problems import KINDS

REFUSED = Problem(
    title="The request is not valid",
    status=400,
    detail="2 mistakes",
    code="invalid-request",
    errors=(FieldError("/messages/0/key", "at most 256 bytes"), FieldError("", "too many")),
    trace_id="4bf92f",
)


def failure_of(error: Exception, key_origin: str | None = None) -> Failure:
    failure = translate(error, key_origin=key_origin)
    assert failure is not None
    return failure


def test_refusal_is_title_and_detail_then_pointers_code_and_trace() -> None:
    failure = failure_of(api_error(REFUSED))
    assert failure.message == "The request is not valid: 2 mistakes"
    assert failure.lines == ("/messages/0/key: at most 256 bytes", "/: too many", "code invalid-request, trace 4bf92f")
    assert failure.problem["errors"][0]["pointer"] == "/messages/0/key"
    assert failure.exit_code == Exit.FAILED


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "/proc/x: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
    ],
)
def test_what_the_system_refuses_names_the_file_and_no_number(error: OSError, told: str) -> None:
    assert failure_of(error).message == told


@pytest.mark.parametrize("detail", ["/messages/0/key: at most 256 bytes", "at most 256 bytes"])
def test_a_sentence_that_is_also_a_line_is_said_once(detail: str) -> None:
    failure = failure_of(api_error(msgspec.structs.replace(REFUSED, detail=detail)))
    assert failure.message == "The request is not valid"
    assert failure.lines[0] == "/messages/0/key: at most 256 bytes"
    counted = failure_of(api_error(msgspec.structs.replace(REFUSED, detail="1 of 1 refused: at most 256 bytes")))
    assert counted.message == "The request is not valid: 1 of 1 refused"
    refused = failure_of(InvalidRequest("no such kind", errors=(ServerFieldError("/kind", "no such kind"),)))
    assert (refused.message, refused.lines) == ("/kind: no such kind", ())


def test_each_kind_of_refusal_has_its_exit_code() -> None:
    expected = {
        "unauthenticated": 4,
        "forbidden": 4,
        "queue-not-found": 6,
        "not-found": 6,
        "draining": 5,
        "rate-limited": 5,
        "conflict": 1,
        "queue-full": 1,
        "internal": 1,
    }
    found = {code: failure_of(api_error(Problem(code=code, detail="x"))).exit_code for code in expected}
    assert found == expected


def test_codes_of_the_table_are_codes_of_the_protocol_and_retryable_ones_say_come_back() -> None:
    assert set(EXIT_BY_CODE) <= set(KINDS)
    assert {code for code in RETRYABLE_CODES if EXIT_BY_CODE.get(code) != Exit.UNAVAILABLE} == set()


def test_unknown_key_is_told_with_where_it_came_from() -> None:
    failure = failure_of(api_error(Problem(code="unauthenticated", detail="not known")), key_origin="PUSHQ_KEY")
    assert "the key came from PUSHQ_KEY" in failure.lines


def test_absent_server_ends_with_5_and_a_hint() -> None:
    failure = failure_of(Unavailable("no server at http://127.0.0.1:8080"))
    assert failure.exit_code == Exit.UNAVAILABLE
    assert "pushq serve" in failure.lines[0]


def test_busy_server_is_told_in_its_own_words_and_not_as_an_absent_one() -> None:
    problem = Problem(title="Overloaded", status=503, code="overloaded", detail="no room", retry_after_ms=12_345)
    failure = failure_of(Unavailable("the server accepts no new sessions now: no room", problem))
    assert failure.exit_code == Exit.UNAVAILABLE
    assert (failure.message, failure.lines) == ("Overloaded: no room", ("code overloaded", "retry in 12.4 s"))
    assert failure.problem["code"] == "overloaded"


def test_errors_of_our_own_packages_are_sentences() -> None:
    assert failure_of(LeaseLost("its lease had ended")).message == "its lease had ended"
    refused = failure_of(InvalidRequest("wrong", errors=(ServerFieldError("/kind", "no such kind"),)))
    assert refused.lines == ("/kind: no such kind",)
    assert failure_of(FileNotFoundError(2, "No such file", "x")).exit_code == Exit.FAILED


def test_our_own_mistakes_keep_their_traceback() -> None:
    assert translate(KeyError("mistake")) is None


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)
