from __future__ import annotations

import msgspec
import pytest

from push.client.errors import (
    ApiError,
    Forbidden,
    NotFound,
    Problem,
    PublishManyFailed,
    TooLarge,
    Unauthenticated,
    Unavailable,
    api_error,
    is_stop,
    problem_of,
)
from push.client.model import Published


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unauthenticated", Unauthenticated),
        ("forbidden", Forbidden),
        ("queue-not-found", NotFound),
        ("not-found", NotFound),
        ("message-too-large", TooLarge),
        ("conflict", ApiError),
    ],
)
def test_a_problem_becomes_the_error_of_its_code(code: str, kind: type[ApiError]) -> None:
    error = api_error(Problem(code=code, status=499, detail="facts"))
    assert type(error) is kind and error.code == code and error.status == 499 and error.detail == "facts"


@pytest.mark.parametrize("code", ["rate-limited", "overloaded", "draining", "unavailable", "not-leader"])
def test_passing_refusals_say_that_trying_again_helps(code: str) -> None:
    assert api_error(Problem(code=code, retry_after_ms=1500)).retryable
    assert api_error(Problem(code=code, retry_after_ms=1500)).retry_after_s == 1.5


def test_a_refusal_for_good_does_not() -> None:
    assert not api_error(Problem(code="forbidden")).retryable


def test_the_servers_problem_is_read_from_the_body() -> None:
    body = msgspec.json.encode(
        {
            "code": "invalid-request",
            "status": 400,
            "detail": "d",
            "errors": [{"pointer": "/x", "detail": "y"}],
            "new": 1,
        }
    )
    problem = problem_of(body, 400, {})
    assert (problem.code, problem.errors[0].pointer) == ("invalid-request", "/x")


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (502, "unavailable"), (418, "invalid-request"), (500, "internal")]
)
def test_a_page_of_a_proxy_becomes_a_problem_too(status: int, code: str) -> None:
    problem = problem_of(b"<html>Bad gateway</html>", status, {"retry-after": "3"})
    assert (problem.code, problem.status, problem.retry_after_ms) == (code, status, 3000)


@pytest.mark.parametrize("after", ["²", "٣", "1e4", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 5000])
def test_a_wait_that_is_no_plain_number_of_seconds_is_none(after: str) -> None:
    assert problem_of(b"", 503, {"retry-after": after}).retry_after_ms is None


def test_close_codes_from_4500_mean_stop() -> None:
    assert [code for code in (1000, 1006, 4000, 4401, 4499, 4500, 4501, 4999, 5000) if is_stop(code)] == [
        4500, 4501, 4999,
    ]  # fmt: skip


def test_publish_many_failed_may_be_repeated_when_each_failure_may() -> None:
    stored, away, refused = Published("a", 1), Unavailable("away"), api_error(Problem(code="forbidden"))
    assert PublishManyFailed([stored, away]).retryable
    assert not PublishManyFailed([stored, away, refused]).retryable
