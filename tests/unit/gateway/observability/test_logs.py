"""Lines of the log: what is secret in them goes, all else stays."""

from __future__ import annotations

import pytest

from gateway.observability.logs import redacted

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("key pushq_0123456789abcdef_hunter2-hunter2 is wrong", "hunter2"),
        (f"bad token {JWT}", "c2lnbmF0dXJl"),
        (f"bad token {JWT}", "eyJzdWIiOiJhbm4ifQ"),
        ("authorization: Bearer hunter2", "hunter2"),
        ('{"authorization":"Basic aHVudGVyMg=="}', "aHVudGVyMg"),
        ("GET /v1/queues/q/events?credit=1&ticket=hunter2 HTTP/1.1", "hunter2"),
        ('{"ticket":"hunter2"}', "hunter2"),
        ("cannot connect to redis://user:hunter2@10.0.0.1:6379/0", "hunter2"),
    ],
)
def test_secret_is_taken_out(line: str, secret: str) -> None:
    assert secret in line and secret not in redacted(line)


def test_line_without_a_secret_stays_as_it_is() -> None:
    line = '{"event":"connection closed","connection":"0a1b","address":"10.0.0.1","queue":"orders","code":4008}'
    assert redacted(line) == line


def test_rest_of_the_line_stays() -> None:
    assert redacted("key pushq_abc_0123456789 is wrong") == "key pushq_abc_*** is wrong"
    assert redacted("redis://:pw@10.0.0.1/0 is away") == "redis://***@10.0.0.1/0 is away"
